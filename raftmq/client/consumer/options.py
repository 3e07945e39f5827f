"""Consumer options: names, defaults, bounds, commit modes, `delivery`. Checked. Pure.

Kafka's names where the meaning is Kafka's. Options of group membership itself are in
`group/member_options.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict

from raftmq.client.consumer.partition_state import FROM_EARLIEST, FROM_LATEST, start_of
from raftmq.client.consumer.record import Deserializers
from raftmq.client.dead_letters.letters import own_letters_problem, retry_topic
from raftmq.client.group.member_options import MemberOptions
from raftmq.client.options import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    EXACTLY_ONCE,
    ISOLATIONS,
    bad_choice,
    bad_function,
    check_options,
    contradiction,
    with_delivery,
)
from raftmq.client.processing.retry_policy import RetryPolicy
from raftmq.client.type_parameters import KeyT_co, ValueT_co
from raftmq.errors import InvalidConfig
from raftmq.tag_filter import TagExpressionError, tag_filter
from raftmq.topic_config import TOPIC_NAME_CHARS, topic_name_problem
from raftmq.wire.bodies import ID_MAX
from raftmq.words import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from raftmq.client.consumer.partition_state import GivenStart, Key, Start
    from raftmq.client.consumer.record import Deserializer
    from raftmq.client.group.assignors.registry import GivenAssignor
    from raftmq.client.group.effects import OnRebalance
    from raftmq.client.options import Allowed
    from raftmq.model import IsolationLevel
    from raftmq.tag_filter import TagFilter


# -- Group options --------------------------------------------------------------------------------
# Options of a consumer that is a member of a group, beyond membership itself
# (`group/member_options.py`): which topics, and when records count as done. Pure.


# The values of `commit`, the default first; GroupReading explains them.
COMMITS = ("batch", "record", "manual", "none", "before", "transaction")
BY_TRANSACTION = "transaction"
INTERVAL_MS_MAX = 3_600_000  # an hour: a longer pause between commits is most likely a wrong unit


@dataclass(frozen=True, kw_only=True)
class GroupReading:
    """How a member of a group reads.

    Attributes:
        member: the options of membership itself.
        pattern: a regular expression that a topic's whole name matches, in place of topic names.
        commit: when records count as done, which the next member to read the partition relies on:
            "batch": once more is asked for, be it the next batch or, one by one, the next record;
                committed in the background.
            "record": the same for each record, and committed before the next one is handed out.
            "before": committed before records are handed out, so that none comes twice.
            "manual": when the program calls `commit`. "none": never.
            "transaction": with the transaction of a producer, `tx.commit_offsets`, and only so.
            `delivery="at_most_once"` sets "before", "at_least_once" sets "batch", and
            "exactly_once" sets "transaction".
        commit_interval_ms: with "batch", the pause between two commits, in milliseconds.
        on_rebalance: called with each `Rebalance`; until it returns, revoked partitions are not
            given to another member.
        retry: what becomes of a record for which `retry` is called: it is moved to the group's
            topic of retries, which is read along, and comes back after a pause.
    """

    member: MemberOptions
    pattern: str | None = None
    commit: str = "batch"
    # So much work may come again after a crash; a commit per batch would load the quorum
    commit_interval_ms: int = 100
    on_rebalance: OnRebalance | None = None
    retry: RetryPolicy | None = None

    def __post_init__(self) -> None:
        problems = _bad_pattern(self.pattern)
        problems += bad_choice("commit", self.commit, COMMITS)
        interval = self.commit_interval_ms
        if not isinstance(interval, int) or not 0 <= interval <= INTERVAL_MS_MAX:
            what = f"expected a whole number up to {INTERVAL_MS_MAX}"
            problems.append(f"commit_interval_ms = {interval!r}: {what}")
        if self.on_rebalance is not None and not callable(self.on_rebalance):
            problems.append(f"on_rebalance = {self.on_rebalance!r}: expected a function")
        problems += _bad_retry(self.retry)
        if problems:
            raise InvalidConfig(problems)

    @property
    def commits_by_itself(self) -> bool:
        return self.commit not in ("manual", "none", BY_TRANSACTION)

    @property
    def commits_by_transaction(self) -> bool:
        return self.commit == BY_TRANSACTION

    @property
    def read_along(self) -> tuple[str, ...]:
        """Topics of the group's own that its members read along with others: of retries."""
        return () if self.retry is None else (retry_topic(self.member.group),)


