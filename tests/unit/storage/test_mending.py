"""A2.3, G4: rot that is written over with what another replica holds, in its old place."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from raftmq.errors import CorruptRecord, StorageError
from raftmq.partition.storage.mending import plan_mending
from raftmq.wire.batch.header import pack_prefix, read_header
from tests.simulation.disk import SimulatedFiles
from tests.unit.storage.batches import append
from tests.unit.storage.directories import opened
from tests.unit.storage.rotting import (
    BAD,
    CONFIG,
    COUNT,
    CRC_BYTE,
    EPOCH_BYTE,
    LENGTH_BYTE,
    MARK,
    OFFSET_BYTE,
    SIZE,
    VALUE_BYTE,
    filled,
    readable,
    rot,
)

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.partition.storage.log import PartitionLog
    from raftmq.partition.storage.rot import Rot

BYTES = [EPOCH_BYTE, LENGTH_BYTE, OFFSET_BYTE, CRC_BYTE, VALUE_BYTE]


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Random(0))


def contents(log: PartitionLog) -> list[bytes]:
    """Of the segments; what another replica holds, too, while nothing has rotted."""
    return [segment.file.read(0, segment.size) for segment in log.segments]


async def found(directory: LogDirectory, log: PartitionLog, offset: int) -> Rot:
    rot_there = await directory.look(log, offset)
    assert rot_there is not None
    return rot_there


async def put_right(
    directory: LogDirectory, log: PartitionLog, rotten: Rot, sound: list[bytes], *, count: int = 99
) -> int:
    """Of so many batches at a time; returns how many times."""
    place, times = rotten.begin, 0
    data = sound[log.segments.index(log.segment_of(rotten.offset))]
    while True:
        mending = plan_mending(log, rotten, place, data[place.position :][: count * SIZE])
        assert mending is not None
        await directory.mend(log, mending)
        place, times = mending.end, times + 1
        if mending.is_last:
            return times


@pytest.mark.parametrize("byte", BYTES)
@pytest.mark.parametrize("bad", [0, BAD, 7, 8, COUNT - 1])
async def test_the_log_is_as_it_was(
    files: SimulatedFiles, autojump_clock: MockClock, byte: int, bad: int
) -> None:
    """On the disk, too, and for every later opening; it goes on meanwhile."""
    async with opened(files) as directory:
        log = await filled(directory)
        before = contents(log)
        rot(files, log, bad, byte)
        rotten = await found(directory, log, bad)
        append(log, b"more")
        assert await put_right(directory, log, rotten, before) == 1
        assert (log.is_whole, files.exists(MARK)) == (True, False)
        assert readable(log) == list(range(COUNT + 1))
        left = files.photograph(Random(1), power_lost=True)
    async with opened(left) as directory:
        log = await directory.open_log("t", 0, CONFIG)
        assert log.is_whole
        assert [each[: len(old)] for each, old in zip(contents(log), before, strict=True)] == before


@pytest.mark.parametrize("bads", [(4, 5, 6), (5, 6, 7), (8, 9, 10, 11)])
@pytest.mark.parametrize("byte", BYTES)
async def test_a_run_of_it_goes_piece_by_piece(
    files: SimulatedFiles, autojump_clock: MockClock, bads: tuple[int, ...], byte: int
) -> None:
    """The mark stays until the last piece: a crash finds the rest of it."""
    async with opened(files) as directory:
        log = await filled(directory)
        before = contents(log)
        for bad in bads:
            rot(files, log, bad, VALUE_BYTE if bad == bads[0] else byte)
        rotten = await found(directory, log, bads[0])
        mending = plan_mending(
            log, rotten, rotten.begin, before[bads[0] // 8][rotten.begin.position :][:SIZE]
        )
        assert mending is not None
        if not mending.is_last:
            await directory.mend(log, mending)
            assert files.exists(MARK)
        await put_right(directory, log, rotten, before, count=1)
        for bad in bads:  # found by a look of its own perhaps
            rest = await directory.look(log, bad)
            if rest is not None:
                await put_right(directory, log, rest, before)
        assert log.is_whole
        assert contents(log) == before


async def test_what_never_stood_there_is_not_written(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Of another epoch, of another offset, longer than the segment; or not sound."""
    async with opened(files) as directory:
        log = await filled(directory)
        good = contents(log)[0][BAD * SIZE : (BAD + 1) * SIZE]
        rot(files, log, BAD)
        rotten = await found(directory, log, BAD)
        epoch = read_header(good).leader_epoch
        for offset, leader_epoch in [(BAD, epoch + 1), (BAD + 1, epoch), (BAD - 1, epoch)]:
            prefix = pack_prefix(read_header(good), base_offset=offset, leader_epoch=leader_epoch)
            assert plan_mending(log, rotten, rotten.begin, prefix + good[16:]) is None
        with pytest.raises(CorruptRecord) as caught:
            plan_mending(log, rotten, rotten.begin, good[:-1] + b"?")
        assert caught.value.offset == BAD


