"""A data directory: all logs of one broker, and what they share.

    .lock  clean-shutdown  checkpoints/{recovery-points,boots}  topics/<topic>-<id>/Partition-<n>/

Owns opening and closing the logs, the flusher, the checkpoints that say from where recovery must
check, and the regular upkeep. Everything that waits for the disk goes through `run_sync`.

Invariants: the recovery point on disk never exceeds what is durable, and is lowered before a
truncation is performed; the clean-shutdown mark is gone before a log takes its first byte.
"""

from __future__ import annotations

import logging
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import trio
from crc32c import crc32c

from raftmq.config import TopicConfig
from raftmq.errors import CorruptRecord, StorageError
from raftmq.partition.storage.checkpoint import read_checkpoint, replace_file, write_checkpoint
from raftmq.partition.storage.entries import read_cached, read_waiting
from raftmq.partition.storage.files import OsFiles, WouldBlock, allow_many_files
from raftmq.partition.storage.flusher import Flusher
from raftmq.partition.storage.reader import find_timestamp, read_slice
from raftmq.partition.storage.recovery import Past, open_log

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from raftmq.model import TimestampOffset
    from raftmq.partition.storage.entries import ReadBytes
    from raftmq.partition.storage.files import Files, FileSlice
    from raftmq.partition.storage.flusher import RunSync
    from raftmq.partition.storage.log import PartitionLog
    from raftmq.partition.storage.reader import LogSlice
    from raftmq.partition.storage.work import Trim

logger = logging.getLogger(__name__)
T = TypeVar("T")

CHECKPOINT_INTERVAL = 5.0  # seconds
RETENTION_CHECK_INTERVAL = 300.0  # seconds


class LogId(NamedTuple):
    """`topic` is the folder's name, `<topic>-<topic id>`."""

    topic: str
    partition: int

    @property
    def name(self) -> str:
        return f"{self.topic}/Partition-{self.partition}"


async def run_in_thread(function: Callable[[], T], /) -> T:
    return await trio.to_thread.run_sync(function)


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@asynccontextmanager
async def open_log_directory(
    root: Path,
    *,
    files: Files | None = None,
    run_sync: RunSync = run_in_thread,
    now_ms: Callable[[], int] = wall_clock_ms,
) -> AsyncIterator[LogDirectory]:
    """Hold the directory, run its upkeep, and close it cleanly at the end.

    Raises:
        DirectoryInUse: another process holds it.
        StorageError: the disk refused.
    """
    if files is None:
        files = OsFiles()
        allow_many_files()
    directory = LogDirectory(files, root, run_sync, now_ms)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(directory.flusher.run)
            nursery.start_soon(directory.run_checkpoints)
            nursery.start_soon(directory.run_retention)
            try:
                yield directory
                nursery.cancel_scope.cancel()
            finally:
                with trio.CancelScope(shield=True):
                    await directory.close()
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        raise group.exceptions[0] from None  # what the caller's own code raised, as it was


