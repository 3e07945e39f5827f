"""Valid batches, and ways to damage them. Everything follows from the `Random` that is handed in.

Owns the corpus and the mutations of the codec's fuzzer. `repair` makes lengths and CRCs agree
again, so that damage gets past the outer checks and reaches the decoders behind them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec
from crc32c import crc32c

from raftmq.errors import RaftmqError
from raftmq.model import Compression, RecordFormat
from raftmq.wire.batch.compression import codec_of, compress, decompress
from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.directory import ChunkEntry, join_directory, read_directory, split_directory
from raftmq.wire.batch.head import seal_batch
from raftmq.wire.batch.header import (
    CRC_START,
    DIGEST_MAX,
    GENERATION_MAX,
    HEADER,
    HEADER_SIZE,
    NAMED_FIRST,
    Account,
    BatchHeader,
    BytesOrigin,
    check_batch,
    seal,
)
from raftmq.wire.batch.records import (
    encode_batch,
    encode_cancel,
    encode_control_batch,
    encode_fence,
    stamp_log_append_time,
)
from raftmq.wire.batch.scheduling import copy_of, delivery_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

UNCOMPRESSED_BYTES_MAX = 1 << 20
# Numbers at which lengths, counts and msgpack's forms change their ways.
EDGES = (0, 1, 2, 15, 16, 31, 32, 127, 128, 255, 256, 65535, 65536, (1 << 31) - 1, (1 << 32) - 1)
# First bytes of msgpack: nil, bin, array, map, ext, integers, strings and the one that is none.
MARKERS = bytes.fromhex("c0 c1 c4 c5 c6 c7 c9 ca cb cc cf d0 d3 d4 d9 db dc dd de df 80 90 a0 e0")
DEEP_SHARE, DEPTHS = 0.02, (28, 31, 32, 40, 950, 20_000)
HEADER_FIELDS = ((8, 4), (21, 2), (23, 4), (27, 8), (35, 8), (57, 4))  # position and width


def corpus(random: Random, size: int) -> list[bytes]:
    return [bytes(_valid_batch(random)) for _ in range(size)]


def _valid_batch(random: Random) -> bytearray:
    if random.random() < 0.02:
        account = Account(random.choice((0, 17, GENERATION_MAX)), random.choice((0, DIGEST_MAX)))
        return encode_fence(
            account, producer_id=NAMED_FIRST, producer_epoch=1, next_sequence=5, timestamp=1
        )
    if random.random() < 0.02:
        return encode_cancel(sorted(random.sample(range(99), random.randrange(1, 9))), timestamp=1)
    if random.random() < 0.05:
        return encode_control_batch(
            kind=random.choice((ControlType.ABORT, ControlType.COMMIT)),
            coordinator_epoch=random.randrange(9),
            producer_id=random.randrange(99),
            producer_epoch=1,
            timestamp=1,
        )
    count = random.choice((1, 2, 5, 17, 40, 70))
    if random.random() < 0.2:
        return _valid_scheduled_batch(random, count)
    batch = _valid_data_batch(random, count)
    if random.random() < 0.1:
        stamp_log_append_time(batch, 1_000)
    return batch


def _valid_scheduled_batch(random: Random, count: int) -> bytearray:
    """Scheduled, a delivery or a copy."""
    batch = _valid_data_batch(random, count, RecordFormat.COLUMNS, due_ms=random.choice(EDGES))
    left_out = random.sample(range(count), random.choice((0, 0, count // 2)))
    made = random.randrange(3)
    if made == 0:
        return batch
    if made == 1:
        return delivery_of(batch, original_offset=7, now_ms=1_000, left_out=left_out)
    return copy_of(batch, replaces=random.choice((5, 1 << 40)), first=5, left_out=left_out)


def _valid_data_batch(
    random: Random,
    count: int,
    record_format: RecordFormat | None = None,
    due_ms: int | None = None,
) -> bytearray:
    record_format = record_format or random.choice(list(RecordFormat))
    tagged = record_format is RecordFormat.COLUMNS and random.random() < 0.6
    some_headers = [{"name": None, "other": b"value"}, *[None] * (count - 1)]
    return encode_batch(
        values=[random.choice((None, random.randbytes(random.randrange(9)))) for _ in range(count)],
        keys=random.choice(
            (
                None,
                [random.choice((None, -7, 1 << 40, b"k")) for _ in range(count)],
                [random.choice(("", "k", "\u00e9\U0001f600")) for _ in range(count)],
                [random.choice((None, -7, "k", b"k")) for _ in range(count)],
            )
        ),
        headers=random.choice((None, [{"name": b"value"}] * count, some_headers)),
        tags=[[f"t{index % 67}"] for index in range(count)] if tagged else None,
        timestamps=[random.choice((5, -5, 1 << 40)) for _ in range(count)],
        compression=random.choice((Compression.NONE, Compression.NONE, *Compression)),
        record_format=record_format,
        offset_deltas=None
        if due_ms is not None
        else random.choice((None, list(range(3, 3 + 2 * count, 2)))),
        due_ms=due_ms,
    )


def header_of(batch: bytes | bytearray) -> BatchHeader:
    return check_batch(batch)


def damage(random: Random, batches: list[bytes]) -> bytes:
    """One input: a batch of the corpus, damaged once or a few times, and repaired or not."""
    batch = bytearray(random.choice(batches))
    repaired = random.random() < 0.5
    if random.random() < DEEP_SHARE and (deep := _with_deep_key(random, batch)):
        return bytes(deep)
    if repaired and random.random() < 0.5:
        return bytes(_damage_inside(random, batch))
    for _ in range(random.choice((1, 1, 2, 4))):
        random.choice(MUTATIONS)(random, batch, batches)
    return bytes(repair(batch) if repaired else batch)


def _with_deep_key(random: Random, batch: bytearray) -> bytearray | None:
    """A key in the directory that readers overlook, and under it levels upon levels."""
    header = header_of(batch)
    if not header.is_columns:
        return None
    directory = read_directory(batch, 0, header)
    depth = random.choice(DEPTHS)
    deep = msgspec.Raw(random.choice((b"\x91", b"\x81\x01")) * depth + b"\xc0")
    packed = msgspec.msgpack.encode({200: deep, 0: directory.entries})
    chunks = batch[directory.chunks_position :]
    return seal(batch[:HEADER_SIZE] + len(packed).to_bytes(4, "big") + packed + chunks)


def _damage_inside(random: Random, batch: bytearray) -> bytearray:
    """Damage what was compressed, and compress it again."""
    header = header_of(batch)
    codec = codec_of(header.attributes)
    mutate = random.choice(MUTATIONS)
    if header.is_columns:
        chunks = _uncompressed_chunks(batch, header, codec)
        mutate(random, random.choice(chunks), [bytes(chunk) for chunk in chunks])
        return _with_chunks(batch, header, codec, chunks)
    stored = batch[HEADER_SIZE:]
    data = bytearray(decompress(codec, stored, BytesOrigin(0), length_max=UNCOMPRESSED_BYTES_MAX))
    mutate(random, data, [bytes(data)])
    return seal(batch[:HEADER_SIZE] + compress(codec, bytes(data)))


def _uncompressed_chunks(
    batch: bytearray, header: BatchHeader, codec: Compression
) -> list[bytearray]:
    directory = read_directory(batch, 0, header)
    chunks, position = [], directory.chunks_position
    for entry in directory.entries:
        stored = bytes(batch[position : position + entry.byte_length])
        length = entry.uncompressed_length
        chunk = decompress(codec, stored, BytesOrigin(0), length=length, length_max=length)
        chunks.append(bytearray(chunk))
        position += entry.byte_length
    return chunks


def _with_chunks(
    batch: bytearray, header: BatchHeader, codec: Compression, chunks: list[bytearray]
) -> bytearray:
    stored = [compress(codec, bytes(chunk)) for chunk in chunks]
    entries = [
        msgspec.structs.replace(
            entry, byte_length=len(packed), crc=crc32c(packed), uncompressed_length=len(chunk)
        )
        for entry, chunk, packed in zip(
            read_directory(batch, 0, header).entries, chunks, stored, strict=True
        )
    ]
    return seal_batch(_with_entries(batch, header, entries, b"".join(stored)))


def _with_entries(
    batch: bytearray, header: BatchHeader, entries: list[ChunkEntry], chunks: bytes
) -> bytearray:
    """With these, and what the directory says of a schedule; without an account."""
    split = split_directory(batch, 0, header)
    packed = msgspec.msgpack.encode(entries)
    if split.keys is None or split.keys.due_ms is None:
        directory = b"\x81\x00" + packed
        return batch[:HEADER_SIZE] + len(directory).to_bytes(4, "big") + directory + chunks
    _, _, due_ms, delivers, replaces, first, *_ = split.keys
    is_copy = replaces is not None and first is not None
    directory = join_directory(
        packed,
        split.left_out,
        due_ms=due_ms,
        delivers=delivers,
        copy_of=(replaces or 0, first or 0) if is_copy else None,
    )
    return batch[:HEADER_SIZE] + directory + chunks


def repair(batch: bytearray) -> bytearray:
    """Make the lengths and CRCs of whatever this is agree, as far as its directory can be read."""
    if len(batch) < HEADER_SIZE:
        return batch
    seal(batch)
    header = BatchHeader._make(HEADER.unpack_from(batch))
    if header.is_columns:
        with contextlib.suppress(RaftmqError):
            batch = _with_honest_crcs(batch, header)
    return seal_batch(batch)


def _with_honest_crcs(batch: bytearray, header: BatchHeader) -> bytearray:
    directory = read_directory(batch, 0, header)
    entries, position = [], directory.chunks_position
    for entry in directory.entries:
        crc = crc32c(bytes(batch[position : position + entry.byte_length]))
        entries.append(msgspec.structs.replace(entry, crc=crc))
        position += entry.byte_length
    return _with_entries(batch, header, entries, bytes(batch[directory.chunks_position :]))


def flip_bits(random: Random, batch: bytearray, _: list[bytes]) -> None:
    for _ in range(random.choice((1, 1, 3))):
        if batch:
            batch[random.randrange(len(batch))] ^= 1 << random.randrange(8)


def truncate(random: Random, batch: bytearray, _: list[bytes]) -> None:
    del batch[random.randrange(len(batch) + 1) :]


def splice(random: Random, batch: bytearray, batches: list[bytes]) -> None:
    """A stretch of another batch, in place of or in addition to what was there."""
    other = random.choice(batches)
    start = random.randrange(len(other) + 1)
    piece = other[start : start + random.randrange(1, 64)]
    position = random.randrange(len(batch) + 1)
    batch[position : position + random.choice((0, len(piece)))] = piece


def overwrite_header_field(random: Random, batch: bytearray, _: list[bytes]) -> None:
    """A count, delta or attribute that does not belong to these records."""
    _overwrite(random, batch, *random.choice(HEADER_FIELDS))


def overwrite_number(random: Random, batch: bytearray, _: list[bytes]) -> None:
    """An edge where a length might stand, most often near the front."""
    start = random.choice((CRC_START, HEADER_SIZE, HEADER_SIZE, 0))
    position = start + random.randrange(max(1, min(64, len(batch) - start)))
    _overwrite(random, batch, position, random.choice((1, 2, 4)))


def _overwrite(random: Random, batch: bytearray, position: int, width: int) -> None:
    number = random.choice(EDGES) % (1 << 8 * width)
    batch[position : position + width] = number.to_bytes(width, "big")


def place_marker(random: Random, batch: bytearray, _: list[bytes]) -> None:
    if batch:
        batch[random.randrange(len(batch))] = random.choice(MARKERS)


def randomize(random: Random, batch: bytearray, _: list[bytes]) -> None:
    position = random.randrange(len(batch) + 1)
    length = random.randrange(1, 32)
    batch[position : position + random.choice((0, length))] = random.randbytes(length)


MUTATIONS: tuple[Callable[[Random, bytearray, list[bytes]], None], ...] = (
    flip_bits,
    truncate,
    splice,
    overwrite_header_field,
    overwrite_number,
    place_marker,
    randomize,
)
