"""The data directory of a broker: opens, closes, checkpoints, trims and deletes its logs.

    .lock  clean-shutdown  checkpoints/{recovery-points,boots}  topics/<topic>-<id>/Partition-<n>/

Owns the open logs, the flusher, the checkpoints of recovery points and the upkeep at intervals,
retention among it (Kafka: LogManager). Everything that waits for the disk goes through `run_sync`.

Invariants: the recovery point on disk never exceeds what is durable, and is lowered before a
truncation is performed; the clean-shutdown mark is removed before a log takes its first byte.
"""

from __future__ import annotations

import logging
import re
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar
from weakref import WeakKeyDictionary

import trio

from raftmq.disk.files import OsFiles, allow_many_files
from raftmq.disk.thread import DiskThread
from raftmq.errors import CorruptRecord, DirectoryInUse, StorageError, without_frames
from raftmq.partition.storage.aborted_index import ABORTED_MAX, IndexLost
from raftmq.partition.storage.flusher import Flusher
from raftmq.partition.storage.inspect import TOPICS_FOLDER
from raftmq.partition.storage.lookups import (
    build_aborted,
    find_aborted,
    find_aborted_now,
    find_offset,
    find_rot,
    find_slice,
    find_slice_now,
    look_filtered,
    look_filtered_now,
    read_piece,
)
from raftmq.partition.storage.mending import finish_mending, write_mending
from raftmq.partition.storage.recovery import KnownPast, Past, open_log
from raftmq.partition.tail import TailMemory
from raftmq.topic_config import TopicConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from raftmq.disk.files import Files, FileSlice
    from raftmq.disk.thread import RunSync
    from raftmq.model import TimestampOffset
    from raftmq.partition.filtered_read import FilteredSlice, FilterLimits, Verdicts
    from raftmq.partition.scheduling.lists import ListWrite
    from raftmq.partition.storage.aborted_index import Aborted
    from raftmq.partition.storage.known_producers import SnapshotWrite
    from raftmq.partition.storage.log import LogSlice, PartitionLog
    from raftmq.partition.storage.mending import Mending
    from raftmq.partition.storage.rot import Rot
    from raftmq.partition.storage.work import LogStartOver, LogTrim, Truncation


logger = logging.getLogger("raftmq.partition")


# Names that every file system takes (NAME_MAX is 255 bytes), and no hidden ones.
_TOPIC_FOLDER = re.compile(r"(?!\.)[\w.-]{1,249}", re.ASCII)
# Seconds. A restart after a crash scans what was written since the last one, so less makes restarts
# faster; each one writes and syncs a file for all logs (decision 0006).
CHECKPOINT_INTERVAL = 5.0
CHECK_SECONDS = 0.05  # longer than `raftmq broker --check` holds the lock that it tries
RETENTION_CHECK_INTERVAL = 300.0  # seconds, as in Kafka: retention counts days, so minutes will do


class LogId(NamedTuple):
    """`topic` is the folder's name, `<topic>-<topic id>`."""

    topic: str
    partition: int

    @property
    def name(self) -> str:
        return f"{self.topic}/Partition-{self.partition}"


