"""A data directory: all logs of one broker, and what they share.

    .lock  clean-shutdown  checkpoints/{recovery-points,boots}  topics/<topic>-<id>/Partition-<n>/

Owns opening and closing the logs, the flusher, the checkpoints that say from where recovery must
check, and the regular upkeep. Everything that waits for the disk goes through `run_sync`.

Invariants: the recovery point on disk never exceeds what is durable, and is lowered before a
truncation is performed; the clean-shutdown mark is gone before a log takes its first byte.
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

from raftmq.config import TopicConfig
from raftmq.disk.files import OsFiles, allow_many_files
from raftmq.disk.thread import DiskThread
from raftmq.errors import CorruptRecord, StorageError, without_frames
from raftmq.partition.storage.flusher import Flusher
from raftmq.partition.storage.lookups import (
    find_offset,
    find_rot,
    find_slice,
    find_slice_now,
    read_piece,
)
from raftmq.partition.storage.mending import finish_mending, write_mending
from raftmq.partition.storage.recovery import KnownPast, Past, open_log

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from raftmq.disk.files import Files, FileSlice
    from raftmq.model import TimestampOffset
    from raftmq.partition.storage.flusher import RunSync
    from raftmq.partition.storage.known_producers import SnapshotWrite
    from raftmq.partition.storage.log import LogSlice, PartitionLog
    from raftmq.partition.storage.mending import Mending
    from raftmq.partition.storage.rot import Rot
    from raftmq.partition.storage.work import LogStartOver, LogTrim, Truncation


logger = logging.getLogger("raftmq.partition")


_TOPIC_FOLDER = re.compile(r"(?!\.)[\w.-]{1,249}", re.ASCII)
CHECKPOINT_INTERVAL = 5.0  # seconds
RETENTION_CHECK_INTERVAL = 300.0  # seconds


class LogId(NamedTuple):
    """`topic` is the folder's name, `<topic>-<topic id>`."""

    topic: str
    partition: int

    @property
    def name(self) -> str:
        return f"{self.topic}/Partition-{self.partition}"


