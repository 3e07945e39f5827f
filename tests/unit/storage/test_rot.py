"""Bytes that changed below the recovery point: found by a look, refused from then on, remembered.

A2.3, G4, G6. Each batch here is of one record; the disk rots under a log that is open.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from raftmq.errors import CorruptRecord, OffsetOutOfRange, StorageError
from raftmq.model import NO_TIMESTAMP
from raftmq.partition.storage.recovery import Past, open_log
from raftmq.topic_config import TopicConfig
from tests.log_reading import read_slice
from tests.simulation.disk import SimulatedFiles
from tests.unit.storage.batches import NOW_MS, append, batch, values_of
from tests.unit.storage.directories import opened
from tests.unit.storage.rotting import (
    BAD,
    CONFIG,
    COUNT,
    CRC_BYTE,
    EPOCH_BYTE,
    FOLDER,
    LENGTH_BYTE,
    MARK,
    OFFSET_BYTE,
    SIZE,
    VALUE_BYTE,
    filled,
    readable,
    rot,
    rotten,
)

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.partition.storage.log import PartitionLog


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Random(0))


@pytest.mark.parametrize("byte", [EPOCH_BYTE, LENGTH_BYTE, OFFSET_BYTE, CRC_BYTE, VALUE_BYTE])
@pytest.mark.parametrize("bad", [0, BAD, 7, 8])
async def test_what_is_rotten_is_refused_and_all_else_is_read(
    files: SimulatedFiles, autojump_clock: MockClock, byte: int, bad: int
) -> None:
    """Also where no header can be trusted, and where a segment begins or ends."""
    async with opened(files) as directory:
        log = await filled(directory)
        rot(files, log, bad, byte)
        found = await directory.look(log, bad)
        assert found is not None
        assert (found.offset, found.end_offset) == (bad, bad + 1)
        assert found.begin.position == bad % 8 * SIZE
        assert str(log.segment_of(bad).path) in str(found)
        rest = [offset for offset in range(COUNT) if offset != bad]
        assert readable(log) == rest
        append(log, b"more")
        assert readable(log) == [*rest, COUNT]
        before = read_slice(log, max(bad - 2, 0), bytes_max=1 << 20) if bad else None
        assert before is None or before.end_offset == bad


async def test_what_is_right_stays_as_it_is(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Somebody reports what never was: nothing is noted, nothing is written."""
    async with opened(files) as directory:
        log = await filled(directory)
        assert [await directory.look(log, offset) for offset in range(COUNT)] == [None] * COUNT
        assert log.is_whole
        assert not files.exists(MARK)


