"""A producer of `raftmq.sync`: what one thread hands in stands in the order of its calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import BufferExhausted, RequestTimedOut
from raftmq.sync.producer import Producer
from tests.unit.client.producer.shell import in_log, open_stage
from tests.unit.sync.loop_here import LoopHere

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock

    from raftmq.rpc.reply import Reply
    from tests.unit.client.world import Turn

SMALL = {"buffer_memory": 64 << 10, "batch_size": 8 << 10, "max_request_size": 16 << 10}
HANDOVER_BYTES_MAX = 1 << 20
SINGLE = [b"a%d" % number + 400 * b" " for number in range(300)]  # more than the buffer holds
BULK = [b"b%d" % number for number in range(5)]


def enqueue_all(producer: Producer) -> None:
    for value in SINGLE:
        producer.enqueue("t", value)


def send_nowait_all(producer: Producer) -> None:
    for value in SINGLE:
        producer.send_nowait("t", value)


def send_many(producer: Producer) -> None:
    producer.send_many("t", BULK)


def send_slow_rows(producer: Producer) -> None:
    producer.send_many("t", iter(BULK))


def send_columns(producer: Producer) -> None:
    producer.send_columns("t", values=BULK)


@pytest.mark.parametrize("hand_in", [enqueue_all, send_nowait_all])
@pytest.mark.parametrize("send_bulk", [send_many, send_slow_rows, send_columns])
async def test_bulk_behind_single_records(
    autojump_clock: MockClock,
    hand_in: Callable[[Producer], None],
    send_bulk: Callable[[Producer], None],
) -> None:
    """The buffer is full, so single records still wait to be taken over when a bulk is sent."""
    async with open_stage() as (world, _, client), trio.open_nursery() as nursery:
        loop = LoopHere(nursery)

        def program() -> None:
            with Producer(loop, client.producer(**SMALL), HANDOVER_BYTES_MAX) as producer:
                hand_in(producer)
                send_bulk(producer)
                assert in_log(world) == [value.decode() for value in SINGLE + BULK]

        await loop.run(program)


async def test_no_room_in_time(autojump_clock: MockClock) -> None:
    """The broker is slow, and the buffer full: a record is refused, definitely. All before it are
    sent."""
    async with open_stage() as (world, _, client), trio.open_nursery() as nursery:
        loop, released = LoopHere(nursery), trio.Event()
        accepted = list[str]()

        async def answer_late(turn: Turn) -> Reply:
            await released.wait()
            return turn.carry_out()

        def enqueue_until_full(producer: Producer) -> None:
            for value in SINGLE:
                producer.enqueue("t", value, timeout=0)
                accepted.append(value.decode())

        def program() -> None:
            with Producer(loop, client.producer(**SMALL), 8 << 10) as producer:
                with pytest.raises(RequestTimedOut, match="no room within 0 s") as caught:
                    enqueue_until_full(producer)
                assert isinstance(caught.value, BufferExhausted)
                assert caught.value.definite
                with pytest.raises(BufferExhausted):  # in a callback, as it does not wait
                    loop.ask(lambda: enqueue_until_full(producer))
                loop.ask(released.set)

        world.brokers[1].produces.append(answer_late)
        await loop.run(program)
        assert accepted == in_log(world)
        assert accepted
