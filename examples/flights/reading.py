"""Reading the flights: counted by a consumer that reads along, and kept by one that comes later."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

import trio

from .comparison import ReadRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from raftmq import Client, ConsumedBatch

BATCH_RECORDS_MAX = 5000


class Reader:
    """One consumer, from the start of a topic on.

    Attributes:
        count: records that it has read.
    """

    def __init__(
        self, client: Client, topic: str, *, on_batch: Callable[[ConsumedBatch], object]
    ) -> None:
        self.count = 0
        self._client, self._topic, self._on_batch = client, topic, on_batch
        self._positions: dict[int, int] = {}
        self._news = trio.Event()

    async def run(self) -> None:
        """Until it is cancelled."""
        async with self._client.consumer(self._topic, start="earliest") as consumer:
            async for batch in consumer.batches(max_records=BATCH_RECORDS_MAX):
                self.count += len(batch)
                self._on_batch(batch)
                self._positions[batch.partition] = batch.end_offset
                self._news.set()
                self._news = trio.Event()

    async def wait_reached(self, ends: Mapping[int, int]) -> None:
        """Until it has read every partition up to there."""
        while any(self._positions.get(one, 0) < end for one, end in ends.items()):
            await self._news.wait()


async def read_everything(
    client: Client, topic: str, ends: Mapping[int, int], *, seconds_max: float
) -> list[ReadRecord]:
    """With a fresh consumer, up to these offsets; what has not come in time is missing."""
    records: list[ReadRecord] = []

    def keep(batch: ConsumedBatch) -> None:
        columns = batch.offsets, batch.keys, batch.values
        records.extend(map(ReadRecord, repeat(batch.partition), *columns))

    reader = Reader(client, topic, on_batch=keep)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        with trio.move_on_after(seconds_max):
            await reader.wait_reached(ends)
        nursery.cancel_scope.cancel()
    return records
