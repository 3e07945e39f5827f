"""Where a partition ends, as a consumer says: new leaders, cut logs, topics of the same name."""

from __future__ import annotations

from random import Random

from raftmq.client.consumer.partition_state import (
    ConsumedPartition,
    ReadingEvents,
    Start,
    StartKind,
)

TOPIC, SUCCESSOR = b"1" * 16, b"2" * 16


def told(*high_watermarks: int) -> ConsumedPartition:
    """Of one topic, one after the other."""
    state = ConsumedPartition(("t", 0), Start(StartKind.OFFSET, 0), Random(0), ReadingEvents())
    for high_watermark in high_watermarks:
        state.on_told(TOPIC, high_watermark, high_watermark)
    return state


def test_a_new_leader_that_knows_less() -> None:
    """What was committed stays so: it never goes back."""
    assert told(5, 9, 7).high_watermark == 9
    assert told(5, 9, 7, 12).high_watermark == 12


def test_after_a_seek() -> None:
    """It is the same log, and ends where it ended."""
    state = told(9)
    state.seek(Start(StartKind.OFFSET, 0))
    state.on_told(TOPIC, 7, 7)
    assert state.high_watermark == 9


def test_a_topic_of_the_same_name() -> None:
    """Another log: it may be shorter."""
    state = told(9)
    state.seek(Start(StartKind.OFFSET, 0))
    state.on_told(SUCCESSOR, 2, 2)
    assert state.high_watermark == 2


def test_a_log_that_was_cut() -> None:
    """After an unclean election nothing holds that was said of the log before."""
    state = told(9)
    state.on_cut()
    assert state.high_watermark is None
    state.on_told(TOPIC, 4, 4)
    assert state.high_watermark == 4
