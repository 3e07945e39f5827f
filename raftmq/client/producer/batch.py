"""One batch from its first record to word of what became of it. Pure.

Invariants: records are added only until it is closed; it is settled once, with an outcome for all
of its records; what may have been appended never gets another number, nor other bytes. What was
certainly not may be split: the records behind go on in a batch of their own, under their numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from raftmq.client.producer.record import RECORD_OVERHEAD_BYTES
from raftmq.errors import (
    InvalidProducerEpoch,
    OutOfOrderSequence,
    RaftmqError,
    UnknownProducerId,
    Unreachable,
)
from raftmq.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from raftmq.wire.batch.header import RECORDS_MAX, renumbered
from raftmq.wire.batch.records import RecordBatch, encode_batch
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.producers import PRODUCER_EPOCH_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raftmq.client.producer.digest import RunningDigest
    from raftmq.client.producer.record import Extras, GivenTags
    from raftmq.model import Compression
    from raftmq.wire.batch.arguments import GivenHeaders
    from raftmq.wire.batch.columns import Key, Value
    from raftmq.wire.batch.header import Account


# Columns, and whether they hold the records that were skipped, too.
_CUT = (
    ("_values", False), ("_keys", False), ("_headers", False), ("_tags", False),
    ("_timestamps", True), ("_unclaimed", True),
)  # fmt: skip
_SHARED = ("byte_count", "payload_bytes")
OnDelivery: TypeAlias = "Callable[[RaftmqError | None, RecordMetadata | None], object]"


class RecordMetadata(NamedTuple):
    """Where a record stands.

    Attributes:
        offset: -1 with acks=0, where nobody tells; and of what a named producer has skipped, as it
            stood there before.
        timestamp: the record's, in milliseconds since 1970-01-01 UTC.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


class BatchMetadata(NamedTuple):
    """Where records stand that were sent together.

    Attributes:
        base_offset: of the first one; -1 with acks=0, where nobody tells, and where `is_skipped`.
        is_repeated: without idempotence, it was sent again after an attempt whose outcome nobody
            knows, so that its records may stand in the log twice. With idempotence always False:
            brokers find what they have already, and tell where it stands.
        is_skipped: of a named producer: they stand there since an earlier run, and were not sent.
    """

    topic: str
    partition: int
    base_offset: int
    record_count: int
    is_repeated: bool = False
    is_skipped: bool = False

    @property
    def end_offset(self) -> int:
        """One past the last; -1 where nobody tells."""
        return ABSENT if self.base_offset == ABSENT else self.base_offset + self.record_count


Outcome: TypeAlias = BatchMetadata | RaftmqError


