"""Which segments have outlived their topic (A3.3)."""

from __future__ import annotations

import pytest

from raftmq.partition.storage.retention import SegmentAge, retained_start_offset
from raftmq.topic_config import DAY_MS, TopicConfig

NOW = 100 * DAY_MS
OLD, YOUNG = NOW - 15 * DAY_MS, NOW - 13 * DAY_MS


def start(closed: list[SegmentAge], active_size: int = 100, **config: int) -> int:
    log_size = active_size + sum(segment.size for segment in closed)
    return retained_start_offset(
        closed, log_size, TopicConfig(**config), now_ms=NOW, log_start_offset=0
    )


def test_two_weeks_by_default() -> None:
    """A segment goes when its youngest record is older than 14 days."""
    assert start([SegmentAge(10, 100, OLD), SegmentAge(20, 100, YOUNG)]) == 10


def test_the_first_segment_that_must_stay_keeps_those_behind_it() -> None:
    """Timestamps of producers may be out of order; a log has no holes."""
    assert start([SegmentAge(10, 100, YOUNG), SegmentAge(20, 100, OLD)]) == 0


def test_by_size_the_active_segment_counts_but_stays() -> None:
    """The log shrinks to the limit, or to its active segment."""
    closed = [SegmentAge(10, 100, YOUNG), SegmentAge(20, 100, YOUNG)]
    assert start(closed, retention_bytes=299) == 10
    assert start(closed, retention_bytes=300) == 0
    assert start(closed, retention_bytes=0) == 20


@pytest.mark.parametrize("limit", [{"retention_ms": -1}, {"retention_ms": 16 * DAY_MS}])
def test_no_limit_no_loss(limit: dict[str, int]) -> None:
    """`-1` keeps everything."""
    assert start([SegmentAge(10, 100, OLD)], **limit) == 0


def test_the_log_start_never_goes_back() -> None:
    """Records were deleted up to the middle of the first segment."""
    config = TopicConfig()
    closed = [SegmentAge(10, 100, YOUNG)]
    assert retained_start_offset(closed, 0, config, now_ms=NOW, log_start_offset=7) == 7
