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

# How many things a name means by now, until all but one have got names of their own. None is added.
AMBIGUOUS_CLASSES = {
    "Answer": 3,
    "Ask": 2,
    "Asked": 2,
    "Attempt": 2,
    "Awaited": 2,
    "Batch": 3,
    "BatchHeader": 2,
    "Bounds": 3,
    "Broker": 2,
    "Call": 2,
    "Cause": 2,
    "Change": 2,
    "Changes": 2,
    "Channel": 2,
    "Claim": 2,
    "Columns": 2,
    "Connection": 2,
    "Coordinator": 3,
    "CreatePartitions": 2,
    "DamagedReplica": 2,
    "Delivery": 2,
    "Dialling": 2,
    "Elections": 2,
    "Endpoint": 3,
    "Entry": 4,
    "ExitCode": 2,
    "Fences": 2,
    "Fetch": 3,
    "Fetched": 2,
    "Finding": 2,
    "Found": 2,
    "FrameReader": 3,
    "GroupCommits": 2,
    "GroupMember": 2,
    "Heartbeat": 2,
    "Hello": 2,
    "Host": 3,
    "Hosting": 3,
    "Identity": 3,
    "Limits": 4,
    "Link": 4,
    "Look": 3,
    "Member": 2,
    "Membership": 2,
    "Network": 3,
    "OffsetCommit": 2,
    "Offsets": 2,
    "Order": 2,
    "Origin": 2,
    "Outbox": 2,
    "Outcome": 4,
    "Part": 2,
    "PartitionState": 2,
    "Pauses": 2,
    "Peer": 3,
    "Peers": 2,
    "Picture": 2,
    "Place": 2,
    "Plan": 4,
    "Producer": 2,
    "ProducerIds": 3,
    "Proposals": 2,
    "Propose": 2,
    "Proposer": 2,
    "Reading": 2,
    "Rebalance": 2,
    "Repeats": 2,
    "Replica": 2,
    "Room": 2,
    "Run": 8,
    "Seen": 2,
    "Segment": 2,
    "Server": 2,
    "Session": 3,
    "Shape": 2,
    "Silence": 2,
    "StartOver": 2,
    "Step": 4,
    "Surroundings": 2,
    "Target": 2,
    "TcpNetwork": 2,
    "TcpStream": 2,
    "Telling": 2,
    "Tenure": 2,
    "Topics": 2,
    "Trim": 2,
    "Verdict": 4,
    "Waiting": 3,
    "Wanted": 4,
    "Window": 2,
    "Wish": 2,
    "WrongClock": 3,
}

LOGGER = re.compile(r"getLogger\((.*?)\)")
AREA = re.compile(r'"((?:raftmq|spark_io)(?:\.\w+)?)"')


@pytest.fixture(scope="module")
def product() -> Structure:
    return Structure()


def no_offenders(rule: str, offenders: Iterable[str]) -> None:
    lines = sorted(offenders)
    assert not lines, f"{rule}:\n  " + "\n  ".join(lines)


def test_no_modules_import_each_other(product: Structure) -> None:
    """Whoever reads one of a circle has to read them all; types and functions make circles, too."""
    found = {" ".join(sorted(circle)) for circle in product.circles}
    allowed = {" ".join(sorted(circle)) for circle in ALLOWED_CIRCLES}
    no_offenders("import circles", found - allowed)
    no_offenders("ALLOWED_CIRCLES that are gone: take them out", allowed - found)


def test_packages_are_small_enough_to_be_known(product: Structure) -> None:
    """More modules than one remembers are two packages."""
    found = [
        f"{name}: {width}"
        for name, width in product.wide_packages.items()
        if width > WIDE_PACKAGES.get(name, (WIDE_PACKAGE_MODULES, ""))[0]
    ]
    no_offenders("packages of too many modules", found)
    gone = WIDE_PACKAGES.keys() - product.wide_packages.keys()
    no_offenders("WIDE_PACKAGES that are small now: take them out", gone)


def test_a_public_class_has_a_name_of_its_own(product: Structure) -> None:
    """What is searched for by its name is found once."""
    homes = {
        name: [home for home in found if not (name in TWINS and home.startswith(BLOCKING))]
        for name, found in product.public_classes.items()
    }
    found = [
        f"{name}: {' '.join(sorted(found))}"
        for name, found in homes.items()
        if len(found) > AMBIGUOUS_CLASSES.get(name, 1)
    ]
    no_offenders("public classes of one name", found)
    fewer = [
        f"{name}: {len(homes.get(name, []))}"
        for name, count in AMBIGUOUS_CLASSES.items()
        if len(homes.get(name, [])) < count
    ]
    no_offenders("AMBIGUOUS_CLASSES that mean less now: change the number, or take them out", fewer)


def test_twins_are_two(product: Structure) -> None:
    """One of them is blocking, and one is not."""
    single = [
        name
        for name in TWINS
        if len({home.startswith(BLOCKING) for home in product.public_classes.get(name, ())}) < 2
    ]
    no_offenders("TWINS that are not: take them out", single)


def test_loggers_are_named_by_area(product: Structure) -> None:
    """Filters of operators name them: they outlive the move of a module."""
    wrong = [
        f"{module.name}: {given}"
        for module in product.modules.values()
        for given in LOGGER.findall(module.file.read_text("utf-8"))
        if not is_area_of(given, module.name)
    ]
    no_offenders("not an area that the module is in", wrong)


def is_area_of(given: str, module: str) -> bool:
    literal = AREA.fullmatch(given)
    return literal is not None and f"{module}.".startswith(f"{literal[1]}.")


def test_every_public_path_is_there() -> None:
    """Code may move; the places that programs import from stay."""
    missing = [path for path in listed() if not is_there(path)]
    no_offenders("in public_paths.txt, and not there", missing)


def test_what_people_are_told_to_import_is_listed() -> None:
    """A new promise is made knowingly: python -m tests.public_paths --add"""
    no_offenders("not in public_paths.txt", {*find()} - {*listed()})
