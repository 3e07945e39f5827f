"""Opens a directory after a disaster, reads everything back and goes on writing.

Owns the reading; what must be there is for the ledger to judge. It is a life like a writer's, so
what it appends at the end is expected of the next recovery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.errors import CorruptRecord
from raftmq.model import TimestampOffset
from raftmq.partition.storage.directory import open_log_directory, wall_clock_ms
from tests.log_reading import read_batches
from tests.powercut.content import SEQUENCES_PER_LIFE, batch_of, content_of, sequence_of
from tests.powercut.events import Acknowledged, Appended
from tests.powercut.faulty_files import RebootedFiles
from tests.powercut.ledger import Found
from tests.powercut.writer import open_logs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.partition.storage.log import PartitionLog
    from tests.powercut.ledger import Keeps, Ledger, PartitionLedger
    from tests.powercut.writer import Order


async def check(order: Order, ledger: Ledger, keeps: Keeps) -> None:
    """One life that reads everything, then appends to every log and closes cleanly."""
    files = RebootedFiles(order.power_cuts)
    async with open_log_directory(order.root, files=files) as directory:
        logs = await open_logs(
            directory, order.partitions, lambda event: ledger.record(event, keeps)
        )
        for log, partition in zip(logs, ledger.partitions, strict=True):
            await _Check(directory, log, order, partition).run()


class _Check:
    """Of one log."""

    def __init__(
        self, directory: LogDirectory, log: PartitionLog, order: Order, ledger: PartitionLedger
    ) -> None:
        self._directory, self._log, self._ledger = directory, log, ledger
        self._seed, self._first_sequence = order.seed, order.life * SEQUENCES_PER_LIFE
        self._partition = ledger.partition

    async def run(self) -> None:
        found = self._read_all()
        self._ledger.compare(found)
        if found:
            await self._find_by_time(found[len(found) // 2])
        if not self._log.damage:
            await self._go_on()

    def _read_all(self) -> list[Found]:
        """Every record that can be read, up to the first that cannot."""
        found: list[Found] = []
        try:
            found.extend(self._records())
        except CorruptRecord as error:
            self._ledger.find(str(error))
        return found

    def _records(self) -> Iterator[Found]:
        log = self._log
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            for batch in read_batches(log, offset):
                epoch = batch.header.leader_epoch
                for record in batch.records():
                    if record.offset >= log.log_start_offset:
                        sequence = sequence_of(self._seed, self._partition, record)
                        yield Found(record.offset, sequence, epoch)
                offset = batch.header.end_offset

    async def _find_by_time(self, record: Found) -> None:
        """Timestamps grow with the offsets, so that each leads to one record, through the index."""
        if record.sequence is None:
            return
        timestamp = content_of(self._seed, self._partition, record.sequence).timestamp
        try:
            answer = await self._directory.offset_for_timestamp(self._log, timestamp)
        except CorruptRecord as error:
            self._ledger.find(str(error))
            return
        if answer != TimestampOffset(timestamp, record.offset):
            self._ledger.find(f"time {timestamp} leads to {answer}, not to {record}")

    async def _go_on(self) -> None:
        epoch, first = self._log.epochs.latest + 1, self._first_sequence
        batch = batch_of(self._seed, self._partition, range(first, first + 3))
        appended = self._log.append(
            batch, leader_epoch=epoch, now_ms=wall_clock_ms(), now=trio.current_time()
        )
        self._ledger.record(Appended(self._partition, *appended[:2], first, epoch))
        await self._directory.flusher.wait_durable(self._log, appended.end_offset)
        self._ledger.record(Acknowledged(self._partition, appended.end_offset))
