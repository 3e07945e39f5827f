"""Reading whole topics and single partitions: what comes, in which order, from where on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.client.consumer.consumer import Consumer
from raftmq.client.consumer.record import ConsumerRecord
from raftmq.errors import Closed, InvalidConfig, InvalidRequest, UnknownTopicOrPartition
from raftmq.wire.messages.fetch import Fetch
from raftmq.wire.messages.metadata import Metadata
from tests.unit.client.consumer.reading import (
    append,
    append_at,
    append_control,
    consumer,
    reading,
    take,
    take_all,
    texts,
)

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_all_partitions_are_read_in_order(autojump_clock: MockClock) -> None:
    """Three partitions of two leaders: each in order, nothing twice, nothing missing."""
    async with reading(1, 2, 1) as (world, client):
        for partition in range(3):
            for number in range(3):
                append(world, partition, f"{partition}{number}a", f"{partition}{number}b")
        async with consumer(client) as c:
            found = await take(c, 18)
            for partition in "012":
                mine = [text for text in found if text[0] == partition]
                assert mine == sorted(mine)
                assert len(mine) == 6
            assert [c.position("u", each) for each in range(3)] == [6, 6, 6]
            assert [c.lag("u", each) for each in range(3)] == [0, 0, 0]
            assert await c.end_offsets() == {("u", each): 6 for each in range(3)}
            assert c.high_watermark("u", 0) == 6


async def test_a_record_says_where_it_stands(autojump_clock: MockClock) -> None:
    """Every field (A2.1)."""
    async with reading(1) as (world, client):
        append(world, 0, "a", "b")
        async with consumer(client) as c:
            await take(c, 1)
            record = await anext(c)
            assert record == ConsumerRecord("u", 0, 1, 1000, None, b"b", (), ())
            assert isinstance(record, ConsumerRecord)


async def test_how_a_consumer_is_printed(autojump_clock: MockClock) -> None:
    """What it reads, as a member of which group, and whether it is open."""
    async with reading(1) as (_, client):
        c = consumer(client)
        assert repr(c) == "<Consumer of u, not open>"
        async with c:
            assert repr(c) == "<Consumer of u, open>"
        assert repr(c) == "<Consumer of u, closed>"
        c = consumer(client, assign=[("u", 0), ("v", 1)])
        assert repr(c) == "<Consumer of u-0, v-1, not open>"
        c = Consumer(client, (), {"pattern": "u.*", "group": "g"})
        assert repr(c) == "<Consumer of topics like u.*, group g, not open>"


async def test_batches(autojump_clock: MockClock) -> None:
    """Out of one partition each, of so many records at most, whatever was sent together (A7.1)."""
    async with reading(1) as (world, client):
        append(world, 0, "a")
        append(world, 0, "b", "c", "d")
        append(world, 0, "e")
        async with consumer(client) as c:
            batches = c.batches(max_records=2)
            first, second = await anext(batches), await anext(batches)
            assert (first.topic, first.partition, first.high_watermark) == ("u", 0, 5)
            assert (first.base_offset, first.end_offset, list(first.values)) == (0, 2, [b"a", b"b"])
            assert list(second.offsets) == [2, 3]
            assert c.position("u", 0) == 4
            assert await take(c, 1) == ["e"]


async def test_the_last_record_that_was_handed_out(autojump_clock: MockClock) -> None:
    """Of each partition, whether single records or batches; control batches are none (A7.4)."""
    async with reading(1, 1) as (world, client):
        append(world, 0, "a", "b", "c")
        append_control(world, 0)
        async with consumer(client) as c:
            assert c.last_consumed("u", 0) is None
            await take(c, 2)
            assert c.last_consumed("u", 0) == 1
            c.seek("u", 0, offset=0)
            assert (c.last_consumed("u", 0), c.position("u", 0)) == (1, 0)
            await anext(c.batches(max_records=1))
            assert (c.last_consumed("u", 0), c.position("u", 0)) == (0, 1)
            await take(c, 2)
            assert (c.last_consumed("u", 0), c.position("u", 0)) == (2, 4)
            assert c.last_consumed("u", 1) is None
            with pytest.raises(InvalidConfig, match="u-7 is not read by this consumer"):
                c.last_consumed("u", 7)


async def test_partitions_take_turns(autojump_clock: MockClock) -> None:
    """While there is something of both, neither keeps the other waiting."""
    async with reading(1, 1) as (world, client):
        for partition in range(2):
            append(world, partition, *[str(partition)] * 6)
        async with consumer(client, max_poll_records=2) as c:
            assert "".join(await take(c, 12)) == "001100110011"


async def test_only_what_is_assigned(autojump_clock: MockClock) -> None:
    """Others of the same topic are not asked for."""
    async with reading(1, 2, 1) as (world, client):
        for partition in range(3):
            append(world, partition, str(partition))
        assign = [("u", 2)]
        async with consumer(client, assign=assign) as c:
            assert c.assignment == assign
            assert await take_all(c) == ["2"]
        assert world.brokers[2].count(Fetch) == 0


async def test_latest_begins_when_it_is_opened(autojump_clock: MockClock) -> None:
    """Whatever is sent after that is read, even if nobody has asked for a record yet."""
    async with reading(1, 2) as (world, client):
        append(world, 0, "old")
        async with consumer(client, start="latest") as c:
            append(world, 0, "new")
            append(world, 1, "other")
            assert sorted(await take_all(c)) == ["new", "other"]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (2, ["30", "40"]),
        (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=25), ["30", "40"]),
        (datetime(2020, 1, 1, tzinfo=UTC), []),
        ("latest", []),
    ],
)
async def test_where_to_start(
    autojump_clock: MockClock, start: object, expected: list[str]
) -> None:
    """At an offset, at a time, at the end if no record is so young (A7.6)."""
    async with reading(1) as (world, client):
        append_at(world, 0, 10, 20, 30)
        append_at(world, 0, 40)
        async with consumer(client, start=start) as c:
            assert await take_all(c) == expected
            append_at(world, 0, 50)
            assert await take_all(c) == ["50"]


async def test_a_partition_that_is_added_is_read_from_its_beginning(
    autojump_clock: MockClock,
) -> None:
    """Within about a second, and also for "latest": all of it is new."""
    async with reading(1) as (world, client), consumer(client, start="latest") as c:
        assert await take_all(c) == []
        world.add_partition("u", 2)
        append(world, 1, "first")
        begin = trio.current_time()
        assert await take(c, 1) == ["first"]
        assert trio.current_time() - begin < 1.2
        assert c.assignment == [("u", 0), ("u", 1)]


async def test_an_append_is_handed_out_at_once(autojump_clock: MockClock) -> None:
    """The broker is asked before there is anything (A7.2)."""
    async with reading(1) as (world, client), consumer(client) as c:
        await take_all(c)
        append(world, 0, "a")
        begin = trio.current_time()
        assert await take(c, 1) == ["a"]
        assert trio.current_time() - begin < 0.01


async def test_little_is_asked_while_nothing_happens(autojump_clock: MockClock) -> None:
    """Two fetches per second and broker, and hardly any metadata, however many partitions.

    A7.2.
    """
    async with reading(*[1, 2] * 10) as (world, client), consumer(client) as c:
        await take_all(c)
        before = [world.brokers[each].count(Fetch) for each in (1, 2)]
        metadata_before = world.metadata_requests
        assert await take_all(c, seconds=30) == []
        for each in (1, 2):
            assert world.brokers[each].count(Fetch) - before[each - 1] <= 61
        assert world.metadata_requests - metadata_before <= 4


async def test_seek(autojump_clock: MockClock) -> None:
    """Back and forth, in the middle of batches; what was fetched ahead is gone."""
    async with reading(1) as (world, client):
        append_at(world, 0, 0, 10, 20)
        append_at(world, 0, 30, 40, 50)
        async with consumer(client) as c:
            assert await take(c, 2) == ["0", "10"]
            c.seek("u", 0, offset=4)
            assert c.position("u", 0) == 4
            assert await take(c, 1) == ["40"]
            c.seek("u", 0, timestamp=15)
            assert c.position("u", 0) is None
            assert await take(c, 2) == ["20", "30"]
            c.seek("u", 0, timestamp=datetime(1970, 1, 1, tzinfo=UTC))
            assert await take(c, 1) == ["0"]
            c.seek("u", 0, timestamp=1000)
            assert await take_all(c) == []


async def test_seek_does_not_wait_for_a_long_poll(autojump_clock: MockClock) -> None:
    """A fetch that waits for news of another partition is not waited for."""
    async with reading(1, 1) as (world, client):
        append(world, 0, "a", "b")
        async with consumer(client, fetch_max_wait_ms=20_000) as c:
            await take_all(c)
            c.seek("u", 0, offset=1)
            assert await take(c, 1, seconds=0.1) == ["b"]
            asked = [one for one in world.brokers[1].asked if isinstance(one, Fetch)]
            assert len(asked) <= 5


async def test_an_answer_from_before_a_seek_is_dropped(autojump_clock: MockClock) -> None:
    """Seek while the answer is on its way: it is not what is wanted any more."""
    async with reading(1) as (world, client):
        append(world, 0, "a")
        append(world, 0, "b")
        for latency in range(40):
            async with consumer(client) as c:
                await trio.sleep(latency * 0.0003)
                c.seek("u", 0, offset=1)
                assert await take_all(c, seconds=0.2) == ["b"]


async def test_pause_and_resume(autojump_clock: MockClock) -> None:
    """What is paused is neither handed out nor fetched, and nothing of it is lost (A7.6)."""
    async with reading(1, 1) as (world, client):
        append(world, 0, "a", "b", "c")
        append(world, 1, "x")
        async with consumer(client) as c:
            c.pause(("u", 1))
            assert await take(c, 1) == ["a"]
            c.pause(("u", 0))
            c.resume(("u", 1))
            assert c.paused == [("u", 0)]
            assert await take_all(c) == ["x"]
            await trio.sleep(1)
            fetches = [one for one in world.brokers[1].asked if isinstance(one, Fetch)]
            assert [each.partition for each in fetches[-1].partitions] == [1]
            c.resume(("u", 0))
            assert await take(c, 2, seconds=0.1) == ["b", "c"]
            c.pause(("u", 0), ("u", 1))
            append(world, 0, "d")
            assert await take_all(c, seconds=3) == []
            c.resume(("u", 0))
            assert await take(c, 1, seconds=0.1) == ["d"]


async def test_everything_paused_costs_no_fetches(autojump_clock: MockClock) -> None:
    """Nothing is asked in vain; new partitions are still noticed."""
    async with reading(1) as (world, client), consumer(client) as c:
        c.pause(("u", 0))
        await trio.sleep(1)
        before = world.brokers[1].count(Fetch), world.metadata_requests
        world.add_partition("u", 1)
        append(world, 1, "a")
        assert await take(c, 1, seconds=12) == ["a"]
        assert world.brokers[1].count(Fetch) - before[0] <= 2
        assert world.metadata_requests - before[1] <= 2


async def test_prefetching_is_bounded(autojump_clock: MockClock) -> None:
    """Nobody takes anything: no more is fetched than allowed, but a batch."""
    async with reading(1, 2, 1, 2) as (world, client):
        for partition in range(4):
            for _ in range(50):
                append(world, partition, "x" * 1000)
        async with consumer(client, prefetch_bytes=20_000, max_partition_fetch_bytes=5_000) as c:
            await trio.sleep(5)
            held = sum(each.undelivered.byte_count for each in c._subscription.states.values())
            assert 10_000 < held <= 20_000 + 2 * 1_200
            assert len(await take(c, 200)) == 200


async def test_what_is_paused_does_not_hold_up_the_rest(autojump_clock: MockClock) -> None:
    """Its records fill the memory: they are dropped, and fetched again in the end."""
    async with reading(1, 1) as (world, client):
        for partition in range(2):
            for number in range(30):
                append(world, partition, f"{partition}-{number:02}" + "x" * 1000)
        async with consumer(client, prefetch_bytes=8_000, max_poll_records=1) as c:
            found = await take(c, 4)
            c.pause(("u", 0))
            found += await take_all(c)
            assert sum(text.startswith("1") for text in found) == 30
            c.resume(("u", 0))
            found += await take_all(c)
            assert len(found) == len(set(found)) == 60


async def test_a_full_buffer_does_not_wait_for_a_long_poll(autojump_clock: MockClock) -> None:
    """One partition is full while the other is waited for: room for it counts at once."""
    async with reading(1, 1) as (world, client):
        for _ in range(20):
            append(world, 0, "x" * 1000)
        options = {"fetch_max_wait_ms": 20_000, "max_partition_fetch_bytes": 3_000}
        async with consumer(client, max_poll_records=1, **options) as c:
            await trio.sleep(1)
            assert len(await take(c, 20, seconds=2)) == 20


async def test_only_inside_the_block(autojump_clock: MockClock) -> None:
    """Before, after and twice: an error that says so."""
    async with reading(1) as (_world, client):
        c = consumer(client)
        with pytest.raises(Closed, match="the consumer is not open"):
            await anext(c)
        async with c:
            pass
        with pytest.raises(Closed, match="the consumer has been closed"):
            await anext(c)
        with pytest.raises(Closed, match="opened before"):
            async with c:
                pass


async def test_one_task_at_a_time(autojump_clock: MockClock) -> None:
    """The second one is told; the first one goes on."""
    async with reading(1) as (world, client), consumer(client) as c:
        async with trio.open_nursery() as nursery:
            found: list[str] = []

            async def first() -> None:
                found.extend(texts([await anext(c)]))

            nursery.start_soon(first)
            await trio.sleep(1)
            with pytest.raises(InvalidRequest, match="another task is iterating"):
                await anext(c.batches())
            append(world, 0, "a")
        assert found == ["a"]


async def test_whoever_waits_is_told_that_it_is_closed(autojump_clock: MockClock) -> None:
    """Another task leaves the block."""
    async with reading(1) as (_world, client), trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(Closed):
                await anext(c)

        async with consumer(client) as c:
            nursery.start_soon(wait)
            await trio.sleep(1)


async def test_an_error_of_the_block_comes_out_as_it_is(autojump_clock: MockClock) -> None:
    """In no group."""
    async with reading(1) as (_world, client):
        with pytest.raises(ZeroDivisionError):
            async with consumer(client):
                raise ZeroDivisionError


async def test_partitions_that_are_not_read(autojump_clock: MockClock) -> None:
    """They have no position; the ones that are read are named."""
    async with reading(1) as (_world, client), consumer(client) as c:
        for call in (c.position, c.lag, c.high_watermark):
            with pytest.raises(InvalidConfig, match=r"u-7 is not read.*u-0"):
                call("u", 7)
        with pytest.raises(InvalidConfig, match="u-7 is not read"):
            c.seek("u", 7, offset=0)
        with pytest.raises(InvalidConfig, match="max_records = 0"):
            c.batches(max_records=0)


async def test_metadata_that_is_asked_for_names_one_topic_each(autojump_clock: MockClock) -> None:
    """And never all of them."""
    async with reading(1) as (world, client), consumer(client, "u", "t") as c:
        await take_all(c)
        asked = [one for broker in world.brokers.values() for one in broker.asked]
        names = {
            name for one in asked if isinstance(one, Metadata) for name in one.topics or ("?",)
        }
        assert names == {"u", "t"}


async def test_consumers_one_after_another(autojump_clock: MockClock) -> None:
    """Of one client, and one topic: each opens in some milliseconds, as the topic is known. One
    that opens long after that asks again."""
    async with reading(1) as (world, client):
        for _ in range(20):
            begin = trio.current_time()
            async with consumer(client):
                assert trio.current_time() - begin < 0.05
        assert world.metadata_requests <= 3
        await trio.sleep(60)
        before = world.metadata_requests
        async with consumer(client):
            assert world.metadata_requests == before + 1


async def test_a_topic_that_comes_late(autojump_clock: MockClock) -> None:
    """Not there yet when it is opened, created within a moment: read from its beginning."""
    async with reading(1) as (world, client), consumer(client, "late", start="latest") as c:
        assert await take_all(c) == []
        world.add_topic("late", 2)
        append(world, 0, "a", topic="late")
        assert await take(c, 1, seconds=1) == ["a"]


async def test_a_topic_that_is_not_there(autojump_clock: MockClock) -> None:
    """Told after five seconds, with the way out, and again if one goes on asking."""
    async with reading(1) as (world, client), consumer(client, "nope") as c:
        begin = trio.current_time()
        for _ in range(2):
            with pytest.raises(
                UnknownTopicOrPartition, match="make it first, raftmq topic create nope"
            ):
                await anext(c)
        assert 10 <= trio.current_time() - begin <= 13
        world.add_topic("nope", 1)
        append(world, 0, "a", topic="nope")
        assert await take(c, 1) == ["a"]
