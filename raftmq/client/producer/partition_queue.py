"""What waits for the leader of one partition, in order, and how much of it is on its way. Pure.

Invariants: batches leave in the order in which they were opened; what failed goes back to the
front, in its order; with one request in flight at most, the log has that order, too. With numbers,
what may have been appended leaves again by itself, before anything else does.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from raftmq.client.producer.batch import ProducerBatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from raftmq.client.producer.named import NamedNumbering
    from raftmq.client.producer.numbering import Numbering
    from raftmq.client.producer.options import ProducerOptions
    from raftmq.rpc.backoff import Backoff


LIMIT_SECONDS = 300.0  # then whoever has raised it gets whole batches again


class _Limit(NamedTuple):
    bytes_max: int
    topic_id: bytes
    until: float


class PartitionQueue:
    """
    Args:
        busy: the queues that hold something or have requests in flight; this one enters itself,
            and whoever finds it idle there takes it out.
        numbering: of what leaves; None without idempotence.

    Attributes:
    in_flight: what each request on its way holds.
    not_before: until then nothing leaves, because the last attempt failed.
    open: the batch that takes records, if there is one; the last one.
    queued_bytes: of the batches here.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        options: ProducerOptions,
        backoff: Backoff,
        busy: dict[int, PartitionQueue],
        numbering: Numbering | NamedNumbering | None = None,
    ) -> None:
        self.topic, self.partition, self._busy = topic, partition, busy
        self.numbering = numbering
        self.in_flight: list[list[ProducerBatch]] = []
        self.not_before, self.queued_bytes = -math.inf, 0
        self.open: ProducerBatch | None = None
        self._options, self._backoff = options, backoff
        self._batches: deque[ProducerBatch] = deque()
        self._limit: _Limit | None = None

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[ProducerBatch]:
        return iter(self._batches)

    @property
    def is_idle(self) -> bool:
        """Holds nothing, and waits for nothing."""
        return not self._batches and not self.in_flight

    @property
    def may_send(self) -> bool:
        """There is something, and not too much on its way."""
        return bool(self._batches) and len(self.in_flight) < self._options.max_in_flight

    @property
    def is_in_doubt(self) -> bool:
        """What leaves next may have been appended."""
        return bool(self._batches) and self._batches[0].may_have_happened

    def on_their_way(self) -> list[ProducerBatch]:
        """Those of which nothing is known yet."""
        return [batch for taken in self.in_flight for batch in taken if batch.outcome is None]

    def open_batch(self, now: float) -> ProducerBatch:
        """One more, behind the others."""
        assert self.open is None, "one is open already"
        self.open = ProducerBatch(self.topic, self.partition, now)
        self._batches.append(self.open)
        self._busy[self.partition] = self
        return self.open

    def close_batch(self) -> None:
        """The one that is open takes no more records."""
        assert self.open is not None, "none is open"
        self.open.is_closed = True
        self.open = None

    def ready_at(self, *, is_hurried: bool) -> float:
        """When the next request may leave; math.inf: not before something else happens.

        Args:
            is_hurried: nobody wants to linger.
        """
        if not self.may_send:
            return math.inf
        return max(self.not_before, self._due_at(self._batches[0], is_hurried=is_hurried))

    def take(self, bytes_max: int, now: float, *, is_hurried: bool) -> list[ProducerBatch]:
        """The oldest batches, at least one, closed; counted as one request in flight."""
        taken: list[ProducerBatch] = []
        size = 0
        while self._batches:
            batch = self._batches[0]
            size += batch.payload_bytes
            is_due = self._due_at(batch, is_hurried=is_hurried) <= now
            if taken and (size > bytes_max or not is_due or self._is_apart(taken[0], batch)):
                break
            self.remove(batch)
            taken.append(batch)
        self.in_flight.append(taken)
        return taken

    def put_back(self, batches: Sequence[ProducerBatch]) -> None:
        """They were taken, and are to leave again."""
        self._batches.extendleft(reversed(batches))
        self.queued_bytes += sum([batch.byte_count for batch in batches])
        if self._options.max_in_flight > 1:  # requests may fail in any order
            self._batches = deque(sorted(self._batches, key=_opened_at))

    def remove(self, batch: ProducerBatch) -> None:
        """It is not to leave any more."""
        self._batches.remove(batch)
        if batch is self.open:
            self.close_batch()
        self.queued_bytes -= batch.byte_count

    def drop(self, batch: ProducerBatch) -> None:
        """It is given up."""
        self.remove(batch)
        if batch.number is not None and self.numbering is not None:
            self.numbering.end_epoch()

    def on_answer(self, batches: list[ProducerBatch]) -> None:
        """That request is no longer on its way."""
        self.in_flight.remove(batches)

    def on_success(self) -> None:
        self.not_before = -math.inf
        self._backoff.reset()

    def on_failure(self, now: float, *, at_once: bool) -> None:
        """Args:
        at_once: somebody else is to be asked now, so there is nothing to wait for.
        """
        self.not_before = now + (0.0 if at_once else self._backoff.next_seconds())

    def limit_batches(self, bytes_max: int, topic_id: bytes, now: float) -> None:
        """So many bytes each may have, as its leader has just told."""
        self._limit = _Limit(bytes_max, topic_id, now + LIMIT_SECONDS)

    def batch_bytes_max(self, topic_id: bytes, now: float) -> float:
        """As far as is known of that topic; a record alone may be larger."""
        limit = self._limit
        if limit is None or limit.topic_id != topic_id or now >= limit.until:
            return math.inf
        return limit.bytes_max

    def _is_apart(self, first: ProducerBatch, other: ProducerBatch) -> bool:
        """One answer cannot be about both: a refusal means something else for each of them."""
        return self.numbering is not None and first.may_have_happened != other.may_have_happened

    def _due_at(self, batch: ProducerBatch, *, is_hurried: bool) -> float:
        """When it may leave, as far as lingering goes."""
        if is_hurried or batch.is_closed:
            return -math.inf
        return batch.opened_at + self._options.linger_seconds


def _opened_at(batch: ProducerBatch) -> float:
    return batch.opened_at


def ready_now(
    queues: Iterable[PartitionQueue], now: float, *, is_hurried: bool
) -> tuple[list[PartitionQueue], float]:
    """Which queues may send now, and when the next one may."""
    ready, later = [], math.inf
    for queue in queues:
        ready_at = queue.ready_at(is_hurried=is_hurried)
        if ready_at <= now:
            ready.append(queue)
        else:
            later = min(later, ready_at)
    return ready, later
