"""A producer's id: asked of any broker before the first batch leaves, and what if there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from raftmq.errors import (
    DeliveryTimedOut,
    ErrorCode,
    OutcomeUnknown,
    ServerError,
    UnsupportedVersion,
)
from raftmq.rpc.reply import Reply
from raftmq.wire.batch.header import read_header
from raftmq.wire.messages.produce import PartitionProduced, ProduceReply
from raftmq.wire.messages.producers import InitProducerId, InitProducerIdReply
from tests.unit.client.producer.shell import in_log, open_producer, open_stage, requests
from tests.unit.client.world import refused, silent

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.client.world import Turn, World

BUSY = refused(ErrorCode.NOT_CONTROLLER)


def asked(world: World) -> int:
    return sum(broker.count(InitProducerId) for broker in world.brokers.values())


def numbers(world: World) -> list[tuple[int, int, int]]:
    """Id, epoch and sequence of each batch in the log."""
    headers = [read_header(data) for _, _, data in world.topics["t"].partitions[0].batches]
    return [(one.producer_id, one.producer_epoch, one.base_sequence) for one in headers]


async def test_one_for_each_producer(autojump_clock: MockClock) -> None:
    """Asked for once, with the first record; whoever sends nothing needs none."""
    async with open_stage() as (world, _, client), client.producer():
        async with client.producer() as first, client.producer() as second:
            await first.send("t", b"a")
            await second.send("t", b"b")
            await first.send("t", b"c")
        assert asked(world) == 2
        assert numbers(world) == [(1001, 0, 0), (1002, 0, 0), (1001, 0, 1)]


@pytest.mark.parametrize("options", [{"idempotence": False}, {"acks": 0}])
async def test_none_is_needed(autojump_clock: MockClock, options: dict[str, Any]) -> None:
    """Then batches carry no numbers."""
    async with open_producer(**options) as (world, producer):
        await producer.send("t", b"a")
        await producer.flush()
        await trio.sleep(0.1)
        assert asked(world) == 0
        assert numbers(world) == [(-1, -1, -1)]


async def test_brokers_that_have_none_just_now(autojump_clock: MockClock) -> None:
    """Records are taken meanwhile; it is asked again, and nobody hears of it."""
    async with open_producer() as (world, producer):
        for broker in world.brokers.values():
            broker.producer_ids += [BUSY] * 3
        deliveries = [producer.send_nowait("t", b"%d" % number) for number in range(3)]
        for delivery in deliveries:
            await delivery
        assert in_log(world) == ["0", "1", "2"]
        assert trio.current_time() < 3


@pytest.mark.parametrize("silent_id", [1, 2])
async def test_a_broker_that_does_not_answer(autojump_clock: MockClock, silent_id: int) -> None:
    """It may be cut off from the quorum: after five seconds another one is asked."""
    async with open_producer() as (world, producer):
        world.brokers[silent_id].producer_ids += [silent] * 9
        begin = trio.current_time()
        await producer.send("t", b"a")
        assert trio.current_time() - begin < 6


async def test_none_in_time(autojump_clock: MockClock) -> None:
    """Certainly not appended; and what was missing is said."""
    async with open_producer(delivery_timeout_ms=3000) as (world, producer):
        for broker in world.brokers.values():
            broker.producer_ids += [BUSY] * 99
        with pytest.raises(DeliveryTimedOut, match="no broker has given a producer id") as caught:
            await producer.send("t", b"a")
        assert caught.value.definite
        assert requests(world) == []


async def test_brokers_that_know_no_ids(autojump_clock: MockClock) -> None:
    """Waiting would not help, so it is told at once, with what would."""
    async with open_stage() as (world, tasks, client):
        for broker in world.brokers.values():
            broker.stop()
            del broker.handlers[InitProducerId]
        await trio.sleep(0.1)
        for broker in world.brokers.values():
            await tasks.start(broker.run)
        async with client.producer() as producer:
            begin = trio.current_time()
            with pytest.raises(UnsupportedVersion, match="idempotence=False"):
                await producer.send("t", b"a")
            assert trio.current_time() - begin < 2
        async with client.producer(idempotence=False) as producer:
            await producer.send("t", b"a")


async def test_an_answer_without_an_id(autojump_clock: MockClock) -> None:
    """No broker of ours says that: whoever does is not believed."""
    async with open_producer() as (world, producer):
        for broker in world.brokers.values():
            broker.producer_ids += [lambda _turn: Reply(InitProducerIdReply())] * 2
        with pytest.raises(ServerError, match="left it out"):
            await producer.send("t", b"a")


@pytest.mark.parametrize("places", [(0,), (0, 1, 2)])
async def test_places_of_other_batches(autojump_clock: MockClock, places: tuple[int, ...]) -> None:
    """Two batches were sent, and an answer names the places of another number of them."""
    async with open_producer(batch_size=1, linger_ms=50) as (world, producer):
        await producer.send("t", b"first")
        partition = world.topics["t"].partitions[0]

        def other(turn: Turn) -> Reply:
            turn.carry_out()
            wanted = requests(world)[-1].partitions[0]
            found = PartitionProduced(wanted.topic_id, wanted.partition, base_offsets=places)
            return Reply(ProduceReply((found,)))

        world.brokers[1].produces += [other]
        deliveries = [producer.send_nowait("t", b"a"), producer.send_nowait("t", b"b")]
        for delivery in deliveries:
            with pytest.raises(OutcomeUnknown, match="which got 2"):
                await delivery
        assert partition.end_offset == 3
        assert (await producer.send("t", b"c")).offset == 3
        assert numbers(world)[-1] == (1001, 1, 0)


async def test_leaving_while_it_is_asked_for(autojump_clock: MockClock) -> None:
    """The block ends when everything is delivered, which takes an id."""
    async with open_stage() as (world, _, client):
        for broker in world.brokers.values():
            broker.producer_ids += [BUSY] * 2
        async with client.producer() as producer:
            producer.send_nowait("t", b"a")
        assert in_log(world) == ["a"]
