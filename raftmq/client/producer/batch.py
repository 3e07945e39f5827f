"""One producer batch from its first record to its outcome. Pure.

Kafka: ProducerBatch. Sends nothing and reads no clock.

Invariants: records are added only until the batch is closed; it is settled once, with one outcome
for all of its records; a batch that may have been appended never gets another sequence number, nor
other bytes. One that certainly was not appended may be split: the records behind the cut go on in
batches of their own, under their sequence numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from operator import sub
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeAlias

from raftmq.client.producer.record import RECORD_OVERHEAD_BYTES
from raftmq.client.scheduling.handles import ScheduleHandle
from raftmq.errors import RaftmqError
from raftmq.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from raftmq.wire.batch.head import renumbered
from raftmq.wire.batch.header import RECORDS_MAX
from raftmq.wire.batch.records import RecordBatch, encode_batch
from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raftmq.client.producer.record import Extras, GivenTags, RunningDigest
    from raftmq.model import Compression
    from raftmq.wire.batch.arguments import GivenHeaders
    from raftmq.wire.batch.columns import Key, Value
    from raftmq.wire.batch.header import Account


SEQUENCE_COUNT = 1 << 31  # 31 bits in the batch header, as in Kafka: after the highest comes 0
OnDelivery: TypeAlias = "Callable[[RaftmqError | None, RecordMetadata | None], object]"


class RecordMetadata(NamedTuple):
    """Where a record is in the log.

    Attributes:
        offset: -1 with acks=0, where no broker answers; and for a record that a named producer has
            skipped because an earlier run wrote it.
        timestamp: the record's, in milliseconds since 1970-01-01 UTC. In a topic with
            message.timestamp.type=LogAppendTime the leader's; -1 if the leader does not know it any
            more, which takes a record that was sent again. The producer's in any topic where
            `offset` is -1.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int

    @property
    def count(self) -> NoReturn:
        """Hides `tuple.count`, which counts equal items. Raises AttributeError."""
        raise AttributeError("RecordMetadata has no count: it is of one record")

    @property
    def schedule_handle(self) -> ScheduleHandle | None:
        """Of a record that was sent with a delay, or for a moment: by it the record can be
        cancelled, with `admin.cancel_scheduled`. None of all others, and where `offset` is -1.
        """
        return None


class ScheduledRecordMetadata(RecordMetadata):
    """Of a scheduled record; to programs a `RecordMetadata`, with as many items."""

    _handle: ScheduleHandle

    @classmethod
    def of(cls, metadata: RecordMetadata, topic_id: bytes) -> ScheduledRecordMetadata:
        made = cls(*metadata)
        made._handle = ScheduleHandle(topic_id, metadata.partition, metadata.offset)
        return made

    @property
    def schedule_handle(self) -> ScheduleHandle:
        return self._handle

    def __repr__(self) -> str:
        items = [f"{name}={getattr(self, name)!r}" for name in self._fields]
        return f"{RecordMetadata.__name__}({', '.join(items)}, schedule_handle={self._handle!r})"


class BatchMetadata(NamedTuple):
    """Where records are in the log that were sent together.

    Attributes:
        base_offset: of the first one; -1 with acks=0, where no broker answers, and where
            `is_skipped`.
        record_count: how many records.
        is_repeated: without idempotence: the batch was sent again after an attempt with an unknown
            outcome, so that its records may be in the log twice. With idempotence always False:
            brokers find duplicates and answer with their offsets.
        is_skipped: of a named producer: an earlier run wrote them, and they were not sent.
        log_append_time: of all of them, in milliseconds since 1970-01-01 UTC, in a topic with
            message.timestamp.type=LogAppendTime; -1 if the leader does not know it any more. None
            in other topics, where records have the producer's timestamps, and where `base_offset`
            is -1.
    """

    topic: str
    partition: int
    base_offset: int
    record_count: int
    is_repeated: bool = False
    is_skipped: bool = False
    log_append_time: int | None = None

    @property
    def count(self) -> int:  # type: ignore[override]
        """`record_count`; hides `tuple.count`."""
        return self.record_count

    @property
    def end_offset(self) -> int:
        """One past the last record; -1 where `base_offset` is."""
        return ABSENT if self.base_offset == ABSENT else self.base_offset + self.record_count


