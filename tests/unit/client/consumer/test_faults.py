"""Leaders that move, brokers that are silent, damage: what is tried again, and what is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import (
    ErrorCode,
    LogTruncation,
    OffsetOutOfRange,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from raftmq.rpc.reply import Reply
from raftmq.wire.messages.offsets import ListOffsets
from tests.unit.client.consumer.reading import append, consumer, reading, take, take_all
from tests.unit.client.world import batch, lost, refused, silent

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.client.world import Step, Turn


def damaged(turn: Turn) -> Reply:
    """A bit of the last byte has changed."""
    reply = turn.carry_out()
    (data,) = reply.payload
    assert isinstance(data, bytes)
    return Reply(reply.body, (data[:-1] + bytes([data[-1] ^ 1]),))


def too_short(turn: Turn) -> Reply:
    """Not all that was announced."""
    reply = turn.carry_out()
    (data,) = reply.payload
    assert isinstance(data, bytes)
    return Reply(reply.body, (data[:-1],))


def of_others(turn: Turn) -> Reply:
    """An answer about partitions that nobody has asked for."""
    reply = turn.carry_out()
    assert reply.body is not None
    return Reply(type(reply.body)(partitions=reply.body.partitions * 2), reply.payload * 2)  # type: ignore[attr-defined,call-arg]


@pytest.mark.parametrize(
    "step",
    [
        lost,
        too_short,
        of_others,
        damaged,
        refused(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        refused(ErrorCode.UNKNOWN_LEADER_EPOCH),
        refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        refused(ErrorCode.UNKNOWN_TOPIC_ID),
        refused(ErrorCode.KAFKA_STORAGE_ERROR),
        refused(ErrorCode.CORRUPT_MESSAGE),
    ],
)
async def test_what_may_pass_is_tried_again(autojump_clock: MockClock, step: Step) -> None:
    """Nobody notices."""
    async with reading(1) as (world, client):
        append(world, 0, "a", "b")
        world.brokers[1].fetches = [step]
        async with consumer(client) as c:
            assert await take(c, 2, seconds=1) == ["a", "b"]


@pytest.mark.parametrize("gives_hints", [False, True])
async def test_leaders_that_move(autojump_clock: MockClock, gives_hints: bool) -> None:
    """Again and again, while records come: each is handed out once, in order."""
    async with reading(1, 2) as (world, client):
        world.gives_hints = gives_hints
        async with consumer(client) as c:
            found = []
            for number in range(12):
                append(world, number % 2, f"{number:02}")
                begin = trio.current_time()
                found += await take(c, 1)
                assert trio.current_time() - begin < 0.1
                world.lead("u", number % 2, 2 - (number // 2) % 2)
            assert found == [f"{number:02}" for number in range(12)]


async def test_a_silent_broker_does_not_hold_up_the_others(autojump_clock: MockClock) -> None:
    """What another leads comes at once; what it leads itself once somebody else leads it."""
    async with reading(1, 2) as (world, client), consumer(client, fetch_max_wait_ms=100) as c:
        await take_all(c)
        world.brokers[1].fetches = [silent] * 100
        await trio.sleep(0.2)
        append(world, 0, "a")
        for number in range(5):
            append(world, 1, str(number))
            assert await take(c, 1, seconds=0.05) == [str(number)]
            await trio.sleep(0.1)
        world.lead("u", 0, 2)
        assert await take(c, 1, seconds=2) == ["a"]


async def test_a_silent_broker_is_asked_again(autojump_clock: MockClock) -> None:
    """It stood still, and leads as before."""
    async with reading(1) as (world, client), consumer(client) as c:
        await take_all(c)
        world.brokers[1].fetches = [silent]
        await trio.sleep(1)
        append(world, 0, "a")
        assert await take(c, 1, seconds=5) == ["a"]


async def test_a_broker_that_stops_and_comes_back(autojump_clock: MockClock) -> None:
    """Nobody else can lead: waiting is all there is to do, and it is over soon afterwards."""
    async with reading(1, brokers=1) as (world, client), trio.open_nursery() as nursery:
        async with consumer(client) as c:
            append(world, 0, "a")
            await take(c, 1)
            world.brokers[1].stop()
            append(world, 0, "b")
            assert await take_all(c, seconds=60) == []
            await nursery.start(world.brokers[1].run)
            assert await take(c, 1, seconds=5) == ["b"]
        nursery.cancel_scope.cancel()


async def test_nobody_leads_for_a_while(autojump_clock: MockClock) -> None:
    """The rest goes on; once somebody leads it is found without being told."""
    async with reading(1, 2) as (world, client), consumer(client) as c:
        await take_all(c)
        world.lead("u", 0, -1)
        append(world, 1, "x")
        append(world, 0, "a")
        assert await take_all(c, seconds=5) == ["x"]
        world.lead("u", 0, 2)
        assert await take(c, 1, seconds=1.2) == ["a"]


async def test_the_start_is_tried_again(autojump_clock: MockClock) -> None:
    """No broker has heard yet who leads: whoever is asked where its log ends leads no more."""
    async with reading(1) as (world, client), trio.open_nursery() as nursery:
        append(world, 0, "old")
        for broker in world.brokers.values():
            broker.behind = world.metadata(["u"])
        world.lead("u", 0, 2)

        async def hear() -> None:
            await trio.sleep(2)
            for broker in world.brokers.values():
                broker.behind = None

        nursery.start_soon(hear)
        async with consumer(client, start="latest") as c:
            await trio.sleep(4)
            append(world, 0, "new")
            assert await take(c, 1, seconds=1) == ["new"]
        assert world.brokers[1].count(ListOffsets) >= 1


async def test_an_offset_that_is_not_there(autojump_clock: MockClock) -> None:
    """Told with what there is and the way out; again if nothing is done; seek helps."""
    async with reading(1) as (world, client):
        append(world, 0, "a")
        append(world, 0, "b")
        world.topics["u"].partitions[0].log_start_offset = 1
        async with consumer(client, start=0) as c:
            for _ in range(2):
                with pytest.raises(OffsetOutOfRange) as caught:
                    await take(c, 1)
                assert "u-0: offset 0 is not there: the first is 1, the last 1" in str(caught.value)
                assert "seek('u', 0, offset=1)" in str(caught.value)
                assert (caught.value.topic, caught.value.partition) == ("u", 0)
            c.seek("u", 0, offset=1)
            assert await take(c, 1) == ["b"]


@pytest.mark.parametrize(("reset", "expected"), [("earliest", ["b"]), ("latest", [])])
async def test_an_offset_that_is_not_there_and_what_to_do_then(
    autojump_clock: MockClock, reset: str, expected: list[str]
) -> None:
    """Reading goes on by itself, at that end."""
    async with reading(1) as (world, client):
        append(world, 0, "a")
        append(world, 0, "b")
        world.topics["u"].partitions[0].log_start_offset = 1
        async with consumer(client, start=0, auto_offset_reset=reset) as c:
            assert await take_all(c) == expected
            append(world, 0, "c")
            assert await take(c, 1) == ["c"]


async def test_records_that_the_log_has_lost(autojump_clock: MockClock) -> None:
    """A leader without the last record took over: told where the logs part, and seek goes on."""
    async with reading(1, 1) as (world, client):
        append(world, 0, "a")
        append(world, 0, "b")
        async with consumer(client, assign=[("u", 0)]) as c:
            assert await take(c, 2) == ["a", "b"]
            world.topics["u"].partitions[0].truncate(1)
            world.lead("u", 0, 2)
            append(world, 0, "c", "d")
            for _ in range(2):
                with pytest.raises(LogTruncation, match="u-0: records from offset 1 on") as caught:
                    await take(c, 1)
                assert (caught.value.offset, caught.value.topic) == (1, "u")
            c.seek("u", 0, offset=caught.value.offset)
            assert await take(c, 2) == ["c", "d"]


async def test_records_that_were_lost_before_they_were_handed_out(
    autojump_clock: MockClock,
) -> None:
    """They were fetched ahead: nobody has seen them, and nobody has to know."""
    async with reading(1) as (world, client):
        for value in "abc":
            append(world, 0, value)
        async with consumer(client, max_poll_records=1) as c:
            assert await take(c, 1) == ["a"]
            await trio.sleep(1)
            world.topics["u"].partitions[0].truncate(1)
            world.lead("u", 0, 2)
            append(world, 0, "B", "C")
            await trio.sleep(1)
            assert await take_all(c) == ["B", "C"]


async def test_records_that_were_lost_on_both_sides_of_the_position(
    autojump_clock: MockClock,
) -> None:
    """Some were handed out, some only fetched: told, as what was handed out is gone."""
    async with reading(1) as (world, client):
        for value in "abc":
            append(world, 0, value)
        async with consumer(client, max_poll_records=2) as c:
            assert await take(c, 2) == ["a", "b"]
            await trio.sleep(1)
            world.topics["u"].partitions[0].truncate(1)
            world.lead("u", 0, 2)
            append(world, 0, "B", "C", "D")
            await trio.sleep(1)
            with pytest.raises(LogTruncation) as caught:
                await take(c, 1)
            assert caught.value.offset == 1


async def test_what_no_repetition_would_change(autojump_clock: MockClock) -> None:
    """Told at once, with the partition."""
    async with reading(1) as (world, client):
        append(world, 0, "a")
        world.brokers[1].fetches = [refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)]
        async with consumer(client) as c:
            with pytest.raises(TopicAuthorizationFailed, match="u-0"):
                await take(c, 1, seconds=0.1)
            assert await take(c, 1) == ["a"]


async def test_a_topic_that_was_created_anew(autojump_clock: MockClock) -> None:
    """It is another topic: told, again and again, until somebody seeks."""
    async with reading(1) as (world, client):
        append(world, 0, "a")
        async with consumer(client) as c:
            assert await take(c, 1) == ["a"]
            del world.topics["u"]
            world.add_topic("u", 2)
            append(world, 0, "new")
            for _ in range(2):
                with pytest.raises(UnknownTopicId, match="'u' was deleted and created anew"):
                    await take(c, 1)
            c.seek("u", 0, offset=0)
            assert await take(c, 1) == ["new"]


async def test_a_topic_that_was_deleted(autojump_clock: MockClock) -> None:
    """After five seconds without it."""
    async with reading(1) as (world, client):
        append(world, 0, "a")
        async with consumer(client) as c:
            assert await take(c, 1) == ["a"]
            del world.topics["u"]
            world.version += 1
            begin = trio.current_time()
            with pytest.raises(UnknownTopicOrPartition, match="no topic 'u'"):
                await take(c, 1)
            assert 5 <= trio.current_time() - begin < 7


async def test_nothing_of_a_deleted_topic_comes_after_its_error(autojump_clock: MockClock) -> None:
    """A program that reads slowly has fetched records of it; what it reads besides goes on."""
    async with reading(1) as (world, client):
        world.add_topic("v", 2)
        append(world, 0, "a", "b", "c")
        async with consumer(client, "u", "v", max_poll_records=1) as c:
            assert await take(c, 1) == ["a"]
            del world.topics["u"]
            world.version += 1
            await trio.sleep(30)
            append(world, 0, "v", topic="v")
            with pytest.raises(UnknownTopicOrPartition, match="no topic 'u'"):
                await take(c, 2)
            assert await take_all(c, seconds=3) == ["v"]


async def test_records_of_a_topic_that_was_created_anew(autojump_clock: MockClock) -> None:
    """Those that were fetched before come before the error of their partition, none after it."""
    async with reading(1) as (world, client):
        append(world, 0, "a", "b", "c")
        async with consumer(client, max_poll_records=1) as c:
            assert await take(c, 1) == ["a"]
            del world.topics["u"]
            world.add_topic("u", 2)
            append(world, 0, "new")
            await trio.sleep(30)
            assert await take(c, 2) == ["b", "c"]
            with pytest.raises(UnknownTopicId, match="'u' was deleted and created anew"):
                await take(c, 1)
            with pytest.raises(UnknownTopicId, match="'u' was deleted and created anew"):
                await take_all(c)


async def test_a_partition_that_does_not_exist(autojump_clock: MockClock) -> None:
    """The others are read meanwhile; it is told how many there are."""
    async with reading(1, 2) as (world, client):
        append(world, 0, "a")
        async with consumer(client, assign=[("u", 0), ("u", 2)]) as c:
            assert await take(c, 1) == ["a"]
            with pytest.raises(UnknownTopicOrPartition, match=r"u-2 does not .* has 2 partitions"):
                await take(c, 1)
            world.add_partition("u", 1)
            append(world, 2, "b")
            assert await take(c, 1) == ["b"]


async def test_nobody_to_be_reached(autojump_clock: MockClock) -> None:
    """Opening waits for as long as one lets it, and leaves nothing behind."""
    async with reading(1) as (world, client):
        for broker in world.brokers.values():
            broker.stop()
        with trio.move_on_after(60) as scope:
            async with consumer(client):
                raise AssertionError("opened without a cluster")
        assert scope.cancelled_caught


async def test_a_large_batch_comes_nevertheless(autojump_clock: MockClock) -> None:
    """Larger than all limits."""
    async with reading(1) as (world, client):
        append(world, 0, "x" * 50_000)
        world.topics["u"].partitions[0].append(batch("y"))
        limits = {"fetch_max_bytes": 10, "max_partition_fetch_bytes": 10, "prefetch_bytes": 10}
        async with consumer(client, **limits) as c:
            assert [len(text) for text in await take(c, 2)] == [50_000, 1]
