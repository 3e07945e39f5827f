"""Very many scheduled records on one leader, over an hour of virtual time (A12.2, A12.3)."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.model import DELAY_TICK_MS
from tests.log_reading import read_batches
from tests.unit.broker.scheduling import now_ms, schedule, scheduling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trio.testing import MockClock

    from raftmq.partition.replica import Replica
    from raftmq.wire.batch.records import RecordBatch

HOUR_SECONDS = 3600.0
LATE_MS_MAX = DELAY_TICK_MS + 50


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.soak)])
async def test_timers_at_random_over_an_hour(autojump_clock: MockClock, count: int) -> None:
    """None is early by the clock of its leader, each is delivered once, and at most a tick and 50
    ms late; half of them are scheduled while others are delivered.
    """
    random = Random(count)
    async with scheduling(segment_bytes="1000000") as (_, _, replica, _):
        due: dict[int, int] = {}  # by offset
        for share in (0.5, *[0.05] * 10):
            for number in range(round(count * share)):
                delay = random.uniform(0, HOUR_SECONDS)
                before = now_ms()
                offset = schedule(replica, b"%d" % number, delay=delay)
                due[offset] = before + round(delay * 1000)
                if number % 500 == 0:
                    await trio.lowlevel.checkpoint()
            await trio.sleep(HOUR_SECONDS / 20)
        await trio.sleep(HOUR_SECONDS + 1)
        late: dict[int, int] = {}
        for batch in _batches(replica):
            mark = batch.mark
            if mark is not None and mark.delivers is not None:
                assert mark.delivers not in late
                assert mark.due_ms == due[mark.delivers]
                late[mark.delivers] = batch.header.max_timestamp - mark.due_ms
        assert late.keys() == due.keys()
        assert min(late.values()) >= 0
        assert max(late.values()) <= LATE_MS_MAX
        assert replica.log.schedule.pending_count == 0


def _batches(replica: Replica) -> Iterator[RecordBatch]:
    offset = replica.log.log_start_offset
    while offset < replica.log.log_end_offset:
        for batch in read_batches(replica.log, offset):
            yield batch
            offset = batch.header.end_offset