class LogDirectory:
    """Made by `open_log_directory`."""

    def __init__(
        self,
        files: Files,
        root: Path,
        run_sync: RunSync,
        now_ms: Callable[[], int],
        flush_sync: RunSync,
    ) -> None:
        self._files, self.root, self._run_sync, self.now_ms = files, root, run_sync, now_ms
        files.make_directory(root)
        self._lock: object | None = files.lock(root / ".lock")
        self._past = KnownPast(files, root)
        self._past.forget_clean_mark()
        self.logs: dict[str, PartitionLog] = {}
        self.flusher = Flusher(files, root, flush_sync)
        self._producers = ProducerUpkeep(files, self.flusher, run_sync)
        self._changes: WeakKeyDictionary[PartitionLog, trio.Lock] = WeakKeyDictionary()

    def unlock(self) -> None:
        self._lock = None

    def _changing(self, log: PartitionLog) -> trio.Lock:
        """One change of a log at a time; also of one that was deleted meanwhile."""
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
        if self._lock is None:
            raise StorageError(f"{self.root} is closed")
        for log_id, _ in wanted:
            _check_id(log_id)
            assert log_id.name not in self.logs, f"{log_id.name} is open already"
        opened = await self._run_sync(lambda: [self._open(*each) for each in wanted])
        logs = [log for log in opened if not isinstance(log, StorageError)]
        errors = [error for error in opened if isinstance(error, StorageError)]
        async with self.flusher.disk:
            await self._run_sync(lambda: self._note_opened(logs))
        for log in logs:
            self.logs[log.name], log.on_dirty = log, self.flusher.on_dirty
        if errors:
            raise StorageError(str(errors[0])) from errors[0].__cause__
        return logs

    def _open(self, log_id: LogId, config: TopicConfig) -> PartitionLog | StorageError:
        name, folder = log_id.name, self.root / TOPICS_FOLDER / log_id.name
        try:
            log = open_log(self._files, folder, name, config, self._past.of(name))
        except StorageError as error:
            logger.error("log cannot be opened: log=%s reason=%s", name, error)
            return without_frames(error)
        log.release_small()  # or a few thousand logs would be too many open files
        return log

    def _note_opened(self, logs: list[PartitionLog]) -> None:
        unclean = [log.folder for log in logs if not self._past.of(log.name).was_clean]
        sync_names(self._files, self.root, unclean)
        self._past.write_opened(log.name for log in logs)
        self._past.write_points({log.name: 0 for log in logs})

    async def close(self) -> None:
        """Flush everything and leave the mark that makes the next opening quick."""
        try:
            await self.flusher.flush_now(self.logs.values())
            await self.checkpoint()
            sound = [log for log in self.logs.values() if log.is_sound]
            clean = {log.name: log.log_end_offset for log in sound if not log.is_dirty}
            await self._producers.write_last(sound)
            await self._run_sync(lambda: self._past.write_clean(clean, self.logs))
        except StorageError as error:  # the next opening recovers
            logger.error("not closed cleanly: directory=%s reason=%s", self.root, error)
        for log in self.logs.values():
            log.close()
            self.flusher.forget(log)

    async def reopen(self, log: PartitionLog) -> PartitionLog:
        """Open a log anew that went offline; the old object is closed, its slices stay readable.

        Raises:
            StorageError: the disk refuses still, or the log is gone. Nothing has changed.
        """
        assert log.offline_reason, f"{log.name} is in service"
        async with self._changing(log):
            if self.logs.get(log.name) is not log:
                raise StorageError(f"{log.name} was deleted")
            async with self.flusher.disk:
                pass  # a round that began before is over
            with trio.CancelScope(shield=True):
                found = await self._run_sync(partial(self._open_again, log))
                async with self.flusher.disk:
                    await self._run_sync(lambda: self._note_opened([found]))
            self.logs[log.name], found.on_dirty = found, self.flusher.on_dirty
            log.close()
            self.flusher.forget(log)
        return found

    def _open_again(self, log: PartitionLog) -> PartitionLog:
        """What a failed sync has lost is missing in any order, as after a loss of power."""
        known = self._past.points.get(log.name, 0) if log.is_half_cut else log.durable_end_offset
        past = Past(known, was_clean=False, page_cache_survived=False)
        found = open_log(self._files, log.folder, log.name, log.config, past)
        sync_names(self._files, self.root, [log.folder])
        return found

    # -- upkeep ----------------------------------------------------------------------------

    async def run_checkpoints(self) -> None:
        while True:
            await trio.sleep(CHECKPOINT_INTERVAL)
            self.flusher.request_lazy()
            try:
                await self.checkpoint()
            except StorageError as error:  # the old one still holds: recovery checks more
                logger.warning("no checkpoint: directory=%s reason=%s", self.root, error)

    async def checkpoint(self) -> None:
        """Write down how far each log is durable, so that recovery checks only what follows."""
        async with self.flusher.disk:
            risen = {
                log.name: log.durable_end_offset
                for log in self.logs.values()
                if log.is_sound and log.durable_end_offset > self._past.points.get(log.name, -1)
            }
            if risen:
                for name in risen:
                    self.logs[name].write_indexes()  # from where recovery starts to walk
                await self._run_sync(lambda: self._past.write_points(risen))
            await self._producers.write(self.logs.values())

    async def run_retention(self, confirmed_ms: Callable[[], int | None]) -> NoReturn:
        """`confirmed_ms`: the wall clock, or None while it cannot be believed."""
        while True:
            await trio.sleep(RETENTION_CHECK_INTERVAL)
            await self.enforce_retention(confirmed_ms())

    async def enforce_retention(self, now_ms: int | None) -> None:
        """Remove what has outlived its retention: for its age not without a time (None)."""
        for log in [log for log in self.logs.values() if log.is_sound]:  # at one and the same time
            try:
                async with self._changing(log):
                    if log.is_sound:  # still: its files may be another object's by now
                        if now_ms is not None:
                            log.roll_if_old(now_ms)
                        trim = log.plan_retention(now_ms)
                        await self._trim(log, trim)
                        if trim is not None:
                            start = trim.log_start_offset
                            logger.info("retention: log=%s starts_at=%d", log.name, start)
                        await self._rebuild_indexes(log)
            except (StorageError, CorruptRecord) as error:
                logger.warning("no retention: log=%s reason=%s", log.name, error)
                log.doubt(error)
            log.release_idle(trio.current_time())

    async def _rebuild_indexes(self, log: PartitionLog) -> None:
        try:
            await self._run_sync(log.rebuild_damaged_indexes)
        except (StorageError, CorruptRecord) as error:
            logger.warning("index stays damaged: log=%s reason=%s", log.name, error)
            log.doubt(error)

    # -- cutting: one change of a log at a time ----------------------------------------------

    async def delete_records(self, log: PartitionLog, before_offset: int) -> int:
        """Forget everything before `before_offset`; returns the log start offset, now durable.

        Raises:
            OffsetOutOfRange: beyond the log end.
            StorageError: the disk refused.
        """
        await self.flusher.wait_durable(log, min(before_offset, log.log_end_offset))
        async with self._changing(log):
            await self._trim(log, log.plan_trim(before_offset))
        return log.log_start_offset

    async def _trim(self, log: PartitionLog, trim: LogTrim | None) -> None:
        """The new start is durable first. A full disk shows before anything has changed."""
        if trim is None:
            return
        await self._producers.keep_trimmed(log, trim)
        with trio.CancelScope(shield=True):
            await self._run_sync(lambda: trim.prepare(self._files))
            try:
                await self._run_sync(lambda: trim.perform(self._files))
            except StorageError as error:  # which start will be found, nobody can say
                raise log.go_offline(error) from error
            log.apply_trim(trim)
            try:
                await self._run_sync(lambda: trim.remove(self._files))
            except StorageError as error:  # the next opening removes them
                logger.warning("files stay: log=%s reason=%s", log.name, error)

    async def truncate(self, log: PartitionLog, offset: int) -> None:
        """Cut the log's end at `offset`, durably; nobody may append meanwhile.

        Raises:
            OffsetOutOfRange: outside of the log.
            StorageError: the disk refused; the log is offline.
        """
        async with self._changing(log), self.flusher.disk:
            work = log.begin_truncate(offset)
            await self._cut(log, work, log.log_end_offset)

    async def start_over(self, log: PartitionLog, offset: int) -> None:
        """Forget all of the log and let it begin at `offset`, durably; errors as in `truncate`.

        For a replica that is so far behind that its leader has deleted what it would need.
        """
        async with self._changing(log), self.flusher.disk:
            point = min(offset, log.log_start_offset)
            await self._cut(log, log.begin_start_over(offset), point)

    async def _cut(self, log: PartitionLog, work: Truncation | LogStartOver, point: int) -> None:
        """`point`: everything below it is durable, whatever becomes of the cut."""
        self._past.lower(log.name, point)

        def perform() -> None:
            self._past.write_lowered()
            work.perform(self._files)

        try:
            with trio.CancelScope(shield=True):
                await self._run_sync(perform)
        except StorageError as error:
            raise log.go_offline(error) from error
        finally:
            log.end_truncate()
            self.flusher.on_cut(log)

    async def delete_log(self, log: PartitionLog) -> None:
        """Forget a log and its files. After a crash in the middle it is gone, or `remove_deleted`
        finishes the work.

        Raises:
            StorageError: the disk refused; the files stay, and are removed by a later start.
        """
        async with self._changing(log), self.flusher.disk:
            log.close()
            self.flusher.forget(log)
            del self.logs[log.name]
            doomed = await self._set_aside(log.name)
        await self._remove(doomed)

    async def discard(self, log_id: LogId) -> None:
        """Remove a log that cannot be opened: the next opening makes an empty one.

        Raises:
            StorageError: the disk refused; some of it may be gone.
        """
        assert log_id.name not in self.logs, f"{log_id.name} is open"
        async with self.flusher.disk:
            doomed = await self._set_aside(log_id.name)
        await self._remove(doomed)

    async def _set_aside(self, name: str) -> Path | None:
        """First what is remembered of it: it may come back here one day, and begin anew."""
        self._past.forget(name)

        def perform() -> Path | None:
            self._past.write_lowered()
            return set_aside(self._files, self.root / TOPICS_FOLDER / name)

        with trio.CancelScope(shield=True):
            doomed = await self._run_sync(perform)
        return doomed

    async def _remove(self, doomed: Path | None) -> None:
        """Takes as long as there is much to give back: no flush waits for it."""
        if doomed is not None:
            with trio.CancelScope(shield=True):
                await self._run_sync(lambda: remove_folder(self._files, doomed))

    async def remove_deleted(self) -> None:
        """What crashes have left of deleted logs; before any is opened."""

        def perform() -> None:
            remove_deleted(self._files, self.root / TOPICS_FOLDER)
            try:
                self._past.forget_missing(find_folders(self._files, self.root, {}))
            except StorageError as error:  # a full disk is no reason not to start
                logger.warning("deleted logs are remembered: reason=%s", error)

        await self._run_sync(perform)

    def found(self) -> list[tuple[str, str]]:
        """Folders of topics and partitions, see `folders.find_folders`."""
        return find_folders(self._files, self.root, self._past.points)

    # -- waiting and reading ---------------------------------------------------------------

    async def wait_held(self, log: PartitionLog, end_offset: int) -> None:
        """See `Flusher.wait_held`."""
        await self.flusher.wait_held(log, end_offset)

    async def wait_durable(self, log: PartitionLog, end_offset: int) -> None:
        """See `Flusher.wait_durable`."""
        await self.flusher.wait_durable(log, end_offset)

    def oldest_pending_age(self) -> float:
        """Seconds for which the oldest append has waited for the disk; 0.0 if none waits."""
        return self.flusher.oldest_pending_age(trio.current_time())

    async def slice(
        self, log: PartitionLog, offset: int, *, bytes_max: int, end_offset: int | None = None
    ) -> LogSlice:
        """`reader.plan_slice`, on the loop if the page cache has it, else in a worker thread."""
        return await find_slice(
            log, self._run_sync, offset, bytes_max=bytes_max, end_offset=end_offset
        )

    def slice_now(
        self, log: PartitionLog, offset: int, *, bytes_max: int, end_offset: int | None = None
    ) -> LogSlice:
        """As `slice`, but raises WouldBlock where the page cache does not have it."""
        return find_slice_now(log, offset, bytes_max=bytes_max, end_offset=end_offset)

    async def offset_for_timestamp(
        self, log: PartitionLog, timestamp: int
    ) -> TimestampOffset | None:
        """`reader.find_timestamp`, in a worker thread."""
        return await find_offset(log, self._run_sync, timestamp)

    async def look(
        self, log: PartitionLog, offset: int, *, on_begin: Callable[[], None] = lambda: None
    ) -> Rot | None:
        """Read the batch of that offset and what leads to it. Rot is noted in the log, and in its
        folder for every later opening, when this returns. `on_begin`: no change of the log is
        waited for any more.

        Raises:
            StorageError: the disk refused to be read, or the log is not in use.
            OffsetOutOfRange: it is not in the log.
        """
        async with self._changing(log):
            on_begin()
            if self.logs.get(log.name) is not log:
                raise StorageError(f"{log.name} was opened anew or deleted")
            return await find_rot(log, self._run_sync, offset)

    async def mend(self, log: PartitionLog, mending: Mending) -> None:
        """Write over rot what stood there; the last of it is read back, and then it is none.

        Raises:
            StorageError: the log has changed since this was planned, or its disk failed.
        """
        async with self._changing(log):
            if self.logs.get(log.name) is not log:
                raise StorageError(f"{log.name} was opened anew or deleted")
            async with self.flusher.disk:
                with trio.CancelScope(shield=True):
                    await write_mending(log, self._run_sync, mending)
            if mending.is_last:  # all that has rotted is read: no flush waits for it
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
# Owns the order: the folder gets a name that no log has, durably; then its files go, then itself,
# which takes long where there is much to give back. What a crash leaves is found by its name and
# removed at the next start. Waits for the disk.


