"""Argument checks of the admin calls: topic names, counts, configuration, offsets, times. Pure.

A wrong type is a TypeError, a wrong value a RaftmqError; each message names the argument, the value
and a remedy. The brokers check again and decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum
from typing import Any

from raftmq.client.moments import EPOCH, MILLISECOND
from raftmq.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
)
from raftmq.topic_config import TOPIC_KEYS, parse_topic_config, topic_name_problem
from raftmq.wire.bodies import ABSENT, ID_MAX, NUMBER_MAX, PARTITIONS_MAX
from raftmq.wire.messages.offsets import EARLIEST, LATEST

REPLICAS_MAX = 16  # of one partition, as the controller allows
_KEYS = frozenset(key.name for key in TOPIC_KEYS)


def check_topic(name: object) -> str:
    """The name, if it is valid.

    Raises:
        TypeError: not a str.
        InvalidTopic: not a valid topic name.
    """
    if not isinstance(name, str):
        raise TypeError(f"topic name {name!r}: expected str, got {type(name).__name__}")
    if problem := topic_name_problem(name):
        raise InvalidTopic(problem)
    return name


def check_topics(topics: object) -> tuple[str, ...]:
    """Names of topics, each once. Raises TypeError, InvalidTopic, InvalidRequest."""
    if isinstance(topics, (str, bytes)) or not isinstance(topics, Iterable):
        raise TypeError(f"topics={topics!r}: expected a list of names")
    names = tuple(dict.fromkeys(check_topic(one) for one in topics))
    if not names:
        raise InvalidRequest("topics is empty: name some, or leave it out for all of them")
    return names


def check_partition_count(count: object) -> int:
    """Raises TypeError, InvalidPartitions."""
    number = check_whole("partitions", count)
    if not 1 <= number <= PARTITIONS_MAX:
        raise InvalidPartitions(f"partitions={number}: allowed 1 to {PARTITIONS_MAX}")
    return number


def check_replication_factor(factor: object) -> int:
    """Raises TypeError, InvalidReplicationFactor."""
    number = check_whole("replication_factor", factor)
    if not 1 <= number <= REPLICAS_MAX:
        raise InvalidReplicationFactor(
            f"replication_factor={number}: allowed 1 to {REPLICAS_MAX}, and as many as brokers are"
            " active"
        )
    return number


def check_config(config: object) -> dict[str, str]:
    """The values as text, of a mapping with str, int and bool values.

    Raises:
        TypeError: no mapping, or keys and values of other types.
        InvalidConfig: names every bad key, and the key that may have been meant.
    """
    values = check_mapping("config", config)
    for key, value in values.items():
        if not isinstance(key, str) or not isinstance(value, (str, int)):
            raise TypeError(
                f"config {key!r}: {value!r}: expected a dotted key and a str, an int or a bool"
            )
    parse_topic_config(values)
    return {key: _text(value) for key, value in values.items()}


def check_changes(changes: object) -> dict[str, str | None]:
    """As `check_config`, for changes, where None resets a key to its default."""
    values = check_mapping("config", changes)
    if not values:  # most likely a mistake of the program
        raise InvalidConfig(["nothing to change: give at least one key, None resets it"])
    kept = {key: value for key, value in values.items() if value is not None}
    # A key that is to be reset must be known, too: let `check_config` refuse unknown ones.
    unknown = {key: "" for key in values if key not in kept and key not in _KEYS}
    texts = check_config(kept | unknown)
    return {key: texts.get(key) for key in values}


def check_partitions(partitions: object) -> tuple[int, ...]:
    """Numbers of partitions, each once. Raises TypeError, InvalidRequest."""
    if isinstance(partitions, (str, bytes)) or not isinstance(partitions, Iterable):
        raise TypeError(f"partitions={partitions!r}: expected a list of numbers")
    numbers = tuple(dict.fromkeys(_partition(one) for one in partitions))
    if not numbers:
        raise InvalidRequest("partitions is empty: name some, or leave it out for all of them")
    return numbers


def check_before_offsets(offsets: object) -> dict[int, int]:
    """For each partition the offset at which it is to begin; -1: its end.

    Raises:
        TypeError, InvalidRequest
    """
    values = check_mapping("offsets", offsets)
    if not values:
        raise InvalidRequest("no partition given: {0: 1000} deletes what is before offset 1000")
    return {_partition(number): _before_offset(number, at) for number, at in values.items()}


def check_moves(moves: object) -> dict[tuple[str, int], tuple[int, ...]]:
    """Broker ids by topic and partition.

    Raises:
        TypeError, InvalidTopic, InvalidRequest, InvalidReplicaAssignment
    """
    values = check_mapping("moves", moves)
    if not values:
        raise InvalidRequest('no partition given: {("orders", 3): [2, 4, 5]} moves one')
    return {_place(place): _replicas(place, ids) for place, ids in values.items()}


def check_places(places: object) -> tuple[tuple[str, int], ...]:
    """Topics and partitions, each once. Raises TypeError, InvalidTopic, InvalidRequest."""
    if isinstance(places, (str, bytes)) or not isinstance(places, Iterable):
        raise TypeError(f"partitions={places!r}: expected a list of pairs of topic and number")
    checked = tuple(dict.fromkeys(map(_place, places)))
    if not checked:
        raise InvalidRequest("partitions is empty: name some, or leave it out for all of them")
    return checked


def _place(place: object) -> tuple[str, int]:
    if not isinstance(place, tuple) or len(place) != 2:
        raise TypeError(f'{place!r}: expected a pair of topic and number, like ("orders", 3)')
    return check_topic(place[0]), _partition(place[1])


def _replicas(place: object, brokers: object) -> tuple[int, ...]:
    if isinstance(brokers, (str, bytes)) or not isinstance(brokers, Iterable):
        raise TypeError(f"replicas={brokers!r} of {place}: expected a list of broker ids")
    ids = tuple(check_whole("broker", one) for one in brokers)
    problem = ""
    if not 1 <= len(ids) <= REPLICAS_MAX:
        problem = f"{len(ids)} brokers: allowed 1 to {REPLICAS_MAX}"
    elif len(set(ids)) < len(ids):
        problem = "a broker stands there twice"
    elif not all(0 <= one <= ID_MAX for one in ids):
        problem = "ids of brokers begin at 0"
    if problem:
        raise InvalidReplicaAssignment(f"replicas {list(ids)} of {place}: {problem}")
    return ids


def timestamp_of(at: object) -> int:
    """As requests encode it: milliseconds since 1970-01-01 UTC, EARLIEST or LATEST.

    Raises:
        TypeError: none of these.
        InvalidRequest: a datetime without a time zone, or a time before 1970, or too large.
    """
    if at in ("earliest", "latest"):
        return EARLIEST if at == "earliest" else LATEST
    if isinstance(at, datetime):
        if at.utcoffset() is None:
            raise InvalidRequest(f"{at!r} has no time zone: write datetime(..., tzinfo=UTC)")
        at = (at - EPOCH) // MILLISECOND
    if not isinstance(at, int) or isinstance(at, bool):
        raise TypeError(
            f"{at!r}: expected 'earliest', 'latest', a datetime, or an int in milliseconds"
        )
    if not 0 <= at <= NUMBER_MAX:
        raise InvalidRequest(f"{at} ms: a time lies at or after 1970-01-01 UTC, which is 0")
    return at


def _before_offset(partition: object, at: object) -> int:
    if at == "latest":
        return ABSENT
    offset = check_whole(f"offset of partition {partition}", at)
    if not 0 <= offset <= NUMBER_MAX:
        raise InvalidRequest(
            f"offset {offset} of partition {partition}: offsets begin at 0; 'latest' deletes all"
        )
    return offset


def _partition(number: object) -> int:
    checked = check_whole("partition", number)
    if not 0 <= checked <= ID_MAX:
        raise InvalidRequest(f"partition {checked}: partitions are counted from 0")
    return checked


def check_whole(what: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what}={value!r}: expected int, got {type(value).__name__}")
    return value


def check_mapping(what: str, value: object) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{what}={value!r}: expected a mapping, got {type(value).__name__}")
    return value


def _text(value: str | int) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value.value) if isinstance(value, Enum) else str(value)
