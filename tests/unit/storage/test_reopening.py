"""A log that went offline is opened anew while its directory is in use; one that nobody can open
is begun anew.
"""

from __future__ import annotations

import errno
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import StorageError
from raftmq.model import Durability
from raftmq.partition.storage.directory import LogId
from raftmq.topic_config import TopicConfig
from tests.simulation.disk import SimulatedFiles
from tests.unit.storage.batches import append, values_of
from tests.unit.storage.directories import ROOT, Disk, opened

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.partition.storage.log import PartitionLog

LOG_FILES = "t/Partition-0/*.log"
FOLDER = ROOT / "topics/t/Partition-0"


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Random(0))


async def offline(directory: LogDirectory, files: SimulatedFiles, log: PartitionLog) -> None:
    """One more record, whose sync fails."""
    files.fail("sync", LOG_FILES)
    append(log, b"lost")
    with pytest.raises(StorageError, match="offline"):
        await directory.flusher.wait_durable(log, log.log_end_offset)


async def test_what_was_opened_anew_is_trimmed(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Its files go, though somebody remembers the object before; so does a log that is deleted."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0, TopicConfig(segment_bytes=200))
        for value in (b"a", b"b", b"c"):
            await directory.flusher.wait_held(log, append(log, value * 200))
        await offline(directory, files, log)
        again = await directory.reopen(log)
        await directory.delete_records(again, 2)
        assert again.log_start_offset == 2
        assert not files.removed_open()
        await directory.delete_log(again)
        assert not files.removed_open()


async def test_what_was_durable_is_there_and_the_rest_is_cut(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """The page cache shows what a failed sync has lost: it is not believed."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0)
        await directory.flusher.wait_held(log, append(log, b"a"))
        await offline(directory, files, log)
        again = await directory.reopen(log)
        assert (again.is_sound, values_of(again)) == (True, [b"a"])
        assert directory.logs[log.name] is again
        await directory.flusher.wait_held(again, append(again, b"b"))
        with pytest.raises(StorageError, match="offline"):
            append(log, b"old object")
    async with opened(files) as directory:
        again = await directory.open_log("t", 0)
        assert (again.is_sound, values_of(again)) == (True, [b"a", b"b"])


async def test_a_hole_in_what_was_never_durable_is_no_damage(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """A failed write-back leaves a gap before pages that were written later: all of it is cut."""
    async with opened(files) as directory:
        config = TopicConfig(durability=Durability.PAGE_CACHE)
        log = await directory.open_log("t", 0, config)
        append(log, b"a")
        await directory.flusher.wait_durable(log, 1)
        await offline(directory, files, log)
        found = files.open(log.active.file.path)
        size = found.size()
        found.write(size, [found.read(0, size)])  # something sound behind what is gone
        again = await directory.reopen(log)
        assert (again.damage, values_of(again)) == (None, [b"a"])


async def test_what_was_durable_and_is_gone_is_damage(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """No checkpoint knows of it yet, but the log that went offline does; and so does its mark."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0)
        await directory.flusher.wait_held(log, append(log, b"a", b"b"))
        end = append(log, b"c")
        await directory.flusher.wait_held(log, end)
        await offline(directory, files, log)
        files.open(log.active.file.path).truncate(20)
        again = await directory.reopen(log)
        assert again.damage
        assert (again.is_sound, values_of(again)) == (False, [])
        await directory.truncate(again, again.log_end_offset)
        assert again.is_sound


async def test_a_disk_that_still_fails_changes_nothing(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """The old object stays, offline; the next attempt succeeds."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0)
        await directory.flusher.wait_held(log, append(log, b"a"))
        await offline(directory, files, log)
        files.fail("sync", LOG_FILES)
        with pytest.raises(StorageError, match="fdatasync"):
            await directory.reopen(log)
        assert directory.logs[log.name] is log
        assert values_of(await directory.reopen(log)) == [b"a"]


async def test_a_full_disk_heals_when_there_is_room(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """A write that failed leaves nothing, or a torn batch: the log goes on before it."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0)
        await directory.flusher.wait_held(log, append(log, b"a"))
        files.fail("write", LOG_FILES, error=errno.ENOSPC)
        with pytest.raises(StorageError, match="No space"):
            append(log, b"b")
        again = await directory.reopen(log)
        await directory.flusher.wait_held(again, append(again, b"c"))
        assert values_of(again) == [b"a", b"c"]


@pytest.mark.parametrize("nth", range(1, 5))
async def test_a_start_over_that_failed_half_way_is_no_damage(
    files: SimulatedFiles, autojump_clock: MockClock, nth: int
) -> None:
    """The recovery point was lowered before: whatever is found is taken as it is."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0)
        await directory.flusher.wait_held(log, append(log, b"a", b"b"))
        await directory.checkpoint()
        files.fail("sync_directory", "t/Partition-0", nth=min(nth, 2))
        files.fail("sync", "t/Partition-0/*", nth=nth)
        with pytest.raises(StorageError):
            await directory.start_over(log, 50)
        files._faults.clear()
        again = await directory.reopen(log)
        assert again.is_sound
        await directory.start_over(again, 50)
        assert (again.log_start_offset, again.log_end_offset) == (50, 50)


async def test_a_log_that_was_deleted_is_not_opened_again(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Its topic went while the disk was slow."""
    disk = Disk()
    async with opened(files, disk) as directory:
        log = await directory.open_log("t", 0)
        await offline(directory, files, log)
        disk.seconds = 1.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(directory.delete_log, log)
            await trio.sleep(0.5)
            with pytest.raises(StorageError, match="was deleted"):
                await directory.reopen(log)
        assert not files.exists(FOLDER)


async def test_a_log_that_cannot_be_read_is_begun_anew(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Empty, and without damage: nothing is expected of it any more. What an earlier removal left
    behind is no hindrance.
    """
    async with opened(files) as directory:
        log = await directory.open_log("t", 0)
        await directory.flusher.wait_held(log, append(log, b"a"))
    doomed = FOLDER.with_name("Partition-0.deleted")
    files.make_directory(doomed)
    files.open(doomed / "left", create=True)
    async with opened(files) as directory:
        files.fail("sync", "t/Partition-0/*")
        files.fail("open", "t/Partition-0/*")
        with pytest.raises(StorageError):
            await directory.open_log("t", 0)
        files._faults.clear()
        await directory.discard(LogId("t", 0))
        log = await directory.open_log("t", 0)
        assert (log.is_sound, log.log_end_offset) == (True, 0)
        assert not files.exists(doomed)


async def test_a_folder_that_is_missing_is_still_known(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Somebody has removed it by hand: its records are lost, and that has to be told."""
    async with opened(files) as directory:
        log = await directory.open_log("t", 0)
        await directory.flusher.wait_held(log, append(log, b"a"))
    for name in files.names(FOLDER):
        files.remove(FOLDER / name)
    files.remove_directory(FOLDER)
    async with opened(files) as directory:
        assert directory.found() == [("t", "Partition-0")]
        log = await directory.open_log("t", 0)
        assert log.damage
        await directory.truncate(log, log.log_end_offset)
        assert log.is_sound