class GroupArguments(TypedDict, total=False):
    """The same options as keyword arguments, for editors and type checkers."""

    group: str | None
    pattern: str | None
    commit: Literal["batch", "record", "manual", "none", "before", "transaction"]
    commit_interval_ms: int
    on_rebalance: OnRebalance | None
    delivery: Literal["at_most_once", "at_least_once", "exactly_once"] | None
    assignor: GivenAssignor | Sequence[GivenAssignor]
    group_instance_id: str | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    rebalance_timeout_ms: int | None
    user_data: bytes


# `retry` is an argument of its own, which means more to `process`.
ARGUMENTS = (*GroupArguments.__annotations__, "retry")
_ALLOWED: Allowed = {
    AT_MOST_ONCE: {"commit": ("before",)},
    # The first value is the default of the word, the others do not contradict it.
    AT_LEAST_ONCE: {"commit": ("batch", "record", "manual")},
    EXACTLY_ONCE: {"commit": (BY_TRANSACTION,)},  # and `isolation_level`, see `_bad_isolation`
}
_OF_MEMBER = tuple(field.name for field in fields(MemberOptions))


def group_reading(given: Mapping[str, Any]) -> GroupReading | None:
    """Options from those arguments of a call that need a group; None: without a group.

    Raises:
        InvalidConfig: all bad values at once.
    """
    if given.get("group") is None:  # without a group its options make no sense
        alone = [name for name in given if name != "group"]
        if alone:  # refused, not ignored
            raise InvalidConfig([f'{name}: needs a group, as in group="billing"' for name in alone])
        return None
    problems: list[str] = []
    member, reading = None, None
    try:
        given = with_delivery(given, _ALLOWED)
    except InvalidConfig as error:
        problems += error.problems
        given = {name: given[name] for name in given if name != "delivery"}
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


def _bad_retry(given: object) -> list[str]:
    if given is not None and not isinstance(given, RetryPolicy):
        return [f"retry = {given!r}: expected a RetryPolicy"]
    if given is not None and given.in_place:
        return ["retry: only mq.process tries again in place; in_place=False moves records aside"]
    return []


def _bad_pattern(pattern: object) -> list[str]:
    if pattern is None:
        return []
    # An empty one would compile, but no topic's whole name matches it: most likely a mistake.
    if not isinstance(pattern, str) or not pattern:
        return [f"pattern = {pattern!r}: expected a regular expression, such as 'orders-.*'"]
    try:
        re.compile(pattern)
    except re.error as error:
        return [f"pattern = {pattern!r}: no regular expression: {error}"]
    return []


# -- Options --------------------------------------------------------------------------------------