class LogDirectory:
    """Made by `open_log_directory`.

    Attributes:
        tails: memory for what leaders have appended lately.
    """

    def __init__(
        self,
        files: Files,
        root: Path,
        run_sync: RunSync,
        now_ms: Callable[[], int],
        flush_sync: RunSync,
        lazy_sync: RunSync,
    ) -> None:
        self._files, self.root, self._run_sync, self.now_ms = files, root, run_sync, now_ms
        files.make_directory(root)
        self._lock: object | None = files.lock(root / ".lock")  # before anything is read or written
        self._past = KnownPast(files, root)
        self._past.forget_clean_mark()
        self.logs: dict[str, PartitionLog] = {}
        self.flusher = Flusher(files, root, flush_sync, lazy_sync)
        self.tails = TailMemory()
        # Held while recovery points are written, or what they say is changed: one writer of those
        # files at a time. No flush waits for it.
        self._upkeep = trio.Lock()
        self._producers = ProducerUpkeep(files, self.flusher, run_sync, self._upkeep)
        self._changes: WeakKeyDictionary[PartitionLog, trio.Lock] = WeakKeyDictionary()

    def unlock(self) -> None:
        self._lock = None

    def _changing(self, log: PartitionLog) -> trio.Lock:
        """The lock for changes of a log, one at a time. By log object, not by name: a task may wait
        for the lock of a log that is deleted meanwhile."""
        return self._changes.setdefault(log, trio.Lock())

    # -- opening and closing ---------------------------------------------------------------

    async def open_log(
        self, topic: str, partition: int, config: TopicConfig | None = None
    ) -> PartitionLog:
        """Open one log, created where there is none; see `open_logs` for many.

        Raises:
            StorageError: the disk refused; nothing was lost by trying.
        """
        [log] = await self.open_logs([(LogId(topic, partition), config or TopicConfig())])
        return log

    async def open_logs(self, wanted: Sequence[tuple[LogId, TopicConfig]]) -> list[PartitionLog]:
        """Open and, where needed, recover logs; cheaper together than one by one.

        Raises:
            StorageError: one cannot be opened. The others are open all the same: see `logs`.
        """
        if self._lock is None:  # the directory was closed: another process may hold it
            raise StorageError(f"{self.root} is closed")
        for log_id, _ in wanted:
            _check_id(log_id)
            assert log_id.name not in self.logs, f"{log_id.name} is open already"
        # In a worker thread: recovery reads for seconds or minutes.
        opened = await self._run_sync(lambda: [self._open(*each) for each in wanted])
        logs = [log for log in opened if not isinstance(log, StorageError)]
        errors = [error for error in opened if isinstance(error, StorageError)]
        async with self._upkeep:  # one writer of the checkpoint files at a time
            # Until the recovery points are durable: without one, a loss is not noticed.
            await self._run_sync(lambda: self._note_opened(logs))
        for log in logs:
            self._take_in(log)
        if errors:  # after the others are registered
            raise StorageError(str(errors[0])) from errors[0].__cause__
        return logs

    def _open(self, log_id: LogId, config: TopicConfig) -> PartitionLog | StorageError:
        name, folder = log_id.name, self.root / TOPICS_FOLDER / log_id.name
        try:
            log = open_log(self._files, folder, name, config, self._past.of(name))
        except StorageError as error:  # returned, not raised: the other logs open all the same
            logger.error("log cannot be opened: log=%s reason=%s", name, error)
            return without_frames(error)
        log.release_small()  # or a few thousand logs would be too many open files
        return log

    def _take_in(self, log: PartitionLog) -> None:
        # Not an argument of the log: a worker thread makes it, and must not wake the flusher.
        self.logs[log.name], log.on_dirty = log, self.flusher.on_dirty

    def _note_opened(self, logs: list[PartitionLog]) -> None:
        unclean = [log.folder for log in logs if not self._past.of(log.name).was_clean]
        sync_names(self._files, self.root, unclean)
        self._past.write_opened(log.name for log in logs)
        self._past.write_points({log.name: 0 for log in logs})

    async def close(self) -> None:
        """Flush everything and leave the clean-shutdown mark, which spares the next opening the
        scan."""
        try:
            # Until all appends are durable, or the disk refuses.
            await self.flusher.flush_now(self.logs.values())
            await self.checkpoint()  # recovery points at the log ends
            sound = [log for log in self.logs.values() if log.is_sound]
            for log in sound:
                log.close_aborted()
            clean = {log.name: log.log_end_offset for log in sound if not log.is_dirty}
            # Before the mark: it says that everything is written.
            await self._producers.write_last(sound)
            await self._run_sync(lambda: self._past.write_clean(clean, self.logs))
        except StorageError as error:  # without the mark the next opening runs recovery
            logger.error("not closed cleanly: directory=%s reason=%s", self.root, error)
        for log in self.logs.values():
            log.close()
            self.flusher.forget(log)

    async def reopen(self, log: PartitionLog) -> PartitionLog:
        """Open a log anew that went offline; the old object is closed, its slices stay readable.

        Raises:
            StorageError: the disk still refuses, or the log is gone. Nothing has changed.
        """
        assert log.offline_reason, f"{log.name} is in service"
        async with self._changing(log):
            if self.logs.get(log.name) is not log:  # deleted while this waited for the lock
                raise StorageError(f"{log.name} was deleted")
            # Wait for a flush, or a snapshot of producers, that is still written to the old files.
            # None begins after it, as the log is offline.
            async with self.flusher.excluding(log), self._upkeep:
                pass
            # Shielded: a thread cannot be cancelled, and two objects must not have the files.
            with trio.CancelScope(shield=True):
                # Until recovery of this log has ended.
                found = await self._run_sync(partial(self._open_again, log))
                async with self._upkeep:  # until another checkpoint has ended
                    await self._run_sync(lambda: self._note_opened([found]))
            self._take_in(found)
            log.close()
            self.flusher.forget(log)
        return found

    def _open_again(self, log: PartitionLog) -> PartitionLog:
        """Recover in place. What a failed sync has lost is missing in any order, as after a power
        cut, so the page cache counts as lost."""
        # The durable end that the log knew is newer than the checkpoint, but wrong during a cut.
        known = self._past.points.get(log.name, 0) if log.is_half_cut else log.durable_end_offset
        past = Past(known, was_clean=False, page_cache_survived=False)
        found = open_log(self._files, log.folder, log.name, log.config, past)
        sync_names(self._files, self.root, [log.folder])
        return found

    # -- upkeep ----------------------------------------------------------------------------

    async def run_checkpoints(self) -> None:
        while True:
            await trio.sleep(CHECKPOINT_INTERVAL)
            self.flusher.request_lazy()  # `page_cache` topics are synced at this pace alone
            try:
                await self.checkpoint()
            except StorageError as error:  # the old one is still true: recovery scans more
                logger.warning("no checkpoint: directory=%s reason=%s", self.root, error)

    async def checkpoint(self) -> None:
        """Write how far each log is durable, so that recovery scans only what follows."""
        async with self._upkeep:  # waits for a running cut; none begins meanwhile
            risen = {
                log.name: log.durable_end_offset
                for log in self.logs.values()
                if log.is_sound and log.durable_end_offset > self._past.points.get(log.name, -1)
            }
            if risen:  # no file is written while nothing becomes durable
                for name in risen:
                    # Recovery finds the recovery point by the index entry before it.
                    self.logs[name].write_indexes()
                # Until the checkpoint is durable.
                await self._run_sync(lambda: self._past.write_points(risen))
            # Snapshots that are due since the last checkpoint.
            await self._producers.write(self.logs.values())

    async def run_retention(self, confirmed_ms: Callable[[], int | None]) -> NoReturn:
        """`confirmed_ms`: the wall clock; None while too few brokers confirm it (decision 0026)."""
        while True:
            await trio.sleep(RETENTION_CHECK_INTERVAL)
            await self.enforce_retention(confirmed_ms())

    async def enforce_retention(self, now_ms: int | None) -> None:
        """Delete segments beyond the topics' retention; by age only if the time is known."""
        # A copy: logs come and go during the awaits.
        for log in [log for log in self.logs.values() if log.is_sound]:
            try:
                async with self._changing(log):
                    if log.is_sound:  # again: it may have been closed, and its files reopened
                        if now_ms is not None:  # age is known only with a confirmed clock
                            log.roll_if_old(now_ms)
                        trim = log.plan_retention(now_ms)
                        # Until the new start is durable; none to trim: returns at once.
                        await self._trim(log, trim)
                        if trim is not None:  # only what was deleted is worth a line
                            start = trim.log_start_offset
                            logger.info("retention: log=%s starts_at=%d", log.name, start)
                        await self._rebuild_indexes(log)
            except (StorageError, CorruptRecord) as error:  # one log must not stop the others
                logger.warning("no retention: log=%s reason=%s", log.name, error)
                log.doubt(error)
            log.release_idle(trio.current_time())

    async def _rebuild_indexes(self, log: PartitionLog) -> None:
        try:
            await self._run_sync(log.rebuild_damaged_indexes)
        except (StorageError, CorruptRecord) as error:  # reads go on by walking, only slower
            logger.warning("index stays damaged: log=%s reason=%s", log.name, error)
            log.doubt(error)

    # -- cutting: one change of a log at a time ----------------------------------------------

    async def delete_records(self, log: PartitionLog, before_offset: int) -> int:
        """Delete everything before `before_offset`; returns the log start offset, now durable.

        Raises:
            OffsetOutOfRange: beyond the log end.
            StorageError: the disk refused.
        """
        # A start beyond the durable end would leave a log without a start after a crash.
        await self.flusher.wait_durable(log, min(before_offset, log.log_end_offset))
        async with self._changing(log):  # until a truncation or another trim has ended
            await self._trim(log, log.plan_trim(before_offset))  # until the new start is durable
        return log.log_start_offset

    async def _trim(self, log: PartitionLog, trim: LogTrim | None) -> None:
        """Make the new start durable, then remove files. A full disk fails the first step, before
        anything has changed."""
        if trim is None:  # the log starts there already
            return
        # First, while the batches of these producers are still there.
        await self._producers.keep_trimmed(log, trim)
        with trio.CancelScope(shield=True):
            # Fails on a full disk, and nothing has changed.
            await self._run_sync(lambda: trim.prepare(self._files))
            try:
                await self._run_sync(lambda: trim.perform(self._files))
            except StorageError as error:  # the next opening may find the old or the new start
                raise log.go_offline(error) from error
            log.apply_trim(trim)
            try:
                await self._run_sync(lambda: trim.remove(self._files))
            except StorageError as error:  # harmless: the next opening removes them
                logger.warning("files stay: log=%s reason=%s", log.name, error)

    async def truncate(self, log: PartitionLog, offset: int) -> None:
        """Cut the log's end at `offset`, durably; the caller must not append meanwhile.

        Raises:
            OffsetOutOfRange: outside of the log.
            StorageError: the disk refused; the log is offline.
        """
        # Until other changes and the running flush have ended.
        async with self._changing(log), self.flusher.excluding(log), self._upkeep:
            work = log.begin_truncate(offset)
            await self._cut(log, work, log.log_end_offset)

    async def start_over(self, log: PartitionLog, offset: int) -> None:
        """Remove all of the log and let it begin at `offset`, durably; errors as in `truncate`.

        For a replica that is so far behind that its leader has deleted what it would need.
        """
        async with self._changing(log), self.flusher.excluding(log), self._upkeep:
            # A crash may leave it at the old start or the new one: only below both all is durable.
            point = min(offset, log.log_start_offset)
            await self._cut(log, log.begin_start_over(offset), point)

    async def _cut(self, log: PartitionLog, work: Truncation | LogStartOver, point: int) -> None:
        """`point`: everything below it stays durable, even if the cut fails halfway."""
        self._past.lower(log.name, point)

        def perform() -> None:
            self._past.write_lowered()
            work.perform(self._files)

        try:
            with trio.CancelScope(shield=True):
                await self._run_sync(perform)
        except StorageError as error:  # half cut: only recovery can say where the log ends
            raise log.go_offline(error) from error
        finally:
            log.end_truncate()
            self.flusher.on_cut(log)

    async def delete_log(self, log: PartitionLog) -> None:
        """Delete a log with its files. After a crash in the middle it is gone, or
        `remove_deleted` finishes the work (decision 0030).

        Raises:
            StorageError: the disk refused; the files stay, and are removed by a later start.
        """
        # Until other changes and the running flush have ended: both use the files.
        async with self._changing(log), self.flusher.excluding(log), self._upkeep:
            log.close()
            self.flusher.forget(log)
            del self.logs[log.name]
            doomed = await self._set_aside(log.name)  # until the rename is durable
        await self._remove(doomed)

    async def discard(self, log_id: LogId) -> None:
        """Remove a log that cannot be opened: the next opening makes an empty one.

        Raises:
            StorageError: the disk refused; some of it may be gone.
        """
        assert log_id.name not in self.logs, f"{log_id.name} is open"
        async with self._upkeep:  # one writer of the checkpoint files at a time
            doomed = await self._set_aside(log_id.name)  # until the rename is durable
        await self._remove(doomed)

    async def _set_aside(self, name: str) -> Path | None:
        """Rename the folder, so that no log has it any more. First the recovery point goes: with it
        a replica of this partition that comes back empty one day would count as damaged."""
        self._past.forget(name)

        def perform() -> Path | None:
            self._past.write_lowered()
            return set_aside(self._files, self.root / TOPICS_FOLDER / name)

        with trio.CancelScope(shield=True):
            # Until the name is durable: no later start opens the log.
            doomed = await self._run_sync(perform)
        return doomed

    async def _remove(self, doomed: Path | None) -> None:
        """Remove a renamed folder. Slow for large logs, so `_upkeep` is not held for it."""
        if doomed is not None:  # else there was no such folder
            with trio.CancelScope(shield=True):
                # Shielded: a thread cannot be cancelled, and would remove on.
                await self._run_sync(lambda: remove_folder(self._files, doomed))

    async def remove_deleted(self) -> None:
        """Remove what crashes have left of deleted logs; before any log is opened."""

        def perform() -> None:
            remove_deleted(self._files, self.root / TOPICS_FOLDER)
            try:
                self._past.forget_missing(find_folders(self._files, self.root, {}))
            except StorageError as error:  # only tidying up: a broker with a full disk must start
                logger.warning("deleted logs are remembered: reason=%s", error)

        await self._run_sync(perform)

    def found(self) -> list[tuple[str, str]]:
        """Folders of topics and partitions, see `find_folders`."""
        return find_folders(self._files, self.root, self._past.points)

    # -- waiting and reading ---------------------------------------------------------------

    def oldest_pending_age(self) -> float:
        """Seconds for which the oldest append has waited for the disk; 0.0 if none waits."""
        return self.flusher.oldest_pending_age(trio.current_time())

    async def slice(
        self, log: PartitionLog, offset: int, *, bytes_max: int, end_offset: int | None = None
    ) -> LogSlice:
        """`log.plan_slice`, on the loop if the page cache has it, else in a worker thread."""
        return await find_slice(
            log, self._run_sync, offset, bytes_max=bytes_max, end_offset=end_offset
        )

    def slice_now(
        self, log: PartitionLog, offset: int, *, bytes_max: int, end_offset: int | None = None
    ) -> LogSlice:
        """As `slice`, but raises WouldBlock where the page cache does not have it."""
        return find_slice_now(log, offset, bytes_max=bytes_max, end_offset=end_offset)

    async def look_filtered(
        self,
        log: PartitionLog,
        offset: int,
        verdicts: Verdicts | None,
        limits: FilterLimits,
        *,
        end_offset: int,
    ) -> FilteredSlice:
        """`plan_filtered`, on the loop if the page cache has it, else in a worker thread."""
        run_sync = self._run_sync
        return await look_filtered(log, run_sync, offset, verdicts, limits, end_offset=end_offset)

    def look_filtered_now(
        self,
        log: PartitionLog,
        offset: int,
        verdicts: Verdicts | None,
        limits: FilterLimits,
        *,
        end_offset: int,
    ) -> FilteredSlice:
        """As `look_filtered`, but raises WouldBlock where the page cache does not have it."""
        return look_filtered_now(log, offset, verdicts, limits, end_offset=end_offset)

    async def aborted_in(
        self, log: PartitionLog, first_offset: int, end_offset: int, limit: int = ABORTED_MAX
    ) -> list[Aborted]:
        """`PartitionLog.aborted_in`, on the loop if the page cache has it, else in a worker thread;
        an index that is lost is built again first.

        Raises:
            OffsetOutOfRange: the segment of the first offset was deleted meanwhile.
            CorruptRecord: rot hides what was aborted.
            StorageError: the disk refused, or the log is not in use.
        """
        while True:
            with suppress(IndexLost):
                return await find_aborted(log, self._run_sync, first_offset, end_offset, limit)
            async with self._changing(log):  # until cuts, trims and another reader have ended
                if self.logs.get(log.name) is not log:  # while this waited for the lock
                    raise StorageError(f"{log.name} was opened anew or deleted")
                try:
                    return await find_aborted(log, self._run_sync, first_offset, end_offset, limit)
                except IndexLost as lost:
                    # Until the batches are read; then once more.
                    await build_aborted(log, self._run_sync, lost.base_offset)

    def aborted_in_now(
        self, log: PartitionLog, first_offset: int, end_offset: int, limit: int = ABORTED_MAX
    ) -> list[Aborted]:
        """As `aborted_in`, but raises WouldBlock where the page cache does not have it."""
        return find_aborted_now(log, first_offset, end_offset, limit)

    async def offset_for_timestamp(
        self, log: PartitionLog, timestamp: int
    ) -> TimestampOffset | None:
        """`lookups.find_timestamp`, in a worker thread."""
        return await find_offset(log, self._run_sync, timestamp)

    async def look(
        self, log: PartitionLog, offset: int, *, on_begin: Callable[[], None] = lambda: None
    ) -> Rot | None:
        """Check the batch at that offset, and the way to it, on the disk. When this returns, rot is
        noted in the log, and in its folder for every later opening. `on_begin` is called when the
        wait for other changes of the log is over: its own duration counts from there.

        Raises:
            StorageError: the disk cannot be read, or the log is not in use.
            OffsetOutOfRange: it is not in the log.
        """
        async with self._changing(log):  # until other changes of this log have ended
            on_begin()
            if self.logs.get(log.name) is not log:  # while this waited for the lock
                raise StorageError(f"{log.name} was opened anew or deleted")
            return await find_rot(log, self._run_sync, offset)

    async def mend(self, log: PartitionLog, mending: Mending) -> None:
        """Overwrite rot with the original batches, fetched from another replica. After the last of
        them all is read back, and the rot is forgotten.

        Raises:
            StorageError: the log has changed since this was planned, or its disk failed.
        """
        async with self._changing(log):
            if self.logs.get(log.name) is not log:  # while this waited for the lock
                raise StorageError(f"{log.name} was opened anew or deleted")
            # A flush would sync the same file at the same time.
            async with self.flusher.excluding(log):
                with trio.CancelScope(shield=True):
                    await write_mending(log, self._run_sync, mending)
            if mending.is_last:  # reads back all of the rot: too slow to keep flushes away
                # Until the disk has shown all of it.
                await finish_mending(log, self._run_sync, mending)

    async def read(self, piece: FileSlice) -> bytes:
        """The bytes of a slice, without blocking the loop."""
        return await read_piece(piece, self._run_sync)


