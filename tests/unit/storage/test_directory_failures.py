"""A data directory on a disk that fails: who goes offline, what is acknowledged, what returns."""

from __future__ import annotations

import errno
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import StorageError
from raftmq.partition.storage.directory import LogId
from raftmq.topic_config import TopicConfig
from tests.simulation.disk import SimulatedFiles
from tests.unit.storage.batches import NOW_MS, append, values_of
from tests.unit.storage.directories import ROOT, Disk, opened

if TYPE_CHECKING:
    from trio.testing import MockClock


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Random(0))


@pytest.fixture
def disk() -> Disk:
    return Disk()


async def test_a_failed_sync_takes_the_log_offline(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """EIO: waiters learn it, nothing is acknowledged any more, other logs go on."""
    async with opened(files) as directory:
        bad, good = await directory.open_logs(
            [(LogId("bad", 0), TopicConfig()), (LogId("good", 0), TopicConfig())]
        )
        files.fail("sync", "bad/Partition-0/*.log")
        append(bad, b"a")
        append(good, b"a")
        with pytest.raises(StorageError, match=r"bad/Partition-0 is offline.*fdatasync"):
            await directory.flusher.wait_held(bad, 1)
        await directory.flusher.wait_held(good, 1)
        assert (bad.durable_end_offset, good.durable_end_offset) == (0, 1)
        with pytest.raises(StorageError, match="offline"):
            append(bad, b"b")
        await directory.flusher.wait_held(good, append(good, b"b"))


async def test_what_a_failed_sync_lost_is_not_found_again(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """The page cache shows bytes that never reached the disk: recovery must not believe it."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0)
        await directory.flusher.wait_held(log, append(log, b"kept"))
        files.fail("sync", "*.log")
        append(log, b"lost")
        with pytest.raises(StorageError):
            await directory.flusher.wait_held(log, 2)
    after = files.after_crash(power_lost=False)
    async with opened(after) as directory:
        log = await directory.open_log("t", 0)
        assert values_of(log) == [b"kept"]
        assert log.durable_end_offset == 1


async def test_a_full_disk_takes_the_log_offline_until_a_restart(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """A short write, then ENOSPC: not acknowledged; after a restart the torn bytes are cut."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0)
        await directory.flusher.wait_held(log, append(log, b"kept"))
        files.fail("write", "*.log", error=errno.ENOSPC)
        with pytest.raises(StorageError, match="No space left on device"):
            append(log, b"x" * 1000)
        with pytest.raises(StorageError, match="No space left on device"):
            append(log, b"y")
    async with opened(files) as directory:
        log = await directory.open_log("t", 0)
        assert values_of(log) == [b"kept"]
        await directory.flusher.wait_held(log, append(log, b"more"))
        assert values_of(log) == [b"kept", b"more"]


async def test_a_failed_sync_of_the_file_system_takes_all_its_logs_offline(
    autojump_clock: MockClock,
) -> None:
    """Nobody can say whose bytes were lost."""
    files = SimulatedFiles(Random(0), mount=ROOT)
    async with opened(files) as directory:
        logs = await directory.open_logs([(LogId("t", n), TopicConfig()) for n in range(20)])
        files.fail("sync_file_system", "*")
        for log in logs:
            append(log, b"a")
        for log in logs:
            with pytest.raises(StorageError, match="syncfs"):
                await directory.flusher.wait_held(log, 1)


async def test_a_log_that_cannot_be_opened_keeps_no_other_from_work(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """One folder is unreadable: the call says so, and the other log is open."""
    wanted = [(LogId(name, 0), TopicConfig()) for name in ("bad", "good")]
    async with opened(files) as directory:
        await directory.open_logs(wanted)
    files.fail("open", "bad/Partition-0/*.log")
    async with opened(files) as directory:
        with pytest.raises(StorageError, match=r"open .*bad"):
            await directory.open_logs(wanted)
        [good] = directory.logs.values()
        await directory.flusher.wait_held(good, append(good, b"a"))
        again = await directory.open_log("bad", 0)
        assert again.report.clean


async def test_an_old_segment_that_cannot_be_closed_takes_its_log_offline(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Upkeep wants to roll, the disk is full: no append may follow."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0)
        await directory.flusher.wait_held(log, append(log, b"a"))
        files.fail("create", "*.log", error=errno.ENOSPC)
        await directory.enforce_retention(NOW_MS + 8 * 86_400_000)
        with pytest.raises(StorageError, match="No space left"):
            append(log, b"b")
        with pytest.raises(StorageError, match="offline"):
            await directory.truncate(log, 0)
        with pytest.raises(StorageError, match="offline"):
            await directory.delete_records(log, 1)
        assert values_of(log) == [b"a"]


@pytest.mark.parametrize("operation", ["truncate", "sync", "write", "rename", "sync_directory"])
async def test_a_failed_truncation_takes_the_log_offline(
    files: SimulatedFiles, autojump_clock: MockClock, operation: str
) -> None:
    """Whatever fails: no half cut log goes on, and its recovery point never rises again."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0)
        other = await directory.open_log("other", 0)
        for each in (log, other):
            for value in (b"a", b"b", b"c"):
                append(each, value)
            await directory.flusher.wait_held(each, 3)
        await directory.checkpoint()
        files.fail(operation, "*")
        with pytest.raises(StorageError, match="offline"):
            await directory.truncate(log, 1)
        with pytest.raises(StorageError, match="offline"):
            append(log, b"d")
        await directory.truncate(other, 2)
        after = files.photograph(Random(1), power_lost=True)
    async with opened(after) as directory:
        log = await directory.open_log("t", 0)
        assert values_of(log) in ([b"a"], [b"a", b"b", b"c"])
        assert not log.damage
        assert values_of(await directory.open_log("other", 0)) == [b"a", b"b"]


async def test_what_the_caller_raises_comes_out_as_it_was(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """One exception is not wrapped into a group; the directory is closed cleanly all the same."""

    async def use() -> None:
        async with opened(files) as directory:
            append(await directory.open_log("t", 0), b"a")
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await use()
    async with opened(files) as directory:
        assert (await directory.open_log("t", 0)).report.clean


async def test_waiters_learn_of_a_failed_append(
    files: SimulatedFiles, disk: Disk, autojump_clock: MockClock
) -> None:
    """The log goes offline between two rounds: whoever waits for an earlier append is told."""
    async with opened(files, disk) as directory:
        log, other = await directory.open_logs(
            [(LogId("t", 0), TopicConfig()), (LogId("other", 0), TopicConfig())]
        )
        disk.seconds = 1.0
        append(other, b"a")
        await trio.sleep(0.1)
        end_offset = append(log, b"a")
        files.fail("write", "t/Partition-0/*.log", error=errno.ENOSPC)
        with pytest.raises(StorageError):
            append(log, b"b")
        with trio.fail_after(10), pytest.raises(StorageError, match="offline"):
            await directory.flusher.wait_held(log, end_offset)


async def test_a_full_disk_does_not_keep_retention_from_freeing_it(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """The new log start cannot be written: nothing has changed, and the log goes on."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0)
        await directory.flusher.wait_held(log, append(log, b"a", b"b"))
        files.fail("create", "log-start-offset.tmp", error=errno.ENOSPC)
        with pytest.raises(StorageError, match="No space left"):
            await directory.delete_records(log, 1)
        assert (log.log_start_offset, log.is_sound) == (0, True)
        assert await directory.delete_records(log, 1) == 1


async def test_opening_again_after_a_failed_checkpoint(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """The disk was full while it was noted which logs are open: the second try succeeds."""
    async with opened(files) as directory:
        files.fail("create", "boots.tmp", error=errno.ENOSPC)
        with pytest.raises(StorageError, match="No space left"):
            await directory.open_log("t", 0)
        log = await directory.open_log("t", 0)
        await directory.flusher.wait_held(log, append(log, b"a"))


async def test_an_offline_log_is_not_vouched_for(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """The directory closes in order, one log does not: the next opening scans that one."""
    async with opened(files) as directory:
        bad, good = await directory.open_logs(
            [(LogId("bad", 0), TopicConfig()), (LogId("good", 0), TopicConfig())]
        )
        for log in (bad, good):
            await directory.flusher.wait_held(log, append(log, b"a"))
        files.fail("write", "bad/Partition-0/*.log")
        with pytest.raises(StorageError):
            append(bad, b"b")
    async with opened(files) as directory:
        bad = await directory.open_log("bad", 0)
        good = await directory.open_log("good", 0)
        assert (bad.report.clean, good.report.clean) == (False, True)


@pytest.mark.parametrize("operation", ["rename", "sync_directory"])
async def test_a_trim_that_fails_late_takes_the_log_offline(
    files: SimulatedFiles, autojump_clock: MockClock, operation: str
) -> None:
    """Whether the new start will be found, nobody can say: nothing more is appended to it."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0)
        await directory.flusher.wait_held(log, append(log, b"a", b"b"))
        files.fail(operation, "*")
        with pytest.raises(StorageError, match="offline"):
            await directory.delete_records(log, 1)
        with pytest.raises(StorageError, match="offline"):
            append(log, b"c")


async def test_a_name_that_was_not_synced_is_synced_before_use(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """The folder of a new log is there, but its name is not durable; another log closes cleanly."""
    async with opened(files) as directory:
        await directory.open_log("good", 0)
        files.fail("sync_directory", "bad")
        with pytest.raises(StorageError):
            await directory.open_log("bad", 0)
    async with opened(files) as directory:
        log = await directory.open_log("bad", 0)
        await directory.flusher.wait_held(log, append(log, b"a"))
        cuts = [files.photograph(Random(seed), power_lost=True) for seed in range(10)]
    for after in cuts:
        async with opened(after) as directory:
            assert values_of(await directory.open_log("bad", 0)) == [b"a"]