async def test_what_was_cut_meanwhile_is_left_alone(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Other records may stand there by now."""
    async with opened(files) as directory:
        log = await filled(directory)
        before = contents(log)
        rot(files, log, BAD)
        rotten = await found(directory, log, BAD)
        mending = plan_mending(log, rotten, rotten.begin, before[0][BAD * SIZE :])
        assert mending is not None
        await directory.truncate(log, BAD)
        append(log, b"05")
        with pytest.raises(StorageError, match="changed meanwhile"):
            await directory.mend(log, mending)
        assert readable(log) == list(range(BAD + 1))


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_a_disk_that_fails_takes_the_log_offline(
    files: SimulatedFiles, autojump_clock: MockClock, operation: str
) -> None:
    """The sync may have been that of an append."""
    async with opened(files) as directory:
        log = await filled(directory)
        before = contents(log)
        rot(files, log, BAD)
        rotten = await found(directory, log, BAD)
        files.fail(operation, "00000000000000000000.log")
        with pytest.raises(StorageError):
            await put_right(directory, log, rotten, before)
        assert log.offline_reason
        log = await directory.reopen(log)
        assert [each.offset for each in log.rotten] == [BAD]
        await put_right(directory, log, log.rotten[0], before)
        assert log.is_whole


@pytest.mark.parametrize("byte", [LENGTH_BYTE, VALUE_BYTE])
@pytest.mark.parametrize("bad", [BAD, COUNT - 2])
async def test_a_crash_in_the_middle_leaves_rot_or_none(
    autojump_clock: MockClock, bad: int, byte: int
) -> None:
    """At every operation, by a kill or a loss of power: what is wrong is known, and only that."""
    left: list[SimulatedFiles] = []
    is_on = False

    def take(*_moment: object) -> None:
        if is_on:
            left.extend(
                files.photograph(Random(len(left)), power_lost=lost) for lost in (False, True)
            )

    files = SimulatedFiles(Random(0), interrupt=take)
    async with opened(files) as directory:
        log = await filled(directory)
        append(log, b"more")
        await directory.flusher.wait_durable(log, COUNT + 1)
        before = contents(log)
        for offset in (bad, bad + 1):
            rot(files, log, offset, byte)
        rotten = await found(directory, log, bad)
        is_on = True
        await put_right(directory, log, rotten, before, count=1)
        is_on = False
    assert len(left) > 10
    for disk in left:
        async with opened(disk) as directory:
            log = await directory.open_log("t", 0, CONFIG)
            assert (log.damage, log.log_end_offset) == (None, COUNT + 1)
            wrong = {n for each in log.rotten for n in range(each.offset, each.end_offset)}
            assert wrong <= {bad, bad + 1}
            assert readable(log) == [n for n in range(COUNT + 1) if n not in wrong]
