"""Records that are not what they were: fetched once more, then told, and never handed out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from msgspec.msgpack import encode

from raftmq.errors import CorruptRecord, ErrorCode
from raftmq.wire.messages.corruption import CorruptionVerdict, ReportCorruption
from raftmq.wire.messages.fetch import Fetch
from tests.unit.client.consumer.pieces import data_at
from tests.unit.client.consumer.reading import append, consumer, reading, take
from tests.unit.client.world import refused

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_headers_that_cannot_be_decoded(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found in the middle of a batch: what comes before it counts, and nothing is mixed up."""
    packed = iter([encode([b"h", b"1"]), b"junk", encode([b"h", b"3"])])
    monkeypatch.setattr("raftmq.wire.batch.chunks.pack_headers", lambda _headers: next(packed))
    async with reading(1) as (world, client):
        world.topics["u"].partitions[0].append(
            data_at(0, "a", "b", "c", headers=[[("h", b"")]] * 3)
        )
        async with consumer(client) as c:
            assert await take(c, 1) == ["a"]
            for _ in range(2):
                with pytest.raises(CorruptRecord):
                    await take(c, 1)
                assert c.position("u", 0) == 1
            c.seek("u", 0, offset=2)
            record = await anext(c)
            assert (record.offset, record.value, record.headers) == (2, b"c", (("h", b"3"),))


async def test_damage_that_lasts(autojump_clock: MockClock) -> None:
    """Fetched twice, then told, with the place; what follows another partition goes on."""
    async with reading(1, 2) as (world, client):
        append(world, 0, "a")
        async with consumer(client) as c:
            assert await take(c, 1) == ["a"]
            partition = world.topics["u"].partitions[0]
            append(world, 0, "b")
            base, end, data = partition.batches[1]
            partition.batches[1] = base, end, data[:-1] + b"\0"
            append(world, 0, "c")
            before = world.brokers[1].count(Fetch)
            with pytest.raises(
                CorruptRecord, match=r"u-0 at offset 1, again and again: CRC.*seek"
            ) as caught:
                await take(c, 1)
            assert caught.value.partition == 0
            assert world.brokers[1].count(Fetch) - before <= 2
            append(world, 1, "x")
            assert await take(c, 1, seconds=0.1) == ["x"]
            c.seek("u", 0, offset=2)
            assert await take(c, 1) == ["c"]


async def test_damage_that_the_leader_is_told_of_and_repairs(autojump_clock: MockClock) -> None:
    """A2.3: it looks at its disk, and another one leads: the program notices nothing."""
    async with reading(1) as (world, client):
        append(world, 0, "a")
        append(world, 0, "b")
        partition = world.topics["u"].partitions[0]
        base, end, data = good = partition.batches[1]
        partition.batches[1] = base, end, data[:-1] + b"\0"
        reports: list[ReportCorruption] = []

        def look(body: ReportCorruption) -> CorruptionVerdict:
            reports.append(body)
            if len(reports) == 2:
                partition.batches[1] = good
                world.lead("u", 0, 2)
            return CorruptionVerdict.ROTTEN

        world.brokers[1].look = look
        async with consumer(client) as c:
            assert await take(c, 2) == ["a", "b"]
        topic_id = world.topics["u"].topic_id
        assert reports == [ReportCorruption(topic_id, 0, 1, 0)] * 2


async def test_damage_behind_records_that_are_right(autojump_clock: MockClock) -> None:
    """They come first."""
    async with reading(1) as (world, client):
        for value in "abc":
            append(world, 0, value)
        partition = world.topics["u"].partitions[0]
        base, end, data = partition.batches[2]
        partition.batches[2] = base, end, data[:-1] + b"\0"
        async with consumer(client) as c:
            assert await take(c, 2) == ["a", "b"]
            with pytest.raises(CorruptRecord, match="u-0 at offset 2"):
                await take(c, 1)


async def test_a_gap_is_damage(autojump_clock: MockClock) -> None:
    """A batch in the middle is missing: not passed over silently."""
    async with reading(1) as (world, client):
        for value in "abc":
            append(world, 0, value)
        del world.topics["u"].partitions[0].batches[1]
        async with consumer(client) as c:
            assert await take(c, 1) == ["a"]
            with pytest.raises(CorruptRecord, match="offsets 2 to 3 came, 1 was asked for"):
                await take(c, 1)


async def test_damage_that_the_leader_finds(autojump_clock: MockClock) -> None:
    """It is repaired by others, which takes a while; after five seconds it is told."""
    async with reading(1) as (world, client):
        append(world, 0, "a")
        world.brokers[1].fetches = [refused(ErrorCode.CORRUPT_MESSAGE)] * 1000
        async with consumer(client) as c:
            begin = trio.current_time()
            with pytest.raises(CorruptRecord, match="u-0 at offset 0"):
                await anext(c)
            assert 5 < trio.current_time() - begin < 7
            world.lead("u", 0, 2)
            assert await take(c, 1) == ["a"]
