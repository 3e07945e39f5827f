"""The contracts of the code's structure: no circles, small packages, one meaning for each name.

Each has a list of what is allowed nevertheless, and why. A list is exact: what is in order again is
taken out of it, so that it stays so. `python -m tests.structure` counts the same things.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.public_paths import find, is_there, listed
from tests.structure import WIDE_PACKAGE_MODULES, Structure

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.gate  # whichever is first parses the whole product

ALLOWED_CIRCLES: dict[frozenset[str], str] = {
    frozenset(
        f"raftmq.partition.storage.{name}" for name in ("log", "reader", "rot", "work")
    ): "parts of one log, which name it in types only",
    frozenset(
        f"raftmq.client.producer.{name}" for name in ("accumulator", "columns")
    ): "a queue of columns names the topic that it waits for in types only",
    frozenset(
        f"raftmq.metadata.raft.{name}" for name in ("guard", "node")
    ): "a guard names the node that it guards in types only",
}

# How wide a package may be at most, and why it is not two.
WIDE_PACKAGES: dict[str, tuple[int, str]] = {
    "raftmq.broker": (30, "not divided yet: requests, copying and the lifetime of a node"),
    "raftmq.cli": (19, "one module for each command, and what all commands share"),
    "raftmq.client.producer": (
        20,
        "not divided yet: what programs see, batches, and how they are sent",
    ),
    "raftmq.metadata.raft": (29, "not divided yet: engine, journal, snapshots and connections"),
    "raftmq.partition.storage": (
        17,
        "not divided yet: logs, their files, and what watches over them",
    ),
    "raftmq.wire": (16, "not divided yet: batches, and the frames of messages"),
    "spark_io": (18, "not divided yet: options, source and sink"),
}

# Of a blocking class and the asynchronous one that does its work: who knows one knows the other.
TWINS = {
    "Admin",
    "Client",
    "Consumer",
    "Delivery",
    "GroupCalls",
    "Processing",
    "Producer",
}
BLOCKING = "raftmq.sync."

# What means two things by now, until one of them has got a name of its own. Nothing is added here.
AMBIGUOUS_CLASSES = {
    "Answer",
    "Ask",
    "Asked",
    "Attempt",
    "Awaited",
    "Batch",
    "BatchHeader",
    "Bounds",
    "Broker",
    "Call",
    "Cause",
    "Change",
    "Changes",
    "Channel",
    "Claim",
    "Columns",
    "Connection",
    "Coordinator",
    "CreatePartitions",
    "DamagedReplica",
    "Delivery",
    "Dialling",
    "Elections",
    "Endpoint",
    "Entry",
    "ExitCode",
    "Fences",
    "Fetch",
    "Fetched",
    "Finding",
    "Found",
    "FrameReader",
    "GroupCommits",
    "GroupMember",
    "Heartbeat",
    "Hello",
    "Host",
    "Hosting",
    "Identity",
    "Limits",
    "Link",
    "Look",
    "Member",
    "Membership",
    "Network",
    "OffsetCommit",
    "Offsets",
    "Order",
    "Origin",
    "Outbox",
    "Outcome",
    "Part",
    "PartitionState",
    "Pauses",
    "Peer",
    "Peers",
    "Picture",
    "Place",
    "Plan",
    "Producer",
    "ProducerIds",
    "Proposals",
    "Propose",
    "Proposer",
    "Reading",
    "Rebalance",
    "Repeats",
    "Replica",
    "Room",
    "Run",
    "Seen",
    "Segment",
    "Server",
    "Session",
    "Shape",
    "Silence",
    "StartOver",
    "Step",
    "Surroundings",
    "Target",
    "TcpNetwork",
    "TcpStream",
    "Telling",
    "Tenure",
    "Topics",
    "Trim",
    "Verdict",
    "Waiting",
    "Wanted",
    "Window",
    "Wish",
    "WrongClock",
}

LOGGER = re.compile(r"getLogger\((.*?)\)")
AREA = re.compile(r'"((?:raftmq|spark_io)(?:\.\w+)?)"')


@pytest.fixture(scope="module")
def product() -> Structure:
    return Structure()


def agree(rule: str, found: Iterable[object], gone: Iterable[object]) -> None:
    offenders = [f"new: {one}" for one in found] + [f"gone, take it out: {one}" for one in gone]
    assert not offenders, f"{rule}:\n  " + "\n  ".join(offenders)


def test_no_modules_import_each_other(product: Structure) -> None:
    """Whoever reads one of a circle has to read them all; types and functions make circles, too."""
    found = {" ".join(sorted(circle)) for circle in product.circles}
    allowed = {" ".join(sorted(circle)) for circle in ALLOWED_CIRCLES}
    agree("import circles", sorted(found - allowed), sorted(allowed - found))


def test_packages_are_small_enough_to_be_known(product: Structure) -> None:
    """More modules than one remembers are two packages."""
    found = [
        f"{name}: {width} modules"
        for name, width in product.wide_packages.items()
        if width > WIDE_PACKAGES.get(name, (WIDE_PACKAGE_MODULES, ""))[0]
    ]
    agree(
        f"packages of more than {WIDE_PACKAGE_MODULES} modules",
        sorted(found),
        sorted(WIDE_PACKAGES.keys() - product.wide_packages.keys()),
    )


def test_a_public_class_has_a_name_of_its_own(product: Structure) -> None:
    """What is searched for by its name is found once."""
    found = {
        name: [home for home in homes if not (name in TWINS and home.startswith(BLOCKING))]
        for name, homes in product.public_classes.items()
    }
    ambiguous = {name for name, homes in found.items() if len(homes) > 1}
    agree(
        "public classes of one name",
        [f"{name}: {sorted(found[name])}" for name in sorted(ambiguous - AMBIGUOUS_CLASSES)],
        sorted(AMBIGUOUS_CLASSES - ambiguous),
    )


def test_twins_are_two(product: Structure) -> None:
    """One of them is blocking, and one is not."""
    homes = {name: product.public_classes.get(name, set()) for name in TWINS}
    blocking = {
        name: {home for home in found if home.startswith(BLOCKING)} for name, found in homes.items()
    }
    agree("twins", [], sorted(name for name in TWINS if not set() < blocking[name] < homes[name]))


def test_loggers_are_named_by_area(product: Structure) -> None:
    """Filters of operators name them: they outlive the move of a module."""
    wrong = [
        f"{module.name}: {given}"
        for module in product.modules.values()
        for given in LOGGER.findall(module.file.read_text("utf-8"))
        if not is_area_of(given, module.name)
    ]
    agree("not an area that the module is in", wrong, [])


def is_area_of(given: str, module: str) -> bool:
    literal = AREA.fullmatch(given)
    return literal is not None and f"{module}.".startswith(f"{literal[1]}.")


def test_every_public_path_is_there() -> None:
    """Code may move; the places that programs import from stay."""
    missing = [path for path in listed() if not is_there(path)]
    agree("in public_paths.txt", [], missing)


def test_what_people_are_told_to_import_is_listed() -> None:
    """A new promise is made knowingly: python -m tests.public_paths --add"""
    agree("not in public_paths.txt", sorted({*find()} - {*listed()}), [])
