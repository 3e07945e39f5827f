"""Options of group membership: session, heartbeat, poll and rebalance timeouts, assignor. Pure.

Kafka's names where the meaning is Kafka's. Times are in milliseconds here and in seconds for the
rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raftmq.client.group.assignors.registry import assignors_of
from raftmq.errors import InvalidConfig
from raftmq.model import GROUP_CHARS_MAX
from raftmq.wire.bodies import ID_MAX, NAME_CHARS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.group.assignors.assignor import Assignor
    from raftmq.client.group.assignors.registry import GivenAssignor
    from raftmq.tag_filter import TagFilter

USER_DATA_BYTES_MAX = 16 << 10  # the leader gets that of all members in one answer
_TIMES = (
    "session_timeout_ms",
    "heartbeat_interval_ms",
    "max_poll_interval_ms",
    "rebalance_timeout_ms",
)


@dataclass(frozen=True, kw_only=True)
class MemberOptions:
    """Options of one member of a group.

    Attributes:
        group: its name. A group that begins, or begins again after all have left, waits for
            more members before the first record comes: `groups.initial_rebalance_delay_ms` of the
            cluster, 3 s unless it is configured otherwise.
        assignor: by name, or a function of the program's own; or several in order of preference, of
            which the group takes one that all its members know.
        group_instance_id: of a static member, which may restart within its session and keep its
            partitions. No two members of a group may run with the same.
        session_timeout_ms: a member that is silent for so long loses its partitions.
        heartbeat_interval_ms: between two heartbeats; they go on while the program works.
        max_poll_interval_ms: the longest time between two calls that ask for records; then the
            member leaves.
        rebalance_timeout_ms: how long the group waits for a member to finish its records; None:
            `max_poll_interval_ms`. A member learns of a rebalance with a heartbeat, so two of them
            have to fit in.
        user_data: for an assignor of the program's own.
        rack: where it runs.
        tag_filter: of the consumer, by which all members of the group read; None: all records.
    """

    group: str
    assignor: GivenAssignor | Sequence[GivenAssignor] = "cooperative_sticky"
    group_instance_id: str | None = None
    session_timeout_ms: int = 15_000  # five heartbeats: a few lost ones do not cause a rebalance
    heartbeat_interval_ms: int = 3_000  # Kafka's default; how soon a member learns of a rebalance
    max_poll_interval_ms: int = 300_000  # Kafka's default
    rebalance_timeout_ms: int | None = None
    user_data: bytes = b""
    rack: str = ""
    tag_filter: TagFilter | None = None

    def __post_init__(self) -> None:
        """Raises InvalidConfig: all problems at once."""
        problems = [*_bad_names(self), *_bad_times(self)]
        try:
            assignors_of(self.assignor)
        except InvalidConfig as error:
            problems += error.problems
        problems += _bad_user_data(self.user_data)
        if problems:
            raise InvalidConfig(problems)

    @property
    def assignors(self) -> tuple[Assignor, ...]:
        return assignors_of(self.assignor)

    @property
    def is_cooperative(self) -> bool:
        """Whether it keeps its partitions during a rebalance, which every assignor must allow, as
        any may be agreed on.
        """
        return all(assignor.is_cooperative for assignor in self.assignors)

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def longest_rebalance_ms(self) -> int:
        given = self.rebalance_timeout_ms
        return self.max_poll_interval_ms if given is None else given

    @property
    def session_seconds(self) -> float:
        return self.session_timeout_ms / 1000

    @property
    def heartbeat_seconds(self) -> float:
        return self.heartbeat_interval_ms / 1000

    @property
    def poll_seconds_max(self) -> float:
        return self.max_poll_interval_ms / 1000

    @property
    def rebalance_seconds(self) -> float:
        return self.longest_rebalance_ms / 1000


def _bad_names(options: MemberOptions) -> list[str]:
    named: tuple[tuple[str, object, int, int], ...] = (
        ("group", options.group, 1, GROUP_CHARS_MAX),
        ("group_instance_id", options.group_instance_id, 1, NAME_CHARS_MAX),
        ("rack", options.rack, 0, NAME_CHARS_MAX),
    )
    return [
        f"{name} = {value!r}: expected a text of {low} to {high} characters"
        for name, value, low, high in named
        if not (isinstance(value, str) and low <= len(value) <= high)
        and not (name == "group_instance_id" and value is None)
    ]


def _bad_user_data(given: object) -> list[str]:
    if not isinstance(given, bytes):
        return [f'user_data: expected bytes, such as b"rack 1", got {type(given).__name__}']
    if len(given) > USER_DATA_BYTES_MAX:
        return [f"user_data of {len(given)} bytes: expected at most {USER_DATA_BYTES_MAX}"]
    return []


def _bad_times(options: MemberOptions) -> list[str]:
    problems = [
        f"{name} = {value!r}: expected a whole number of milliseconds from 1 to {ID_MAX}"
        for name in _TIMES
        if not _is_time(value := getattr(options, name))
        and not (name == "rebalance_timeout_ms" and value is None)
    ]
    return problems or _contradictions(options)


def _contradictions(options: MemberOptions) -> list[str]:
    """A member that learns of a rebalance too late has lost its partitions, each time."""
    problems, heartbeat_ms = [], options.heartbeat_interval_ms
    if heartbeat_ms * 2 > options.session_timeout_ms:
        problems.append(
            f"heartbeat_interval_ms = {heartbeat_ms}: expected at most half of "
            f"session_timeout_ms = {options.session_timeout_ms}, a third is good"
        )
    if heartbeat_ms * 2 > options.longest_rebalance_ms:
        is_given = options.rebalance_timeout_ms is not None
        name = "rebalance_timeout_ms" if is_given else "max_poll_interval_ms"
        way_out = "" if is_given else f", or rebalance_timeout_ms = {2 * heartbeat_ms} beside it"
        problems.append(
            f"{name} = {options.longest_rebalance_ms}: expected at least {2 * heartbeat_ms}, twice "
            f"heartbeat_interval_ms = {heartbeat_ms}, with which a member hears that the group "
            f"waits for it; take a longer one, a shorter heartbeat_interval_ms{way_out}"
        )
    return problems


def _is_time(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= ID_MAX
