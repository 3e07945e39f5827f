"""A data directory on a simulated disk under virtual time: rounds, waiters, upkeep."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import DirectoryInUse, NotLeaderOrFollower, OffsetOutOfRange, StorageError
from raftmq.model import Durability
from raftmq.partition.storage.directory import LogId
from raftmq.topic_config import TopicConfig
from tests.log_reading import read_slice
from tests.simulation.disk import SimulatedFiles
from tests.unit.storage.batches import NOW_MS, append, values_of
from tests.unit.storage.directories import ROOT, Disk, opened, retirable, synced

if TYPE_CHECKING:
    from trio.testing import MockClock

SMALL = TopicConfig(segment_bytes=1024)
PAGE_CACHE = TopicConfig(durability=Durability.PAGE_CACHE)


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Random(0))


@pytest.fixture
def disk() -> Disk:
    return Disk()


async def test_durable_after_one_round(files: SimulatedFiles, autojump_clock: MockClock) -> None:
    """Append, wait: the record survives a power cut."""
    async with opened(files) as directory:
        log = await directory.open_log("orders-1", 0)
        await directory.flusher.wait_held(log, append(log, b"a"))
        assert log.durable_end_offset == 1
        after = files.photograph(Random(1), power_lost=True)
    async with opened(after) as directory:
        assert values_of(await directory.open_log("orders-1", 0)) == [b"a"]


async def test_a_round_covers_all_dirty_logs(
    files: SimulatedFiles, disk: Disk, autojump_clock: MockClock
) -> None:
    """Three partitions, many appends: one round, one sync a file."""
    async with opened(files, disk) as directory:
        logs = await directory.open_logs([(LogId("t", n), TopicConfig()) for n in range(3)])
        before, disk.calls = synced(files, ".log"), 0
        for log in logs * 10:
            append(log, b"a")
        for log in logs:
            await directory.flusher.wait_held(log, 10)
        assert disk.calls == 1
        assert synced(files, ".log") - before == 3


async def test_appends_go_on_during_a_round(
    files: SimulatedFiles, disk: Disk, autojump_clock: MockClock
) -> None:
    """What comes while a round runs belongs to the next one."""
    async with opened(files, disk) as directory:
        log = await directory.open_log("t", 0)
        disk.seconds = 1.0
        append(log, b"a")
        await trio.sleep(0.5)
        append(log, b"b")
        await directory.flusher.wait_held(log, 1)
        assert log.durable_end_offset == 1
        await directory.flusher.wait_held(log, 2)
        assert log.durable_end_offset == 2


async def test_a_cancelled_waiter_breaks_nothing(
    files: SimulatedFiles, disk: Disk, autojump_clock: MockClock
) -> None:
    """One waiter gives up in the middle of a round, the other one gets its answer."""
    async with opened(files, disk) as directory:
        log = await directory.open_log("t", 0)
        disk.seconds = 1.0
        end_offset = append(log, b"a")
        with trio.move_on_after(0.1) as scope:
            await directory.flusher.wait_held(log, end_offset)
        assert scope.cancelled_caught
        await directory.flusher.wait_held(log, end_offset)
        assert log.durable_end_offset == end_offset


async def test_the_oldest_pending_age_shows_a_frozen_disk(
    files: SimulatedFiles, disk: Disk, autojump_clock: MockClock
) -> None:
    """The age grows while the disk stands still, and is 0 when nothing waits."""
    async with opened(files, disk) as directory:
        log = await directory.open_log("t", 0)
        await trio.sleep(1)
        assert directory.oldest_pending_age() == 0.0
        disk.seconds = 10.0
        end_offset = append(log, b"a", now=trio.current_time())
        await trio.sleep(4)
        assert directory.oldest_pending_age() == pytest.approx(4.0)
        await directory.flusher.wait_held(log, end_offset)
        assert directory.oldest_pending_age() == 0.0


async def test_page_cache_topics_do_not_wait(
    files: SimulatedFiles, disk: Disk, autojump_clock: MockClock
) -> None:
    """They hold what the kernel has; they are flushed with the checkpoints, or on demand."""
    async with opened(files, disk) as directory:
        log = await directory.open_log("t", 0, PAGE_CACHE)
        disk.seconds = 0.5
        started = trio.current_time()
        await directory.flusher.wait_held(log, append(log, b"a"))
        assert trio.current_time() == started
        assert (log.held_end_offset, log.durable_end_offset) == (1, 0)
        assert directory.oldest_pending_age() == 0.0
        await directory.flusher.wait_durable(log, 1)
        assert log.durable_end_offset == 1
        append(log, b"b")
        await trio.sleep(12)
        assert log.durable_end_offset == 2
        disk.seconds = 8.0
        append(log, b"c", now=trio.current_time())
        await trio.sleep(10)
        assert directory.oldest_pending_age() == 0.0  # nobody waits for what is written back


async def test_many_dirty_files_are_synced_together(autojump_clock: MockClock) -> None:
    """More than 8, on a file system of its own: one syncfs instead of a sync a file."""
    files = SimulatedFiles(Random(0), mount=ROOT)
    async with opened(files) as directory:
        logs = await directory.open_logs([(LogId("t", n), TopicConfig()) for n in range(20)])
        before = synced(files, ".log")
        for log in logs:
            append(log, b"a")
        for log in logs:
            await directory.flusher.wait_held(log, 1)
        assert synced(files, ".log") == before
        after = files.photograph(Random(1), power_lost=True)
    async with opened(after) as directory:
        for n in range(20):
            assert values_of(await directory.open_log("t", n)) == [b"a"]


async def test_clean_close_and_open(files: SimulatedFiles, autojump_clock: MockClock) -> None:
    """After a clean close nothing is scanned; the mark is gone once the directory is open.

    A3.7.
    """
    async with opened(files) as directory:
        log = await directory.open_log("t", 0, SMALL)
        for _ in range(20):
            append(log, b"v" * 200)
    assert files.exists(ROOT / "clean-shutdown")
    async with opened(files) as directory:
        assert not files.exists(ROOT / "clean-shutdown")
        log = await directory.open_log("t", 0, SMALL)
        assert log.report == (True, 0, 0, False)
        assert (log.durable_end_offset, len(log.segments) > 1) == (20, True)
        assert len(values_of(log)) == 20


async def test_only_the_tail_is_scanned_after_a_kill(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """The recovery point of the last checkpoint bounds the work."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0)
        for _ in range(1000):
            end_offset = append(log, b"v" * 200)
        await directory.flusher.wait_held(log, end_offset)
        await directory.checkpoint()
        append(log, b"tail")
        killed = files.photograph(Random(1), power_lost=False)
    async with opened(killed) as directory:
        log = await directory.open_log("t", 0)
        assert log.log_end_offset == 1001
        assert not log.report.clean
        assert log.report.scanned_bytes < 6000
        assert log.durable_end_offset == 1001