# Reserved names, each with what it will be for.
LATER = {
    "rack": "reading from the nearest replica is",
}
# The values of `auto_offset_reset`, and where each leads.
RESETS = {"none": None, "earliest": FROM_EARLIEST, "latest": FROM_LATEST}


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions:
    """Options of a consumer.

    Attributes:
        assign: exactly these partitions, as pairs of topic and number, in place of whole topics.
        group: the group options of a member; None without a group.
        start: where reading begins, in a group where nothing is committed yet: "earliest";
            "latest", which is the end when the consumer is opened; an offset; or a datetime with a
            time zone. Where only `auto_offset_reset` is given: the same, as in Kafka. With `assign`
            also one of these for each of the partitions, as a mapping from their pairs.
        auto_offset_reset: where to go on if an offset is not in the log (any more): "earliest",
            "latest", or "none": OffsetOutOfRange is raised.
        isolation_level: "read_committed": records of committed transactions and records outside of
            transactions, up to the first transaction that is still open; "read_uncommitted":
            records of open and of aborted transactions, too.
        tags: which records are read, by their tags: an expression, such as
            "paid & (eu | us) & !test"; or a set of tags, any of which is enough. All members of a
            group have the same. None, or "*": all records.
        value_deserializer: called with each value but None, as bytes; what it returns is the
            record's value. If it raises, UndecodableRecord is raised in place of the record.
        key_deserializer: likewise with each key but None, as it was sent: bytes, text, or an int.
        fetch_min_bytes: a broker waits until it has so many bytes ...
        fetch_max_wait_ms: ... but not longer than this (long poll), in milliseconds.
        fetch_max_bytes: bytes of one answer.
        max_partition_fetch_bytes: bytes of one partition in one answer; a larger batch comes
            nevertheless.
        max_poll_records: records of one partition in a row; then it is another one's turn.
        prefetch_bytes: bytes of records that were fetched and not handed out; each broker may
            exceed its share by one batch.
    """

    assign: Sequence[Key] | None = None
    group: GroupReading | None = None
    start: object = "latest"  # Kafka's default
    auto_offset_reset: str = "none"  # a gap must not go unnoticed
    # It costs nothing where there are no transactions. Kafka's default shows aborted records.
    isolation_level: str = "read_committed"
    tags: str | Collection[str] | None = None
    value_deserializer: Deserializer | None = None
    key_deserializer: Deserializer | None = None
    fetch_min_bytes: int = 1  # Kafka's default: an answer as soon as there is a record
    fetch_max_wait_ms: int = 500  # Kafka's default
    fetch_max_bytes: int = 8 << 20  # a quarter of prefetch_bytes
    max_partition_fetch_bytes: int = 1 << 20  # Kafka's default, and that of max.message.bytes
    max_poll_records: int = 500  # Kafka's default
    # Bounds the memory of a consumer that is slower than its leaders
    prefetch_bytes: int = 32 << 20

    def __post_init__(self) -> None:
        problems = [
            *_bad_numbers(self),
            *_bad_start(self.start, self.assign),
            *_bad_assign(self.assign),
        ]
        problems += bad_choice("auto_offset_reset", self.auto_offset_reset, list(RESETS))
        problems += bad_choice("isolation_level", self.isolation_level, list(ISOLATIONS))
        for name in ("value_deserializer", "key_deserializer"):
            problems += bad_function(name, getattr(self, name), "json.loads")
        problems += _bad_tags(self.tags)
        if problems:
            raise InvalidConfig(problems)

    @property
    def tag_filter(self) -> TagFilter | None:
        """What `tags` asks for; None: all records."""
        return None if self.tags is None else tag_filter(self.tags)

    @property
    def as_member(self) -> GroupReading | None:
        """`group`, whose member has the filter of the consumer; None without a group."""
        if self.group is None:
            return None
        member = replace(self.group.member, tag_filter=self.tag_filter)
        return replace(self.group, member=member)

    @property
    def deserializers(self) -> Deserializers | None:
        """Both functions; None where keys and values are handed out as they were sent."""
        if self.key_deserializer is None and self.value_deserializer is None:
            return None
        return Deserializers(self.key_deserializer, self.value_deserializer)

    @property
    def isolation(self) -> IsolationLevel:
        return ISOLATIONS[self.isolation_level]

    def start_at(self, key: Key) -> Start:
        """Where reading of a partition begins."""
        return start_of(self.start[key] if isinstance(self.start, Mapping) else self.start)

    @property
    def reset(self) -> Start | None:
        """Where to go on; None where an offset that is not in the log is an error."""
        return RESETS[self.auto_offset_reset]


NAMES = frozenset([*(field.name for field in fields(ConsumerOptions)), *ARGUMENTS])


class ConsumerArguments(GroupArguments, Generic[ValueT_co, KeyT_co], total=False):
    """The same options as keyword arguments, for editors and type checkers."""

    assign: Sequence[Key] | None
    start: GivenStart | Mapping[Key, GivenStart]
    auto_offset_reset: Literal["none", "earliest", "latest"]
    isolation_level: Literal["read_committed", "read_uncommitted"]
    tags: str | Collection[str] | None
    value_deserializer: Callable[[bytes], ValueT_co] | None
    # Of bytes, text or an int; but most topics have one kind, and `bytes.decode` will do for it.
    key_deserializer: Callable[[Any], KeyT_co] | None
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    max_poll_records: int
    prefetch_bytes: int


def consumer_options(topics: Sequence[object], given: Mapping[str, Any]) -> ConsumerOptions:
    """Options from the arguments of a call.

    Raises:
        TypeError: an unknown option; suggests the one that may be meant.
        InvalidConfig: all bad values at once; reserved options.
    """
    check_options("consumer", given, NAMES, later=LATER)
    if later := [f"{name}: {LATER[name]} not there yet" for name in given if name in LATER]:
        raise InvalidConfig(later)
    rest = {name: given[name] for name in given if name not in ARGUMENTS}
    # Kafka has one option for both; a program that knows it would otherwise read nothing.
    reset = rest.get("auto_offset_reset")
    if "start" not in rest and reset in ("earliest", "latest"):
        rest["start"] = reset
    group, problems = None, _bad_isolation(given)
    try:
        group = group_reading({name: given[name] for name in given if name in ARGUMENTS})
    except InvalidConfig as error:
        problems += error.problems
    try:
        options = ConsumerOptions(**rest, group=group)
    except InvalidConfig as error:
        problems += error.problems
    # A group that is refused may have had a pattern.
    if group is not None or not problems:
        problems += _bad_topics(topics, rest.get("assign"), group)
    if problems:
        raise InvalidConfig(problems)
    return options


def named(topics: Sequence[str], options: ConsumerOptions) -> str:
    """What is read, for people."""
    group = options.group
    names = [*topics, *(f"{topic}-{partition}" for topic, partition in options.assign or ())]
    if group is not None and group.pattern is not None:
        names = [f"topics like {group.pattern}"]
    return ", ".join(names) + (f", group {group.member.group}" if group is not None else "")


