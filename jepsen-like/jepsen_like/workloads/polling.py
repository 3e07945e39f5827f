"""One poll operation: the records that a consumer hands out in a short while.

Owns how much that is, and its form in the history. Cancelling loses nothing: records that were not
handed out come with the next poll.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import trio

from jepsen_like.history.event import Type
from jepsen_like.workloads.keys import decode_value, key_of
from jepsen_like.workloads.sending import error_text
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from jepsen_like.workloads.bench import Bench, WallClock
    from raftmq.client.consumer.batch import ConsumedBatch
    from raftmq.client.consumer.consumer import Consumer

POLL_SECONDS = 0.1  # for the whole poll: many short polls show more orders than few long ones
RECORDS_MAX = 2_000  # of a poll: an event of the history stays readable
BATCH_RECORDS_MAX = 500


@dataclass
class Polled:
    """Pairs of offset and value, by key, as they came; and what ended it.

    Attributes:
        delivered: of those that were scheduled: offset, due time and time of delivery, in ms.
    """

    records: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    delivered: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    count: int = 0
    error: RaftmqError | None = None

    def add(self, batch: ConsumedBatch) -> None:
        """All columns first: what cannot be decoded must not come in half."""
        pairs = list(zip(batch.offsets, map(decode_value, batch.values), strict=True))
        rows = zip(batch.offsets, batch.due, batch.timestamps, strict=True)
        delivered = [(offset, due, at) for offset, due, at in rows if due is not None]
        key = key_of(batch.topic, batch.partition)
        self.records.setdefault(key, []).extend(pairs)
        if delivered:
            self.delivered.setdefault(key, []).extend(delivered)
        self.count += len(pairs)


async def perform_poll(
    bench: Bench,
    process: int,
    consumer: Consumer,
    *,
    seconds: float = POLL_SECONDS,
    records_max: int = RECORDS_MAX,
) -> bool:
    """Poll, and record it. False: the consumer has failed, and cannot be used any more."""
    bench.recorder.invoke(process, "poll")
    polled = await collect(consumer, seconds=seconds, records_max=records_max)
    for key, pairs in polled.records.items():
        bench.seen.on_polled(key, max(offset for offset, _ in pairs))
    error = None if polled.error is None else error_text(polled.error)
    # What was handed out before an error was handed out.
    kind = Type.FAIL if polled.error is not None and not polled.count else Type.OK
    told = {**_told(polled, consumer), **_told_of_schedules(polled, bench.wall_clock)}
    bench.recorder.record(process, kind, "poll", told, error=error)
    return polled.error is None


async def collect(consumer: Consumer, *, seconds: float, records_max: int) -> Polled:
    """What comes within that time; an error ends it."""
    polled = Polled()
    batches = consumer.batches(max_records=min(BATCH_RECORDS_MAX, records_max))
    try:
        with trio.move_on_after(seconds):
            async for batch in batches:
                polled.add(batch)
                if polled.count >= records_max:
                    break
    except RaftmqError as error:
        polled.error = error
    return polled


def _told(polled: Polled, consumer: Consumer) -> dict[str, Any]:
    ends = [(key_of(*one), consumer.high_watermark(*one)) for one in consumer.assignment]
    return {
        "records": list(polled.records.items()),
        "high_watermarks": [[key, end] for key, end in ends if end is not None],
    }


def _told_of_schedules(polled: Polled, clock: WallClock | None) -> dict[str, Any]:
    if clock is None or not polled.delivered:
        return {}
    delivered = [
        [key, [(offset, clock.seconds(due), clock.seconds(at)) for offset, due, at in rows]]
        for key, rows in polled.delivered.items()
    ]
    return {"delivered": delivered}
