"""`ConsumerRecord` and `ConsumedBatch`: what the program gets; columns are decoded lazily. Pure.

Kafka: ConsumerRecord, ConsumerRecords. A `ConsumedBatch` is a run of records of one partition, out
of one or more batches as they were sent; a column is decoded when it is touched first. Also owns
the ownership mark by which a late commit is recognized.
"""

from __future__ import annotations

from functools import cached_property, partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from raftmq.client.group.effects import LossCause
from raftmq.errors import InvalidRequest
from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from raftmq.wire.batch.columns import Key, Value
    from raftmq.wire.batch.directory import Tags
    from raftmq.wire.batch.record_headers import Headers
    from raftmq.wire.batch.records import RecordBatch


class ConsumerRecord(NamedTuple):
    """One record.

    Attributes:
        topic: its name.
        partition: number of the partition.
        offset: its number in the partition.
        timestamp: milliseconds since 1970-01-01 UTC, -1 where it has none.
        key: bytes, an int, or None.
        value: bytes or None.
        headers: pairs of a name and bytes, in order; a name may come twice.
        tags: sorted.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: Key
    value: Value
    headers: Headers
    tags: Tags

    @property
    def ownership(self) -> PartitionOwnership | None:
        """The ownership in which a member of a group got it; None: not in a group, or a copy."""
        return None


# What `ConsumerRecord._make` does, without a Python frame for each record.
_new_record = cast(
    "Callable[[Any], ConsumerRecord]", partial(cast("Any", tuple.__new__), ConsumerRecord)
)


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


class ConsumedBatch:
    """Records of one partition, in order, as parallel columns.

    Touching a column for the first time raises CorruptRecord if its producer has encoded it
    wrongly, and UnsupportedCompression if its codec is not installed.

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
    ) -> None:
        assert parts, "a batch of no records"
        self.topic, self.partition = topic, partition
        self.high_watermark, self.ownership = high_watermark, ownership
        self._parts = parts

    def __len__(self) -> int:
        return sum([part.stop - part.start for part in self._parts])

    def __iter__(self) -> Iterator[ConsumerRecord]:
        columns = (
            self.offsets, self.timestamps, self.keys, self.values, self.headers, self.tags
        )  # fmt: skip
        rows = zip(repeat(self.topic), repeat(self.partition), *columns, strict=False)
        return map(_new_record if self.ownership is None else self.ownership.new_record, rows)

    def __repr__(self) -> str:
        where = f"{self.topic}-{self.partition}"
        return f"<ConsumedBatch {where} offsets {self.base_offset} to {self.end_offset}>"

    @cached_property
    def base_offset(self) -> int:
        """Offset of the first record."""
        part = self._parts[0]
        return part.batch.offsets[part.start]

    @cached_property
    def end_offset(self) -> int:
        """Where reading goes on after it: one past the last record, or further on in a gap."""
        part = self._parts[-1]
        # Includes offsets without a record at the end
        if part.stop == part.batch.header.record_count:
            return part.batch.header.end_offset
        return part.batch.offsets[part.stop - 1] + 1

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
    def keys(self) -> Sequence[Key]:
        return self._column(lambda batch: batch.keys)

    @cached_property
    def values(self) -> Sequence[Value]:
        return self._column(lambda batch: batch.values)

    @cached_property
    def headers(self) -> Sequence[Headers]:
        return self._column(lambda batch: batch.headers)

    @cached_property
    def tags(self) -> Sequence[Tags]:
        return self._column(lambda batch: batch.tags)

    def _column(self, of: Callable[[RecordBatch], Sequence[Any]]) -> Sequence[Any]:
        columns = [part.cut(of(part.batch)) for part in self._parts]
        return columns[0] if len(columns) == 1 else list(chain.from_iterable(columns))


# -- Partition ownership --------------------------------------------------------------------------
# The time for which a group member owns a partition: records handed out meanwhile bear its mark.
#
# Records that were handed out before a partition went to another member, or before its topic was
# deleted and created anew, say nothing of how far it is done now.


Work: TypeAlias = ConsumedBatch | ConsumerRecord


class PartitionOwnership:
    """One member's ownership of one partition; a mark, compared by identity.

    Attributes:
        topic_id: of the topic that is read; None: not known yet.
        cause: once it has ended, why.
    """

    def __init__(self, topic_id: bytes | None = None) -> None:
        self.topic_id, self.cause = topic_id, LossCause.OTHER

    @cached_property
    def new_record(self) -> Callable[[Any], ConsumerRecord]:
        """Makes a record from its columns, without a Python frame for each."""
        # A class for each ownership, as records then bear the mark for nothing: 0.16 us a record
        # with and without. An attribute of each takes 0.08 us more and a dict, another field would
        # be seen by programs, and a `str` of our own for the topic cannot be encoded by msgspec.
        kind = type(
            ConsumerRecord.__name__,
            (ConsumerRecord,),
            {
                "__slots__": (),
                "__module__": ConsumerRecord.__module__,
                "__reduce__": _as_plain,
                "ownership": self,
            },
        )
        return cast("Callable[[Any], ConsumerRecord]", partial(cast("Any", tuple.__new__), kind))


def known_ownership(work: Work) -> PartitionOwnership:
    """Raises InvalidRequest: it bears no mark of ownership."""
    if work.ownership is None:
        raise InvalidRequest(
            f"{type(work).__name__} of {work.topic}-{work.partition}: not handed out by a member "
            "of a group, or copied since; give the one that was handed out itself"
        )
    return work.ownership


def _as_plain(record: ConsumerRecord) -> tuple[type[ConsumerRecord], tuple[Any, ...]]:
    """Pickled without the mark, which means nothing in another process."""
    return ConsumerRecord, tuple(record)
