"""The producer in virtual time: lingering, batching, acks, and where records end up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from raftmq.errors import (
    InvalidRecord,
    InvalidTopic,
    MessageTooLarge,
    UnknownTopicOrPartition,
)
from raftmq.wire.messages.metadata import Metadata
from tests.unit.client.producer.shell import (
    NOW_MS,
    in_log,
    open_producer,
    requests,
    used_bytes,
)
from tests.unit.client.world import World

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_one_record(autojump_clock: MockClock) -> None:
    """All that a record may have arrives, and its place comes back."""
    async with open_producer() as (world, producer):
        first = await producer.send(
            "t", b"hello", key="c-17", headers={"trace": b"1"}, tags=["refund"], timestamp=5
        )
        assert first == ("t", 0, 0, 5)
        second = await producer.send("t", None, key=7, partition=0)
        assert second == ("t", 0, 1, NOW_MS)
        assert (await (await producer.enqueue("t", b""))).offset == 2
        assert in_log(world) == ["hello", "", ""]
        statistics = producer.statistics
        assert (statistics.records, statistics.batches, statistics.requests) == (3, 3, 3)
    assert used_bytes(producer) == 0


@pytest.mark.parametrize("linger_ms", [0, 5, 50])
async def test_lingering_bounds_latency(autojump_clock: MockClock, linger_ms: float) -> None:
    """A lone record takes linger and a round trip; with linger 0 it leaves at once (A4.5)."""
    async with open_producer(linger_ms=linger_ms) as (_, producer):
        await producer.send("t", b"dials")
        for _ in range(5):
            begin = trio.current_time()
            await producer.send("t", b"x")
            seconds = trio.current_time() - begin
            assert linger_ms / 1000 <= seconds < linger_ms / 1000 + 0.01


async def test_lingering_fills_requests(autojump_clock: MockClock) -> None:
    """One record a millisecond: 50 ms of linger put some fifty into each request (A4.5)."""
    per_request = []
    for linger_ms in (0, 50):
        async with open_producer(linger_ms=linger_ms) as (world, producer):
            await producer.send("t", b"dials")
            for _ in range(200):
                producer.send_nowait("t", b"x")
                await trio.sleep(0.001)
            await producer.flush()
            per_request.append(200 / (len(requests(world)) - 1))
    assert per_request[0] < 10
    assert 40 <= per_request[1] <= 70


async def test_a_full_batch_does_not_linger(autojump_clock: MockClock) -> None:
    """It leaves when it is full; the rest with the linger of its own first record."""
    async with open_producer(linger_ms=1000, batch_size=100) as (world, producer):
        await producer.send("t", b"dials")
        begin = trio.current_time()
        deliveries = [producer.send_nowait("t", b"x" * 30, key=b"k") for _ in range(7)]
        await deliveries[2]
        assert trio.current_time() - begin < 0.01
        await deliveries[6]
        assert 1 <= trio.current_time() - begin < 1.01
        assert len(in_log(world)) == 8
        assert [len(batch) for batch in world.topics["t"].partitions[0].batches] == [3, 3, 3, 3]


async def test_flush_hurries(autojump_clock: MockClock) -> None:
    """Nothing lingers while somebody waits for everything to leave."""
    async with open_producer(linger_ms=60_000) as (world, producer):
        await producer.enqueue("t", b"x")
        begin = trio.current_time()
        await producer.flush()
        assert trio.current_time() - begin < 0.1
        assert in_log(world) == ["x"]


async def test_flush_waits_for_what_came_before(autojump_clock: MockClock) -> None:
    """Others go on sending: flush ends nevertheless."""
    async with open_producer() as (_, producer), trio.open_nursery() as tasks:

        async def send_for_ever() -> None:
            while True:
                await producer.send("t", b"other")

        tasks.start_soon(send_for_ever)
        for _ in range(3):
            delivery = producer.send_nowait("t", b"mine")
            with trio.fail_after(1):
                await producer.flush()
            assert delivery.is_done
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(("acks", "number"), [("all", -1), (1, 1), (2, 2), (0, 0)])
async def test_acks(autojump_clock: MockClock, acks: Any, number: int) -> None:
    """What is asked for travels as it is; with 0 nobody tells the offset (A5.1)."""
    async with open_producer(acks=acks) as (world, producer):
        found = await producer.send("t", b"x", key=b"k")
        assert found.offset == (-1 if acks == 0 else 0)
        many = await producer.send_many("t", [b"y", b"z"])
        assert [result.end_offset for result in many] == [-1 if acks == 0 else 3]
        await trio.sleep(1)
        assert in_log(world) == ["x", "y", "z"]
        assert {body.acks for body in requests(world)} == {number}


async def test_partitions_of_one_leader_share_a_request(autojump_clock: MockClock) -> None:
    """Eight partitions, two leaders: two requests."""
    world = World(2)
    world.add_topic("many", *[1, 2] * 4)
    async with open_producer(world, linger_ms=20) as (_, producer):
        await producer.send("many", b"dials", partition=0)
        await producer.send("many", b"dials", partition=1)
        before = len(requests(world))
        for partition in range(8):
            await producer.enqueue("many", b"%d" % partition, partition=partition)
        await producer.flush()
        assert len(requests(world)) - before == 2
        assert [in_log(world, each, "many")[-1] for each in range(8)] == list("01234567")


async def test_keys_stay_together(autojump_clock: MockClock) -> None:
    """A key has one partition, whichever call sends it; records without one are spread (A4.2)."""
    world = World(2)
    world.add_topic("many", *[1, 2] * 4)
    async with open_producer(world, batch_size=64) as (_, producer):
        found = {(await producer.send("many", b"a", key="7")).partition}
        found |= {(await producer.send_many("many", [b"b"], key=lambda _: b"7"))[0].partition}
        found |= {(await producer.send_columns("many", values=[b"c"], keys=["7"]))[0].partition}
        assert len(found) == 1
        results = await producer.send_many("many", [b"%032d" % each for each in range(160)])
        counts = dict.fromkeys(range(8), 0)
        for result in results:
            counts[result.partition] += result.record_count
        assert set(counts.values()) == {20}


async def test_a_topic_that_there_is_not(autojump_clock: MockClock) -> None:
    """It is told after 5 s and not before: it may just have been made."""
    async with open_producer() as (_, producer):
        for _ in range(2):
            begin = trio.current_time()
            with pytest.raises(UnknownTopicOrPartition, match="make it first") as caught:
                await producer.send("nope", b"x")
            assert 5 <= trio.current_time() - begin < 6
            assert caught.value.topic == "nope"
            with pytest.raises(UnknownTopicOrPartition, match="make it first"):
                await producer.send_many("nope", [b"x"])
        assert used_bytes(producer) == 0
        assert producer.statistics.failed_records == 2


async def test_a_topic_that_is_made_meanwhile(autojump_clock: MockClock) -> None:
    """Records that came before are sent in their order, before those that come after."""
    async with open_producer() as (world, producer):
        early = [producer.send_nowait("new", b"%d" % each) for each in range(3)]
        await trio.sleep(3)
        assert not early[0].is_done
        world.add_topic("new", 2)
        await trio.sleep(1)
        late = await producer.send("new", b"3")
        assert [(await each).offset for each in early] == [0, 1, 2]
        assert late.offset == 3
    assert used_bytes(producer) == 0


async def test_a_topic_that_was_missing_long_ago(autojump_clock: MockClock) -> None:
    """It failed then; made since, it is found at once."""
    async with open_producer() as (world, producer):
        with pytest.raises(UnknownTopicOrPartition):
            await producer.send("new", b"x")
        await trio.sleep(60)
        world.add_topic("new", 1)
        with trio.fail_after(1):
            await producer.send("new", b"x")


async def test_a_topic_deleted_and_made_again(autojump_clock: MockClock) -> None:
    """The new one has another id and other partitions; after one refusal records go there."""
    async with open_producer() as (world, producer):
        await producer.send("t", b"old")
        world.add_topic("t", 2, 2, 2)
        with trio.fail_after(2):
            found = await producer.send("t", b"new", key=b"k")
        assert in_log(world, found.partition) == ["new"]


async def test_a_topic_that_is_deleted(autojump_clock: MockClock) -> None:
    """What was placed in its partitions fails, certainly not appended, after the 5 s in which it
    may be made anew, and not after the whole delivery timeout.
    """
    async with open_producer(linger_ms=100) as (world, producer):
        await producer.send("t", b"x")
        deliveries = [producer.send_nowait("t", b"%d" % each) for each in range(3)]
        del world.topics["t"]
        world.version += 1
        begin = trio.current_time()
        for delivery in deliveries:
            with pytest.raises(UnknownTopicOrPartition) as caught:
                await delivery
            assert caught.value.definite
        assert 5 <= trio.current_time() - begin < 7
    assert used_bytes(producer) == 0


async def test_a_topic_that_grows(autojump_clock: MockClock) -> None:
    """A second after any answer the producer knows, and new partitions are used (A4.9)."""
    async with open_producer() as (world, producer):
        await producer.send("t", b"x")
        world.add_partition("t", 2)
        used = set()
        begin = trio.current_time()
        while len(used) < 2:
            used.add((await producer.send("t", b"x")).partition)
            await trio.sleep(0.1)
        assert trio.current_time() - begin < 2.5


async def test_metadata_is_asked_for_once(autojump_clock: MockClock) -> None:
    """Not for every record, nor for every batch."""
    async with open_producer() as (world, producer):
        for _ in range(50):
            await producer.send("t", b"x")
        asked = sum(broker.count(Metadata) for broker in world.brokers.values())
        assert asked <= 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"value": {"a": 1}}, "value is a dict, expected bytes, str or None; value_serializer"),
        ({"value": b"", "key": 1.5}, "key is a float"),
        ({"value": b"", "key": 1 << 64}, "does not fit into 64 bits"),
        ({"value": b"", "headers": {"a": 1}}, "is an int, expected bytes"),
        ({"value": b"", "headers": "a"}, "^headers is a str, expected a mapping or pairs"),
        ({"value": b"", "tags": {"red": "x"}}, "^tags is a dict, expected a list of str"),
        ({"value": b"", "timestamp": -1}, "timestamp = -1: expected milliseconds"),
        ({"value": b"", "timestamp": 1.5}, "timestamp is a float"),
        ({"value": b"", "partition": 7}, "partition 7: topic 't' has the partitions 0 to 0"),
        ({"value": b"", "partition": "0"}, "partition is a str"),
    ],
)
async def test_what_cannot_be_sent(
    autojump_clock: MockClock, given: dict[str, Any], told: str
) -> None:
    """Told at the call, before and after the topic is known; nothing is kept of it."""
    async with open_producer() as (_, producer):
        for _ in range(2):
            with pytest.raises(InvalidRecord, match=told):
                await producer.send("t", **given)
            await producer.send("t", b"good")
        assert used_bytes(producer) == 0


async def test_a_record_that_is_too_large(autojump_clock: MockClock) -> None:
    """The error says how large it may be; the largest one goes through."""
    async with open_producer(max_request_size=1000) as (_, producer):
        await producer.send("t", b"x" * 1000)
        with pytest.raises(
            MessageTooLarge, match="a record of 1001 bytes; max_request_size is 1000"
        ):
            producer.send_nowait("t", b"x" * 1001)


@pytest.mark.parametrize("name", ["", "a b", "x" * 300, ".."])
async def test_a_name_that_no_topic_has(autojump_clock: MockClock, name: str) -> None:
    """Refused at once, without asking anybody."""
    async with open_producer() as (_, producer):
        with pytest.raises(InvalidTopic):
            producer.send_nowait(name, b"x")
        with pytest.raises(TypeError):
            producer.send_nowait(5, b"x")  # type: ignore[arg-type]
        assert used_bytes(producer) == 0


async def test_a_partitioner_of_the_programs_own(autojump_clock: MockClock) -> None:
    """It is asked with all there is; what it says out of range, or raises, is told (A4.3)."""

    def choose(topic: str, key: Any, value: Any, headers: Any, partitions: int) -> int:
        assert (topic, partitions) == ("many", 4)
        assert headers is None or dict(headers) == {"to": b"2"}
        return int(dict(headers)["to"]) if headers else int(value)

    world = World(1)
    world.add_topic("many", 1, 1, 1, 1)
    async with open_producer(world, partitioner=choose) as (_, producer):
        assert (await producer.send("many", b"1")).partition == 1
        assert (await producer.send("many", b"1", headers={"to": b"2"})).partition == 2
        assert (await producer.send("many", b"1", partition=3)).partition == 3
        with pytest.raises(InvalidRecord, match="partition 4: topic 'many'"):
            producer.send_nowait("many", b"4")
        with pytest.raises(InvalidRecord, match="the partitioner failed: ValueError"):
            await producer.send_many("many", [b"1", b"x"])
        assert used_bytes(producer) == 0
    async with open_producer(World(1), partitioner=choose) as (world, producer):
        world.add_topic("many", 1, 1, 1, 1)
        with pytest.raises(InvalidRecord, match="the partitioner failed: ValueError"):
            await producer.send("many", b"x")  # asked only when the topic is known
        assert (await producer.send("many", b"1")).partition == 1


async def test_fuller_requests_for_throughput(autojump_clock: MockClock) -> None:
    """Records with keys trickle in over many partitions: the preset needs fewer requests."""
    counts = {}
    for preset in (None, "high_throughput"):
        world = World(2)
        world.add_topic("many", *[1, 2] * 3)
        async with open_producer(world, preset=preset) as (_, producer):
            for number in range(400):
                producer.send_nowait("many", bytes(100), key=b"%d" % number)
                await trio.sleep(0.0005)
            await producer.flush()
            counts[preset] = producer.statistics.requests
    assert counts["high_throughput"] < counts[None] / 2
