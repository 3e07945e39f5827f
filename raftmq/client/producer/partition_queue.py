"""Parallel columns of records that a program hands in: checked, cut, dealt to partitions. Pure.

Nothing here runs once per record in Python that could run in C.
"""

from __future__ import annotations

import math
from collections import deque
from operator import add
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from raftmq.client.producer.batch import ProducerBatch
from raftmq.client.producer.record import (
    RECORD_OVERHEAD_BYTES,
    Extras,
    checked_timestamp,
    kept_headers,
    kept_tags,
    size_of,
)
from raftmq.errors import InvalidRecord
from raftmq.wire.batch.arguments import (
    check_headers,
    check_int64,
    check_keys,
    check_tags,
    check_values,
)
from raftmq.wire.batch.columns import INT64_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from raftmq.client.producer.batch import Numbering
    from raftmq.client.producer.named_producer import NamedNumbering
    from raftmq.client.producer.options import ProducerOptions
    from raftmq.rpc.backoff import Backoff


_WholeNumber = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
NAMES = ("values", "keys", "headers", "tags", "timestamps", "partitions")


class RecordColumns(NamedTuple):
    """Of equal length; None where no record has any."""

    values: Sequence[Any]
    keys: Sequence[Any] | None = None
    headers: Sequence[Any] | None = None
    tags: Sequence[Any] | None = None
    timestamps: Sequence[int] | None = None
    partitions: Sequence[int] | None = None

    @classmethod
    def checked(cls, *columns: Any) -> RecordColumns:  # noqa: ANN401  # whatever has a length
        """Raises InvalidRecord where their lengths differ."""
        lengths = {
            name: _length(name, column)
            for name, column in zip(NAMES, columns, strict=True)
            if column is not None
        }
        if "values" not in lengths:
            raise InvalidRecord("values is None, expected a list or an Arrow array")
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{count} {name}" for name, count in lengths.items())
            raise InvalidRecord(f"columns of different lengths: {told}")
        return cls(*columns)

    def prepared(self, first: int) -> Prepared:
        """As batches take them, once all can be sent.

        Args:
            first: how many came before, for messages.

        Raises:
            InvalidRecord: names the column and the index.
        """
        try:
            return self._prepared()
        except InvalidRecord as error:
            if first:
                error.add_note(f"counted from record {first} on")
            raise

    def _prepared(self) -> Prepared:
        count = len(self.values)
        values, keys = check_values(self.values), check_keys(self.keys)
        if check_headers(self.headers) is None and check_tags(self.tags) is None:
            headers, tags, sizes = None, None, _plain_sizes(count, values, keys)
        else:
            headers = [kept_headers(each) for each in self.headers or [None] * count]
            tags = [kept_tags(each) for each in self.tags or [None] * count]
            everything = (values or [None] * count, keys or [None] * count, headers, tags)
            sizes = [size_of(v, k, Extras(h, t)) for v, k, h, t in zip(*everything, strict=True)]
        columns = RecordColumns(
            [None] * count if values is None else values,
            keys,
            headers,
            tags,
            _whole_numbers(self.timestamps, "timestamps"),
            _whole_numbers(self.partitions, "partitions"),
        )
        return Prepared(columns, sizes)


class Prepared(NamedTuple):
    """Records that can be sent, and the size of each; nothing in them changes any more."""

    columns: RecordColumns
    sizes: list[int]

    def part(self, start: int, end: int) -> Prepared:
        return Prepared(portion_of(self.columns, start, end), self.sizes[start:end])


def column_length(rows: object) -> int | None:
    """For a progress bar; None where nobody knows."""
    return len(rows) if hasattr(rows, "__len__") else None


def portion_of(columns: RecordColumns, start: int, end: int) -> RecordColumns:
    return RecordColumns._make(
        [None if column is None else _list(column[start:end]) for column in columns]
    )


def _length(name: str, column: object) -> int:
    if isinstance(column, (str, bytes, bytearray)) or not hasattr(column, "__len__"):
        kind = type(column).__name__
        raise InvalidRecord(f"{name} is a {kind}, expected a list or an Arrow array")
    return len(column)


def _list(column: Any) -> list[Any]:  # noqa: ANN401  # an Arrow array, or whatever iterates
    return column.to_pylist() if hasattr(column, "to_pylist") else list(column)


def _whole_numbers(column: Sequence[object] | None, name: str) -> list[int] | None:
    """Of 64 bits, 0 or more."""
    if column is None:
        return None
    try:
        return msgspec.convert(column, list[_WholeNumber])
    except msgspec.ValidationError:  # this one takes longer, and says which
        return [
            checked_timestamp(item, f"{name}[{index}]") if name == "timestamps"
            else check_int64(item, f"{name}[{index}]")
            for index, item in enumerate(column)
        ]  # fmt: skip


def _plain_sizes(
    count: int, values: Sequence[bytes | None] | None, keys: Sequence[Any] | None
) -> list[int]:
    sizes = [RECORD_OVERHEAD_BYTES] * count
    if values is not None:
        sizes = list(map(add, sizes, _lengths(values)))
    if keys is not None:
        sizes = list(map(add, sizes, _lengths(keys)))
    return sizes


def _lengths(column: Sequence[Any]) -> list[int]:
    try:
        return list(map(len, column))
    except TypeError:  # None or an int among them
        return [len(item) if hasattr(item, "__len__") else 8 for item in column]


# -- Partition queue ------------------------------------------------------------------------------
# What waits for the leader of one partition, in order, and how much of it is on its way. Pure.
#
# Invariants: batches leave in the order in which they were opened; what failed goes back to the
# front, in its order; with one request in flight at most, the log has that order, too. With
# numbers, what may have been appended leaves again by itself, before anything else does.


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