def _check_id(log_id: LogId) -> None:
    if not _TOPIC_FOLDER.fullmatch(log_id.topic) or log_id.partition < 0:
        raise ValueError(f"{log_id}: letters, digits, '.', '_' and '-' only, partition from 0")


# -- Deletion -------------------------------------------------------------------------------------
# Deleting the folder of a partition so that no crash leaves half a log.
#
# Owns the order: the folder is renamed to a name that no log has, durably; then its files are
# removed, then the folder, which takes long for large logs. What a crash leaves is found by its
# name and removed at the next start. Waits for the disk.


DELETED_SUFFIX = ".deleted"  # no partition folder ends so


def set_aside(files: Files, folder: Path) -> Path | None:
    """Rename the folder, durably: no log has it any more. Returns its new path, for
    `remove_folder`; None if there is no such folder.

    Raises:
        StorageError: if it was renamed, `remove_deleted` will find it; else nothing has changed.
    """
    if not files.exists(folder):
        return None
    doomed = folder.with_name(folder.name + DELETED_SUFFIX)
    if files.exists(doomed):  # of an earlier log of this name, whose deletion failed
        remove_folder(files, doomed)
    files.rename(folder, doomed)
    files.sync_directory(folder.parent)
    return doomed


def remove_deleted(files: Files, topics: Path) -> None:
    """Finish deletions that a crash has interrupted, below the folder of all topics."""
    for topic in files.names(topics):
        for name in files.names(topics / topic):
            if name.endswith(DELETED_SUFFIX):
                remove_folder(files, topics / topic / name)


