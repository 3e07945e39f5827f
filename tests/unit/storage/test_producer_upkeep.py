"""When a data directory writes down what its logs know of producers, and who waits for that."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.partition.storage.directory import CHECKPOINT_INTERVAL
from raftmq.partition.storage.known_producers import list_snapshots, snapshot_path
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.records import encode_batch
from tests.simulation.disk import SimulatedFiles
from tests.unit.storage.batches import NOW_MS
from tests.unit.storage.directories import Disk, opened

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.partition.sequences import ProducerState
    from raftmq.partition.storage.log import PartitionLog

SMALL = TopicConfig(segment_bytes=600, index_interval_bytes=100)
FOLDER = Path("/data/topics/t/Partition-0")
DAY = 86_400


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Random(0))


def append(log: PartitionLog, *producer_ids: int) -> int:
    """The next batch of each."""
    for producer_id in producer_ids:
        known = log.producers.now.get(producer_id)
        batch = encode_batch(
            values=[b"x" * 20] * 2,
            timestamp=NOW_MS,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=known.next_sequence if known else 0,
        )
        log.append(batch, leader_epoch=0, now_ms=NOW_MS, now=trio.current_time())
    return log.log_end_offset


def known(log: PartitionLog) -> dict[int, ProducerState]:
    return log.producers.now.picture().known


async def test_a_snapshot_comes_with_the_next_checkpoint(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """And not with the flush that an acknowledgement waits for."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0, SMALL)
        await directory.flusher.wait_held(log, append(log, *[1, 2] * 10))
        bases = [segment.base_offset for segment in log.segments[1:]]
        assert bases
        assert list_snapshots(files, FOLDER) == []
        await trio.sleep(CHECKPOINT_INTERVAL + 1)
        assert list_snapshots(files, FOLDER) == bases


async def test_a_log_goes_on_while_its_snapshot_is_written(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Appends, rolls and all: they come with the next one."""
    disk = Disk()
    async with opened(files, disk) as directory:
        log = await directory.open_log("t", 0, SMALL)
        append(log, *[1, 2] * 5)
        disk.seconds = 1.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(directory.checkpoint)
            await trio.sleep(1.5)
            append(log, *[1, 3] * 5)
        await directory.checkpoint()
        assert list_snapshots(files, FOLDER) == [s.base_offset for s in log.segments[1:]]
        disk.seconds = 0.0


async def test_a_clean_end_leaves_nothing_to_look_at(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """The next opening reads one snapshot; closed once more, nothing is written."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0, SMALL)
        end, expected = append(log, *[1, 2, 3] * 3), known(log)
    assert list_snapshots(files, FOLDER)[-1] == end
    written = len([line for line in files.trace if ".producers" in line])
    async with opened(files) as directory:
        log = await directory.open_log("t", 0, SMALL)
        assert log.report.clean
        assert known(log) == expected
    assert len([line for line in files.trace if ".producers" in line]) == written


async def test_deleted_records_leave_their_producers(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Before any checkpoint, a power cut right after: producer 9 is in no batch any more."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0, SMALL)
        end = append(log, 9, *[1, 2] * 10)
        await directory.delete_records(log, end)
        assert log.segments[0].base_offset > 2
        expected = known(log)
        crashed = [files.photograph(Random(seed), power_lost=True) for seed in range(10)]
    for left in crashed:
        async with opened(left) as directory:
            log = await directory.open_log("t", 0, SMALL)
            assert known(log) == expected
            assert 9 in expected


async def test_a_truncation_forgets_and_a_start_over_forgets_all(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Through the directory, which keeps everybody else out meanwhile."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0, SMALL)
        append(log, 1, 2)
        before = known(log)
        append(log, *[1, 2, 3] * 5)
        await directory.checkpoint()
        await directory.truncate(log, 4)
        assert known(log) == before
        assert list_snapshots(files, FOLDER) == []
        await directory.start_over(log, 100)
        assert known(log) == {}


async def test_upkeep_forgets_who_is_idle(files: SimulatedFiles, autojump_clock: MockClock) -> None:
    """Also where nobody writes any more."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0, SMALL)
        append(log, 1)
        autojump_clock.jump(DAY / 2)
        append(log, 2)
        autojump_clock.jump(DAY / 2 + 1)
        await directory.enforce_retention(None)
        assert list(known(log)) == [2]


async def test_a_disk_without_room_for_snapshots(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """The log goes on, and so does the deletion of old records, which makes room."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0, SMALL)
        end = append(log, *[1, 2] * 10)
        for _ in range(3):
            files.fail("create", "*.producers.tmp")
        await directory.checkpoint()
        assert await directory.delete_records(log, end) == end
        assert log.is_sound
        assert append(log, 1) == end + 2


async def test_a_damaged_snapshot_does_not_outlive_an_opening(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """It is removed, and written anew when its time comes."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0, SMALL)
        end, expected = append(log, *[1, 2] * 3), known(log)
    files.open(snapshot_path(FOLDER, end)).write(8, [b"\xff"])
    async with opened(files) as directory:
        log = await directory.open_log("t", 0, SMALL)
        assert known(log) == expected
        assert end not in list_snapshots(files, FOLDER)
    assert end in list_snapshots(files, FOLDER)
