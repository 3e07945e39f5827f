"""Group commit: flush rounds (fdatasync or syncfs), each for every log that is dirty.

Owns the waiters of each log and how a round syncs: up to `FILES_SYNCED_ONE_BY_ONE` files each on
its own, more with one sync of the whole file system if the data directory has its own
(docs/decisions/0002). The round runs in a worker thread while appends go on; these belong to the
next round. Logs of `page_cache` topics are flushed one after the other by a thread of their own
(docs/decisions/0035). A waiter may be cancelled at any time: it owns nothing.

Invariants: a log is in one flush at a time, and in none while its files are changed. What fails
goes offline: after a failed sync the kernel may mark pages clean that never reached the disk, so
nothing is retried and nothing acknowledged.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import trio

from raftmq.errors import NotLeaderOrFollower, OffsetOutOfRange, StorageError, without_frames
from raftmq.model import Durability
from raftmq.partition.storage.durability import FlushQueue, is_one_piece, pieces

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from pathlib import Path

    from raftmq.disk.files import File, Files
    from raftmq.disk.thread import RunSync
    from raftmq.partition.storage.log import PartitionLog
    from raftmq.partition.storage.work import Flush

# Files of a round. Measured with 12: 2.5 ms one by one, 0.5 ms with one syncfs (decision 0002). For
# a few files fdatasync is quick enough, and does not write back what no producer waits for.
FILES_SYNCED_ONE_BY_ONE = 8


class Flusher:
    """`run_sync` serves rounds, `lazy_sync` logs of `page_cache` topics: each one at a time."""

    def __init__(self, files: Files, root: Path, run_sync: RunSync, lazy_sync: RunSync) -> None:
        self._files, self._root = files, root
        self._run_sync, self._lazy_sync = run_sync, lazy_sync
        self._owns_file_system = files.owns_file_system(root)
        self._dirty: dict[PartitionLog, None] = {}
        self._lazy: dict[PartitionLog, None] = {}  # of `page_cache` topics
        self._due: FlushQueue[PartitionLog] = FlushQueue()  # to be flushed now, one by one
        self._work, self._lazy_work = trio.Event(), trio.Event()
        # Held while a log is flushed or its files are changed.
        self._locks: WeakKeyDictionary[PartitionLog, trio.Lock] = WeakKeyDictionary()
        # Base offset and size of the active segment at the last lazy flush.
        self._written: WeakKeyDictionary[PartitionLog, tuple[int, int]] = WeakKeyDictionary()
        self._rounds: dict[PartitionLog, trio.Event] = {}  # set at the end of a log's next round
        self._turn = trio.Lock()  # of a round
        self._flushing: list[PartitionLog] = []
        self._flushing_lazily: PartitionLog | None = None
        self._round_since: float | None = None

    def on_dirty(self, log: PartitionLog) -> None:
        """A log has something to flush; `page_cache` topics wait for `request_lazy`."""
        if log.offline_reason:  # nothing to flush: its waiters get the error
            self._wake(log)
        # No acknowledgement waits for its sync: with the next checkpoint.
        elif log.config.durability is Durability.PAGE_CACHE:
            self._lazy[log] = None
        else:
            self._dirty[log] = None
            self._work.set()

    def request(self, log: PartitionLog) -> None:
        """Flush this log as soon as possible, also if its topic's durability is `page_cache`."""
        if log.config.durability is Durability.PAGE_CACHE:
            self._due.add(log, is_awaited=True)
            self._lazy_work.set()
        else:
            self._dirty[log] = None
            self._work.set()

    def request_lazy(self) -> None:
        """Flush logs of `page_cache` topics."""
        for log in self._lazy:
            # The topic may have been altered since: then acknowledgements wait for it.
            if log.config.durability is Durability.PAGE_CACHE:
                self._due.add(log, is_awaited=False)
            else:
                self.request(log)
        self._lazy.clear()
        self._lazy_work.set()

    def on_cut(self, log: PartitionLog) -> None:
        """Wake the waiters: what they wait for may be gone."""
        self._wake(log)

    def forget(self, log: PartitionLog) -> None:
        """The log is closed: drop it, and wake its waiters, who get an error."""
        self._dirty.pop(log, None)
        self._lazy.pop(log, None)
        self._due.discard(log)
        self._wake(log)

    def oldest_pending_age(self, now: float) -> float:
        """Seconds for which the oldest append, or the running round, has been waiting.

        Only of topics with `durability = fsync`: writing back seconds of page cache may take
        seconds on a healthy disk, and no acknowledgement waits for it.
        """
        logs = filter(_is_awaited, [*self._dirty, *self._flushing])
        ages = [log.oldest_pending_age(now) for log in logs]
        if self._round_since is not None:  # a disk that hangs: the round itself does not return
            ages.append(now - self._round_since)
        return max(ages, default=0.0)

    # These two wait without a log in their frames, which would keep files of deleted ones open.

    async def run(self) -> None:
        """Rounds of topics with `durability = fsync`."""
        while True:
            await self._work.wait()  # until an append makes a log dirty
            self._work = trio.Event()
            async with self._turn:  # until a round of `flush_now` has ended
                await self._round_of_dirty()

    async def run_lazy(self) -> None:
        """Logs of `page_cache` topics, one after the other."""
        while True:
            await self._lazy_work.wait()  # until a checkpoint or a waiter asks for it
            self._lazy_work = trio.Event()
            while await self._flush_next():
                pass

    async def _round_of_dirty(self) -> None:
        taken = self._take()
        try:
            if taken:  # else all that is dirty is being cut
                await self._round(taken)
        finally:
            for log in taken:
                self._lock_of(log).release()

    async def _flush_next(self) -> bool:
        """False: there is none, or all of them are being changed."""
        # One that is being changed does not hold up the others: `excluding` sets `_lazy_work`.
        log = self._due.take(self._is_free)
        if log is None:
            return False
        self._flushing_lazily = log
        if await self._write_back(log):
            await self._flush_lazily(log)
        else:
            self._due.put_back(log)
        self._flushing_lazily = None
        return True

    def _is_free(self, log: PartitionLog) -> bool:
        lock = self._locks.get(log)
        return lock is None or not lock.locked()

    async def _write_back(self, log: PartitionLog) -> bool:
        """Write back most of what is dirty, so that the flush after it is short. It makes nothing
        durable, so between two pieces the log may be cut: then the flush has to write more.

        False: others have to be flushed before it, or its files are being changed.
        """
        unwritten = self._unwritten(log)
        if is_one_piece(sum(max(0, end - begin) for _, begin, end in unwritten)):
            return True
        for file, begin, end in unwritten:
            for piece in pieces(begin, end):
                if self._due.overtakes or not self._is_free(log):
                    return False
                await self._write_piece(log, partial(file.write_back, *piece))
        return True

    async def _write_piece(self, log: PartitionLog, write: Callable[[], None]) -> None:
        # Not beside a sync of the same file: of the two only one would be told of a failure.
        async with self.excluding(log):
            if log.offline_reason:  # closed or failed meanwhile
                return
            with trio.CancelScope(shield=True):
                # Until the disk has it.
                error = await self._lazy_sync(partial(self._error_of, write))
            if error:  # as after a failed sync: the kernel tells it but once
                log.go_offline(error)

    def _unwritten(self, log: PartitionLog) -> list[tuple[File, int, int]]:
        """Files with the positions between which no flush has covered them."""
        if log.offline_reason:  # else files of a closed log would be opened again
            return []
        base_offset, written = self._written.get(log, (0, 0))
        try:
            return [
                (each.file, written if each.base_offset == base_offset else 0, each.size)
                for each in log.segments
                if each.end_offset > log.durable_end_offset
            ]
        except StorageError as error:  # it was closed while idle, and cannot be opened
            log.go_offline(error)
            return []

    async def _flush_lazily(self, log: PartitionLog) -> None:
        async with self.excluding(log):  # until a cut of it has ended
            self._due.discard(log)
            self._lazy.pop(log, None)
            begun = self._begin(log)
            if begun is not None:
                await self._complete_lazily(*begun)
            self._wake(log)

    async def _complete_lazily(self, log: PartitionLog, flush: Flush) -> None:
        written = log.active.base_offset, log.active.size
        with trio.CancelScope(shield=True):
            # Until the disk has synced its files, or refused.
            error = await self._lazy_sync(
                partial(self._error_of, partial(flush.perform, self._files))
            )
        if error:
            log.go_offline(error)
        elif not log.offline_reason:  # else a syncfs has failed meanwhile, for one
            log.complete_flush(flush)
            self._written[log] = written

    @asynccontextmanager
    async def excluding(self, log: PartitionLog) -> AsyncIterator[None]:
        """No flush of this log is running or begins meanwhile: for whoever changes its files."""
        try:
            async with self._lock_of(log):
                yield
        finally:
            if log in self._dirty:  # a round has left it out
                self._work.set()
            if log in self._due:  # so has the task of the others
                self._lazy_work.set()

    def _lock_of(self, log: PartitionLog) -> trio.Lock:
        lock = self._locks.get(log)
        if lock is None:  # its first flush or change
            lock = self._locks[log] = trio.Lock()
        return lock

    async def flush_now(self, logs: Iterable[PartitionLog]) -> None:
        """One round for `logs`, in this task: at shutdown `run` is cancelled already. Holds all of
        them while it waits for one, so that it is no way to flush logs that are in use."""
        dirty = [log for log in logs if log.is_dirty]
        async with AsyncExitStack() as excluded:
            for log in dirty:  # until a round that has it, or a cut, has ended
                await excluded.enter_async_context(self.excluding(log))
            async with self._turn:  # until the round of `run` has ended
                for log in dirty:
                    self._dirty.pop(log, None)
                await self._round(dirty)

    def _take(self) -> list[PartitionLog]:
        """Dirty logs whose lock is free, locked. The others stay dirty until it is free."""
        taken = []
        for log in list(self._dirty):
            try:
                self._lock_of(log).acquire_nowait()
            except trio.WouldBlock:  # it is being cut, or flushed already
                continue
            del self._dirty[log]
            taken.append(log)
        return taken

    async def _round(self, logs: list[PartitionLog]) -> None:
        """One round; the caller has locked `logs`. Shielded: `complete_flush` must follow
        `begin_flush`, or these logs could begin no other round."""
        self._flushing = logs
        self._round_since = trio.current_time() if any(map(_is_awaited, logs)) else None
        flushes = [begun for log in logs if (begun := self._begin(log))]
        with trio.CancelScope(shield=True):
            # Until the disk has synced all files, or refused.
            errors = await self._run_sync(lambda: self._sync([flush for _, flush in flushes]))
        for (log, flush), error in zip(flushes, errors, strict=True):
            if error:  # nothing is retried (decision 0002)
                log.go_offline(error)
            # A log that failed meanwhile may have lost what this sync was not told of.
            elif not log.offline_reason:
                log.complete_flush(flush)
        if errors and errors[0] and self._syncs_all([flush for _, flush in flushes]):
            self._take_offline(errors[0])  # it was a syncfs, which covers all logs
        self._flushing, self._round_since = [], None
        for log in logs:
            self._wake(log)

    def _take_offline(self, error: StorageError) -> None:
        """A syncfs failed: logs that were not in the round may have lost bytes, too."""
        lazily = [self._flushing_lazily] if self._flushing_lazily else []
        for log in [*self._dirty, *self._lazy, *self._due.logs(), *lazily]:
            log.go_offline(error)

    def _begin(self, log: PartitionLog) -> tuple[PartitionLog, Flush] | None:
        if log.offline_reason:  # it failed since it became dirty
            return None
        try:
            return log, log.begin_flush(trio.current_time())
        except StorageError as error:  # the epoch file could not be written
            log.go_offline(error)
            return None

    def _sync(self, flushes: list[Flush]) -> list[StorageError | None]:
        """The error of each of `flushes`, in a worker thread; None if it succeeded."""
        if not self._syncs_all(flushes):  # few files, or a file system with strangers
            if len(flushes) > 1:  # start write-back of all, so that the syncs overlap
                self._files.begin_sync([file for flush in flushes for file in flush.files])
            return [self._error_of(partial(flush.perform, self._files)) for flush in flushes]
        error = self._error_of(partial(self._files.sync_file_system, self._root))
        return [error] * len(flushes)  # syncfs does not say whose bytes were lost

    def _syncs_all(self, flushes: list[Flush]) -> bool:
        count = sum(len(flush.files) for flush in flushes)
        return self._owns_file_system and count > FILES_SYNCED_ONE_BY_ONE

    def _error_of(self, perform: Callable[[], None]) -> StorageError | None:
        try:
            perform()
        except StorageError as error:  # of this log: the others of the round go on
            return without_frames(error)
        return None

    async def wait_held(self, log: PartitionLog, end_offset: int) -> None:
        """Return when this replica holds everything below `end_offset` as the topic demands.

        Raises:
            StorageError: the log went offline, or was closed, before that.
            NotLeaderOrFollower: the log was cut meanwhile; other records may stand there now.
            OffsetOutOfRange: nothing was appended up to there.
        """
        await self._wait(log, end_offset, lambda: log.held_end_offset >= end_offset)

    async def wait_durable(self, log: PartitionLog, end_offset: int) -> None:
        """Return when everything below `end_offset` survives a power cut; errors as above."""
        if log.durable_end_offset < end_offset and not log.offline_reason:
            self.request(log)  # a `page_cache` log would wait for the next checkpoint
        await self._wait(log, end_offset, lambda: log.durable_end_offset >= end_offset)

    async def _wait(
        self, log: PartitionLog, end_offset: int, is_reached: Callable[[], bool]
    ) -> None:
        if end_offset > log.log_end_offset:  # it would wait for ever, or for another record
            raise OffsetOutOfRange(f"{log.name} ends at {log.log_end_offset}, not at {end_offset}")
        cuts = log.cuts
        while not is_reached():
            if log.offline_reason:  # no later round will sync it
                raise StorageError(f"{log.name} is offline: {log.offline_reason}")
            # Until the log's next flush round ends, or it is cut, closed or taken offline.
            await self._rounds.setdefault(log, trio.Event()).wait()
            if log.cuts != cuts:  # the awaited record may be gone, and another one stand there
                raise NotLeaderOrFollower(f"{log.name} was cut while waiting for {end_offset}")
        # Also where nothing was waited for: a caller that was cancelled must notice it here.
        await trio.lowlevel.checkpoint_if_cancelled()

    def _wake(self, log: PartitionLog) -> None:
        event = self._rounds.pop(log, None)
        if event is not None:
            event.set()
        if log.on_held is not None:
            log.on_held()


def _is_awaited(log: PartitionLog) -> bool:
    return log.config.durability is Durability.FSYNC
