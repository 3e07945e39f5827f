"""Sending the flights, and keeping what was acknowledged.

There is one lane for each partition, which hands in its flights in order, a batch at a time, and
waits for each: so that it is known of every record when it was acknowledged, and at which offset.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import trio

from .comparison import SentRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from raftmq import BatchMetadata, Producer

    from .data import Flight

BATCH_RECORDS_MAX = 500  # about 50 KB
BATCHES_MIN = 8  # of each lane, so that there is a "halfway" with few flights, too


class Acknowledgement(NamedTuple):
    """Of what a lane has handed in at once; times are those of `perf_counter`."""

    partition: int
    record_count: int
    handed_in_at: float
    acknowledged_at: float


class Sending:
    """Attributes:
    sent: what was acknowledged, in order within each partition.
    acknowledgements: in the order in which they came.
    """

    def __init__(
        self,
        producer: Producer,
        topic: str,
        flights: Iterable[Flight],
        partition_count: int,
        *,
        on_progress: Callable[[int], object],
    ) -> None:
        """`on_progress` is called with the number of records that are acknowledged."""
        self.sent: list[SentRecord] = []
        self.acknowledgements: list[Acknowledgement] = []
        self._producer, self._topic, self._on_progress = producer, topic, on_progress
        self._lanes = deal_out(flights, partition_count)
        self._news = trio.Event()
        self._may_finish = trio.Event()

    async def run(self) -> None:
        """Until all is acknowledged. Raises what the producer raises if anything is not."""
        async with trio.open_nursery() as nursery:
            for lane in self._lanes:
                nursery.start_soon(self._send_lane, lane)

    def let_finish(self) -> None:
        """The last quarter of each lane waits for this: there is something left to send then."""
        self._may_finish.set()

    async def wait_acknowledged(self, count: int) -> None:
        """Until so many records are."""
        while len(self.sent) < count:
            await self._news.wait()

    async def _send_lane(self, lane: Sequence[Flight]) -> None:
        size = min(BATCH_RECORDS_MAX, -(-len(lane) // BATCHES_MIN)) or 1
        for start in range(0, len(lane), size):
            if start >= len(lane) * 3 / 4:
                await self._may_finish.wait()
            batch = lane[start : start + size]
            handed_in_at = perf_counter()
            stored = await self._producer.send_many(self._topic, batch, key=_key, value=_line)
            self._on_acknowledged(batch, stored, handed_in_at)

    def _on_acknowledged(
        self, batch: Sequence[Flight], stored: Sequence[BatchMetadata], handed_in_at: float
    ) -> None:
        assert len({run.partition for run in stored}) == 1, f"a lane in many partitions: {stored}"
        flights = iter(batch)
        for run in stored:
            for offset in range(run.base_offset, run.end_offset):
                flight = next(flights)
                self.sent.append(SentRecord(run.partition, offset, *flight))
        assert next(flights, None) is None, f"acknowledged: {stored} of {len(batch)} records"
        now = perf_counter()
        self.acknowledgements.append(
            Acknowledgement(stored[0].partition, len(batch), handed_in_at, now)
        )
        self._on_progress(len(self.sent))
        self._news.set()
        self._news = trio.Event()


def deal_out(flights: Iterable[Flight], partition_count: int) -> list[list[Flight]]:
    """As the producer's own partitioner does it, so that each lane stays in one partition."""
    lanes: list[list[Flight]] = [[] for _ in range(partition_count)]
    for flight in flights:
        lanes[crc32(flight.key) % partition_count].append(flight)
    return lanes


def seconds_until_acknowledged(
    acknowledgements: Iterable[Acknowledgement], *, since: float
) -> dict[int, float]:
    """For each partition, until a batch was acknowledged that was handed in later.

    A batch that was on its way at that moment does not count: it may have been acknowledged
    already, with the answer on its way. Partitions without any later batch are left out.
    """
    found: dict[int, float] = {}
    for one in acknowledgements:
        if one.handed_in_at >= since:
            found.setdefault(one.partition, one.acknowledged_at - since)
    return found


def _key(flight: Flight) -> bytes:
    return flight.key


def _line(flight: Flight) -> bytes:
    return flight.line
