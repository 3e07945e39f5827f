"""A program's own function as an assignor. Pure, if the function is.

Its members give everything up before it deals anew. What it answers is checked here, as nobody else
would notice a partition that nobody reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from raftmq.client.group.assignors.assignor import problems_of
from raftmq.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.group.assignors.assignor import Key, Plan, Subscribed


class UserAssignor(Protocol):
    """Any function with these parameters, given by position. It runs at one member, and may run at
    any; the members know it by its `__name__`.
    """

    def __call__(
        self, partitions: Mapping[str, int], members: Sequence[Subscribed], /
    ) -> Mapping[str, Sequence[Key]]: ...


Answered: TypeAlias = Any  # whatever a program's function returns


class CustomAssignor:
    is_cooperative = False

    def __init__(self, function: UserAssignor, name: str) -> None:
        self._function, self.name = function, name

    def assign(self, partitions: Mapping[str, int], members: Sequence[Subscribed]) -> Plan:
        """Raises InvalidConfig: it has failed, or what it answered is no plan."""
        try:
            answered = self._function(dict(partitions), list(members))
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
