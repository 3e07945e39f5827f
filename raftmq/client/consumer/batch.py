"""`ConsumedBatch`: records of one partition as columns, which are decoded lazily. Pure.

Kafka: ConsumerRecords. A run of records out of one or more batches as they were sent; a column is
decoded when it is touched first.
"""

from __future__ import annotations

from functools import cached_property
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from raftmq.client.consumer.record import ConsumerRecord
from raftmq.client.type_parameters import Generic, KeyT_co, ValueT_co
from raftmq.errors import InvalidRequest
from raftmq.wire.bodies import ABSENT
from raftmq.words import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from raftmq.client.consumer.record import AnyRecord, Deserializers, PartitionOwnership
    from raftmq.wire.batch.directory import Tags
    from raftmq.wire.batch.record_headers import Headers
    from raftmq.wire.batch.records import RecordBatch


class BatchPart(NamedTuple):
    """Records `start` to `stop`, exclusive, of one batch as it was sent."""

    batch: RecordBatch
    start: int
    stop: int

    @property
    def is_whole(self) -> bool:
        return self.stop - self.start == self.batch.header.record_count

    def cut(self, column: Sequence[Any]) -> Sequence[Any]:
        return column if self.is_whole else column[self.start : self.stop]


class ConsumedBatch(Generic[ValueT_co, KeyT_co]):
    """Records of one partition, in order, as parallel columns. In annotations it takes the types of
    values and keys, as `ConsumerRecord` does.

    Touching a column for the first time raises CorruptRecord if its producer has encoded it
    wrongly, and UnsupportedCompression if its codec is not installed. With a `key_deserializer` or
    `value_deserializer`, that column has what it made, or raises UndecodableRecord for the first
    record with which it has failed; `raw` has all of them.

    Attributes:
        topic: its name.
        partition: number of the partition.
        high_watermark: end of the partition when the records were fetched.
        ownership: the ownership mark of the group member that got them; None without a group.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        parts: Sequence[BatchPart],
        *,
        high_watermark: int,
        ownership: PartitionOwnership | None = None,
        deserializers: Deserializers | None = None,
    ) -> None:
        assert parts, "a batch of no records"
        self.topic, self.partition = topic, partition
        self.high_watermark, self.ownership = high_watermark, ownership
        self._parts, self._deserializers = parts, deserializers

    def __len__(self) -> int:
        return sum([part.stop - part.start for part in self._parts])

    def __iter__(self) -> Iterator[ConsumerRecord[ValueT_co, KeyT_co]]:
        """The records. With deserializers it raises UndecodableRecord where one fails, and goes on
        behind it when it is asked for the next.
        """
        if self._deserializers is not None:
            return map(self._deserializers.record_of, self.raw)
        kind: type[AnyRecord] = (
            ConsumerRecord if self.ownership is None else self.ownership.record_kind
        )
        columns: tuple[Sequence[Any], ...] = (
            self.offsets, self.timestamps, self.keys, self.values, self.headers, self.tags
        )  # fmt: skip
        if self._has_deliveries:
            columns += self.scheduled_at, self.due
        return map(kind, repeat(self.topic), repeat(self.partition), *columns)

    def __repr__(self) -> str:
        where = f"{self.topic}-{self.partition}"
        first, last = self.base_offset, self.last_offset
        count = f"{len(self)} record{'' if len(self) == 1 else 's'}"
        made = "" if self._deserializers is None else ", deserialized"
        return f"<ConsumedBatch {where}: {count}, offsets {first} through {last}{made}>"

    @property
    def raw(self) -> ConsumedBatch:
        """The same records with keys and values as they were sent, without deserializers."""
        if self._deserializers is None:
            return self  # type: ignore[return-value]  # as it was sent: the defaults
        return ConsumedBatch(
            self.topic,
            self.partition,
            self._parts,
            high_watermark=self.high_watermark,
            ownership=self.ownership,
        )

    @cached_property
    def base_offset(self) -> int:
        """Offset of the first record."""
        part = self._parts[0]
        return part.batch.offsets[part.start]

    @cached_property
    def end_offset(self) -> int:
        """Where reading goes on after it, which is one past the last record, or beyond a gap."""
        part = self._parts[-1]
        # Includes offsets without a record at the end
        if part.stop == part.batch.header.record_count:
            return part.batch.header.end_offset
        return part.batch.offsets[part.stop - 1] + 1

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        part = self._parts[-1]
        return part.batch.offsets[part.stop - 1]

    def epoch_before(self, offset: int) -> int:
        """Leader epoch of the record before `offset`; -1: it is none of these."""
        headers = [part.batch.header for part in self._parts]
        found = [each.leader_epoch for each in headers if each.base_offset < offset]
        return found[-1] if found else ABSENT

    @cached_property
    def offsets(self) -> Sequence[int]:
        return self._column(lambda batch: batch.offsets)

    @cached_property
    def timestamps(self) -> Sequence[int]:
        """Milliseconds since 1970-01-01 UTC."""
        return self._column(lambda batch: batch.timestamps)

    @cached_property
    def keys(self) -> Sequence[KeyT_co | None]:
        if self._deserializers is not None and self._deserializers.key is not None:
            return list(map(self._deserializers.key_of, self.raw))
        return self._column(lambda batch: batch.keys)

    @cached_property
    def values(self) -> Sequence[ValueT_co | None]:
        """Bytes or None, or what `value_deserializer` made of them."""
        if self._deserializers is not None and self._deserializers.value is not None:
            return list(map(self._deserializers.value_of, self.raw))
        return self._column(lambda batch: batch.values)

    @cached_property
    def headers(self) -> Sequence[Headers]:
        return self._column(lambda batch: batch.headers)

    @cached_property
    def tags(self) -> Sequence[Tags]:
        return self._column(lambda batch: batch.tags)

    @cached_property
    def scheduled_at(self) -> Sequence[int | None]:
        """When records were made that were sent with a delay, or for a moment, in milliseconds as
        `timestamps`, which say when they were delivered; None of all others.
        """
        return self._column(_scheduled_at)

    @cached_property
    def due(self) -> Sequence[int | None]:
        """When such records were to be delivered, in milliseconds; None of all others."""
        return self._column(_due)

    @property
    def _has_deliveries(self) -> bool:
        return any(part.batch.mark is not None for part in self._parts)

    def _column(self, of: Callable[[RecordBatch], Sequence[Any]]) -> Sequence[Any]:
        columns = [part.cut(of(part.batch)) for part in self._parts]
        return columns[0] if len(columns) == 1 else list(chain.from_iterable(columns))


def _scheduled_at(batch: RecordBatch) -> Sequence[int | None]:
    found = batch.scheduled_at
    return [None] * batch.header.record_count if found is None else found


def _due(batch: RecordBatch) -> Sequence[int | None]:
    due = None if batch.mark is None else batch.mark.due_ms
    return [due] * batch.header.record_count


# -- Work -----------------------------------------------------------------------------------------


AnyBatch: TypeAlias = ConsumedBatch[Any, Any]
Work: TypeAlias = "AnyBatch | AnyRecord"


def known_ownership(work: Work) -> PartitionOwnership:
    """Raises InvalidRequest: it bears no mark of ownership; TypeError: it is something else."""
    if not isinstance(work, ConsumedBatch | ConsumerRecord):
        raise TypeError(
            f"{work!r} is {kind_of(work)}: give a record or batch as it was handed out; "
            "offsets by their numbers are set by mq.admin.alter_group_offsets"
        )
    if work.ownership is None:
        raise InvalidRequest(
            f"{type(work).__name__} of {work.topic}-{work.partition}: not handed out by a member "
            "of a group, or copied since; give the one that was handed out itself"
        )
    return work.ownership