DELETED_SUFFIX = ".deleted"


def set_aside(files: Files, folder: Path) -> Path | None:
    """Durably: no log has this folder any more. Returns what it is now, for `remove_folder`; None
    where there is no such folder.

    Raises:
        StorageError: if it was renamed, `remove_deleted` will find it; else nothing has changed.
    """
    if not files.exists(folder):
        return None
    doomed = folder.with_name(folder.name + DELETED_SUFFIX)
    if files.exists(doomed):  # of an earlier one, which was not finished
        remove_folder(files, doomed)
    files.rename(folder, doomed)
    files.sync_directory(folder.parent)
    return doomed


def remove_deleted(files: Files, topics: Path) -> None:
    """Finish what crashes have interrupted, below the folder of all topics."""
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
    if not files.names(doomed.parent):
        files.remove_directory(doomed.parent)


# -- Folders --------------------------------------------------------------------------------------
# The folders of a data directory's logs: which there are, and that their names survive.
#
# Owns the walk through topics and partitions. Opens no log; waits for the disk.


TOPICS_FOLDER = "topics"


def find_folders(
    files: Files, root: Path, recovery_points: Mapping[str, int]
) -> list[tuple[str, str]]:
    """Of topics and partitions, whoever may know them: on the disk, or known to have held records
    that were durable.
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
    """Whoever made these folders of partitions may have died before the names were durable."""
    topics = sorted({folder.parent for folder in folders})
    if not topics:
        return
    for folder in [*topics, root / TOPICS_FOLDER, root]:
        files.sync_directory(folder)
    with suppress(StorageError):  # may belong to somebody else
        files.sync_directory(root.parent)


# -- Opening --------------------------------------------------------------------------------------
# Opening a data directory: what runs as long as it is open, and where its disk is waited for.
#
# Owns the life of a `LogDirectory`: its upkeep, its threads, and the order in which it ends.


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
    is for whoever knows what time it is to run (`LogDirectory.run_retention`).

    Args:
        run_sync: runs what waits for the disk; threads, one of them for flushes alone, if None.
        now_ms: the wall clock.

    Raises:
        DirectoryInUse: another process holds it.
        StorageError: the disk refused.
    """
    if files is None:
        files = OsFiles()
        allow_many_files()
    with _flushing_by(run_sync) as flush_sync:
        directory = LogDirectory(files, root, run_sync or run_in_thread, now_ms, flush_sync)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(directory.flusher.run)
                nursery.start_soon(directory.run_checkpoints)
                try:
                    yield directory
                    nursery.cancel_scope.cancel()
                finally:
                    with trio.CancelScope(shield=True):
                        await directory.close()
        except BaseExceptionGroup as group:
            if len(group.exceptions) > 1:
                raise
            error = group.exceptions[0]  # what the caller's own code raised, as it was
            raise error from error.__cause__
        finally:
            directory.unlock()  # only now has every worker thread come home


