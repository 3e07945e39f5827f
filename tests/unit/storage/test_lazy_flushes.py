"""Flushes of page_cache topics, and what a flush round does not wait for: other logs' flushes,
cuts and checkpoints."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import trio

from raftmq.errors import StorageError
from raftmq.model import Durability
from raftmq.partition.storage.directory import CHECKPOINT_INTERVAL, LogId
from raftmq.partition.storage.durability import PIECE_BYTES
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.records import encode_batch
from tests.simulation.disk import SimulatedFiles
from tests.unit.storage.batches import NOW_MS, append, values_of
from tests.unit.storage.directories import ROOT, Disk, opened

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock

    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.partition.storage.log import Appended, PartitionLog

PAGE_CACHE = TopicConfig(durability=Durability.PAGE_CACHE)
BATCH_BYTES = 1_000_000


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Random(0))


@pytest.fixture
def disk() -> Disk:
    return Disk()


async def lazy_logs(directory: LogDirectory, count: int) -> list[PartitionLog]:
    return await directory.open_logs([(LogId("lazy", n), PAGE_CACHE) for n in range(count)])


def fill(log: PartitionLog, size: int) -> None:
    """With a bit more than that."""
    for _ in range(size // BATCH_BYTES + 1):
        append(log, b"x" * BATCH_BYTES)


def written_back(files: SimulatedFiles) -> list[str]:
    """File, position and length of each piece."""
    return [line.split(" ", 2)[2] for line in files.trace if " write_back " in line]


async def test_a_record_does_not_wait_for_logs_that_no_producer_waits_for(
    files: SimulatedFiles, disk: Disk, autojump_clock: MockClock
) -> None:
    """Twelve large ones are being flushed, each for seconds: the record takes one sync."""
    async with opened(files, disk) as directory:
        log = await directory.open_log("t", 0)
        lazy = await lazy_logs(directory, 12)
        for each in lazy:
            fill(each, PIECE_BYTES)
        disk.seconds = 1.0
        directory.flusher.request_lazy()
        await trio.sleep(2.5)
        began = trio.current_time()
        await directory.flusher.wait_held(log, append(log, b"a"))
        assert trio.current_time() - began == pytest.approx(1.0)
        assert lazy[-1].durable_end_offset == 0
        disk.seconds = 0.0
        await trio.sleep(2 * CHECKPOINT_INTERVAL)
        assert all(each.durable_end_offset == each.log_end_offset for each in lazy)


async def test_a_log_is_written_back_in_pieces_from_where_the_last_flush_ended(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Nothing is written twice; then it is synced, and durable."""
    async with opened(files) as directory:
        (log,) = await lazy_logs(directory, 1)
        fill(log, PIECE_BYTES)
        first = log.active.size
        await trio.sleep(CHECKPOINT_INTERVAL + 1)
        assert log.durable_end_offset == log.log_end_offset
        append(log, b"more")
        await trio.sleep(CHECKPOINT_INTERVAL + 1)
        pieces = [piece.rpartition(" ")[2] for piece in written_back(files)]
        assert pieces == [
            f"0+{PIECE_BYTES}",
            f"{PIECE_BYTES}+{first - PIECE_BYTES}",
        ]  # and what is less than a piece by the sync itself
        after = files.photograph(Random(1), power_lost=True)
        assert log.durable_end_offset == log.log_end_offset
    async with opened(after) as directory:
        (log,) = await lazy_logs(directory, 1)
        assert values_of(log)[-1] == b"more"


async def test_a_log_that_somebody_waits_for_is_flushed_first(
    files: SimulatedFiles, disk: Disk, autojump_clock: MockClock
) -> None:
    """As `delete-records` does: another log is left in the middle, and goes on later."""
    async with opened(files, disk) as directory:
        lazy = await lazy_logs(directory, 5)
        for each in lazy:
            fill(each, 3 * PIECE_BYTES)
        disk.seconds = 1.0
        directory.flusher.request_lazy()
        await trio.sleep(0.5)
        began, last = trio.current_time(), lazy[-1]
        await directory.flusher.wait_durable(last, last.log_end_offset)
        # The piece that was on its way, the log's own pieces, and its sync.
        assert trio.current_time() - began == pytest.approx(0.5 + 4 * 1.0 + 1.0)
        assert [each.is_dirty for each in lazy] == [True] * 4 + [False]
        disk.seconds = 0.0
        await trio.sleep(2 * CHECKPOINT_INTERVAL)
        assert not any(each.is_dirty for each in lazy)


