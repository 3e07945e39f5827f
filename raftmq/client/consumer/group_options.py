"""What a program may ask of a consumer that is a member of a group, checked. Pure.

Owns names and defaults of what goes beyond membership itself (`group/member_options.py`): which
topics, and when what was read counts as done.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypedDict

from raftmq.client.delivery import AT_LEAST_ONCE, AT_MOST_ONCE, with_delivery
from raftmq.client.group.member_options import MemberOptions
from raftmq.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from raftmq.client.delivery import Allowed
    from raftmq.client.group.assignors.registry import GivenAssignor
    from raftmq.client.group.effects import OnRebalance

COMMITS = ("batch", "record", "manual", "none", "before")
INTERVAL_MS_MAX = 3_600_000


@dataclass(frozen=True, kw_only=True)
class GroupReading:
    """Attributes:
    member: how it is a member.
    pattern: a regular expression that a topic's whole name matches, in place of names of topics.
    commit: when what was read counts as done, for whoever reads on after this member:
        "batch": once more is asked for, be it the next batch or, one by one, the next record;
            written down in the background.
        "record": the same for each record, and written down before the next one is handed out.
        "before": written down before records are handed out, so that none comes twice.
        "manual": when the program calls `commit`. "none": never.
        `delivery="at_most_once"` is another word for "before", and "at_least_once" for "batch".
    commit_interval_ms: with "batch", the pause between two commits.
    on_rebalance: called with each `Rebalance`; while it runs, what is revoked is not given to
        anybody else yet.
    """

    member: MemberOptions
    pattern: str | None = None
    commit: str = "batch"
    commit_interval_ms: int = 100
    on_rebalance: OnRebalance | None = None

    def __post_init__(self) -> None:
        problems = _bad_pattern(self.pattern)
        if self.commit not in COMMITS:
            choices = ", ".join(f'"{name}"' for name in COMMITS)
            problems.append(f"commit = {self.commit!r}: expected {choices}")
        interval = self.commit_interval_ms
        if not isinstance(interval, int) or not 0 <= interval <= INTERVAL_MS_MAX:
            what = f"expected a whole number up to {INTERVAL_MS_MAX}"
            problems.append(f"commit_interval_ms = {interval!r}: {what}")
        if self.on_rebalance is not None and not callable(self.on_rebalance):
            problems.append(f"on_rebalance = {self.on_rebalance!r}: expected a function")
        if problems:
            raise InvalidConfig(problems)

    @property
    def commits_by_itself(self) -> bool:
        return self.commit not in ("manual", "none")


class GroupArguments(TypedDict, total=False):
    """The same as arguments of a call, for editors and type checkers."""

    group: str | None
    pattern: str | None
    commit: str
    commit_interval_ms: int
    on_rebalance: OnRebalance | None
    delivery: str
    assignor: GivenAssignor | Sequence[GivenAssignor]
    group_instance_id: str | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    rebalance_timeout_ms: int | None
    user_data: bytes


ARGUMENTS = tuple(GroupArguments.__annotations__)
_ALLOWED: Allowed = {
    AT_MOST_ONCE: {"commit": ("before",)},
    AT_LEAST_ONCE: {"commit": ("batch", "record", "manual")},
}
_OF_MEMBER = tuple(field.name for field in fields(MemberOptions))


def group_reading(given: Mapping[str, Any]) -> GroupReading | None:
    """From those arguments of a call that need a group; None: no group was asked for.

    Raises:
        InvalidConfig: all bad values at once.
    """
    if given.get("group") is None:
        alone = [name for name in given if name != "group"]
        if alone:
            raise InvalidConfig([f'{name}: needs a group, as in group="billing"' for name in alone])
        return None
    given = with_delivery(given, _ALLOWED)
    problems: list[str] = []
    member, reading = None, None
    try:
        member = MemberOptions(**{name: given[name] for name in given if name in _OF_MEMBER})
    except InvalidConfig as error:
        problems += error.problems
    try:
        rest = {name: given[name] for name in given if name not in _OF_MEMBER}
        reading = GroupReading(member=member or MemberOptions(group="checked"), **rest)
    except InvalidConfig as error:
        problems += error.problems
    if problems:
        raise InvalidConfig(problems)
    return reading


def _bad_pattern(pattern: object) -> list[str]:
    if pattern is None:
        return []
    if not isinstance(pattern, str) or not pattern:
        return [f"pattern = {pattern!r}: expected a regular expression, such as 'orders-.*'"]
    try:
        re.compile(pattern)
    except re.error as error:
        return [f"pattern = {pattern!r}: no regular expression: {error}"]
    return []