def remove_folder(files: Files, doomed: Path) -> None:
    """
    Raises:
        StorageError: some of it is still there, and `remove_deleted` will find it.
    """
    for name in files.names(doomed):
        files.remove(doomed / name)
    files.remove_directory(doomed)
    if not files.names(doomed.parent):  # the topic has no other partition here
        files.remove_directory(doomed.parent)


# -- Folders --------------------------------------------------------------------------------------
# The folders of a data directory's logs: finding them, and making their names durable.
#
# Owns the walk through topics and partitions. Opens no log; waits for the disk.


def find_folders(
    files: Files, root: Path, recovery_points: Mapping[str, int]
) -> list[tuple[str, str]]:
    """Folders of topics and partitions: those on the disk, and those that are missing although
    they held durable records, by their recovery point.
    """
    topics = root / TOPICS_FOLDER
    there = {
        (topic, partition)
        for topic in files.names(topics)
        for partition in files.names(topics / topic)
    }
    held = (name.partition("/") for name, point in recovery_points.items() if point)
    return sorted(there | {(topic, partition) for topic, _, partition in held})


def sync_names(files: Files, root: Path, folders: Iterable[Path]) -> None:
    """Make the names of these partition folders durable: the process that made them may have died
    before it did so."""
    topics = sorted({folder.parent for folder in folders})
    if not topics:
        return
    for folder in [*topics, root / TOPICS_FOLDER, root]:
        files.sync_directory(folder)
    with suppress(StorageError):  # the parent may belong to another user
        files.sync_directory(root.parent)


