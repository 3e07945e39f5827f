"""Record batch codec: encodes columns of Python objects, decodes lazily, checks the structure.

Owns the whole of a batch: which of the two record formats follows the header, and the header's
fields that depend on the records (Kafka: MemoryRecordsBuilder, DefaultRecordBatch). Decoding checks
everything that is cheap at once (header, CRC, directory); columns are decoded when they are first
touched, and a malformed one raises CorruptRecord then. Reads no clock: timestamps are arguments.

Bounds: all columns of a batch together cost at most twice its bytes (uncompressed) + 128 bytes a
record; text keys beyond ASCII up to four times theirs. Headers and tags of single records are not
kept.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

from raftmq.errors import InvalidRecord, MessageTooLarge
from raftmq.model import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Compression,
    RecordFormat,
    TimestampType,
)
from raftmq.wire.batch.arguments import CheckedRecords, GivenHeaders, check_due, check_records
from raftmq.wire.batch.chunks import ChunkedContents, encode_chunks, pick_records
from raftmq.wire.batch.columns import INT64_MAX, INT64_MIN, Chunk, Key, Shifted, Value
from raftmq.wire.batch.compression import codec_of, compress, decompress
from raftmq.wire.batch.control import (
    ControlRecord,
    ControlType,
    pack_cancel,
    pack_fence,
    pack_marker,
    read_control,
)
from raftmq.wire.batch.directory import Tags, read_directory
from raftmq.wire.batch.fixed_keys import (
    ACCOUNT_END,
    DIRECTORY_START,
    MARKED_COUNT_MIN,
    may_be_marked,
    read_account,
)
from raftmq.wire.batch.head import is_partial, passes, seal_batch
from raftmq.wire.batch.header import (
    BATCH_BYTES_MAX,
    COLUMNS_BIT,
    COMPRESSION_BITS,
    CONTROL_BIT,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    NO_LEADER_EPOCH,
    SCHEDULED_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    BytesOrigin,
    check_batch,
    is_named,
    read_header,
)
from raftmq.wire.batch.kafka_records import KafkaContents, encode_records
from raftmq.wire.batch.scheduling import read_mark

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from raftmq.tag_filter import TagFilter
    from raftmq.wire.batch.columns import PackedColumn
    from raftmq.wire.batch.header import Account, BatchHeader, Buffer
    from raftmq.wire.batch.record_headers import Headers
    from raftmq.wire.batch.scheduling import ScheduleMark


class Record(NamedTuple):
    """One record. Its timestamp is in milliseconds since 1970-01-01 UTC, -1 if it has none."""

    offset: int
    timestamp: int
    key: Key
    value: Value
    headers: Headers
    tags: Tags


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """Memory that a reader spends at most on one batch of another process."""

    # Twice the largest `max.message.bytes`: a small batch that decompresses to more is refused.
    uncompressed_bytes_max: int = 64 << 20


class Contents(Protocol):
    """The records behind the header, in either format. Everything in offset order."""

    @property
    def offset_deltas(self) -> range | array[int]: ...
    @property
    def timestamp_deltas(self) -> array[int] | None: ...
    def keys(self) -> Sequence[Key]: ...
    def values(self) -> Sequence[Value]: ...
    def headers(self) -> Sequence[Headers]: ...
    def tags(self) -> Sequence[Tags]: ...


class RecordBatch:
    """One decoded batch. Keeps the buffer that it was decoded from alive, and copies none of it.

    The columns `offsets`, `timestamps`, `keys`, `values`, `headers` and `tags` run parallel.
    Touching one for the first time may raise CorruptRecord, or UnsupportedCompression.

    Attributes:
        header: its record count is that of the columns, without what is left out.
        mark: of a scheduled batch, a delivery or a copy.
    """

    def __init__(
        self,
        buffer: Buffer,
        header: BatchHeader,
        origin: BytesOrigin,
        limits: DecodeLimits,
        asked: TagFilter | None = None,
    ) -> None:
        """`asked`: only the records that this filter lets pass, perhaps none; of a partial batch
        the one with which it was sent.
        """
        self.header = header
        self._origin = origin
        self._limits = limits
        self._buffer = memoryview(buffer)
        self.chunks: Sequence[Chunk] = ()
        self.mark: ScheduleMark | None = None
        if header.is_columns:
            self.chunks = self._find_chunks(asked)
            count = self._buffer[origin.position + DIRECTORY_START]  # enough to know, nearly always
            is_possible = count >= MARKED_COUNT_MIN and may_be_marked(buffer, origin.position)
            if is_possible or header.attributes & SCHEDULED_BIT:
                self.mark = read_mark(self._buffer, origin.position, header, where=origin.where)
        if asked is not None or self.mark is not None:
            self._pick(asked, frozenset(self.mark.left_out if self.mark is not None else ()))

    @classmethod
    def decode(
        cls,
        buffer: Buffer,
        position: int = 0,
        *,
        limits: DecodeLimits = DecodeLimits(),
        where: str = "",
    ) -> RecordBatch:
        """The batch at `position`, which must lie whole in `buffer`.

        Raises:
            CorruptRecord: header, CRC or directory are wrong.
            UnsupportedCompression: a codec that raftmq does not know.
        """
        header = check_batch(buffer, position, where=where)
        return cls(buffer, header, BytesOrigin(position, where), limits)

    @property
    def is_control(self) -> bool:
        return self.header.is_control

    @cached_property
    def offsets(self) -> Sequence[int]:
        deltas, base = self._contents.offset_deltas, self.header.base_offset
        if isinstance(deltas, range):  # contiguous, as nearly always: no array is built
            return range(base, base + len(deltas))
        return Shifted(base, deltas)

    @cached_property
    def timestamps(self) -> Sequence[int]:
        count = self.header.record_count
        if self.header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            # The broker changed the header only; the column still has the producer's times.
            return array("q", [self.header.max_timestamp]) * count
        return self._given_timestamps()

    @cached_property
    def scheduled_at(self) -> Sequence[int] | None:
        """When each record of a delivery was made, by its producer, in milliseconds as in
        `timestamps`, which say when it was delivered; None: it is no delivery."""
        is_delivery = self.mark is not None and self.mark.delivers is not None
        return self._given_timestamps() if is_delivery else None

    def _given_timestamps(self) -> Sequence[int]:
        deltas, base = self._contents.timestamp_deltas, self.header.base_timestamp
        if deltas is None:
            return array("q", [base]) * self.header.record_count
        if not _fits(base, deltas):
            raise self._origin.corrupt("a timestamp of more than 64 bits")
        return Shifted(base, deltas)

    @cached_property
    def keys(self) -> Sequence[Key]:
        return self._contents.keys()

    @cached_property
    def values(self) -> Sequence[Value]:
        return self._contents.values()

    @cached_property
    def headers(self) -> Sequence[Headers]:
        return self._contents.headers()

    @cached_property
    def tags(self) -> Sequence[Tags]:
        return self._contents.tags()

    def packed(self, column: PackedColumn) -> Buffer | None:
        """A column as it was sent: msgpack, one item behind the other, not checked but for their
        count; empty: of nil only. None: it does not stand there in one piece, or not as msgpack.
        """
        contents = self._contents
        return contents.packed(column) if isinstance(contents, ChunkedContents) else None

    def records(self) -> Iterator[Record]:
        columns = (
            self.offsets, self.timestamps, self.keys, self.values, self.headers, self.tags
        )  # fmt: skip
        return map(Record._make, zip(*columns, strict=True))

    @property
    def control(self) -> ControlRecord:
        """The control record of a control batch; only for one.

        Raises:
            CorruptRecord: not exactly one record, or not what its type promises.
        """
        assert self.is_control
        if self.header.record_count != 1:
            raise self._origin.corrupt(f"control batch of {self.header.record_count} records")
        return read_control(self.keys[0], self.values[0], self._origin)

    def _find_chunks(self, asked: TagFilter | None) -> list[Chunk]:
        header, origin = self.header, self._origin
        if header.is_control:  # control records have Kafka's encoding in either format
            raise origin.corrupt("a control batch of columns")
        entries, position = read_directory(
            self._buffer, origin.position, header, where=origin.where
        )
        codec = codec_of(header.attributes)
        wanted = entries if asked is None else [one for one in entries if passes(one, asked)]
        if codec is not Compression.NONE:  # uncompressed chunks take no more than the batch
            length = sum([entry.uncompressed_length for entry in wanted])
            # Refused before any memory is spent (decision 0009).
            if length > self._limits.uncompressed_bytes_max:
                raise origin.corrupt(
                    f"claims {length} bytes uncompressed,"
                    f" allowed {self._limits.uncompressed_bytes_max}"
                )
        chunks = []
        # Of a partial batch those that are not wanted were left out.
        for entry in wanted if is_partial(self._buffer, origin.position) else entries:
            stored = self._buffer[position : position + entry.byte_length]
            if asked is None or passes(entry, asked):
                chunks.append(Chunk(entry, stored, codec, BytesOrigin(position, origin.where)))
            position += entry.byte_length
        return chunks

    def _pick(self, asked: TagFilter | None, left_out: frozenset[int]) -> None:
        """Leave out what does not pass of the mixed chunk, or of records that cannot have tags; and
        what is cancelled."""
        stored = self.header.record_count
        if self.header.is_columns:
            picked = [pick_records(chunk, asked, left_out) for chunk in self.chunks]
            self.chunks = [chunk for chunk in picked if chunk is not None]
            count = sum([chunk.entry.record_count for chunk in self.chunks])
        else:
            count = stored if asked is None or asked.matches(()) else 0
        if asked is None and count != stored - len(left_out):  # two chunks claim the same offset
            raise self._origin.corrupt("the chunks do not have each record that is left out once")
        self.header = self.header._replace(record_count=count)

    @cached_property
    def _contents(self) -> Contents:
        header = self.header
        if header.is_columns:
            return ChunkedContents(self.chunks, header.last_offset_delta, self._origin)
        origin = self._origin.plus(HEADER_SIZE)
        length_max = self._limits.uncompressed_bytes_max
        codec = codec_of(header.attributes)
        stored = self._buffer[origin.position : self._origin.position + header.size]
        data = decompress(codec, stored, origin, length_max=length_max)
        return KafkaContents(bytes(data), header, origin)


def _fits(base: int, deltas: array[int]) -> bool:
    """Whether all sums fit into 64 bits."""
    if deltas.itemsize == 4 and abs(base) < 1 << 62:  # 32-bit deltas cannot overflow it
        return True
    return base + min(deltas) >= INT64_MIN and base + max(deltas) <= INT64_MAX


def encode_batch(
    *,
    values: Sequence[Value],
    keys: Sequence[Key] | None = None,
    headers: Sequence[GivenHeaders] | None = None,
    tags: Sequence[Sequence[str] | None] | None = None,
    timestamps: Sequence[int] | None = None,
    timestamp: int | None = None,
    offset_deltas: Sequence[int] | None = None,
    compression: Compression = Compression.NONE,
    record_format: RecordFormat = RecordFormat.COLUMNS,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    transactional: bool = False,
    account: Account | None = None,
    has_check: bool = True,
    due_ms: int | None = None,
) -> bytearray:
    """Encode parallel columns as one batch, whose records have the offsets 0, 1, 2 ...

    Timestamps are milliseconds: one for each record, or a single one for all of them.
    `offset_deltas` leaves gaps between the offsets. `account`: of a named producer.
    `has_check`: the CRC of the head, which earlier versions do not expect beside an account.
    `due_ms`: the batch is scheduled, for that moment.

    Raises:
        InvalidRecord: names the column and the index of what cannot be encoded.
        MessageTooLarge: over 1 GiB.
        UnsupportedCompression: the codec's package is not installed.
    """
    _check_choices(compression, record_format)
    if due_ms is not None:
        check_due(due_ms, record_format, offset_deltas)
    records = check_records(
        values=values,
        keys=keys,
        headers=headers,
        tags=tags,
        timestamps=timestamps,
        timestamp=timestamp,
        offset_deltas=offset_deltas,
    )
    attributes = int(compression) | (TRANSACTIONAL_BIT if transactional else 0)
    if due_ms is not None:
        attributes |= SCHEDULED_BIT
    pieces = _encode_contents(records, compression, record_format, account, has_check, due_ms)
    if record_format is RecordFormat.COLUMNS:
        attributes |= COLUMNS_BIT
    header = _Fields(
        attributes, base_offset, leader_epoch, producer_id, producer_epoch, base_sequence
    )
    return _assemble(header, records, pieces)


def _check_choices(compression: object, record_format: object) -> None:
    """Refuse plain numbers and names in place of these enums: they would pass for other values."""
    if not isinstance(compression, Compression):
        raise InvalidRecord(f"compression is {compression!r}, expected a Compression")
    if not isinstance(record_format, RecordFormat):
        raise InvalidRecord(f"record_format is {record_format!r}, expected a RecordFormat")


class _Fields(NamedTuple):
    """The header's fields that do not depend on the records."""

    attributes: int
    base_offset: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


