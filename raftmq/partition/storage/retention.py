"""Which closed segments of a log have outlived their topic's retention. Pure.

Owns the rule, not the deletion. Retention takes whole segments from the old end, stops at the
first one that must stay, and never takes the active one (A3.3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.config import TopicConfig

NO_LIMIT = -1


class SegmentAge(NamedTuple):
    """A closed segment as retention sees it."""

    end_offset: int
    size: int
    max_timestamp: int | None  # None: nobody can tell


def retained_start_offset(
    closed: Iterable[SegmentAge],
    log_size: int,
    config: TopicConfig,
    *,
    now_ms: int | None,
    log_start_offset: int,
) -> int:
    """The log start offset that retention asks for; never below `log_start_offset`.

    `closed` is looked at only as far as needed: to know a segment's age may cost a read.
    Where nobody knows the time (`now_ms` is None) nothing is too old; size asks for no clock.
    """
    for segment in closed:
        too_old = _is_too_old(segment, config, now_ms)
        too_much = config.retention_bytes != NO_LIMIT and log_size > config.retention_bytes
        if not (too_old or too_much):
            break
        log_size -= segment.size
        log_start_offset = max(log_start_offset, segment.end_offset)
    return log_start_offset


def _is_too_old(segment: SegmentAge, config: TopicConfig, now_ms: int | None) -> bool:
    if now_ms is None or segment.max_timestamp is None or config.retention_ms == NO_LIMIT:
        return False
    return now_ms - segment.max_timestamp > config.retention_ms
