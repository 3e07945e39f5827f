"""The logs of a cluster that keeps them in lists: batches in a row, and who leads.

One log for all replicas of a partition: nothing is lost when the leader changes, unless a test
says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import ProducerFenced, RaftmqError
from raftmq.model import IsolationLevel
from raftmq.wire.batch.header import (
    Account,
    iter_batches,
    named_producer_id,
    pack_prefix,
    read_header,
)
from raftmq.wire.batch.records import RecordBatch, encode_fence
from raftmq.wire.messages.fetch import AbortedTransaction, Diverging, LeftOutRange
from tests.unit.client.sequences import NamedState, place_of, state_of_name
from tests.unit.client.transactions_in_logs import aborted_in, last_stable_offset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raftmq.wire.batch.header import BatchHeader


class Appended(NamedTuple):
    """`base_offsets`: of each batch, if there are duplicates among them."""

    base_offset: int
    base_offsets: tuple[int, ...] = ()


class Partition:
    """Its log is one for all replicas: nothing is lost when the leader changes."""

    def __init__(self, leader: int, on_append: Callable[[], None] = lambda: None) -> None:
        self.leader, self.leader_epoch, self._on_append = leader, 0, on_append
        self.log_start_offset = self.end_offset = 0
        self.batches: list[tuple[int, int, bytes]] = []  # base offset, end offset, bytes

    def append(self, data: bytes | memoryview) -> Appended:
        """
        Raises:
            RaftmqError: the number of a batch cannot be; nothing was appended.
        """
        batches, end_offset = self.batches[:], self.end_offset
        try:
            offsets = tuple(self._append(data, *found) for found in iter_batches(data))
        except RaftmqError:
            self.batches, self.end_offset = batches, end_offset
            raise
        self._on_append()
        has_duplicates = len(self.batches) < len(batches) + len(offsets)
        return Appended(offsets[0], offsets if has_duplicates else ())

    def _append(self, data: bytes | memoryview, position: int, header: BatchHeader) -> int:
        """Where it stands: from now on, or already."""
        found = place_of((read_header(each) for _, _, each in self.batches), header)
        if isinstance(found, RaftmqError):
            raise found
        if found is None:
            found = self.end_offset
            prefix = pack_prefix(
                header, base_offset=self.end_offset, leader_epoch=self.leader_epoch
            )
            rest = bytes(data[position + len(prefix) : position + header.size])
            end_offset = self.end_offset + header.last_offset_delta + 1
            self.batches.append((self.end_offset, end_offset, prefix + rest))
            self.end_offset = end_offset
        return found

    def place(self, data: bytes) -> int:
        """Append one batch, whatever its producer and its sequence. Returns its offset."""
        header, offset = read_header(data), self.end_offset
        prefix = pack_prefix(header, base_offset=offset, leader_epoch=self.leader_epoch)
        self.end_offset += header.last_offset_delta + 1
        self.batches.append((offset, self.end_offset, prefix + data[len(prefix) :]))
        self._on_append()
        return offset

    def end_for(self, isolation: int) -> int:
        """Up to where a reader at this level gets records."""
        if isolation == IsolationLevel.READ_COMMITTED:
            return last_stable_offset(self.data, self.end_offset)
        return self.end_offset

    def aborted(self, isolation: int, data: bytes) -> tuple[AbortedTransaction, ...]:
        """What a reader is told of these batches."""
        if isolation != IsolationLevel.READ_COMMITTED or not data:
            return ()
        first, position = read_header(data), 0
        while position < len(data):  # not `iter_batches`: a test may have damaged it
            last = read_header(data, position)
            position += last.size
        return aborted_in(self.data, first.base_offset, last.end_offset)

    @property
    def data(self) -> list[bytes]:
        return [data for _, _, data in self.batches]

    def fence(self, name: str, generation: int, partition_count: int = 0) -> NamedState:
        """Whoever wrote under that name before writes no more.

        Raises:
            ProducerFenced: a higher generation has begun.
        """
        producer_id = named_producer_id(name)
        known = state_of_name((data for _, _, data in self.batches), producer_id)
        epoch = known.epoch + 1 if known else 0
        state = NamedState(epoch, 0, generation, 0, partition_count)
        if known is not None and generation < known.generation:
            raise ProducerFenced(f"generation {generation}, {known.generation} has begun")
        if known is not None and generation == known.generation:
            state = known._replace(epoch=known.epoch + 1)
        data = encode_fence(
            Account(*state[2:]),
            producer_id=producer_id,
            producer_epoch=state.epoch,
            next_sequence=state.next_sequence,
            timestamp=0,
        )
        offset, self.end_offset = self.end_offset, self.end_offset + 1
        header = read_header(data)
        prefix = pack_prefix(header, base_offset=offset, leader_epoch=self.leader_epoch)
        self.batches.append((offset, offset + 1, prefix + bytes(data[len(prefix) :])))
        self._on_append()
        return state

    def read(self, offset: int, bytes_max: int = 1 << 30, *, isolation: int = 0) -> bytes:
        """Whole batches, and the first one in any case; none that is scheduled."""
        return self.read_with_gaps(offset, bytes_max, isolation=isolation)[0]

    def read_with_gaps(
        self, offset: int, bytes_max: int = 1 << 30, *, isolation: int = 0
    ) -> tuple[bytes, tuple[LeftOutRange, ...]]:
        """And what is hidden from a reader among them."""
        found, end = b"", self.end_for(isolation)
        hidden: list[LeftOutRange] = []
        for base_offset, end_offset, data in self.batches:
            if base_offset >= end:
                break
            header = read_header(data)
            if end_offset > offset and header.is_scheduled:
                hidden.append(LeftOutRange(base_offset, end_offset, header.leader_epoch))
                continue
            if end_offset > offset and found and len(found) + len(data) > bytes_max:
                break
            if end_offset > offset:
                found += data
        return found, tuple(hidden)

    def truncate(self, offset: int) -> None:
        """Lose what is at `offset` and later; a batch begins there."""
        self.batches = [one for one in self.batches if one[1] <= offset]
        self.end_offset = offset

    def find_time(self, timestamp: int) -> tuple[int, int]:
        """Time and offset of the first record at that time or after it; -1, -1: there is none."""
        for _, _, data in self.batches:
            found = RecordBatch.decode(data)
            for offset, each in zip(found.offsets, found.timestamps, strict=True):
                if each >= timestamp and offset >= self.log_start_offset:
                    return each, offset
        return -1, -1

    def epoch_at(self, offset: int) -> int:
        """Of the batch that holds it; at the end, of the last one; -1: of none."""
        epochs = [
            read_header(data).leader_epoch for base, _, data in self.batches if base <= offset
        ]
        return epochs[-1] if epochs else -1

    def divergence(self, epoch: int, offset: int) -> Diverging | None:
        """Where whoever has read up to `offset` in `epoch` parts from this log."""
        known = [
            (read_header(data).leader_epoch, end_offset)
            for _, end_offset, data in self.batches
            if read_header(data).leader_epoch <= epoch
        ]
        found, end_offset = known[-1] if known else (-1, 0)
        return Diverging(found, end_offset) if found < epoch or end_offset < offset else None


class Topic:
    def __init__(
        self, number: int, leaders: Sequence[int], on_append: Callable[[], None] = lambda: None
    ) -> None:
        self.topic_id = number.to_bytes(16, "big")
        self.partitions = [Partition(leader, on_append) for leader in leaders]
