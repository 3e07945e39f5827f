"""Record batch header (61 bytes, Kafka's record batch v2), CRC-32C, ids of named producers.

Owns the header's layout, the attribute bits, the CRC rule and walking a buffer of batches from
header to header. Never decodes the records behind a header.

     0  base offset            i64  -+
     8  batch length           i32   | outside the CRC: the broker writes base offset and
    12  partition leader epoch i32   | leader epoch into the producer's bytes
    16  magic (2)              i8   -+
    17  CRC-32C                u32  over everything from byte 21 to the end
    21  attributes             i16  bits below
    23  last offset delta      i32
    27  base timestamp         i64
    35  max timestamp          i64
    43  producer id            i64
    51  producer epoch         i16
    53  base sequence          i32
    57  record count           i32

Batch length counts the bytes after itself. Source of the layout:
https://kafka.apache.org/documentation/#recordbatch (bits 13 and 14 are raftmq's: docs/PROTOCOL.md).
"""

from __future__ import annotations

import hashlib
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from raftmq.errors import CorruptRecord
from raftmq.model import TimestampType

if TYPE_CHECKING:
    from collections.abc import Iterator


Buffer = bytes | bytearray | memoryview

# Fixed by Kafka's format.
HEADER_SIZE = 61
LENGTH_END = 12  # batch length counts from here
CRC_START = 21  # first byte that the CRC covers
# Kafka's record batch v2.
MAGIC = 2
# Records of a batch: bounds the memory of a decoded batch (128 bytes a record beside its bytes).
RECORDS_MAX = 65_536
BATCH_BYTES_MAX = 1 << 30  # as the largest segment; a topic allows far less (max.message.bytes)

HEADER = Struct(">qiibIhiqqqhii")  # layouts and positions: the table at the top
PREFIX = Struct(">qii")  # base offset, batch length, leader epoch: what a broker may rewrite
_LENGTH = Struct(">i")
_LENGTH_POSITION = 8
_CRC = Struct(">I")
_CRC_POSITION = 17
NO_LEADER_EPOCH = -1  # until the leader writes its own
_PRODUCER = Struct(">qhi")
_PRODUCER_POSITION = 43

# Attribute bits: Kafka's, but for SCHEDULED_BIT and COLUMNS_BIT, which Kafka does not use.
COMPRESSION_BITS = 0b111
TIMESTAMP_TYPE_BIT = 1 << 3
TRANSACTIONAL_BIT = 1 << 4
CONTROL_BIT = 1 << 5
MARKER_BITS = TRANSACTIONAL_BIT | CONTROL_BIT
SCHEDULED_BIT = 1 << 13
COLUMNS_BIT = 1 << 14
# Any other bit is refused.
KNOWN_BITS = (
    COMPRESSION_BITS | TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT
    | SCHEDULED_BIT | COLUMNS_BIT
)  # fmt: skip
_RARE_BITS = SCHEDULED_BIT | ~KNOWN_BITS  # one comparison for all others


class BatchHeader(NamedTuple):
    """One header, fields in wire order. Timestamps are milliseconds since 1970-01-01 UTC."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header included."""
        return LENGTH_END + self.batch_length

    def placed(self, base_offset: int, leader_epoch: int) -> BatchHeader:
        """The header as a leader writes it."""
        return BatchHeader(base_offset, self.batch_length, leader_epoch, *self[3:])

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType(bool(self.attributes & TIMESTAMP_TYPE_BIT))

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_marker(self) -> bool:
        """Whether it ends a transaction: a control batch with the bit of transactions."""
        return self.attributes & MARKER_BITS == MARKER_BITS and self.producer_id >= 0

    @property
    def is_columns(self) -> bool:
        return bool(self.attributes & COLUMNS_BIT)

    @property
    def is_scheduled(self) -> bool:
        """Whether readers get it only when it is due, as a delivery."""
        return bool(self.attributes & SCHEDULED_BIT)


def read_header(buffer: Buffer, position: int = 0, *, where: str = "") -> BatchHeader:
    """Decode and check the header at `position`; the batch may reach beyond `buffer`.

    Raises:
        CorruptRecord: too few bytes, or a field that no batch can have.
    """
    if position < 0 or len(buffer) - position < HEADER_SIZE:
        raise CorruptRecord("shorter than a batch header", position=position, where=where)
    header = BatchHeader(*HEADER.unpack_from(buffer, position))
    problem = _problem_of(header)
    if problem:
        raise CorruptRecord(problem, position=position, where=where)
    return header


def _problem_of(header: BatchHeader) -> str:
    """What makes this header impossible, or an empty string."""
    if header.magic != MAGIC:
        return f"magic {header.magic}, expected {MAGIC}"
    # At least a header; the limit keeps a damaged length from being believed.
    if not HEADER_SIZE - LENGTH_END <= header.batch_length <= BATCH_BYTES_MAX:
        return f"batch length {header.batch_length} out of bounds"
    if not 1 <= header.record_count <= RECORDS_MAX:
        return f"record count {header.record_count}, allowed 1 to {RECORDS_MAX}"
    if header.last_offset_delta < header.record_count - 1:  # offsets rise; compaction leaves gaps
        return f"last offset delta {header.last_offset_delta} for {header.record_count} records"
    if header.base_offset < 0 or header.leader_epoch < -1:
        return f"base offset {header.base_offset}, leader epoch {header.leader_epoch}"
    if header.attributes & _RARE_BITS:
        return _problem_of_bits(header.attributes)
    return ""


