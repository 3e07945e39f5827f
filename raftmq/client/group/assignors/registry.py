"""Assignors by name, and a program's own function as an assignor. Pure.

Owns the names of the option `assignor`, and the check of what a program's function returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from raftmq.client.group.assignors.assignor import problems_of
from raftmq.client.group.assignors.range_and_round_robin import RangeAssignor, RoundRobinAssignor
from raftmq.client.group.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from raftmq.errors import InvalidConfig
from raftmq.wire.bodies import NAME_CHARS_MAX
from raftmq.wire.messages.groups import PROTOCOLS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.group.assignors.assignor import Assignor, Key, Plan, Subscribed


# -- Custom assignor ------------------------------------------------------------------------------
# A program's own function as an assignor. Pure, if the function is.
#
# Its members give everything up before a rebalance. Its answer is checked here, as a partition that
# no member reads would go unnoticed.


class UserAssignor(Protocol):
    """Any function with these parameters, given by position. It runs at one member, and may run at
    any; the members know it by its `__name__`.
    """

    def __call__(
        self, partitions: Mapping[str, int], members: Sequence[Subscribed], /
    ) -> Mapping[str, Sequence[Key]]: ...


if TYPE_CHECKING:
    GivenAssignor: TypeAlias = str | UserAssignor

Answered: TypeAlias = Any  # any result of a program's function


class CustomAssignor:
    """A program's function, with the check of its plan."""

    is_cooperative = False

    def __init__(self, function: UserAssignor, name: str) -> None:
        self._function, self.name = function, name

    def assign(self, partitions: Mapping[str, int], members: Sequence[Subscribed]) -> Plan:
        """Raises InvalidConfig: the function has failed, or its answer is no plan."""
        try:
            answered = self._function(dict(partitions), list(members))
        # The program's function may raise anything; the group must learn which assignor failed.
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise InvalidConfig([f"assignor {self.name!r} has failed: {what}"]) from error
        plan = self._plan_in(answered)
        if problems := problems_of(plan, partitions, members):
            raise InvalidConfig([f"assignor {self.name!r}: {each}" for each in problems])
        return plan

    def _plan_in(self, answered: Answered) -> Plan:
        if not isinstance(answered, Mapping):
            self._refuse(f"expected parts by member id, not {type(answered).__name__}")
        plan: dict[str, list[Key]] = {}
        for member_id, part in answered.items():
            if not isinstance(part, list | tuple | set | frozenset):
                self._refuse(f"part of {member_id!r}: expected a list, not {type(part).__name__}")
            if bad := [key for key in part if not _is_key(key)]:
                self._refuse(f"part of {member_id!r}: {bad[0]!r} is no pair of topic and number")
            plan[member_id] = [(topic, number) for topic, number in part]
        return plan

    def _refuse(self, problem: str) -> None:
        raise InvalidConfig([f"assignor {self.name!r}: {problem}"])


def _is_key(given: object) -> bool:
    match given:
        case (str(), int() as number):
            return not isinstance(number, bool)
    return False


# -- Registry -------------------------------------------------------------------------------------


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
    """The assignors of the option `assignor`, one or several.

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
    # Members agree on an assignor by its name, and all lambdas have the same one.
    if not callable(given) or not 0 < len(name) <= NAME_CHARS_MAX or name == "<lambda>":
        problem = f"assignor = {given!r}: expected a name, or a function that has one"
        raise InvalidConfig([problem])
    # Members that mean the built-in one would agree on it by that name.
    if name in ASSIGNORS:
        raise InvalidConfig(
            [f"assignor {name!r}: that is one of ours; name the function otherwise"]
        )
    return CustomAssignor(given, name)