class ProducerBatch:
    """Once it is encoded its records are bytes and no objects any more.

    Attributes:
    byte_count: of its records, as they are counted against the buffer.
    payload_bytes: the same without what only memory is needed for.
    opened_at: when its first record came.
    is_repeated: see `BatchMetadata`.
    attempts: how often it was sent.
    last_error: what came of the last attempt that failed.
    may_have_happened: some attempt may have appended it, as far as this side knows.
    number: of the producer's, which its bytes carry; None before it is encoded, and without
        idempotence.
    digest: of a named producer, of all its records before those of this batch.
    pieces: all batches that what was one batch was split into, in order; empty if it never was.
    start: where its first record was in what was one batch.
    skipped: so many of its records, the first ones, stand in the partition already, and are not
        among its bytes; only those of named producers.
    outcome: None as long as nobody knows; of the records that were not skipped, if there are any.
    """

    __slots__ = (
        "_callbacks", "_count", "_data", "_has_keys", "_headers", "_keys", "_tags", "_timestamps",
        "_unclaimed", "_values", "_watchers", "attempts", "byte_count", "digest", "is_closed",
        "is_repeated", "last_error", "may_have_happened", "number", "opened_at", "outcome",
        "partition", "payload_bytes", "pieces", "skipped", "start", "topic",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, opened_at: float) -> None:
        self.topic, self.partition, self.opened_at = topic, partition, opened_at
        self._count = self.start = 0
        self.byte_count = self.payload_bytes = self.attempts = self.skipped = 0
        self.is_closed = self.is_repeated = self.may_have_happened = False
        self.last_error: RaftmqError | None = None
        self.outcome: Outcome | None = None
        self.number: Number | None = None
        self.digest: RunningDigest | None = None
        self.pieces: list[ProducerBatch] = []
        self._values: list[Value] = []
        self._keys: list[Key] = []
        self._timestamps: list[int] = []
        self._unclaimed = bytearray()  # of each record 1, if nobody would know of its failure
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
        """Of the records that leave with it."""
        return self._count - self.skipped

    @property
    def is_encoded(self) -> bool:
        return self._data is not None

    @property
    def is_full(self) -> bool:
        """By the number of its records."""
        return self._count >= RECORDS_MAX

    @property
    def room(self) -> int:
        """For so many records more."""
        return RECORDS_MAX - self._count

    def add(self, value: Value, key: Key, timestamp: int, size: int) -> int:
        """The index of the new record."""
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
        """Of the record that was added last."""
        count = self._count
        if extras.headers:
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
        """Many records; `timestamps` has one for each."""
        if keys is not None and not self._has_keys:
            self._has_keys = True
        self._keys.extend([None] * len(values) if keys is None else keys)
        self._values.extend(values)
        self._count += len(values)
        self._timestamps.extend(timestamps)
        self._unclaimed.extend(bytes(len(values)))  # whoever hands in many tells of them
        self.byte_count += size
        self.payload_bytes += size - RECORD_OVERHEAD_BYTES * len(values)

    def extend_extras(
        self, headers: Sequence[GivenHeaders] | None, tags: Sequence[GivenTags] | None
    ) -> None:
        """Of as many records as were added last."""
        count = self._count
        if headers is not None:
            self._headers += [None] * (count - len(headers) - len(self._headers))
            self._headers.extend(headers)
        if tags is not None:
            self._tags += [None] * (count - len(tags) - len(self._tags))
            self._tags.extend(tags)

    def keys_and_values(self) -> tuple[Sequence[Key], Sequence[Value]]:
        """Of records that are to leave with it; only before it is encoded."""
        assert self._data is None, "they are bytes by now"
        return self._keys, self._values

    def skip(self, count: int) -> None:
        """The first records stand in the partition already. It is closed then."""
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
    ) -> bytearray:
        """Its bytes, always the same ones under the same number. It is closed then.

        Args:
            account: of a producer with a name, up to the last record here.

        Raises:
            RaftmqError: it cannot be encoded, and never will be.
        """
        self.is_closed = True
        if self._data is None:
            self._data = self._encode(compression, number, account)
            self._forget_records()
        elif number is not None and number != self.number:
            assert not self.may_have_happened, "it may stand in the log under another number"
            self._data = renumbered(self._data, **number._asdict())
        self.number = number
        return self._data

    def _encode(
        self, compression: Compression, number: Number | None, account: Account | None
    ) -> bytearray:
        stamps, count = self._timestamps, self.unskipped_count
        if self.skipped:
            stamps = stamps[self.skipped :]
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
        )

    def timestamps(self) -> Sequence[int]:
        """Of the records that leave with it."""
        return self._timestamps[self.skipped :]

    def split(self, cuts: Sequence[int]) -> list[ProducerBatch]:
        """Batches that follow this one, each of which begins at one of `cuts` in what leaves with
        it. Under the same numbers: nobody has appended them.
        """
        assert not self.may_have_happened, "it may stand in the log as it is"
        edges = [0, *cuts, self.unskipped_count]
        assert cuts, "nothing to split"
        assert all(start < end for start, end in pairwise(edges)), "a piece without records"
        self._recall_records()
        pieces = [self, *[self._piece(start, end) for start, end in pairwise(edges[1:])]]
        self._cut_at(cuts[0])
        self._join_pieces(pieces)
        if self.digest is not None:
            for before, after in pairwise(pieces):
                assert before.digest is not None, "it follows one that has one"
                after.digest = before.digest.followed_by(*before.keys_and_values())
        told, self._callbacks = self._callbacks, []
        for index, on_delivery in told:
            holder, index = self.holder_of(index)
            holder.call_back(index, on_delivery)
        self._wake()  # who watches looks anew which batch holds the record
        return pieces[1:]

    def _piece(self, start: int, end: int) -> ProducerBatch:
        """A batch of its own of some of the records that leave with it."""
        piece = ProducerBatch(self.topic, self.partition, self.opened_at)
        piece.is_closed, piece.attempts, piece.last_error = True, self.attempts, self.last_error
        piece._has_keys, piece._count = self._has_keys, end - start
        piece.start = self.start + self.skipped + start
        for name, is_whole in _CUT:
            before = self.skipped if is_whole else 0
            setattr(piece, name, getattr(self, name)[before + start : before + end])
        for name in _SHARED:
            setattr(piece, name, self._share(name, end) - self._share(name, start))
        if self.number is not None:
            sequence = (self.number.base_sequence + start) % SEQUENCE_COUNT
            piece.number = self.number._replace(base_sequence=sequence)
        return piece

    def _cut_at(self, end: int) -> None:
        """It has no others any more of what leaves with it."""
        for name, is_whole in _CUT:
            del getattr(self, name)[end + (self.skipped if is_whole else 0) :]
        for name in _SHARED:
            setattr(self, name, self._share(name, end))
        self._count = self.skipped + end

    def _share(self, name: str, end: int) -> int:
        """Of a sum, that of the records in front."""
        return int(getattr(self, name)) * (self.skipped + end) // self._count

    def _join_pieces(self, pieces: list[ProducerBatch]) -> None:
        """They stand in place of this batch, the first of them, from now on."""
        whole = self.pieces or [self]
        place = bisect_right(whole, self.start, key=_start_of)
        whole[place:place] = pieces[1:]
        for piece in pieces:
            piece.pieces = whole

    def holder_of(self, index: int) -> tuple[ProducerBatch, int]:
        """Which batch has that record by now, and where."""
        if not self.pieces:
            return self, index
        index += self.start
        holder = self.pieces[bisect_right(self.pieces, index, key=_start_of) - 1]
        return holder, index - holder.start

    def _recall_records(self) -> None:
        """From its bytes, if that is where they are."""
        if self._data is None:
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
        """Records that leave with it of whose failure nobody knows, nor will be told."""
        return self._unclaimed.count(1, self.skipped)

    def claim(self, index: int, count: int = 1, *, is_claimed: bool = True) -> None:
        """Whether somebody knows what becomes of those records, or will be told."""
        self._unclaimed[index : index + count] = bytes([not is_claimed]) * count

    def call_back(self, index: int, on_delivery: OnDelivery) -> None:
        """Have `on_delivery` told about one record."""
        assert self.outcome is None, "settled: nobody is called back any more"
        self._callbacks.append((index, on_delivery))

    def watch(self, watcher: Callable[[], None]) -> None:
        """Have `watcher` called when it is settled."""
        self._watchers.append(watcher)

    def settle(self, outcome: Outcome) -> list[tuple[int, OnDelivery]]:
        """Once; who is to be called back, and for which record."""
        assert self.outcome is None, "settled twice"
        self.outcome = outcome
        self._wake()
        callbacks, self._callbacks = self._callbacks, []
        self._forget_records()
        self._data = None
        if isinstance(outcome, RaftmqError):
            del self._timestamps[self.skipped :]
        return callbacks

    def _wake(self) -> None:
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher()

    def metadata_of(self, index: int) -> RecordMetadata:
        """Of one record. Raises what became of the batch instead, if it failed."""
        outcome, ahead = self.outcome, index - self.skipped
        assert outcome is not None, "not settled yet"
        if ahead < 0:
            return RecordMetadata(self.topic, self.partition, ABSENT, self._timestamps[index])
        if isinstance(outcome, RaftmqError):
            raise outcome.copied()  # others raise it, too
        base = outcome.base_offset
        offset = ABSENT if base == ABSENT else base + ahead
        return RecordMetadata(self.topic, self.partition, offset, self._timestamps[index])