_BOUNDS = {
    "fetch_min_bytes": (0, ID_MAX),
    "fetch_max_wait_ms": (1, 60_000),
    "fetch_max_bytes": (1, 50 << 20),  # answers arrive as one frame, which has a size limit
    "max_partition_fetch_bytes": (1, 50 << 20),
    "max_poll_records": (1, ID_MAX),
    "prefetch_bytes": (1, 1 << 40),
}


def _bad_numbers(options: ConsumerOptions) -> list[str]:
    problems = []
    for name, (low, high) in _BOUNDS.items():
        value = getattr(options, name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            problems.append(f"{name} = {value!r}: expected a whole number from {low} to {high}")
    return problems


def _bad_isolation(given: Mapping[str, Any]) -> list[str]:
    """What contradicts `delivery`, which is checked with the group's options otherwise."""
    level, least = given.get("isolation_level"), next(iter(ISOLATIONS))
    # Other words are refused where the options are checked.
    if given.get("delivery") == EXACTLY_ONCE and level in ISOLATIONS and level != least:
        return [contradiction(EXACTLY_ONCE, "isolation_level", level, (least,))]
    return []


def _bad_tags(tags: str | Collection[str] | None) -> list[str]:
    if tags is None:
        return []
    is_set = isinstance(tags, list | tuple | set | frozenset)
    if not isinstance(tags, str) and not (is_set and all(isinstance(tag, str) for tag in tags)):
        return [f"tags = {tags!r}: expected an expression, as 'paid & !test', or a set of tags"]
    try:
        tag_filter(tags)
    except TagExpressionError as error:
        return [f"tags: {error}"]
    return []


def _bad_start(start: object, assign: object) -> list[str]:
    if isinstance(start, Mapping):
        own = assign if isinstance(assign, list | tuple | set | frozenset) else ()
        if start.keys() != {tuple(one) for one in own if _is_partition(one)}:
            return ["start: a mapping names exactly the partitions of assign, by their pairs"]
        return [problem for each in start.values() for problem in _bad_start(each, None)]
    try:
        start_of(start)
    except InvalidConfig as error:
        return error.problems
    return []


def _bad_assign(assign: object) -> list[str]:
    if assign is None:
        return []
    if not isinstance(assign, list | tuple | set | frozenset) or not assign:
        return [f"assign = {assign!r}: expected a list of pairs of topic and partition"]
    return [
        f"assign: {one!r} is not a pair of a topic's name and a partition from 0"
        for one in assign
        if not _is_partition(one)
    ]


def _is_partition(given: object) -> bool:
    match given:
        case (str() as topic, int() as partition) if not isinstance(partition, bool):
            return not topic_name_problem(topic) and 0 <= partition <= ID_MAX
    return False


def _bad_topics(topics: Sequence[object], assign: object, group: GroupReading | None) -> list[str]:
    if (
        group is not None
        and group.retry is not None
        and (bad := _bad_beside_retry(topics, assign, group))
    ):
        return bad
    if topics and assign is not None:
        return [f"assign: the topics {', '.join(map(str, topics))} are named, too; leave one out"]
    if group is not None and group.pattern is not None:
        return _beside_pattern(topics, assign)
    if not topics and assign is None:
        pattern = "" if group is None else ", pattern='orders-.*'"
        return [f"nothing to read: name a topic{pattern}, or assign=[(topic, partition), ...]"]
    return [
        _bad_topic(topic)
        for topic in topics
        if not isinstance(topic, str) or topic_name_problem(topic)
    ]


def _bad_beside_retry(topics: Sequence[object], assign: object, group: GroupReading) -> list[str]:
    if assign is not None:
        return ["retry: with assign no member of the group would read its topic of retries"]
    name = group.member.group
    if retry_topic(name) in topics:
        return [f"{retry_topic(name)} is read along by members with a policy: leave it out"]
    problem = own_letters_problem(name, topics)
    return [problem] if problem else []


def _bad_topic(given: object) -> str:
    if isinstance(given, list | tuple | set | frozenset):
        return f'{given!r} is {kind_of(given)}: give names one by one, as in consumer("a", "b")'
    return f"{given!r} is not a topic's name: expected a text of {TOPIC_NAME_CHARS}"


def _beside_pattern(topics: Sequence[object], assign: object) -> list[str]:
    if topics:
        return ["pattern: topics are named, too; leave one out"]
    if assign is not None:
        return ["pattern: assign says already which partitions are read; leave one out"]
    return []
