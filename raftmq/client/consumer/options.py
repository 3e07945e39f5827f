"""What a program may ask of a consumer, checked. Pure.

Owns names, defaults and bounds. Kafka's names where the meaning is Kafka's.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from raftmq.client.consumer.group_options import ARGUMENTS, GroupArguments, group_reading
from raftmq.client.consumer.partition_state import FROM_EARLIEST, FROM_LATEST, start_of
from raftmq.client.options import check_options
from raftmq.errors import InvalidConfig
from raftmq.wire.bodies import ID_MAX, NAME_CHARS_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from raftmq.client.consumer.group_options import GroupReading
    from raftmq.client.consumer.partition_state import GivenStart, Key, Start

# Names that are taken already, each with what it is for.
_LATER = {
    "isolation_level": "transactions are",
    "tags": "filtering by tags is",
    "rack": "reading from the nearest replica is",
}
RESETS = {"none": None, "earliest": FROM_EARLIEST, "latest": FROM_LATEST}


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions:
    """Attributes:
    assign: exactly these partitions, as pairs of topic and number, in place of whole topics.
    group: of whoever reads as a member of a group; else None.
    start: where reading begins, in a group where it has committed nothing yet: "earliest";
        "latest", which is after what is there when the consumer is opened; an offset; or a
        datetime with a time zone.
    auto_offset_reset: where to go on if an offset is not there (any more): "earliest", "latest",
        or "none": OffsetOutOfRange is raised.
    fetch_min_bytes: a broker waits until it has so much ...
    fetch_max_wait_ms: ... but not longer than so long.
    fetch_max_bytes: of one answer.
    max_partition_fetch_bytes: of one partition in one answer; a batch that is larger comes
        nevertheless.
    max_poll_records: so many records of a partition in a row, then it is another one's turn.
    prefetch_bytes: of records that were fetched and not handed out; each broker may exceed it by
        one batch.
    """

    assign: Sequence[Key] | None = None
    group: GroupReading | None = None
    start: object = "latest"
    auto_offset_reset: str = "none"
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 8 << 20
    max_partition_fetch_bytes: int = 1 << 20
    max_poll_records: int = 500
    prefetch_bytes: int = 32 << 20

    def __post_init__(self) -> None:
        problems = [*_bad_numbers(self), *_bad_start(self.start), *_bad_assign(self.assign)]
        if self.auto_offset_reset not in RESETS:
            choices = ", ".join(f'"{name}"' for name in RESETS)
            problems.append(f"auto_offset_reset = {self.auto_offset_reset!r}: expected {choices}")
        if problems:
            raise InvalidConfig(problems)

    @property
    def first_start(self) -> Start:
        return start_of(self.start)

    @property
    def reset(self) -> Start | None:
        """None: an offset that is not there is an error."""
        return RESETS[self.auto_offset_reset]


class ConsumerArguments(GroupArguments, total=False):
    """The same as arguments of a call, for editors and type checkers."""

    assign: Sequence[Key] | None
    start: GivenStart
    auto_offset_reset: str
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    max_poll_records: int
    prefetch_bytes: int


def consumer_options(topics: Sequence[object], given: Mapping[str, Any]) -> ConsumerOptions:
    """From the arguments of a call.

    Raises:
        TypeError: an option that is not known, and which one may be meant.
        InvalidConfig: all bad values at once; options whose time has not come.
    """
    own = [field.name for field in fields(ConsumerOptions)]
    check_options("consumer", given, [*own, *ARGUMENTS], later=_LATER)
    if later := [f"{name}: {_LATER[name]} not there yet" for name in given if name in _LATER]:
        raise InvalidConfig(later)
    group = group_reading({name: given[name] for name in given if name in ARGUMENTS})
    rest = {name: given[name] for name in given if name not in ARGUMENTS}
    options = ConsumerOptions(**rest, group=group)
    if problems := _bad_topics(topics, options.assign, group):
        raise InvalidConfig(problems)
    return options


_BOUNDS = {
    "fetch_min_bytes": (0, ID_MAX),
    "fetch_max_wait_ms": (1, 60_000),
    "fetch_max_bytes": (1, 50 << 20),
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


def _bad_start(start: object) -> list[str]:
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
            return bool(topic) and 0 <= partition <= ID_MAX
    return False


def _bad_topics(topics: Sequence[object], assign: object, group: GroupReading | None) -> list[str]:
    if topics and assign is not None:
        return [f"assign: the topics {', '.join(map(str, topics))} are named, too; leave one out"]
    if group is not None and group.pattern is not None:
        return _beside_pattern(topics, assign)
    if not topics and assign is None:
        pattern = "" if group is None else ", pattern='orders-.*'"
        return [f"nothing to read: name a topic{pattern}, or assign=[(topic, partition), ...]"]
    return [
        f"{topic!r} is not a topic's name: expected a text of 1 to {NAME_CHARS_MAX} characters"
        for topic in topics
        if not (isinstance(topic, str) and 0 < len(topic) <= NAME_CHARS_MAX)
    ]


def _beside_pattern(topics: Sequence[object], assign: object) -> list[str]:
    if topics:
        return ["pattern: topics are named, too; leave one out"]
    if assign is not None:
        return ["pattern: assign says already which partitions are read; leave one out"]
    return []