def _start_of(batch: ProducerBatch) -> int:
    return batch.start


def _filled(column: list[GivenHeaders] | list[GivenTags], count: int) -> list | None:  # type: ignore[type-arg]
    """With None for those at the end; None altogether where nobody has any."""
    if not column:
        return None
    return [*column, *[None] * (count - len(column))]


# -- Numbering ------------------------------------------------------------------------------------
# The numbers of what a producer sends: by them brokers know what they have already. Pure.
#
# Owns which number a batch gets in its partition: a producer id, an epoch of it, and the sequence
# of the first record. Sequences count records. An epoch goes on until something that has left under
# it is given up; the next one begins at 0, so that brokers refuse what is still under way of the
# old.
#
# Invariants: a number that has left belongs to one batch for ever; in an epoch they leave without
# holes; what may have been appended never leaves under another number.


SEQUENCE_COUNT = 1 << 31  # after the highest comes 0
# The broker knows less than this side, as acknowledged records were lost or time has passed, or
# it knows another one. Nothing was appended.
NUMBER_REFUSALS = (OutOfOrderSequence, UnknownProducerId, InvalidProducerEpoch)


class Number(NamedTuple):
    """As it stands in the header of a batch."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


class ProducerIdentity:
    """What one producer is called, in all partitions.

    Attributes:
        is_wanted: somebody has to ask for an id.
        problem: why the last question brought none; None where there was no question.
    """

    def __init__(self) -> None:
        self.is_wanted = False
        self.problem: RaftmqError | None = None
        self._newest: int | None = None

    def want_first(self) -> None:
        """One will be needed soon."""
        if self._newest is None:
            self.is_wanted = True

    def other_than(self, used: int | None) -> int | None:
        """One that a partition has not used up; None as long as there is none."""
        if self._newest is None or self._newest == used:
            self.is_wanted = True
            return None
        return self._newest

    def on_id(self, producer_id: int) -> None:
        """A broker has given one."""
        self._newest = producer_id
        self.is_wanted, self.problem = False, None


class Numbering:
    """Of one partition, with one request of it on its way at most."""

    def __init__(self, ids: ProducerIdentity) -> None:
        self._ids = ids
        self._producer_id: int | None = None
        self._epoch = self._next_sequence = 0
        self._is_over = False  # this epoch; what may have been appended in it is sent to the end

    @property
    def lacks_id(self) -> bool:
        """Nothing new leaves before there is one."""
        is_used_up = self._is_over and self._epoch == PRODUCER_EPOCH_MAX
        return self._producer_id is None or is_used_up

    def may_begin(self) -> bool:
        """Whether something new may leave now; in the next epoch, if this one is over.

        Only while nothing is on its way, and nothing waits that may have been appended.
        """
        if self.lacks_id:
            producer_id = self._ids.other_than(self._producer_id)
            if producer_id is None:
                return False
            self._producer_id, self._epoch = producer_id, 0
        elif self._is_over:
            self._epoch += 1
        else:
            return True
        self._next_sequence, self._is_over = 0, False
        return True

    def why_not(self) -> RaftmqError:
        """Only where nothing may begin."""
        problem = self._ids.problem
        reason = f": {problem}" if problem is not None else ""
        return Unreachable(f"no broker has given a producer id{reason}")

    def encode(self, batch: ProducerBatch, compression: Compression) -> bytearray:
        """Its bytes, under the number that it has, or the next if that is of another epoch.

        Raises:
            RaftmqError: it cannot be encoded; the number goes to another one.
        """
        if batch.number is not None and self._is_of_epoch(batch.number):
            return batch.encode(compression, batch.number)
        assert self._producer_id is not None, "there is no id yet"
        assert not self._is_over, "something new under numbers that are over"
        number = Number(self._producer_id, self._epoch, self._next_sequence)
        data = batch.encode(compression, number)
        self._next_sequence = (self._next_sequence + len(batch)) % SEQUENCE_COUNT
        return data

    def end_epoch(self) -> None:
        """Something that has left is given up, or its number was refused: nothing new follows it
        in this epoch.
        """
        self._is_over = True

    def _is_of_epoch(self, number: Number) -> bool:
        return (number.producer_id, number.producer_epoch) == (self._producer_id, self._epoch)