def _problem_of_bits(attributes: int) -> str:
    if attributes & ~KNOWN_BITS:  # of a later version: the records would be misread
        return f"unknown attribute bits {attributes & ~KNOWN_BITS & 0xFFFF:#06x}"
    if attributes & (COLUMNS_BIT | CONTROL_BIT) != COLUMNS_BIT:
        return "scheduled, and not a batch of columns with records"
    return ""


def compute_crc(batch: Buffer) -> int:
    """CRC-32C over all bytes that only the producer writes; `batch` is one whole batch."""
    return crc32c(memoryview(batch)[CRC_START:])


def check_batch(buffer: Buffer, position: int = 0, *, where: str = "") -> BatchHeader:
    """Check header, length and CRC of the batch at `position`, which must lie whole in `buffer`.

    Raises:
        CorruptRecord: names which of them is wrong.
    """
    header = read_header(buffer, position, where=where)
    end = position + header.size
    if end > len(buffer):  # a torn write, or a cut slice
        missing = end - len(buffer)
        raise CorruptRecord(
            f"batch claims {header.size} bytes, {missing} are missing",
            position=position,
            where=where,
        )
    computed = crc32c(memoryview(buffer)[position + CRC_START : end])
    if computed != header.crc:
        raise CorruptRecord(
            f"CRC-32C is {computed:#010x}, header says {header.crc:#010x}",
            position=position,
            where=where,
        )
    return header


def iter_batches(buffer: Buffer, *, where: str = "") -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch in `buffer`, every one checked by `check_batch`."""
    position, end = 0, len(buffer)
    while position < end:
        header = check_batch(buffer, position, where=where)
        yield position, header
        position += header.size


def pack_prefix(header: BatchHeader, *, base_offset: int, leader_epoch: int) -> bytes:
    """The 16 bytes with which a leader replaces the first 16 of a producer's batch."""
    return PREFIX.pack(base_offset, header.batch_length, leader_epoch)


def pack_producer(
    batch: bytearray, producer_id: int, producer_epoch: int, base_sequence: int
) -> None:
    _PRODUCER.pack_into(batch, _PRODUCER_POSITION, producer_id, producer_epoch, base_sequence)


def seal(batch: bytearray) -> bytearray:
    """Write length and CRC into a batch whose other fields are final."""
    _LENGTH.pack_into(batch, _LENGTH_POSITION, len(batch) - LENGTH_END)
    _CRC.pack_into(batch, _CRC_POSITION, compute_crc(batch))
    return batch


# -- Named ----------------------------------------------------------------------------------------
# The producer id of a producer name, and what batches of named producers carry. Pure.
#
# Owns the border between ids: those of InitProducerId stay below `NAMED_FIRST`, those of names
# begin there. A name is stored nowhere; two names with the same id would fence each other, which 62
# bits of a cryptographic hash rule out in practice (decision 0022).


NAMED_FIRST = 1 << 62  # the upper half of all i64 ids from 0 on
GENERATION_MAX = (1 << 63) - 1  # i64
DIGEST_MAX = (1 << 32) - 1  # a CRC-32C
PARTITION_COUNT_MAX = (1 << 31) - 1  # i32, as partitions are numbered
_DOMAIN = b"raftmq producer\0"  # separates these hashes from any other use of the same name
_HASH_BYTES = 8  # of which 62 bits are taken


class Account(NamedTuple):
    """Generation and digest of a named producer's records in a partition, carried by its batches.

    Attributes:
        digest: of all records of this generation up to the end of the batch that carries it; 0 if
            there are none.
        partition_count: of the topic when the generation began; only in fences, 0: not known.
    """

    generation: int
    digest: int
    partition_count: int = 0


def is_named(producer_id: int) -> bool:
    return producer_id >= NAMED_FIRST


def named_producer_id(name: str) -> int:
    digest = hashlib.sha256(_DOMAIN + name.encode()).digest()
    return NAMED_FIRST | int.from_bytes(digest[:_HASH_BYTES], "big") >> 2


# -- Origin ---------------------------------------------------------------------------------------
# Where the bytes under a decoder came from, for the text of its errors.
#
# Owns one value, `BytesOrigin`. Decoders get one and raise what its `corrupt` returns.


class BytesOrigin(NamedTuple):
    """A byte position in the buffer that is decoded, and the file or log it was read from."""

    position: int
    where: str = ""

    def corrupt(self, what: str) -> CorruptRecord:
        return CorruptRecord(what, position=self.position, where=self.where)

    def plus(self, length: int) -> BytesOrigin:
        return BytesOrigin(self.position + length, self.where)
