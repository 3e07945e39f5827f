"""What is refused before anything is sent: names of groups, partitions, where to go. Pure.

A wrong type, and arguments that contradict each other, are a TypeError; a wrong value is an error
of the tree, and so is whatever is no place to go (`to`) and no partition. The brokers check again,
and have the last word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from raftmq.client.administration.checks import check_topic, timestamp_of
from raftmq.errors import InvalidGroupId, InvalidRequest
from raftmq.wire.bodies import ABSENT, ID_MAX, NUMBER_MAX

if TYPE_CHECKING:
    from raftmq.client.administration.groups.results import TopicPartition

NAME_CHARS_MAX = 200


class Target(NamedTuple):
    """Where a reset leads; exactly one of them.

    Attributes:
        timestamp: milliseconds since 1970-01-01 UTC, or EARLIEST or LATEST.
        offset: the same one for all partitions.
        shift: from what is committed, forward or, below 0, back.
    """

    timestamp: int | None = None
    offset: int | None = None
    shift: int | None = None


class Wanted(NamedTuple):
    """Which partitions: all of some topics, or some; None and None: those with an offset."""

    topics: tuple[str, ...] | None = None
    partitions: tuple[TopicPartition, ...] | None = None


def check_group(name: object) -> str:
    """Raises TypeError, InvalidGroupId."""
    if not isinstance(name, str):
        raise TypeError(f"group name {name!r}: expected str, got {type(name).__name__}")
    if not 1 <= len(name) <= NAME_CHARS_MAX:
        raise InvalidGroupId(
            f"group name {name[:NAME_CHARS_MAX]!r} of {len(name)} characters: allowed are 1 to"
            f" {NAME_CHARS_MAX}"
        )
    return name


def check_target(to: object, shift: object) -> Target:
    """
    Raises:
        TypeError: neither, both, or a shift that is no number.
        InvalidRequest: an offset or a time that no record has, or none of them.
    """
    if (to is None) == (shift is None):
        raise TypeError("give either to='earliest', 'latest', an offset or a datetime, or shift=n")
    if shift is not None:
        return Target(shift=_whole("shift", shift))
    if isinstance(to, int) and not isinstance(to, bool):
        return Target(offset=_offset("to", to))
    if not (isinstance(to, datetime) or (isinstance(to, str) and to in ("earliest", "latest"))):
        raise InvalidRequest(f"to={to!r}: expected 'earliest', 'latest', an offset, or a datetime")
    try:
        return Target(timestamp=timestamp_of(to))
    except TypeError as error:
        raise InvalidRequest(f"to: {error}") from error


def check_wanted(topics: object, partitions: object) -> Wanted:
    """Each topic, and each partition, once. Raises TypeError, InvalidTopic, InvalidRequest."""
    if topics is not None and partitions is not None:
        raise TypeError("topics= and partitions=: give one of them")
    if topics is not None:
        return Wanted(topics=_topics(topics))
    return Wanted(partitions=None if partitions is None else check_partitions(partitions))


def check_partitions(partitions: object) -> tuple[TopicPartition, ...]:
    """Raises InvalidTopic, InvalidRequest."""
    if isinstance(partitions, (str, bytes)) or not isinstance(partitions, Iterable):
        raise InvalidRequest(f"partitions={partitions!r}: expected a list like [('orders', 0)]")
    found = tuple(dict.fromkeys(_partition(one) for one in partitions))
    if not found:
        raise InvalidRequest("partitions is empty: name some, like ('orders', 0)")
    return found


def check_offsets(offsets: object) -> dict[TopicPartition, int]:
    """By partition. Raises TypeError, InvalidTopic, InvalidRequest."""
    values = _mapping("offsets", offsets)
    if not values:
        raise InvalidRequest("no partition given: {('orders', 0): 1000} commits offset 1000")
    return {_partition(one): _offset(f"offset of {one}", at) for one, at in values.items()}


def check_expected(
    expected: object, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """-1 in place of None, which is nothing. Raises TypeError, InvalidTopic, InvalidRequest."""
    if expected is None:
        return {}
    found = {
        _partition(one): ABSENT if at is None else _offset(f"expected offset of {one}", at)
        for one, at in _mapping("expected", expected).items()
    }
    others = sorted(set(found) - set(offsets))
    if others:
        raise InvalidRequest(f"expected names {others[0]}, for which no offset is given")
    return found


def _topics(topics: object) -> tuple[str, ...]:
    if isinstance(topics, (str, bytes)) or not isinstance(topics, Iterable):
        raise TypeError(f"topics={topics!r}: expected a list of names")
    names = tuple(dict.fromkeys(check_topic(name) for name in topics))
    if not names:
        raise InvalidRequest("topics is empty: name some, or leave it out")
    return names


def _partition(one: object) -> TopicPartition:
    if not isinstance(one, tuple) or len(one) != 2 or not isinstance(one[0], str):
        raise InvalidRequest(f"{one!r}: expected a pair like ('orders', 0)")
    number = one[1]
    if not isinstance(number, int) or isinstance(number, bool):
        raise InvalidRequest(f"partition {number!r} of {one[0]}: expected a whole number")
    if not 0 <= number <= ID_MAX:
        raise InvalidRequest(f"partition {number} of {one[0]}: partitions are counted from 0")
    return check_topic(one[0]), number


def _offset(what: str, value: object) -> int:
    offset = _whole(what, value)
    if not 0 <= offset <= NUMBER_MAX:
        raise InvalidRequest(f"{what}: {offset}: offsets begin at 0")
    return offset


def _whole(what: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what}: {value!r}: expected int, got {type(value).__name__}")
    return value


def _mapping(what: str, value: object) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{what}={value!r}: expected a mapping, got {type(value).__name__}")
    return value
