"""What a caller may give: types, names, numbers, settings and times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest

from raftmq.client.administration import checks
from raftmq.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    RaftmqError,
)
from raftmq.metadata.apply import topics as rules
from raftmq.metadata.apply.assignments import REPLICAS_MAX
from raftmq.model import Durability
from raftmq.wire.messages.offsets import EARLIEST, LATEST


class NoZone(tzinfo):
    """Of a datetime that is naive all the same."""

    def utcoffset(self, _: datetime | None) -> None:
        return None


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 200])
def test_names_that_a_topic_may_have(name: str) -> None:
    """They come back as they are."""
    assert checks.check_topic(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ü", "x" * 201, "a\n", "\ud800"])
def test_names_that_no_topic_has(name: str) -> None:
    """The error shows the name and says what is allowed."""
    with pytest.raises(InvalidTopic, match="allowed are 1 to 200 of a-z A-Z 0-9"):
        checks.check_topic(name)


def test_brokers_have_the_same_rules() -> None:
    """What is refused here would be refused there, and nothing else is."""
    assert checks.topic_name_problem is rules.topic_name_problem
    assert checks.REPLICAS_MAX == REPLICAS_MAX


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (checks.check_topic, b"orders"),
        (checks.check_topic, None),
        (checks.check_partition_count, "3"),
        (checks.check_partition_count, 3.0),
        (checks.check_partition_count, True),
        (checks.check_replication_factor, [3]),
        (checks.check_config, [("a", 1)]),
        (checks.check_config, {"retention.ms": 1.5}),
        (checks.check_config, {"retention.ms": None}),
        (checks.check_config, {1: "x"}),
        (checks.check_changes, "retention.ms"),
        (checks.check_partitions, 3),
        (checks.check_partitions, "12"),
        (checks.check_partitions, [0, "1"]),
        (checks.check_before_offsets, [0]),
        (checks.check_before_offsets, {0: "first"}),
        (checks.check_before_offsets, {"0": 5}),
        (checks.timestamp_of, 1.5),
        (checks.timestamp_of, None),
        (checks.timestamp_of, "yesterday"),
        (checks.timestamp_of, True),
    ],
)
def test_wrong_types(check: Any, value: object) -> None:
    """A TypeError, as Python has it, which shows the value."""
    with pytest.raises(TypeError) as caught:
        check(value)
    assert "expected" in str(caught.value)


@pytest.mark.parametrize(
    ("check", "value", "error"),
    [
        (checks.check_partition_count, 0, InvalidPartitions),
        (checks.check_partition_count, 10_001, InvalidPartitions),
        (checks.check_replication_factor, 0, InvalidReplicationFactor),
        (checks.check_replication_factor, 17, InvalidReplicationFactor),
        (checks.check_changes, {}, InvalidConfig),
        (checks.check_partitions, [], InvalidRequest),
        (checks.check_partitions, [-1], InvalidRequest),
        (checks.check_before_offsets, {}, InvalidRequest),
        (checks.check_before_offsets, {0: -1}, InvalidRequest),
        (checks.check_before_offsets, {-1: 0}, InvalidRequest),
        (checks.check_before_offsets, {0: 1 << 63}, InvalidRequest),
        (checks.timestamp_of, -1, InvalidRequest),
        (checks.timestamp_of, 1 << 63, InvalidRequest),
        (checks.timestamp_of, datetime(1969, 1, 1, tzinfo=UTC), InvalidRequest),
        (checks.timestamp_of, datetime(2026, 11, 21, 10), InvalidRequest),  # on purpose
        (checks.timestamp_of, datetime(2026, 11, 21, 10, tzinfo=NoZone()), InvalidRequest),
    ],
)
def test_wrong_values(check: Any, value: object, error: type[RaftmqError]) -> None:
    """Each has its class in the tree."""
    with pytest.raises(error):
        check(value)


def test_settings_become_texts() -> None:
    """As somebody would type them."""
    given = {
        "retention.ms": 5,
        "segment.bytes": "1024",
        "unclean.leader.election.enable": True,
        "durability": Durability.PAGE_CACHE,
    }
    assert checks.check_config(given) == {
        "retention.ms": "5",
        "segment.bytes": "1024",
        "unclean.leader.election.enable": "true",
        "durability": "page_cache",
    }


def test_all_bad_settings_are_told_together() -> None:
    """With what may be meant."""
    with pytest.raises(InvalidConfig) as caught:
        checks.check_config({"retention.mss": 1, "segment.ms": 0, "durability": "no"})
    assert len(caught.value.problems) == 3
    assert "did you mean 'retention.ms'?" in str(caught.value)


def test_changes_may_reset() -> None:
    """None stays None; a key that nobody knows is refused then, too."""
    assert checks.check_changes({"retention.ms": None, "segment.ms": 7}) == {
        "retention.ms": None,
        "segment.ms": "7",
    }
    with pytest.raises(InvalidConfig, match=r"did you mean 'segment.ms'\?"):
        checks.check_changes({"segmnt.ms": None})


def test_times() -> None:
    """Two words, milliseconds, and dates wherever they are from."""
    assert checks.timestamp_of("earliest") == EARLIEST
    assert checks.timestamp_of("latest") == LATEST
    assert checks.timestamp_of(0) == 0
    assert checks.timestamp_of(datetime(1970, 1, 1, 0, 0, 1, 1999, tzinfo=UTC)) == 1001
    east = timezone(timedelta(hours=1))
    assert checks.timestamp_of(datetime(1970, 1, 1, 1, tzinfo=east)) == 0


def test_offsets_and_partitions() -> None:
    """ "latest" is what the wire has -1 for; a partition counts once."""
    assert checks.check_before_offsets({0: "latest", 3: 7}) == {0: -1, 3: 7}
    assert checks.check_partitions([2, 0, 2]) == (2, 0)
