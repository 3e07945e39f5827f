"""What brokers leave out for a filter of tags, and what they read for it (A12.1)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raftmq.client.consumer.completed_fetches import PassedOver
from raftmq.disk.files import FileSlice
from raftmq.model import Compression
from raftmq.partition.filtered_read import (
    BATCH_UNITS,
    SENT_FROM_FILE_BYTES_MIN,
    FilterLimits,
    Verdicts,
    plan_filtered,
)
from raftmq.partition.storage.recovery import open_log
from raftmq.tag_filter import TagFilter, parse
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.directory import read_directory
from raftmq.wire.batch.head import head_length
from raftmq.wire.batch.header import iter_batches
from raftmq.wire.batch.records import encode_batch
from tests.log_reading import read_filtered, read_up_to_damage, records_of
from tests.simulation.disk import SimulatedFiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.disk.files import File
    from raftmq.partition.storage.log import PartitionLog

FOLDER = Path("/data/topics/orders/Partition-0")
EU = parse("eu & !test")
ALL_AT_ONCE = FilterLimits(1 << 30, 1 << 20, 1_000)
ONE = BATCH_UNITS + 1  # of a batch of one tag set


def batch(*tags: str, size: int = 20, count: int = 3, **more: object) -> bytes:
    """Records that all have these tags."""
    values = [b"x" * size] * count
    return bytes(
        encode_batch(values=values, tags=[tags] * count, timestamp=1, **more)  # type: ignore[arg-type]
    )


def mixed(*tag_sets: Sequence[str], size: int = 20) -> bytes:
    """One record for each of the sets."""
    values = [random.Random(index).randbytes(size) for index in range(len(tag_sets))]
    return bytes(
        encode_batch(values=values, tags=tag_sets, timestamp=1, compression=Compression.GZIP)
    )


def new_log(*batches: bytes, segment_bytes: int = 1 << 20) -> PartitionLog:
    files = SimulatedFiles(random.Random(0))
    log = open_log(files, FOLDER, "orders/Partition-0", TopicConfig(segment_bytes=segment_bytes))
    for one in batches:
        log.append(one, leader_epoch=2, now_ms=1, now=0.0)
    return log


class CountingReads:
    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []

    def __call__(self, file: File, position: int, length: int) -> bytes:
        self.ranges.append((position, length))
        return file.read(position, length)


def test_no_chunk_is_read() -> None:
    """Of 20 batches of 64 KiB only the heads; the one that passes is named as a piece of the file,
    and not read either."""
    batches = [batch("eu" if index == 7 else "us", size=22_000) for index in range(20)]
    log, read = new_log(*batches, segment_bytes=4 << 20), CountingReads()
    found = plan_filtered(log, 0, Verdicts(EU), ALL_AT_ONCE).find(read)
    assert sum(length for _, length in read.ranges) < 20 * 5_000
    [piece] = found.pieces
    assert isinstance(piece, FileSlice)
    assert piece.length == len(batches[7]) == found.length > SENT_FROM_FILE_BYTES_MIN
    assert found.left_out == [(0, 21), (24, 60)]


def test_garbage_in_the_chunks_is_nobodys_concern() -> None:
    """Encrypted, compressed by a codec that is not installed, rotten: who leaves a chunk out does
    not open it."""
    log = new_log(*[mixed(["us"], ["test", "eu"], size=300) for _ in range(10)])
    file = log.active.file
    data = bytearray(file.read(0, log.size))
    for position, header in list(iter_batches(bytes(data))):
        chunks = read_directory(data, position, header).chunks_position
        data[chunks : position + header.size] = b"\xff" * (position + header.size - chunks)
    file.write(0, [bytes(data)])
    read = read_filtered(log, 0, EU, ALL_AT_ONCE)
    assert (read.sent, read.end_offset, list(records_of(read))) == (0, 20, [])


def test_what_does_not_pass_costs_its_directory() -> None:
    """One tag set of fifty, compressed: two hundredths of the log, and the heads of all batches."""
    tags = [[f"{number:02}"] for number in range(50)]
    log = new_log(*[mixed(*tags, size=1_000) for _ in range(20)], segment_bytes=4 << 20)
    read = read_filtered(log, 0, parse("07"), ALL_AT_ONCE)
    data = log.active.file.read(0, log.size)
    heads = sum(head_length(data, position, header) for position, header in iter_batches(data))
    assert [one.tags for one in records_of(read)] == [("07",)] * 20
    assert read.sent <= 0.021 * (log.size - heads) + heads


def test_small_pieces_are_joined() -> None:
    """One buffer for hundreds of small batches; what follows each other is one piece of a file."""
    log = new_log(*[batch("eu" if index % 2 else "us") for index in range(200)])
    [piece] = plan_filtered(log, 0, Verdicts(EU), ALL_AT_ONCE).find().pieces
    assert isinstance(piece, bytes)
    log = new_log(*[batch("eu", size=9_000) for _ in range(20)], segment_bytes=4 << 20)
    [piece] = plan_filtered(log, 0, Verdicts(EU), ALL_AT_ONCE).find().pieces
    assert isinstance(piece, FileSlice)
    assert (piece.position, piece.length) == (0, log.size)


def test_limits_of_a_look() -> None:
    """Bytes, batches, ranges; and a first batch beyond the bytes, as without a filter."""
    log = new_log(*[batch("eu" if index % 2 else "us") for index in range(40)])
    verdicts = Verdicts(EU)

    def look(*limits: int, is_first: bool = True) -> tuple[int, int, bool]:
        asked = FilterLimits(*limits, is_first=is_first)
        found = plan_filtered(log, 0, verdicts, asked).find()
        return found.end_offset, found.batch_count, found.is_full

    one = len(batch("eu"))
    assert look(1 << 20, 10 * ONE, 99) == (30, 10, False)
    assert look(1, 99 * ONE, 99) == (9, 3, True)
    assert look(1, 99 * ONE, 99, is_first=False) == (3, 1, True)
    assert look(3 * one, 99 * ONE, 99) == (21, 7, True)
    assert look(1 << 20, 99 * ONE, 4) == (24, 8, True)


def test_work_is_counted_in_tag_sets_and_terms() -> None:
    """A look ends after few batches of many tag sets, and after fewer where each is met first."""
    sets = [[[f"{number}-{index}"] for index in range(64)] for number in range(20)]
    log = new_log(*[mixed(*each) for each in sets], segment_bytes=4 << 20)
    asked = parse(
        " | ".join(f"a{n} & " + " & ".join(f"!b{n}{m}" for m in range(15)) for n in range(16))
    )
    for verdicts, count in ((Verdicts(EU), 5), (Verdicts(asked), 1)):
        limits = FilterLimits(1 << 20, 576, 99)
        found = plan_filtered(log, 0, verdicts, limits).find()
        assert found.batch_count == count
        assert found.units >= 576


def test_nothing_beyond_the_end_for_the_reader() -> None:
    """Neither sent nor left out: what is not committed may still be another batch."""
    log = new_log(batch("us"), batch("us"), batch("eu"))
    read = read_filtered(log, 0, EU, ALL_AT_ONCE, end_offset=5)
    assert (read.end_offset, read.pieces[-1].end_offset) == (3, 3)


def test_a_known_segment_is_passed_over_unread() -> None:
    """After one reader has looked at all of it; for any filter, until it is cut."""
    log = new_log(
        *[batch("us", "x" if index % 3 else "y") for index in range(60)], segment_bytes=2048
    )
    assert len(log.segments) > 3
    sealed = len(log.segments) - 1
    assert read_filtered(log, 0, EU, ALL_AT_ONCE).looked == 60
    again = read_filtered(log, 0, EU, ALL_AT_ONCE)
    assert again.looked < sealed + 20
    assert [piece.leader_epoch for piece in again.pieces] == [2] * len(again.pieces)
    # From the midst of one; and another filter, which some of it passes.
    assert read_filtered(log, 7, parse("!us"), ALL_AT_ONCE).looked <= again.looked
    assert len(list(records_of(read_filtered(log, 0, parse("y"), ALL_AT_ONCE)))) == 60
    first = log.segments[0]
    work = log.begin_truncate(first.end_offset - 3)
    work.perform(log.files)
    log.end_truncate()
    for _ in range(40):
        log.append(batch("eu"), leader_epoch=3, now_ms=1, now=0.0)
    assert len(list(records_of(read_filtered(log, 0, EU, ALL_AT_ONCE)))) == 120


@pytest.mark.parametrize(("count", "length"), [(400, 3), (10, 250)])
def test_too_many_tags_are_not_remembered(count: int, length: int) -> None:
    """Nor too long ones: such a segment is looked at each time."""
    tag_sets = [
        [f"{index:03}{number:02}".ljust(length, "x") for number in range(12)]
        for index in range(count)
    ]
    log = new_log(*[batch(*tags) for tags in tag_sets], segment_bytes=1 << 20)
    log.roll()
    for _ in range(2):
        assert read_filtered(log, 0, EU, ALL_AT_ONCE).looked == count


def test_the_epoch_of_a_range_is_the_logs_own() -> None:
    """That of a batch is outside of every CRC: a bit of it that rots in what is left out would
    tell the reader that its log was cut."""
    log = new_log(batch("us"), batch("us"))
    log.assign_epoch(3)
    log.append(batch("us", count=1), leader_epoch=3, now_ms=1, now=0.0)
    place = log.active.locate(6)
    log.active.file.write(place.position + 12, [b"\0\0\0\x02"])
    [range_] = read_filtered(log, 0, EU, ALL_AT_ONCE).pieces
    assert range_.leader_epoch == 3


@pytest.mark.parametrize("asked", [EU, parse("!us"), parse("us")], ids=str)
def test_no_flipped_bit_hides_a_record(asked: TagFilter) -> None:
    """Each bit of a log in turn: what is read is what was written, up to an error, and all that
    passes before it."""
    log = new_log(
        mixed(["eu"], ["us"], [], ["eu", "test"]), batch("us", count=1), batch("eu", count=1)
    )
    file, size = log.active.file, log.size
    written = list(records_of(read_filtered(log, 0, asked, ALL_AT_ONCE)))
    original = file.read(0, size)
    bounds = [found.position for found in log.active.walk_all()]
    for bit in range(size * 8):
        position = bit // 8
        file.write(position, [bytes([original[position] ^ 1 << bit % 8])])
        log.active._known.clear()
        read, damage = read_up_to_damage(log, 0, asked, ALL_AT_ONCE)
        assert list(records_of(read)) == [one for one in written if one.offset < read.end_offset], (
            f"bit {bit}"
        )
        assert all(
            piece.leader_epoch == 2 for piece in read.pieces if isinstance(piece, PassedOver)
        )
        if damage is not None:  # all batches before the one in which it is were read
            before = sum(start <= position for start in bounds) - 1
            assert read.end_offset >= (0, 4, 5)[before], f"bit {bit}"
        log.active._seen_tags = None
        file.write(position, [original[position : position + 1]])