def _encode_contents(
    records: CheckedRecords,
    compression: Compression,
    record_format: RecordFormat,
    account: Account | None,
    has_check: bool,
    due_ms: int | None,
) -> list[bytes]:
    try:
        if record_format is RecordFormat.COLUMNS:
            return encode_chunks(records, compression, account, has_check=has_check, due_ms=due_ms)
        if account is not None:
            raise InvalidRecord("record_format is KAFKA, which has no place for an account")
        return [compress(compression, encode_records(records))]
    except OverflowError as error:  # msgpack lengths have 32 bits
        raise MessageTooLarge(f"a value or key is too large: {error}") from error


def _assemble(fields: _Fields, records: CheckedRecords, pieces: list[bytes]) -> bytearray:
    count, deltas = records.record_count, records.offset_deltas
    if sum(map(len, pieces)) + HEADER_SIZE > BATCH_BYTES_MAX:
        raise MessageTooLarge(f"a batch of more than {BATCH_BYTES_MAX} bytes")
    try:
        header = HEADER.pack(
            fields.base_offset,
            0,  # length and CRC: see `seal_batch`
            fields.leader_epoch,
            MAGIC,
            0,
            fields.attributes,
            deltas[-1] if deltas else count - 1,
            records.base_timestamp,
            records.max_timestamp,
            fields.producer_id,
            fields.producer_epoch,
            fields.base_sequence,
            count,
        )
    except struct.error as error:  # a producer id or timestamp of more bits than its field
        raise InvalidRecord(f"a header field is out of range: {error}: {fields}") from error
    return seal_batch(bytearray().join((header, *pieces)))