class Number(NamedTuple):
    """The sequence number of a batch, as in its header."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


Outcome: TypeAlias = BatchMetadata | RaftmqError


class ProducerBatch:
    """Records of one partition that leave together. Once encoded, they are kept as bytes only.

    Attributes:
        byte_count: bytes of its records as they count against the buffer pool.
        payload_bytes: the same without the overhead for Python objects in memory.
        opened_at: when its first record came, in seconds of the event loop's clock.
        is_repeated: see `BatchMetadata`.
        attempts: how often it was sent.
        may_have_happened: some attempt may have appended it, as far as the client knows.
        due_ms: when all of its records are to be delivered; None: it is not scheduled.
        topic_id: of the topic whose leader it was sent to last; b"": not sent yet.
        number: the sequence number that its bytes carry; None before it is encoded, and without
            idempotence.
        digest: of a named producer, of all its records before those of this batch.
        pieces: all batches that the original batch was split into, in order; empty if it never was.
        start: index of its first record in the original batch.
        skipped: number of records at its start that the partition has already, and that are not
            among its bytes; only with a named producer.
        outcome: None until it is known; it covers the records that were not skipped, if there are
            any.
    """

    __slots__ = (
        "_callbacks", "_count", "_data", "_has_keys", "_headers", "_keys", "_tags", "_timestamps",
        "_unclaimed", "_values", "_watchers", "attempts", "byte_count", "digest", "due_ms",
        "is_closed", "is_repeated", "may_have_happened", "number", "opened_at", "outcome",
        "partition", "payload_bytes", "pieces", "skipped", "start", "topic", "topic_id",
    )  # fmt: skip

    def __init__(
        self, topic: str, partition: int, opened_at: float, due_ms: int | None = None
    ) -> None:
        self.topic, self.partition, self.opened_at = topic, partition, opened_at
        self.due_ms, self.topic_id = due_ms, b""
        self._count = self.start = 0
        self.byte_count = self.payload_bytes = self.attempts = self.skipped = 0
        self.is_closed = self.is_repeated = self.may_have_happened = False
        self.outcome: Outcome | None = None
        self.number: Number | None = None
        self.digest: RunningDigest | None = None
        self.pieces: list[ProducerBatch] = []
        self._values: list[Value] = []
        self._keys: list[Key] = []
        self._timestamps: list[int] = []
        self._unclaimed = bytearray()  # one byte per record: 1 while a failure would go unreported
        self._has_keys = False
        self._headers: list[GivenHeaders] = []
        self._tags: list[GivenTags] = []
        self._data: bytearray | None = None
        self._callbacks: list[tuple[int, OnDelivery]] = []
        self._watchers: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return self._count

    @property
    def unskipped_count(self) -> int:
        """Number of records that are sent with it."""
        return self._count - self.skipped

    @property
    def is_encoded(self) -> bool:
        return self._data is not None

    @property
    def is_full(self) -> bool:
        """It has as many records as the batch header can count."""
        return self._count >= RECORDS_MAX

    @property
    def space(self) -> int:
        """How many more records it may take."""
        return RECORDS_MAX - self._count

    def add(self, value: Value, key: Key, timestamp: int, size: int) -> int:
        """Add one record. Returns its index."""
        index = self._count
        self._count = index + 1
        self._values.append(value)
        self._keys.append(key)
        if key is not None:
            self._has_keys = True
        self._timestamps.append(timestamp)
        self._unclaimed.append(1)
        self.byte_count += size
        self.payload_bytes += size - RECORD_OVERHEAD_BYTES
        return index

    def add_extras(self, extras: Extras) -> None:
        """Headers and tags of the record that was added last."""
        count = self._count
        if extras.headers:
            # Columns exist from the first record that has any: pad for those before it.
            self._headers += [None] * (count - 1 - len(self._headers))
            self._headers.append(extras.headers)
        if extras.tags:
            self._tags += [None] * (count - 1 - len(self._tags))
            self._tags.append(extras.tags)

    def extend(
        self,
        values: Sequence[Value],
        keys: Sequence[Key] | None,
        timestamps: Sequence[int],
        size: int,
    ) -> None:
        """Add many records; `timestamps` has one for each."""
        if keys is not None and not self._has_keys:
            self._has_keys = True
        self._keys.extend([None] * len(values) if keys is None else keys)
        self._values.extend(values)
        self._count += len(values)
        self._timestamps.extend(timestamps)
        # A bulk call reports the failures of its records itself
        self._unclaimed.extend(bytes(len(values)))
        self.byte_count += size
        self.payload_bytes += size - RECORD_OVERHEAD_BYTES * len(values)

    def extend_extras(
        self, headers: Sequence[GivenHeaders] | None, tags: Sequence[GivenTags] | None
    ) -> None:
        """Headers and tags of the records that were added last."""
        count = self._count
        if headers is not None:
            self._headers += [None] * (count - len(headers) - len(self._headers))
            self._headers.extend(headers)
        if tags is not None:
            self._tags += [None] * (count - len(tags) - len(self._tags))
            self._tags.extend(tags)

    def keys_and_values(self) -> tuple[Sequence[Key], Sequence[Value]]:
        """Of the records that are to be sent with it; only before it is encoded."""
        assert self._data is None, "they are bytes by now"
        return self._keys, self._values

    def skip(self, count: int) -> None:
        """The partition has the first `count` records already: close the batch and send only the
        rest.
        """
        assert self._data is None, "encoded with them"
        assert not self.skipped, "once"
        self.is_closed = True
        self.skipped = count
        for column in (self._values, self._keys, self._headers, self._tags):
            del column[:count]

    def encode(
        self,
        compression: Compression,
        number: Number | None = None,
        *,
        account: Account | None = None,
        has_check: bool = True,
        is_transactional: bool = False,
    ) -> bytearray:
        """Close the batch and return its bytes: always the same under the same sequence number.
        `account`: of a producer with a name: generation, and digest up to the last record here.
        `has_check`: see `encode_batch`.

        Raises:
            RaftmqError: it cannot be encoded, and never will be.
        """
        self.is_closed = True
        if self._data is None:  # the first attempt; later ones send the same bytes
            self._data = self._encode(compression, number, account, is_transactional, has_check)
            self._forget_records()
        # A new producer epoch: only the header changes, the records are not encoded again.
        elif number is not None and number != self.number:
            assert not self.may_have_happened, "it may stand in the log under another number"
            self._data = renumbered(self._data, **number._asdict())
        self.number = number
        return self._data

    def _encode(
        self,
        compression: Compression,
        number: Number | None,
        account: Account | None,
        is_transactional: bool,
        has_check: bool,
    ) -> bytearray:
        stamps, count = self.timestamps(), self.unskipped_count
        # One timestamp in the header is smaller than a column of equal ones.
        is_one_time = stamps.count(stamps[0]) == count
        return encode_batch(
            values=self._values,
            keys=self._keys if self._has_keys else None,
            headers=_filled(self._headers, count),
            tags=_filled(self._tags, count),
            timestamps=None if is_one_time else stamps,
            timestamp=stamps[0] if is_one_time else None,
            compression=compression,
            producer_id=number.producer_id if number else NO_PRODUCER_ID,
            producer_epoch=number.producer_epoch if number else NO_PRODUCER_EPOCH,
            base_sequence=number.base_sequence if number else NO_SEQUENCE,
            account=account,
            transactional=is_transactional,
            # Brokers that know scheduled batches know it, too.
            has_check=has_check or self.due_ms is not None,
            due_ms=self.due_ms,
        )

    def timestamps(self) -> Sequence[int]:
        """Of the records that are sent with it."""
        return self._timestamps[self.skipped :]

    def split(self, cuts: Sequence[int]) -> list[ProducerBatch]:
        """Cut the batch, which no replica has appended; sequence numbers stay with their records.

        Args:
            cuts: indices among the unskipped records, at each of which a new batch begins.

        Returns:
            The batches that follow this one, in order.
        """
        assert not self.may_have_happened, "it may stand in the log as it is"
        edges = [0, *cuts, self.unskipped_count]
        assert cuts, "nothing to split"
        assert all(start < end for start, end in pairwise(edges)), "a piece without records"
        self._recall_records()
        pieces = [self, *[self._piece(start, end) for start, end in pairwise(edges[1:])]]
        self._cut_at(cuts[0])
        self._join_pieces(pieces)
        if self.digest is not None:  # of a named producer: each piece needs its own
            for before, after in pairwise(pieces):
                assert before.digest is not None, "it follows one that has one"
                after.digest = before.digest.followed_by(*before.keys_and_values())
        told, self._callbacks = self._callbacks, []
        for index, on_delivery in told:
            holder, index = self.holder_of(index)
            holder.call_back(index, on_delivery)
        self._wake()  # waiting tasks look up again which batch holds their record
        return pieces[1:]

    def _piece(self, start: int, end: int) -> ProducerBatch:
        """A batch of its own with the unskipped records from `start` to `end`."""
        piece = ProducerBatch(self.topic, self.partition, self.opened_at, self.due_ms)
        piece.is_closed, piece.attempts = True, self.attempts
        piece._has_keys, piece._count = self._has_keys, end - start
        piece.start = self.start + self.skipped + start
        piece._values, piece._keys = self._values[start:end], self._keys[start:end]
        piece._headers, piece._tags = self._headers[start:end], self._tags[start:end]
        # These two still hold the records that were skipped
        first, last = self.skipped + start, self.skipped + end
        piece._timestamps = self._timestamps[first:last]
        piece._unclaimed = self._unclaimed[first:last]
        for_end, for_start = self._shares(end), self._shares(start)
        piece.byte_count, piece.payload_bytes = map(sub, for_end, for_start)
        # Encoded before: the piece keeps the sequence numbers of its records.
        if self.number is not None:
            sequence = (self.number.base_sequence + start) % SEQUENCE_COUNT
            piece.number = self.number._replace(base_sequence=sequence)
        return piece

    def _cut_at(self, end: int) -> None:
        """Keep only the unskipped records before `end`."""
        for column in (self._values, self._keys, self._headers, self._tags):
            del column[end:]
        del self._timestamps[self.skipped + end :]
        del self._unclaimed[self.skipped + end :]
        self.byte_count, self.payload_bytes = self._shares(end)
        self._count = self.skipped + end

    def _shares(self, end: int) -> tuple[int, int]:
        """The shares of `byte_count` and `payload_bytes` that the records before `end` have, taken
        as equally large: the size of a single record is not kept.
        """
        count = self.skipped + end
        return self.byte_count * count // self._count, self.payload_bytes * count // self._count

    def _join_pieces(self, pieces: list[ProducerBatch]) -> None:
        """Put the pieces in place of this batch, the first of them, in the list that all pieces
        share.
        """
        whole = self.pieces or [self]
        place = bisect_right(whole, self.start, key=_start_of)
        whole[place:place] = pieces[1:]
        for piece in pieces:
            piece.pieces = whole

    def holder_of(self, index: int) -> tuple[ProducerBatch, int]:
        """Which batch holds a record after splits, and its index there."""
        if not self.pieces:  # never split, as most batches
            return self, index
        index += self.start
        holder = self.pieces[bisect_right(self.pieces, index, key=_start_of) - 1]
        return holder, index - holder.start

    def _recall_records(self) -> None:
        """Decode the records again from the bytes, if it was encoded already."""
        if self._data is None:  # not encoded yet: the records are there
            return
        records = RecordBatch.decode(self._data)
        self._values, self._keys = list(records.values), list(records.keys)
        self._headers = list(records.headers) if any(records.headers) else []
        self._tags = list(records.tags) if any(records.tags) else []
        self._data = None

    def _forget_records(self) -> None:
        self._values, self._keys, self._headers, self._tags = [], [], [], []

    # -- what became of it -----------------------------------------------------------------

    @property
    def unclaimed(self) -> int:
        """Number of sent records whose failure no task awaits and no callback gets."""
        return self._unclaimed.count(1, self.skipped)

    def claim(self, index: int, count: int = 1, *, is_claimed: bool = True) -> None:
        """Mark whether the program learns the outcome of those records, by an await or a
        callback.
        """
        self._unclaimed[index : index + count] = bytes([not is_claimed]) * count

    def call_back(self, index: int, on_delivery: OnDelivery) -> None:
        """Call `on_delivery` when the outcome of one record is known."""
        assert self.outcome is None, "settled: too late for a callback"
        self._callbacks.append((index, on_delivery))

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` when the batch is settled or split."""
        self._watchers.append(watcher)

    def settle(self, outcome: Outcome) -> list[tuple[int, OnDelivery]]:
        """Set the outcome, once. Returns the callbacks to call, each with its record's index."""
        assert self.outcome is None, "settled twice"
        self.outcome = outcome
        self._wake()
        callbacks, self._callbacks = self._callbacks, []
        self._forget_records()
        self._data = None
        if isinstance(outcome, RaftmqError):
            # A failed record has no metadata to report; skipped ones still have.
            del self._timestamps[self.skipped :]
        return callbacks

    def _wake(self) -> None:
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher()

    def metadata_of(self, index: int) -> RecordMetadata:
        """Metadata of one record. Raises the batch's error if it has failed."""
        outcome, ahead = self.outcome, index - self.skipped
        assert outcome is not None, "not settled yet"
        if ahead < 0:  # a skipped record
            # An earlier run wrote it; the broker did not report at which offset.
            return RecordMetadata(self.topic, self.partition, ABSENT, self._timestamps[index])
        if isinstance(outcome, RaftmqError):
            # Each task raises its own copy, as tracebacks and notes are added to it
            raise outcome.copied()
        base = outcome.base_offset
        offset = ABSENT if base == ABSENT else base + ahead
        time = outcome.log_append_time
        if time is None:  # CreateTime
            time = self._timestamps[index]
        metadata = RecordMetadata(self.topic, self.partition, offset, time)
        if self.due_ms is None or offset == ABSENT:
            return metadata
        return ScheduledRecordMetadata.of(metadata, self.topic_id)


def _start_of(batch: ProducerBatch) -> int:
    return batch.start


def _filled(column: list[GivenHeaders] | list[GivenTags], count: int) -> list | None:  # type: ignore[type-arg]
    """Pad with None up to `count`; None where no record has any."""
    return [*column, *[None] * (count - len(column))] if column else None
