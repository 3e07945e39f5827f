"""Retention by time and size: which sealed segments of a log may be deleted. Pure.

Owns the rule, not the deletion. Retention deletes whole segments from the old end, stops at the
first one that must stay, and never deletes the active one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.topic_config import TopicConfig

NO_LIMIT = -1  # of `retention.ms` and `retention.bytes`, as in Kafka


class SegmentAge(NamedTuple):
    """A sealed segment as retention sees it."""

    end_offset: int
    size: int
    max_timestamp: int | None  # milliseconds; None: rot hides it


def retained_start_offset(
    closed: Iterable[SegmentAge],
    log_size: int,
    config: TopicConfig,
    *,
    now_ms: int | None,
    log_start_offset: int,
) -> int:
    """The log start offset that retention demands; never below `log_start_offset`.

    `closed` is iterated only as far as needed, as the age of a segment may cost a read. Without a
    confirmed clock (`now_ms` is None) nothing is too old; retention by size needs no clock.
    """
    for segment in closed:
        too_old = _is_too_old(segment, config, now_ms)
        too_much = config.retention_bytes != NO_LIMIT and log_size > config.retention_bytes
        if not (too_old or too_much):
            break  # a later segment may be older by its timestamps; a log has no holes
        log_size -= segment.size
        log_start_offset = max(log_start_offset, segment.end_offset)
    return log_start_offset


def _is_too_old(segment: SegmentAge, config: TopicConfig, now_ms: int | None) -> bool:
    # What is not known to be old stays.
    if now_ms is None or segment.max_timestamp is None or config.retention_ms == NO_LIMIT:
        return False
    return now_ms - segment.max_timestamp > config.retention_ms
