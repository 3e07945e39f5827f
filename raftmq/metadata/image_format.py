"""Byte format of a metadata image in a snapshot: header, sections of rows, end with counts.

Owns the row types, their limits, and how sections are cut into slices and joined again; `snapshot`
maps rows to an image. Fields added later at the end of a row are ignored by older nodes; any other
change of the format raises FORMAT_VERSION. Bytes that do not decode are CorruptJournal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, TypeAlias

import msgspec

from raftmq.errors import CorruptJournal
from raftmq.metadata.commands import AnyResult, Value
from raftmq.metadata.image import (
    SLOT_COUNT,
    BrokerState,
    CommittedOffset,
    GroupState,
    PartitionState,
    PlannedMove,
    SlotState,
    TopicState,
    TransactionState,
)
from raftmq.wire.nesting import Decoder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FORMAT_VERSION = 1  # raised only if older nodes must not read the rest
# The largest piece of a snapshot that is written or sent at once: encoding one must not hold the
# GIL, and with it the event loop, for long.
SLICE_BYTES_MAX = 64 << 10
SECTION_BYTES_AIM = 24 << 10  # a section ends at the first row beyond: about 1 ms to encode
_LAST, _MORE = b"\0", b"\1"  # first byte of a slice: whether its section continues in the next one


class FormatVersion(Value, frozen=True):
    """The first field of the header in every format, so that a newer one is recognised."""

    format_version: int


class Header(FormatVersion, frozen=True):
    version: int
    feature_level: int
    next_producer_id: int
    slots: tuple[SlotState, ...]
    brokers: int
    topics: int
    partitions: int
    groups: int
    groups_with_offsets: int
    origins: int
    transactions: int = 0
    moves: int = 0


class PartitionsRow(Value, frozen=True):
    """Partitions first, first + 1, ... of a topic."""

    topic_id: bytes
    first: int
    states: tuple[PartitionState, ...]


class GroupRow(Value, frozen=True):
    name: str
    state: GroupState


class OffsetRow(Value, frozen=True):
    partition: int
    committed: CommittedOffset


class OffsetsRow(Value, frozen=True):
    group: str
    topic_id: bytes
    offsets: tuple[OffsetRow, ...]


class OriginRow(Value, frozen=True):
    origin: int
    epoch: int
    highest: int


class ResultRow(Value, frozen=True):
    origin: int
    sequence: int
    result: AnyResult


class TransactionRow(Value, frozen=True):
    transaction_id: str
    state: TransactionState


class PlanRow(Value, frozen=True):
    topic_id: bytes
    partition: int
    plan: PlannedMove


class Section(Value, frozen=True, tag_field="kind"):
    """Base of the union; the tag of a subclass is never reused."""


class BrokersSection(Section, frozen=True, tag=1):
    rows: tuple[BrokerState, ...]


class TopicsSection(Section, frozen=True, tag=2):
    rows: tuple[TopicState, ...]


class PartitionsSection(Section, frozen=True, tag=3):
    """Each row stands after the section with its topic."""

    rows: tuple[PartitionsRow, ...]


class GroupsSection(Section, frozen=True, tag=4):
    rows: tuple[GroupRow, ...]


class OffsetsSection(Section, frozen=True, tag=5):
    rows: tuple[OffsetsRow, ...]


class OriginsSection(Section, frozen=True, tag=6):
    rows: tuple[OriginRow, ...]


class ResultsSection(Section, frozen=True, tag=7):
    rows: tuple[ResultRow, ...]


class EndSection(Section, frozen=True, tag=8):
    """The last section, with the counts that only a full pass over the image yields."""

    offsets: int
    results: int
    deleted_topics: tuple[bytes, ...] = ()


class TransactionsSection(Section, frozen=True, tag=9):
    """From FeatureLevel.TRANSACTIONS on: below it no node has any."""

    rows: tuple[TransactionRow, ...]


class PlansSection(Section, frozen=True, tag=10):
    """From FeatureLevel.MOVES on: below it there are no plans, and so there is no such section."""

    rows: tuple[PlanRow, ...]


AnySection: TypeAlias = (
    BrokersSection
    | TopicsSection
    | PartitionsSection
    | GroupsSection
    | OffsetsSection
    | OriginsSection
    | ResultsSection
    | EndSection
    | TransactionsSection
    | PlansSection
)

_encoder = msgspec.msgpack.Encoder()
_version_decoder = Decoder[FormatVersion](FormatVersion)
_header_decoder = Decoder[Header](Header)
_section_decoder = Decoder[AnySection](AnySection)


def slices_of(value: Value) -> Iterator[bytes]:
    return _cut(_encoder.encode(value))


def pack(section: type[AnySection], rows: Iterable[Value]) -> Iterator[bytes]:
    """Rows into sections of about SECTION_BYTES_AIM."""
    # Rows are encoded one by one to measure them, so tag and rows are put together by hand as
    # msgspec would write the section.
    tag = section.__struct_config__.tag
    held: list[msgspec.Raw] = []
    held_bytes = 0
    for row in rows:
        data = _encoder.encode(row)
        held.append(msgspec.Raw(data))
        held_bytes += len(data)
        if held_bytes >= SECTION_BYTES_AIM:
            yield from _cut(_encoder.encode((tag, held)))
            held, held_bytes = [], 0
    if held:  # the last section is shorter
        yield from _cut(_encoder.encode((tag, held)))


def _cut(section: bytes) -> Iterator[bytes]:
    """One slice; several only where a single row is longer than a slice."""
    step = SLICE_BYTES_MAX - 1  # the first byte is _LAST or _MORE
    for start in range(0, len(section), step):
        is_last = start + step >= len(section)
        yield (_LAST if is_last else _MORE) + section[start : start + step]


def join(slices: Iterable[bytes]) -> Iterator[bytes]:
    """Each section in one piece."""
    pieces: list[bytes] = []
    for number, piece in enumerate(slices):
        if piece[:1] not in (_LAST, _MORE):  # damaged, or of another format
            refuse(f"slice {number} starts with {piece[:1]!r}")
        pieces.append(piece[1:])
        if piece[:1] == _LAST:
            yield b"".join(pieces)
            pieces = []
    if pieces:  # the snapshot was cut off within a section
        refuse(f"a section of {len(pieces)} slices has no last one")


def decode_header(data: bytes) -> Header:
    try:
        found = _version_decoder.decode(data).format_version
        if found > FORMAT_VERSION:  # before the rest, which may look different there
            refuse(f"format {found} is newer than {FORMAT_VERSION}, which this raftmq knows")
        header = _header_decoder.decode(data)
    except ValueError as error:  # msgspec's errors are ValueErrors
        refuse(f"header of {len(data)} bytes does not decode: {error}")
    if len(header.slots) != SLOT_COUNT:  # groups are mapped to slots by modulo of this number
        refuse(f"{len(header.slots)} coordinator slots instead of {SLOT_COUNT}")
    return header


def decode_section(number: int, data: bytes) -> AnySection:
    try:
        return _section_decoder.decode(data)
    except ValueError as error:  # msgspec's errors are ValueErrors
        refuse(f"section {number} of {len(data)} bytes does not decode: {error}")


def refuse(what: str) -> NoReturn:
    raise CorruptJournal(f"metadata image of a snapshot: {what}")