async def test_a_directory_is_held_by_one(files: SimulatedFiles, autojump_clock: MockClock) -> None:
    """A second broker on the same directory is refused; after the first closed, it is not."""
    async with opened(files):
        with pytest.raises(DirectoryInUse, match="/data"):
            async with opened(files):
                raise AssertionError("must not open")
    async with opened(files):
        pass


async def test_a_directory_that_is_held_for_a_moment(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """A check of the settings tries the lock at that very moment: the start tries once more."""
    files.make_directory(ROOT)
    held = [files.lock(ROOT / ".lock")]
    async with trio.open_nursery() as nursery:

        async def release() -> None:
            await trio.sleep(0.02)
            held.clear()

        nursery.start_soon(release)
        async with opened(files):
            assert trio.current_time() < 0.1


async def test_truncate_lowers_the_recovery_point_first(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Otherwise a crash in between would call the cut records lost."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0)
        for value in (b"a", b"b", b"c"):
            end_offset = append(log, value)
        await directory.flusher.wait_held(log, end_offset)
        await directory.checkpoint()
        await directory.truncate(log, 1)
        assert (log.log_end_offset, log.durable_end_offset) == (1, 1)
        append(log, b"d", epoch=1)
        killed = files.photograph(Random(1), power_lost=False)
        cut = files.photograph(Random(1), power_lost=True)
    for after, expected in ((killed, [b"a", b"d"]), (cut, [b"a"])):
        async with opened(after) as directory:
            log = await directory.open_log("t", 0)
            assert values_of(log)[: len(expected)] == expected
            assert not log.report.lost_durable


async def test_delete_records(files: SimulatedFiles, autojump_clock: MockClock) -> None:
    """The new start is durable when it is answered; beyond the end is an error."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0, SMALL)
        for n in range(20):
            append(log, b"%03d" % n * 60)
        assert await directory.delete_records(log, 13) == 13
        assert await directory.delete_records(log, 5) == 13
        with pytest.raises(OffsetOutOfRange):
            await directory.delete_records(log, 21)
        with pytest.raises(OffsetOutOfRange, match="13 to 20"):
            read_slice(log, 12, bytes_max=100)
        after = files.photograph(Random(1), power_lost=True)
    async with opened(after) as directory:
        log = await directory.open_log("t", 0, SMALL)
        assert log.log_start_offset == 13
        assert values_of(log) == [b"%03d" % n * 60 for n in range(13, 20)]


async def test_retention_runs_by_itself(files: SimulatedFiles, autojump_clock: MockClock) -> None:
    """Two weeks later the closed segments go, and an old active one is closed first."""
    later = NOW_MS + 15 * 86_400_000
    async with opened(files) as directory, trio.open_nursery() as nursery:
        log = retirable(await directory.open_log("t", 0, SMALL))
        for _ in range(20):
            end_offset = append(log, b"v" * 200)
        await directory.flusher.wait_held(log, end_offset)
        assert len(log.segments) > 2
        nursery.start_soon(directory.run_retention, lambda: later)
        await trio.sleep(301)
        nursery.cancel_scope.cancel()
        assert (log.log_start_offset, len(log.segments)) == (20, 1)
        names = files.names(ROOT / "topics" / "t" / "Partition-0")
        assert [name for name in names if name.endswith(".log")] == ["0" * 18 + "20.log"]


async def test_cold_reads_leave_the_loop(
    files: SimulatedFiles, disk: Disk, autojump_clock: MockClock
) -> None:
    """What is not cached is read by a worker, and answers the same."""
    async with opened(files, disk) as directory:
        log = await directory.open_log("t", 0)
        append(log, b"a")
        append(log, b"b", timestamp=NOW_MS + 5)
        warm = await directory.slice(log, 0, bytes_max=1000)
        calls = disk.calls
        files.cold = True
        cold = await directory.slice(log, 0, bytes_max=1000)
        found = await directory.offset_for_timestamp(log, NOW_MS + 1)
        data = await directory.read(cold.bytes)
        assert disk.calls > calls
        files.cold = False
        assert (found, data) == ((NOW_MS + 5, 1), await directory.read(warm.bytes))


async def test_an_open_log_is_not_opened_twice(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Two writers of one log in one process would be a bug."""
    async with opened(files) as directory:
        await directory.open_log("t", 0)
        with pytest.raises(AssertionError, match="open already"):
            await directory.open_log("t", 0)


async def test_a_cut_fails_those_who_wait(
    files: SimulatedFiles, disk: Disk, autojump_clock: MockClock
) -> None:
    """Another leader's records take the place: they must not acknowledge the ones that were cut."""
    async with opened(files, disk) as directory:
        log = await directory.open_log("t", 0)
        outcome: list[type] = []

        async def wait() -> None:
            try:
                await directory.flusher.wait_held(log, 2)
            except NotLeaderOrFollower as error:
                outcome.append(type(error))

        disk.seconds = 1.0
        async with trio.open_nursery() as nursery:
            append(log, b"a")
            await trio.sleep(0.1)  # its round is at the disk; the truncation is next
            append(log, b"mine")
            nursery.start_soon(wait)
            await directory.truncate(log, 1)
            append(log, b"other", epoch=1)
        assert outcome == [NotLeaderOrFollower]
        with pytest.raises(OffsetOutOfRange, match="ends at 2"):
            await directory.flusher.wait_held(log, 3)


async def test_changes_of_one_log_wait_for_each_other(
    files: SimulatedFiles, disk: Disk, autojump_clock: MockClock
) -> None:
    """Retention and delete-records come due while a truncation is at the disk."""
    async with opened(files, disk) as directory:
        log = retirable(await directory.open_log("t", 0, SMALL))
        for number in range(12):
            end_offset = append(log, b"%03d" % number * 60)
        await directory.flusher.wait_held(log, end_offset)
        disk.seconds = 1.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(directory.truncate, log, 7)
            await trio.sleep(0.5)
            nursery.start_soon(directory.enforce_retention, NOW_MS + 8 * 86_400_000)
            nursery.start_soon(directory.delete_records, log, 2)
            await trio.sleep(0.1)
            killed = files.photograph(Random(1), power_lost=False)
        assert (log.log_start_offset, log.log_end_offset) == (2, 7)
        assert values_of(log) == [b"%03d" % number * 60 for number in range(2, 7)]
    async with opened(killed) as directory:
        log = await directory.open_log("t", 0, SMALL)
        assert not log.damage


async def test_retention_leaves_a_damaged_log_alone(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Whoever mends it may want every byte."""
    later = NOW_MS + 30 * 86_400_000
    async with opened(files) as directory:
        log = await directory.open_log("t", 0)
        for value in (b"a", b"b", b"c"):
            await directory.flusher.wait_held(log, append(log, value))
        killed = files.photograph(Random(1), power_lost=False)
    [path] = [path for path in killed.paths(ROOT) if path.suffix == ".log"]
    killed.flip_bit(path, 200, 0)
    async with opened(killed) as directory:
        log = retirable(await directory.open_log("t", 0))
        assert log.damage
        before = killed.paths(ROOT / "topics")
        await directory.enforce_retention(later)
        assert killed.paths(ROOT / "topics") == before
        with pytest.raises(StorageError, match="damaged"):
            await directory.delete_records(log, 1)


@pytest.mark.parametrize("topic", ["", "..", "a/b", "a b", "x\n", ".hidden"])
async def test_folders_have_plain_names(
    files: SimulatedFiles, autojump_clock: MockClock, topic: str
) -> None:
    """Nothing outside of the directory, nothing that a checkpoint could not hold."""
    async with opened(files) as directory:
        with pytest.raises(ValueError, match="letters, digits"):
            await directory.open_log(topic, 0)


async def test_a_closed_directory_opens_nothing(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """It holds the lock no more; somebody else may."""
    async with opened(files) as directory:
        pass
    with pytest.raises(StorageError, match="is closed"):
        await directory.open_log("t", 0)