# -- Opening --------------------------------------------------------------------------------------
# Opening a data directory: the tasks and threads that run while it is open.
#
# Owns the lifetime of a `LogDirectory`: its upkeep, its threads, and the order of its shutdown.


T = TypeVar("T")


async def run_in_thread(function: Callable[[], T], /) -> T:
    return await trio.to_thread.run_sync(function)


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@asynccontextmanager
async def open_log_directory(
    root: Path,
    *,
    files: Files | None = None,
    run_sync: RunSync | None = None,
    now_ms: Callable[[], int] = wall_clock_ms,
) -> AsyncIterator[LogDirectory]:
    """Hold the directory, flush and write checkpoints, and close it cleanly at the end. Retention
    is run by the broker, which knows the confirmed time (`LogDirectory.run_retention`).

    Args:
        run_sync: runs what waits for the disk; threads, one of them for flushes alone, if None.
        now_ms: the wall clock.

    Raises:
        DirectoryInUse: another process holds it.
        StorageError: the disk refused.
    """
    if files is None:  # else a simulation brings its own
        files = OsFiles()
        allow_many_files()
    with _flushing_by(run_sync, "flusher") as rounds, _flushing_by(run_sync, "lazy") as lazily:
        work = run_sync or run_in_thread
        make = partial(LogDirectory, files, root, work, now_ms, rounds, lazily)
        try:
            directory = make()
        except DirectoryInUse:  # perhaps by `raftmq broker --check`, which tries the lock
            await trio.sleep(CHECK_SECONDS)
            directory = make()
        try:
            async with trio.open_nursery() as nursery:  # ends with the caller's block
                nursery.start_soon(directory.flusher.run)
                nursery.start_soon(directory.flusher.run_lazy)
                nursery.start_soon(directory.run_checkpoints)
                try:
                    yield directory
                    nursery.cancel_scope.cancel()
                finally:
                    # Shielded: also when cancelled, records that were appended are flushed.
                    with trio.CancelScope(shield=True):
                        await directory.close()
        except BaseExceptionGroup as group:
            if len(group.exceptions) > 1:  # several failed: all of them matter
                raise
            error = group.exceptions[0]  # the caller's own error, without the nursery's wrapping
            raise error from error.__cause__
        finally:
            directory.unlock()  # only now: no worker thread writes any more