async def test_a_page_cache_that_is_wrong_is_given_up(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """The disk has it right, and so have readers from then on."""
    async with opened(files) as directory:
        log = await filled(directory)
        files._file(log.segments[0].path).cached[BAD * SIZE + VALUE_BYTE] ^= 1
        assert BAD not in readable(log)
        assert await directory.look(log, BAD) is None
        assert readable(log) == list(range(COUNT))


@pytest.mark.parametrize("power_lost", [False, True])
async def test_what_was_found_stays_known(
    files: SimulatedFiles, autojump_clock: MockClock, power_lost: bool
) -> None:
    """A kill in the moment in which it was noted: the next opening refuses the same."""
    async with opened(files) as directory:
        log = await rotten(files, directory, BAD)
        left = files.photograph(Random(1), power_lost=power_lost)
    async with opened(left) as directory:
        [log] = [await directory.open_log("t", 0, CONFIG)]
        assert (log.is_sound, log.is_whole, log.log_end_offset) == (True, False, COUNT)
        assert BAD not in readable(log)
    async with opened(left) as directory:  # after an end in order, too
        assert not (await directory.open_log("t", 0, CONFIG)).is_whole


async def test_a_file_that_somebody_brought_back_is_believed(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """An opening looks, and believes what it sees."""
    async with opened(files) as directory:
        log = await rotten(files, directory, BAD)
    rot(files, log, BAD)
    async with opened(files) as directory:
        log = await directory.open_log("t", 0, CONFIG)
        assert log.is_whole
        assert len(values_of(log)) == COUNT
        assert not files.exists(MARK)


@pytest.mark.parametrize("byte", [LENGTH_BYTE, VALUE_BYTE])
async def test_a_cut_before_it_makes_the_log_whole(
    files: SimulatedFiles, autojump_clock: MockClock, byte: int
) -> None:
    """A2.3: then the rest is fetched again."""
    async with opened(files) as directory:
        log = await rotten(files, directory, 9, BAD, byte=byte)
        assert [each.offset for each in log.rotten] == [BAD, 9]
        await directory.truncate(log, log.whole_end_offset)
        assert (log.is_whole, log.log_end_offset) == (True, BAD)
        assert not files.exists(MARK)
        append(log, b"05")
        assert len(values_of(log)) == BAD + 1


async def test_a_cut_behind_it_forgets_nothing(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Only what is gone is not rotten any more; the same holds of a trim."""
    async with opened(files) as directory:
        log = await rotten(files, directory, BAD, 9)
        await directory.truncate(log, 8)
        assert [each.offset for each in log.rotten] == [BAD]
        assert files.exists(MARK)
        await directory.delete_records(log, BAD + 1)
        assert log.is_whole


async def test_an_index_is_not_rebuilt_across_it(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Behind a header that is wrong the index is the only way: it would have been emptied."""
    async with opened(files) as directory:
        log = await directory.open_log(
            "t", 0, TopicConfig(segment_bytes=8 * SIZE, index_interval_bytes=1)
        )
        for number in range(COUNT):
            append(log, b"%02d" % number)
        await directory.flusher.wait_durable(log, COUNT)
        rot(files, log, BAD, LENGTH_BYTE)
        log.segments[0].index.distrust()
        with pytest.raises(CorruptRecord):
            log.rebuild_damaged_indexes()
        log.segments[0].release_idle()
        log.segments[0].release_idle()
        assert read_slice(log, BAD + 1, bytes_max=1).start_offset == BAD + 1


@pytest.mark.parametrize("is_slow", [False, True])
async def test_whoever_cannot_read_has_it_looked_at(
    files: SimulatedFiles, autojump_clock: MockClock, is_slow: bool
) -> None:
    """A fetch across a header that is wrong, and a search by time."""
    doubted: list[int] = []
    async with opened(files) as directory:
        log = await filled(directory)
        log.on_doubt = doubted.append
        log.segments[0]._known.clear()
        rot(files, log, BAD, LENGTH_BYTE)
        rot(files, log, 8)
        files.cold = is_slow
        with pytest.raises(CorruptRecord):
            await directory.slice(log, BAD + 1, bytes_max=1)
        await directory.delete_records(log, 8)
        with pytest.raises(CorruptRecord):
            await directory.offset_for_timestamp(log, NOW_MS)
        assert doubted == [BAD, 8]  # its length is wrong, not what follows it


async def test_an_append_goes_on_behind_a_segment_whose_first_batch_cannot_be_read(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Whether to roll depends on its age: producers were told of corrupt records for ever."""
    async with opened(files) as directory:
        log = await filled(directory)
    async with opened(files) as directory:
        log = await directory.open_log("t", 0, CONFIG)
        log.active._first_timestamp = NO_TIMESTAMP
        doubted: list[int] = []
        log.on_doubt = doubted.append
        rot(files, log, 8, OFFSET_BYTE)
        assert append(log, b"more") == COUNT + 1
        assert (doubted, log.active.base_offset) == ([8], COUNT)


def tear(files: SimulatedFiles, log: PartitionLog) -> None:
    """A crash in the middle of the last write."""
    file = files.open(log.active.path)
    file.write(file.size(), [batch(b"torn")[:40]])


async def test_a_torn_write_behind_it_is_cut_as_ever(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """A2.3: the mark speaks of the places that it names. All was damage from the torn write on."""
    async with opened(files) as directory:
        log = await rotten(files, directory, BAD)
        append(log, b"more")
        left = files.photograph(Random(1), power_lost=False)
    tear(left, log)
    async with opened(left) as directory:
        log = await directory.open_log("t", 0, CONFIG)
        assert (log.damage, log.log_end_offset) == (None, COUNT + 1)
        assert [each.offset for each in log.rotten] == [BAD]


@pytest.mark.parametrize("power_lost", [False, True])
@pytest.mark.parametrize("byte", [LENGTH_BYTE, OFFSET_BYTE, CRC_BYTE, VALUE_BYTE])
@pytest.mark.parametrize("bad", [7, 8, COUNT - 2, COUNT - 1])
async def test_an_opening_steps_over_a_known_place(
    files: SimulatedFiles, autojump_clock: MockClock, bad: int, byte: int, power_lost: bool
) -> None:
    """A2.3: just before the recovery point it was damage, and an unclean election cut all behind
    it. What is durable behind the recovery point is there, too.
    """
    async with opened(files) as directory:
        log = await rotten(files, directory, bad, byte=byte)
        append(log, b"more")
        await directory.flusher.wait_durable(log, COUNT + 1)
        left = files.photograph(Random(1), power_lost=power_lost)
    rest = [offset for offset in range(COUNT + 1) if offset != bad]
    for _ in range(2):  # also where it was closed in order
        async with opened(left) as directory:
            log = await directory.open_log("t", 0, CONFIG)
            assert (log.damage, log.log_end_offset) == (None, COUNT + 1)
            assert [(each.offset, each.end_offset) for each in log.rotten] == [(bad, bad + 1)]
            assert readable(log) == rest
    async with opened(left) as directory:
        log = await directory.open_log("t", 0, CONFIG)
        await directory.truncate(log, COUNT)
        assert readable(log) == rest[:-1]


async def test_more_rot_than_is_known_is_damage(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """G6: of what is wrong elsewhere the mark says nothing."""
    async with opened(files) as directory:
        log = await rotten(files, directory, COUNT - 3)
        rot(files, log, COUNT - 2)
        left = files.photograph(Random(1), power_lost=False)
    async with opened(left) as directory:
        log = await directory.open_log("t", 0, CONFIG)
        assert log.damage is not None
        assert log.log_end_offset == COUNT - 3


@pytest.mark.parametrize("page_cache_survived", [False, True])
async def test_a_known_place_is_never_cut_by_an_opening(
    files: SimulatedFiles, autojump_clock: MockClock, page_cache_survived: bool
) -> None:
    """Even where nothing vouches for it any more, as after a cut that was not finished."""
    async with opened(files) as directory:
        log = await filled(directory)
        for bad in range(8, COUNT):  # nothing sound follows
            rot(files, log, bad)
        await directory.look(log, 8)
    past = Past(page_cache_survived=page_cache_survived)
    log = open_log(files, FOLDER, "t/Partition-0", CONFIG, past)
    assert (log.damage is not None, log.log_end_offset) == (True, 8)


async def test_what_was_written_where_rot_was_cut_is_like_any_other(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """The mark of the rot that stays does not name it any more."""
    async with opened(files) as directory:
        log = await rotten(files, directory, BAD, 9)
        await directory.truncate(log, 8)
        append(log, b"08")
        left = files.photograph(Random(1), power_lost=False)
    tear(left, log)
    async with opened(left) as directory:
        log = await directory.open_log("t", 0, CONFIG)
        assert (log.damage, log.log_end_offset) == (None, 9)


@pytest.mark.parametrize("interval", [1, 4096])
@pytest.mark.parametrize("byte", [EPOCH_BYTE, LENGTH_BYTE, OFFSET_BYTE, VALUE_BYTE])
@pytest.mark.parametrize("bad", [8, 9, 10])
async def test_a_cut_steps_over_it(
    files: SimulatedFiles, autojump_clock: MockClock, bad: int, byte: int, interval: int
) -> None:
    """Behind rot in its own segment, and what stood in between is found as before."""
    async with opened(files) as directory:
        log = await filled(directory)
        log.active.index._interval_bytes = interval
        rot(files, log, bad, byte)
        await directory.look(log, bad)
        await directory.truncate(log, COUNT - 1)
        assert (log.offline_reason, log.log_end_offset) == ("", COUNT - 1)
        assert append(log, b"more") == COUNT
        log.active._known.clear()
        assert readable(log) == [each for each in range(COUNT) if each != bad]


@pytest.mark.parametrize("byte", [EPOCH_BYTE, LENGTH_BYTE, OFFSET_BYTE, VALUE_BYTE])
async def test_a_log_may_start_inside_of_it(
    files: SimulatedFiles, autojump_clock: MockClock, byte: int
) -> None:
    """A restart took it for whole, and no cut took it away."""
    values = [b"%02d" % number for number in range(4)]
    size, bad = len(batch(*values)), 16
    config = TopicConfig(segment_bytes=8 * size)
    async with opened(files) as directory:
        log = await directory.open_log("t", 0, config)
        for _ in range(12):
            append(log, *values)
        await directory.flusher.wait_durable(log, 48)
        await directory.checkpoint()
        await directory.delete_records(log, bad + 2)
        log.segments[0]._known.clear()
        files.flip_bit(log.segments[0].path, bad // 4 * size + byte, 3)
        assert await directory.look(log, bad + 2) is not None
    async with opened(files) as directory:
        log = await directory.open_log("t", 0, config)
        assert [(each.offset, each.end_offset) for each in log.rotten] == [(bad, bad + 4)]
        await directory.truncate(log, bad + 2)
        assert (log.is_whole, log.log_start_offset, log.log_end_offset) == (True, bad, bad)


async def test_a_place_that_cannot_be_read_any_more_closes_no_log(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """All else is served; the mark stays for an opening that can read there."""
    async with opened(files) as directory:
        log = await rotten(files, directory, BAD)
    files.fail("read", "Partition-0/00000000000000000000.log")
    async with opened(files) as directory:
        log = await directory.open_log("t", 0, CONFIG)
        assert log.log_end_offset == COUNT
        assert files.exists(MARK)
    async with opened(files) as directory:
        assert not (await directory.open_log("t", 0, CONFIG)).is_whole


async def test_what_was_not_looked_at_is_not_called_whole(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Where nothing is, and in a log that nobody uses any more."""
    async with opened(files) as directory:
        log = await filled(directory)
        for offset in (-1, COUNT):
            with pytest.raises(OffsetOutOfRange):
                await directory.look(log, offset)
        log.go_offline(StorageError("a disk failed"))
        with pytest.raises(StorageError, match="a disk failed"):
            await directory.look(log, BAD)
        await directory.reopen(log)
        with pytest.raises(StorageError, match="opened anew"):
            await directory.look(log, BAD)


@pytest.mark.parametrize("limit", ["size", "age"])
async def test_retention_passes_a_segment_whose_age_is_unknown(
    files: SimulatedFiles, autojump_clock: MockClock, limit: str
) -> None:
    """A3.3: size asks for no age, and what is before an old segment is old."""
    hour = 3_600_000
    config = TopicConfig(segment_bytes=8 * SIZE, segment_ms=100 * hour, retention_ms=hour)
    if limit == "size":
        config = TopicConfig(segment_bytes=8 * SIZE, retention_bytes=8 * SIZE)
    async with opened(files) as directory:
        log = await directory.open_log("t", 0, config)
        for number in range(40):
            append(log, b"%02d" % number)
        await directory.flusher.wait_durable(log, 40)
        await directory.checkpoint()
        rot(files, log, 7, OFFSET_BYTE)
    async with opened(files) as directory:
        log = await directory.open_log("t", 0, config)
        log.retirable_end = lambda: 40
        doubted: list[int] = []
        log.on_doubt = doubted.append
        await directory.enforce_retention(NOW_MS)
        assert log.log_start_offset == (32 if limit == "size" else 0)
        await directory.enforce_retention(NOW_MS + hour + 1)
        assert log.log_start_offset == 32
        assert doubted


async def test_an_active_segment_whose_age_is_unknown_is_closed(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """A3.3: it would never expire."""
    async with opened(files) as directory:
        log = await filled(directory)
        log.active._first_timestamp = NO_TIMESTAMP
        rot(files, log, 8, OFFSET_BYTE)
        log.roll_if_old(NOW_MS)
        assert log.active.base_offset == COUNT


async def test_retention_that_was_done_is_not_told_as_failed(
    files: SimulatedFiles, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Although an index cannot be built anew across rot."""
    async with opened(files) as directory:
        log = await filled(directory)
        rot(files, log, BAD, LENGTH_BYTE)
        log.segments[0].index.distrust()
        await directory.enforce_retention(NOW_MS)
    assert not any("no retention" in line for line in caplog.messages)
    assert any(line.startswith("index stays damaged") for line in caplog.messages)
