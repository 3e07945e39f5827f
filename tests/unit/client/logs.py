"""The logs of a cluster that keeps them in lists: batches in a row, and who leads.

One log for all replicas of a partition: nothing is lost when the leader changes, unless a test
says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.wire.header import iter_batches, pack_prefix, read_header
from raftmq.wire.messages.fetch import Diverging
from raftmq.wire.records import RecordBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Partition:
    """Its log is one for all replicas: nothing is lost when the leader changes."""

    def __init__(self, leader: int, on_append: Callable[[], None] = lambda: None) -> None:
        self.leader, self.leader_epoch, self._on_append = leader, 0, on_append
        self.log_start_offset = self.end_offset = 0
        self.batches: list[tuple[int, int, bytes]] = []  # base offset, end offset, bytes

    def append(self, data: bytes | memoryview) -> int:
        first = self.end_offset
        for position, header in iter_batches(data):
            prefix = pack_prefix(
                header, base_offset=self.end_offset, leader_epoch=self.leader_epoch
            )
            rest = bytes(data[position + len(prefix) : position + header.size])
            end_offset = self.end_offset + header.last_offset_delta + 1
            self.batches.append((self.end_offset, end_offset, prefix + rest))
            self.end_offset = end_offset
        self._on_append()
        return first

    def read(self, offset: int, bytes_max: int = 1 << 30) -> bytes:
        """Whole batches, and the first one in any case."""
        found = b""
        for _, end_offset, data in self.batches:
            if end_offset > offset and found and len(found) + len(data) > bytes_max:
                break
            if end_offset > offset:
                found += data
        return found

    def truncate(self, offset: int) -> None:
        """Lose what is at `offset` and later; a batch begins there."""
        self.batches = [one for one in self.batches if one[1] <= offset]
        self.end_offset = offset

    def find_time(self, timestamp: int) -> int:
        """Offset of the first record at or after it, -1 if there is none."""
        for _, _, data in self.batches:
            found = RecordBatch.decode(data)
            for offset, each in zip(found.offsets, found.timestamps, strict=True):
                if each >= timestamp:
                    return offset
        return -1

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