@contextmanager
def _flushing_by(run_sync: RunSync | None) -> Iterator[RunSync]:
    """Acknowledgements wait for flushes: they have a thread that waits for nothing else."""
    if run_sync is not None:
        yield run_sync
        return
    with DiskThread("raftmq-flusher") as thread:
        yield thread.run


# -- Producer upkeep ------------------------------------------------------------------------------
# When snapshots of producers are written: with each checkpoint, before a trim, at the end.
#
# Owns the way from logs on the loop to a worker thread and back. Nothing is cut meanwhile.


class ProducerUpkeep:
    """What is written is written while `flusher.disk` is held."""

    def __init__(self, files: Files, flusher: Flusher, run_sync: RunSync) -> None:
        self._files, self._flusher, self._run_sync = files, flusher, run_sync

    async def write(self, logs: Iterable[PartitionLog], *, is_durable: bool = True) -> None:
        """All that wait; a disk that refuses is logged. The caller holds the lock."""
        begun = [
            (log, work)
            for log in logs
            if log.is_sound
            and (work := log.producers.begin_write(log.segments, is_durable=is_durable))
        ]
        if not begun:
            return
        with trio.CancelScope(shield=True):
            await self._run_sync(partial(_perform, [work for _, work in begun], self._files))
        for log, work in begun:
            log.producers.complete_write(work)

    async def keep_trimmed(self, log: PartitionLog, trim: LogTrim) -> None:
        """Producers whose batches will be trimmed stay known, whatever a power cut takes.

        Raises:
            StorageError: the log goes offline.
        """
        if trim.removed:
            async with self._flusher.disk:
                covering = log.producers.cover(trim.first_offset, log.log_end_offset)
                await self.write([log])
            await self._flusher.wait_durable(log, covering)

    async def write_last(self, logs: Iterable[PartitionLog]) -> None:
        """Where each log ends. Not synced one by one, as thousands of logs would keep a node from
        ending; what does not survive only makes the next opening look at some headers.
        """
        grown = [log for log in logs if log.log_end_offset > log.active.base_offset]
        async with self._flusher.disk:
            for log in grown:
                log.producers.take_last(log.log_end_offset)
            await self.write(grown, is_durable=False)


def _perform(works: list[SnapshotWrite], files: Files) -> None:
    for work in works:
        work.perform(files)
