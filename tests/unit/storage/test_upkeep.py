"""What a directory does for its logs by itself: open files, and what retention keeps."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from raftmq.topic_config import TopicConfig
from tests.simulation.disk import SimulatedFiles
from tests.unit.storage.batches import NOW_MS, append
from tests.unit.storage.directories import opened, retirable

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.partition.storage.log import PartitionLog

SMALL = TopicConfig(segment_bytes=1024)
LATER_MS = NOW_MS + 15 * 86_400_000


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Random(0))


async def test_a_log_keeps_one_file_open(files: SimulatedFiles, autojump_clock: MockClock) -> None:
    """Of four: thousands of logs would be too many open files otherwise."""

    def small_ones(log: PartitionLog) -> list[object]:
        index = log.active.index
        return [log._epoch_file._entries._file, index._offsets._file, index._times._file]

    async with opened(files) as directory:
        log = await directory.open_log("t", 0, SMALL)
        assert small_ones(log) == [None] * 3
        log.assign_epoch(3)
        end_offset = append(log, b"a", epoch=3)
        await directory.flusher.wait_held(log, end_offset)
        assert small_ones(log) == [None] * 3


async def test_retention_keeps_what_is_not_committed(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """However old it is: the rest of the cluster may have other records there."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0, SMALL)
        for _ in range(20):
            end_offset = append(log, b"v" * 200)
        await directory.flusher.wait_held(log, end_offset)
        await directory.enforce_retention(LATER_MS)
        assert log.log_start_offset == 0, "nobody has said that any of it is committed"
        log.retirable_end = lambda: 7
        await directory.enforce_retention(LATER_MS)
        assert log.log_start_offset == 7
        log.retirable_end = lambda: 20
        await directory.enforce_retention(LATER_MS)
        assert log.log_start_offset == 20


async def test_without_a_time_only_size_counts(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """A clock that nobody believes neither removes nor closes anything; a full disk is no matter
    of clocks.
    """
    async with opened(files) as directory:
        aged = retirable(await directory.open_log("t", 0, SMALL))
        large = retirable(await directory.open_log("t", 1, replace(SMALL, retention_bytes=2000)))
        for log in (aged, large):
            for _ in range(20):
                end_offset = append(log, b"v" * 200)
            await directory.flusher.wait_held(log, end_offset)
        active = aged.active
        await directory.enforce_retention(None)
        assert (aged.log_start_offset, aged.active) == (0, active)
        assert 0 < large.log_start_offset < 20
        assert large.size <= 2000
