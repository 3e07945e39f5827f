"""When snapshots of producers are written: with each checkpoint, before a trim, at the end.

Owns the way from logs on the loop to a worker thread and back. Nothing is cut meanwhile.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.disk.files import Files
    from raftmq.partition.storage.flusher import Flusher, RunSync
    from raftmq.partition.storage.log import PartitionLog
    from raftmq.partition.storage.producer_files import SnapshotWrite
    from raftmq.partition.storage.work import Trim


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

    async def keep_trimmed(self, log: PartitionLog, trim: Trim) -> None:
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