def encode_control_batch(
    *,
    kind: ControlType,
    coordinator_epoch: int,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """The marker that ends the transaction of a producer in one partition."""
    assert kind in (ControlType.ABORT, ControlType.COMMIT), kind
    key, value = pack_marker(kind, coordinator_epoch)
    records = check_records(values=[value], keys=[key], timestamp=timestamp)
    attributes = TRANSACTIONAL_BIT | CONTROL_BIT
    fields = _Fields(
        attributes, base_offset, leader_epoch, producer_id, producer_epoch, NO_SEQUENCE
    )
    return _assemble(fields, records, [encode_records(records)])


def encode_fence(
    account: Account,
    *,
    producer_id: int,
    producer_epoch: int,
    next_sequence: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """The fence of a named producer: behind it only batches of that epoch are taken, from
    `next_sequence` on."""
    key, value = pack_fence(account)
    records = check_records(values=[value], keys=[key], timestamp=timestamp)
    fields = _Fields(
        CONTROL_BIT, base_offset, leader_epoch, producer_id, producer_epoch, next_sequence
    )
    return _assemble(fields, records, [encode_records(records)])


def encode_cancel(
    offsets: Sequence[int],
    *,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """The cancel of scheduled records with these offsets, rising, at most CANCELLED_MAX."""
    key, value = pack_cancel(offsets)
    records = check_records(values=[value], keys=[key], timestamp=timestamp)
    fields = _Fields(
        CONTROL_BIT, base_offset, leader_epoch, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE
    )
    return _assemble(fields, records, [encode_records(records)])


def check_structure(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Check what a broker can check of a batch that lies whole in `buffer`, without decompressing.

    The directory must add up to exactly this batch. Kafka records have none: nothing is checked
    (decision 0009).

    Raises:
        CorruptRecord: the directory is malformed or does not add up.
        UnsupportedCompression: the chunks are compressed with an unknown codec.
    """
    if header.is_columns:
        if header.is_control:
            raise BytesOrigin(position).corrupt("a control batch of columns")
        read_directory(buffer, position, header)


def stamp_log_append_time(batch: bytearray, now_ms: int) -> None:
    """Give all records of one whole batch the broker's time, in place, with a new CRC: readers take
    `max_timestamp` for each record then, so that the records need not be rewritten."""
    header = read_header(batch)
    stamped = header._replace(
        attributes=header.attributes | TIMESTAMP_TYPE_BIT, max_timestamp=now_ms
    )
    HEADER.pack_into(batch, 0, *stamped)
    seal_batch(batch)


# -- Accounts -------------------------------------------------------------------------------------
# Generation and digest in a batch of a named producer: in its directory, or in a fence. Pure.
#
# Owns the difference between the two, and how many bytes of a batch have to be read for it, so that
# a walk from header to header need not read the records.


# Bytes of a whole batch. Today's fences have less than 100; a larger control batch is none, and a
# walk does not read it.
FENCE_BYTES_MAX = 1024


def account_length(header: BatchHeader) -> int:
    """How many bytes of a batch, from its first on, `account_of` needs; 0: it has no account."""
    if not is_named(header.producer_id):  # only batches of named producers carry one
        return 0
    if not header.is_control:
        return ACCOUNT_END if header.is_columns and header.size >= ACCOUNT_END else 0
    return header.size if _may_be_fence(header) else 0


def account_of(buffer: Buffer, position: int, header: BatchHeader) -> Account | None:
    """The account in the batch at `position`, of which `account_length` bytes must be in `buffer`;
    None if it has none.

    Raises:
        CorruptRecord: a fence that is not sound.
    """
    if not account_length(header):
        return None
    if not header.is_control:
        return read_account(buffer, position, header)
    return RecordBatch.decode(buffer, position).control.account


# What stands behind the header of markers as brokers write them, by which a follower tells their
# type without decoding: there is one in each partition of each transaction.
_MARKER_RECORDS = {
    bytes(
        encode_control_batch(
            kind=kind, coordinator_epoch=0, producer_id=0, producer_epoch=0, timestamp=0
        )[HEADER_SIZE:]
    ): kind
    for kind in (ControlType.ABORT, ControlType.COMMIT)
}


def marker_of(buffer: Buffer, position: int, header: BatchHeader) -> ControlType | None:
    """Which marker stands whole at `position`, with the right CRC; None: the batch is none, or one
    of a type that this version does not know.

    Raises:
        CorruptRecord: not sound.
    """
    if not header.is_marker:
        return None
    has_usual_form = header.record_count == 1 and not header.attributes & COMPRESSION_BITS
    if has_usual_form and not header.is_columns:
        records = bytes(buffer[position + HEADER_SIZE : position + header.size])
        if (usual := _MARKER_RECORDS.get(records)) is not None:
            return usual
    kind = RecordBatch.decode(buffer, position).control.type
    return kind if isinstance(kind, ControlType) else None


def _may_be_fence(header: BatchHeader) -> bool:
    is_plain = not header.is_columns and not header.attributes & COMPRESSION_BITS
    return (
        is_plain
        and HEADER_SIZE < header.size <= FENCE_BYTES_MAX
        and header.producer_epoch >= 0
        and header.base_sequence >= 0
    )