@contextmanager
def _flushing_by(run_sync: RunSync | None, name: str) -> Iterator[RunSync]:
    """A thread for flushes alone, as acknowledgements wait for them: in a shared pool they would
    queue behind slow reads. Another one for those that no acknowledgement waits for."""
    if run_sync is not None:  # a simulation runs everything inline
        yield run_sync
        return
    with DiskThread(f"raftmq-{name}") as thread:
        yield thread.run


# -- Producer upkeep ------------------------------------------------------------------------------
# When snapshots of producers are written: with each checkpoint, before a trim, at shutdown.
#
# Owns the way from logs on the loop to a worker thread and back. Nothing is truncated meanwhile:
# the directory's `upkeep` lock is held for each write.


class ProducerUpkeep:
    """Writes snapshots of producers for a `LogDirectory`."""

    def __init__(
        self, files: Files, flusher: Flusher, run_sync: RunSync, upkeep: trio.Lock
    ) -> None:
        self._files, self._flusher, self._run_sync = files, flusher, run_sync
        self._upkeep = upkeep

    async def write(self, logs: Iterable[PartitionLog], *, is_durable: bool = True) -> None:
        """Write the snapshots that are due; errors of the disk are logged. The caller holds
        `upkeep`."""
        sound = [log for log in logs if log.is_sound]
        lists = [each for log in sound if (each := log.scheduled.begin_write())]
        begun = [
            (log, work)
            for log in sound
            if (work := log.producers.begin_write(log.segments, is_durable=is_durable))
        ]
        if not begun and not lists:  # nothing is due: spare the thread
            return
        works: list[ListWrite | SnapshotWrite] = [*lists, *(work for _, work in begun)]
        with trio.CancelScope(shield=True):
            # Until they are written; a thread cannot be cancelled.
            await self._run_sync(partial(_perform, works, self._files))
        for log, work in begun:
            log.producers.complete_write(work)

    async def keep_trimmed(self, log: PartitionLog, trim: LogTrim) -> None:
        """Keep producers known whose batches will be trimmed, even through a power cut: only a
        snapshot has them then, and it must be of a durable part of the log.

        Raises:
            StorageError: the log goes offline.
        """
        if trim.removed:  # a trim inside a segment leaves all batches for recovery to walk
            async with self._upkeep:  # no cut begins while the snapshot is written
                covering = log.producers.cover(trim.first_offset, log.log_end_offset)
                await self.write([log])
            # A snapshot beyond the durable end would be void after a crash.
            await self._flusher.wait_durable(log, covering)

    async def write_last(self, logs: Iterable[PartitionLog]) -> None:
        """At each log's end, at shutdown. Not synced, as thousands of syncs would delay the
        shutdown; without such a snapshot the next opening only walks some headers.
        """
        grown = [log for log in logs if log.log_end_offset > log.active.base_offset]
        async with self._upkeep:  # no cut begins while they are written
            for log in grown:
                log.producers.take_last(log.log_end_offset)
                log.scheduled.take_last(log.log_end_offset)
            await self.write(grown, is_durable=False)


def _perform(works: list[ListWrite | SnapshotWrite], files: Files) -> None:
    for work in works:
        work.perform(files)
