"""Contracts of the code's structure: no import circles, small packages, one class to a name.

Each contract has a list of exceptions with their reasons. The list is exact: an exception that is
not needed any more is removed, so that it cannot come back. `python -m tests.structure` counts the
same things.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.public_paths import find, is_there, listed
from tests.structure import WIDE_PACKAGE_MODULES, Structure

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.gate  # the first of them parses the whole product

ALLOWED_CIRCLES: dict[frozenset[str], str] = {}

# How wide a package may be at most, and why it is not two.
WIDE_PACKAGES: dict[str, tuple[int, str]] = {
    "raftmq.partition.storage": (16, "one log: each module knows the files of the segments below"),
    "raftmq.wire.messages": (16, "one module for each family of requests"),
    "raftmq.broker.requests": (16, "one module for each family of requests, and what they share"),
    "raftmq.metadata.apply": (16, "one module for each family of commands, and what they share"),
}

# A blocking class has the name of the asynchronous one that does its work.
TWINS = {
    "Admin",
    "Client",
    "Consumer",
    "Delivery",
    "Member",
    "Processing",
    "Producer",
    "SharedTransaction",
    "SharedVersion",
    "Transaction",
    "TransactionSender",
}
BLOCKING = "raftmq.sync."

# Names with several classes today, and how many. None may be added.
AMBIGUOUS_CLASSES: dict[str, int] = {}

LOGGER = re.compile(r"getLogger\((.*?)\)")
AREA = re.compile(r'"((?:raftmq|spark_io)(?:\.\w+)?)"')


@pytest.fixture(scope="module")
def product() -> Structure:
    return Structure()


def no_offenders(rule: str, offenders: Iterable[str]) -> None:
    lines = sorted(offenders)
    assert not lines, f"{rule}:\n  " + "\n  ".join(lines)


def test_no_modules_import_each_other(product: Structure) -> None:
    """No module of a circle is understood without the others, even if only a type closes it."""
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
    """A search for a class by its name finds one definition."""
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
    """Operators filter the log by these names, so they must outlive the move of a module."""
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


def test_what_documents_import_is_listed() -> None:
    """A new public path is added on purpose: python -m tests.public_paths --add"""
    no_offenders("not in public_paths.txt", {*find()} - {*listed()})
