"""Assignors by name, and out of what a program gives. Pure."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeAlias

from raftmq.client.group.assignors.custom import CustomAssignor
from raftmq.client.group.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from raftmq.client.group.assignors.strategies import RangeAssignor, RoundRobinAssignor
from raftmq.errors import InvalidConfig
from raftmq.wire.bodies import NAME_CHARS_MAX
from raftmq.wire.messages.groups import PROTOCOLS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.group.assignors.assignor import Assignor
    from raftmq.client.group.assignors.custom import UserAssignor

    GivenAssignor: TypeAlias = str | UserAssignor

ASSIGNORS: dict[str, Assignor] = {
    assignor.name: assignor
    for assignor in (
        CooperativeStickyAssignor(),
        StickyAssignor(),
        RoundRobinAssignor(),
        RangeAssignor(),
    )
}


def assignors_of(given: GivenAssignor | Sequence[GivenAssignor]) -> tuple[Assignor, ...]:
    """One or several.

    Raises:
        InvalidConfig: all problems at once.
    """
    wished = list(given) if isinstance(given, list | tuple) else [given]
    found: list[Assignor] = []
    problems = []
    for each in wished:
        try:
            found.append(_assignor_of(each))
        except InvalidConfig as error:
            problems += error.problems
    names = [assignor.name for assignor in found]
    problems += [f"assignor {name!r}: given twice" for name in set(names) if names.count(name) > 1]
    if not 1 <= len(wished) <= PROTOCOLS_MAX:
        problems.append(f"assignor: expected 1 to {PROTOCOLS_MAX}, not {len(wished)}")
    if problems:
        raise InvalidConfig(problems)
    return tuple(found)


def _assignor_of(given: object) -> Assignor:
    if isinstance(given, str):
        if given in ASSIGNORS:
            return ASSIGNORS[given]
        close = get_close_matches(given, ASSIGNORS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"expected {', '.join(ASSIGNORS)}"
        raise InvalidConfig([f"assignor = {given!r}: {hint}"])
    name = getattr(given, "__name__", "")
    if not callable(given) or not 0 < len(name) <= NAME_CHARS_MAX or name == "<lambda>":
        problem = f"assignor = {given!r}: expected a name, or a function that has one"
        raise InvalidConfig([problem])
    if name in ASSIGNORS:
        raise InvalidConfig(
            [f"assignor {name!r}: that is one of ours; name the function otherwise"]
        )
    return CustomAssignor(given, name)