async def test_a_round_leaves_out_a_log_that_is_being_changed(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """The others are flushed meanwhile, and that one as soon as it may be."""
    async with opened(files) as directory:
        changed, other = await directory.open_logs(
            [(LogId("changed", 0), TopicConfig()), (LogId("other", 0), TopicConfig())]
        )
        async with directory.flusher.excluding(changed):
            append(changed, b"a")
            await directory.flusher.wait_held(other, append(other, b"a"))
            await trio.sleep(1)
            assert changed.durable_end_offset == 0
        await directory.flusher.wait_held(changed, 1)


async def test_a_change_that_is_given_up_leaves_no_log_without_a_flush(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """It was cancelled while it waited for a checkpoint, and records had come meanwhile."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0)
        with trio.move_on_after(1):
            async with directory.flusher.excluding(log):
                append(log, b"a")
                await trio.sleep_forever()
        with trio.fail_after(1):
            await directory.flusher.wait_held(log, 1)


async def test_a_round_does_not_wait_for_a_checkpoint(
    files: SimulatedFiles, disk: Disk, autojump_clock: MockClock
) -> None:
    """It takes ten seconds; a record meanwhile one."""
    async with opened(files, disk) as directory, trio.open_nursery() as nursery:
        log = await directory.open_log("t", 0)
        await directory.flusher.wait_held(log, append(log, b"a"))
        disk.seconds = 10.0
        nursery.start_soon(directory.checkpoint)
        await trio.sleep(0.5)
        disk.seconds, began = 1.0, trio.current_time()
        await directory.flusher.wait_held(log, append(log, b"b"))
        assert trio.current_time() - began == pytest.approx(1.0)
        disk.seconds = 0.0


async def test_a_cut_waits_for_the_flush_of_its_log(
    files: SimulatedFiles, disk: Disk, autojump_clock: MockClock
) -> None:
    """A lazy flush takes three seconds: the cut comes after it, and what it cut is not durable."""
    async with opened(files, disk) as directory:
        (log,) = await lazy_logs(directory, 1)
        append(log, b"a")
        append(log, b"b")
        disk.seconds = 3.0
        directory.flusher.request(log)
        await trio.sleep(1)
        disk.seconds, began = 0.0, trio.current_time()
        await directory.truncate(log, 1)
        assert trio.current_time() - began == pytest.approx(2.0)
        assert (log.log_end_offset, log.durable_end_offset) == (1, 1)


async def test_the_last_flush_waits_for_a_change(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """At shutdown all must become durable, also what a round would leave out."""
    async with opened(files) as directory, trio.open_nursery() as nursery:
        log, (lazy,) = await directory.open_log("t", 0), await lazy_logs(directory, 1)

        async def change() -> None:
            async with directory.flusher.excluding(log):
                append(log, b"a")
                await trio.sleep(5)

        nursery.start_soon(change)
        await trio.sleep(1)
        append(lazy, b"a")
        await directory.flusher.flush_now(directory.logs.values())
        assert not log.is_dirty
        assert not lazy.is_dirty


@pytest.mark.parametrize("operation", ["write_back", "sync"])
async def test_a_log_that_cannot_be_written_back_goes_offline(
    files: SimulatedFiles, autojump_clock: MockClock, operation: str
) -> None:
    """The kernel reports it but once, and calls the pages clean: no later sync may be believed."""
    async with opened(files) as directory:
        bad, good = await lazy_logs(directory, 2)
        files.fail(operation, "lazy/Partition-0/*.log")
        fill(bad, PIECE_BYTES)
        append(good, b"a")
        await trio.sleep(CHECKPOINT_INTERVAL + 1)
        assert (bad.durable_end_offset, good.durable_end_offset) == (0, 1)
        with pytest.raises(StorageError, match="offline"):
            append(bad, b"b")
        with pytest.raises(StorageError, match="offline"):
            await directory.flusher.wait_durable(bad, 1)


async def test_a_failed_sync_of_everything_is_no_lazy_flush_s_success(
    autojump_clock: MockClock,
) -> None:
    """A syncfs fails while another log's own sync is on its way: that one goes offline, too."""
    files, disk = SimulatedFiles(Random(0), mount=ROOT), Disk()
    async with opened(files, disk) as directory:
        logs = await directory.open_logs([(LogId("t", n), TopicConfig()) for n in range(20)])
        (lazy,) = await lazy_logs(directory, 1)
        append(lazy, b"a")
        disk.seconds = 3.0
        directory.flusher.request(lazy)
        await trio.sleep(1)
        disk.seconds = 1.0
        files.fail("sync_file_system", "*")
        for log in logs:
            append(log, b"a")
        await trio.sleep(3)
        assert "syncfs" in lazy.offline_reason
        assert lazy.durable_end_offset == 0
        disk.seconds = 0.0


async def tell_late(work: Callable[[], object]) -> object:
    """The kernel answers at once, and the loop hears of it a second later."""
    result = work()
    await trio.sleep(1)
    return result


@pytest.mark.parametrize("is_shutdown", [True, False])
async def test_of_a_failed_write_back_no_sync_beside_it_is_believed(
    files: SimulatedFiles, autojump_clock: MockClock, is_shutdown: bool
) -> None:
    """Of the two the kernel tells only the first: the last flush at shutdown, or a round after the
    topic was altered to fsync, would have called lost bytes durable (G1)."""
    async with opened(files) as directory:
        (log,) = await lazy_logs(directory, 1)
        directory.flusher._lazy_sync = tell_late  # type: ignore[assignment]
        fill(log, PIECE_BYTES)
        files.fail("write_back", "lazy/Partition-0/*.log")
        directory.flusher.request_lazy()
        await trio.sleep(0.5)
        if is_shutdown:
            await directory.flusher.flush_now([log])
        else:
            log.config = TopicConfig()
            end_offset = append(log, b"to be held")
            with pytest.raises(StorageError):
                await directory.flusher.wait_held(log, end_offset)
        assert log.offline_reason
        raised = log.durable_end_offset
        after = files.photograph(Random(1), power_lost=True)
    async with opened(after) as directory:
        (log,) = await lazy_logs(directory, 1)
        assert log.log_end_offset >= raised


async def test_a_topic_that_is_altered_to_fsync_leaves_the_queue(
    files: SimulatedFiles, disk: Disk, autojump_clock: MockClock
) -> None:
    """Records that it had before are held by the next round, and not behind all bulk."""
    async with opened(files, disk) as directory:
        bulk = await lazy_logs(directory, 8)
        altered = await directory.open_log("altered", 0, PAGE_CACHE)
        for each in bulk:
            fill(each, 2 * PIECE_BYTES)
        append(altered, b"a")
        disk.seconds, altered.config = 1.0, TopicConfig()
        directory.flusher.request_lazy()
        began = trio.current_time()
        await directory.flusher.wait_held(altered, 1)
        assert trio.current_time() - began == pytest.approx(1.0)
        disk.seconds = 0.0


async def test_a_log_that_is_changed_holds_up_no_other(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Neither one whose turn it is, nor one that is being written back."""
    async with opened(files) as directory:
        changed, other = await lazy_logs(directory, 2)
        append(changed, b"a")
        append(other, b"a")
        async with directory.flusher.excluding(changed):
            directory.flusher.request(changed)
            await directory.flusher.wait_durable(other, 1)
            assert changed.is_dirty
        await directory.flusher.wait_durable(changed, 1)


class SlowSnapshots:
    """The thread that writes snapshots of producers takes ten seconds while `is_slow`."""

    is_slow = False

    async def __call__(self, work: Callable[[], Any], /) -> Any:
        await trio.lowlevel.checkpoint()
        if self.is_slow and getattr(getattr(work, "func", None), "__name__", "") == "_perform":
            await trio.sleep(10)
        return work()


async def half_a_second(work: Callable[[], Any]) -> Any:
    await trio.sleep(0.5)
    return work()


async def test_a_log_is_opened_anew_after_the_snapshots_that_are_being_written(
    autojump_clock: MockClock,
) -> None:
    """Its sync fails while a checkpoint writes one beyond its durable end: put in place after the
    recovery, it would make an unknown batch a duplicate."""
    files, disk = SimulatedFiles(Random(0)), SlowSnapshots()
    config = TopicConfig(segment_bytes=400)
    async with opened(files, disk) as directory, trio.open_nursery() as nursery:
        log = await directory.open_log("t", 0, config)
        await directory.flusher.wait_held(log, numbered(log, 0).end_offset)
        disk.is_slow = True
        directory.flusher._run_sync = half_a_second
        files.fail("sync", "*00000000000000000001.log")
        for sequence in (1, 2):  # each rolls, so that a snapshot is due
            numbered(log, sequence)
        nursery.start_soon(directory.checkpoint)
        await trio.sleep(1)
        assert log.offline_reason
        log = await directory.reopen(log)
        await trio.sleep(20)
        snapshots = [path for path in files.paths(log.folder) if path.suffix == ".producers"]
        assert all(int(path.stem) <= log.log_end_offset for path in snapshots)
        disk.is_slow = False


def numbered(log: PartitionLog, sequence: int) -> Appended:
    """A batch of producer 7, more than half a segment long."""
    data = encode_batch(
        values=[bytes(200)],
        timestamp=NOW_MS,
        producer_id=7,
        producer_epoch=0,
        base_sequence=sequence,
    )
    return log.append(data, leader_epoch=0, now_ms=NOW_MS, now=trio.current_time())