class LogDirectory:
    """Made by `open_log_directory`."""

    def __init__(
        self, files: Files, root: Path, run_sync: RunSync, now_ms: Callable[[], int]
    ) -> None:
        self._files, self.root, self._run_sync, self.now_ms = files, root, run_sync, now_ms
        self._checkpoints = root / "checkpoints"
        self._clean_mark = root / "clean-shutdown"
        files.make_directory(self._checkpoints)
        self._lock: object | None = files.lock(root / ".lock")
        self._boot = crc32c(files.boot_id().encode())
        self._recovery_points = self._read_checkpoint("recovery-points")
        self._boots = self._read_checkpoint("boots")
        self._was_clean = files.exists(self._clean_mark)
        self._forget_clean_mark()
        self.logs: dict[str, PartitionLog] = {}
        self.flusher = Flusher(files, root, run_sync)
        self._trimming = trio.Lock()

    def _read_checkpoint(self, checkpoint: str) -> dict[str, int]:
        return read_checkpoint(self._files, self._checkpoints / checkpoint) or {}

    def _write_checkpoint(self, checkpoint: str, offsets: dict[str, int]) -> None:
        write_checkpoint(self._files, self._checkpoints / checkpoint, offsets)

    def _forget_clean_mark(self) -> None:
        if self._was_clean:
            self._files.remove(self._clean_mark)
            self._files.sync_directory(self.root)

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
        for log_id, _ in wanted:
            assert log_id.name not in self.logs, f"{log_id.name} is open already"
        opened = await self._run_sync(lambda: [self._open(*each) for each in wanted])
        logs = [log for log in opened if not isinstance(log, StorageError)]
        for log in logs:
            self.logs[log.name] = log
            log.on_dirty = self.flusher.on_dirty
        await self._note_opened(logs)
        for error in opened:
            if isinstance(error, StorageError):
                raise error
        return logs

    def _open(self, log_id: LogId, config: TopicConfig) -> PartitionLog | StorageError:
        name = log_id.name
        known = name in self._recovery_points
        past = Past(
            recovery_point=self._recovery_points.get(name, 0),
            was_clean=known and self._was_clean,
            # Without a recovery point nothing may be taken for unsynced but the very end.
            page_cache_survived=not known or self._boots.get(name) == self._boot,
        )
        try:
            return open_log(self._files, self.root / "topics" / name, name, config, past)
        except StorageError as error:
            logger.error("log cannot be opened: log=%s reason=%s", name, error)
            return error

    async def _note_opened(self, logs: list[PartitionLog]) -> None:
        """These logs are checked: until the machine restarts, the page cache keeps them whole."""
        new = [log for log in logs if self._boots.get(log.name) != self._boot]
        if new or any(log.name not in self._recovery_points for log in logs):
            self._boots |= {log.name: self._boot for log in logs}
            boots = dict(self._boots)
            await self._run_sync(lambda: self._write_checkpoint("boots", boots))
            await self.checkpoint()

    async def close(self) -> None:
        """Flush everything and leave the mark that makes the next opening quick."""
        try:
            await self.flusher.flush_now(self.logs.values())
            await self.checkpoint()
            boot = self._files.boot_id().encode()
            await self._run_sync(lambda: replace_file(self._files, self._clean_mark, boot))
        except StorageError as error:  # the next opening recovers
            logger.error("not closed cleanly: directory=%s reason=%s", self.root, error)
        for log in self.logs.values():
            log.close()
            self.flusher.forget(log)
        self._lock = None

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
            moved = {
                log.name: log.durable_end_offset
                for log in self.logs.values()
                if self._recovery_points.get(log.name) != log.durable_end_offset
            }
            if moved:
                for name in moved:
                    self.logs[name].write_indexes()  # from where recovery starts to walk
                points = self._recovery_points | moved
                await self._run_sync(lambda: self._write_checkpoint("recovery-points", points))
                self._recovery_points = points

    async def run_retention(self) -> None:
        while True:
            await trio.sleep(RETENTION_CHECK_INTERVAL)
            await self.enforce_retention()

    async def enforce_retention(self) -> None:
        """Remove what has outlived its topic's retention; let go of what nobody uses."""
        for log in [log for log in self.logs.values() if not log.offline_reason]:
            try:
                log.roll_if_old(self.now_ms())
                await self._trim(log, log.begin_retention)
                await self._run_sync(log.rebuild_damaged_indexes)
            except (StorageError, CorruptRecord) as error:
                logger.warning("no retention: log=%s reason=%s", log.name, error)
            log.release_idle()

    # -- cutting ---------------------------------------------------------------------------

    async def delete_records(self, log: PartitionLog, before_offset: int) -> int:
        """Forget everything before `before_offset`; returns the log start offset, now durable.

        Raises:
            OffsetOutOfRange: beyond the log end.
            StorageError: the disk refused.
        """
        await self.flusher.wait_durable(log, min(before_offset, log.log_end_offset))
        await self._trim(log, lambda _: log.begin_trim(before_offset))
        return log.log_start_offset

    async def _trim(self, log: PartitionLog, begin: Callable[[int], Trim | None]) -> None:
        async with self._trimming:
            work = begin(self.now_ms())
            if work is not None:
                await self._perform(log, lambda: work.perform(self._files))

    async def truncate(self, log: PartitionLog, offset: int) -> None:
        """Cut the log's end at `offset`, durably; nobody may append meanwhile.

        Raises:
            OffsetOutOfRange: outside of the log.
            StorageError: the disk refused; the log is offline.
        """
        async with self.flusher.disk:
            work = log.begin_truncate(offset)
            # Noted before it is written: no other checkpoint may bring the old point back.
            points = self._recovery_points = self._lowered(log)

            def perform() -> None:
                self._write_checkpoint("recovery-points", points)
                work.perform(self._files)

            try:
                await self._perform(log, perform)
            finally:
                log.end_truncate()

    def _lowered(self, log: PartitionLog) -> dict[str, int]:
        recovery_point = min(self._recovery_points.get(log.name, 0), log.log_end_offset)
        return self._recovery_points | {log.name: recovery_point}

    async def _perform(self, log: PartitionLog, perform: Callable[[], None]) -> None:
        """To the end, even if the caller is cancelled: half done, the log could not go on."""
        try:
            with trio.CancelScope(shield=True):
                await self._run_sync(perform)
        except StorageError as error:
            raise log.go_offline(error) from error

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
        """`reader.read_slice`, on the loop if the page cache has it, else in a worker thread."""

        def find(read: ReadBytes) -> LogSlice:
            return read_slice(log, offset, bytes_max=bytes_max, end_offset=end_offset, read=read)

        return await self._find(log, find)

    async def offset_for_timestamp(
        self, log: PartitionLog, timestamp: int
    ) -> TimestampOffset | None:
        """`reader.find_timestamp`, without blocking the loop."""
        return await self._find(log, lambda read: find_timestamp(log, timestamp, read=read))

    async def read(self, piece: FileSlice) -> bytes:
        """The bytes of a slice, without blocking the loop."""
        try:
            return piece.file.read_now(piece.position, piece.length)
        except WouldBlock:
            return await self._run_sync(piece.read)

    async def _find(self, log: PartitionLog, find: Callable[[ReadBytes], T]) -> T:
        try:
            return find(read_cached)
        except WouldBlock:
            pass
        while True:
            cuts = log.cuts
            try:
                found = await self._run_sync(lambda: find(read_waiting))
            except CorruptRecord:
                if log.cuts == cuts:
                    raise
            else:
                if log.cuts == cuts:
                    return found
