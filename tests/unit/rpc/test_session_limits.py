"""What one connection may cost a server: work, memory, time; and what it gets beyond that."""

from __future__ import annotations

import tracemalloc
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import ErrorCode
from raftmq.model import Address
from raftmq.rpc.protocol import RpcLimits
from raftmq.rpc.reply import Reply
from raftmq.wire.messages.cluster import Propose, ProposeReply
from tests.simulation.network import SimulatedNetwork
from tests.unit.rpc.talk import (
    BEATEN,
    BROKERS,
    CLIENTS,
    ECHO,
    Stranger,
    beat,
    beating,
    calling,
    connected,
    greeted,
    never,
    new_server,
    proposing,
)

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.rpc.context import RequestContext

# Limits


async def test_who_is_not_answered_is_not_read_from(autojump_clock: MockClock) -> None:
    """A handler never answers: after 5 requests the server stops reading, and lives on."""
    begun: list[int] = []
    handlers = beating(lambda number: begun.append(number) or never())  # type: ignore[func-returns-value]
    limits = RpcLimits(requests_in_flight_max=5)
    async with calling(new_server(handlers, limits=limits)) as stranger:
        await stranger.send(*(beat(number) for number in range(100)))
        await trio.sleep(60)
        assert begun == [0, 1, 2, 3, 4]
        alive = [await stranger.receive() for _ in range(20)]
        assert {answer.correlation_id for answer in alive} == {0}  # signs of life, for nobody


async def test_bytes_in_flight_are_bounded(autojump_clock: MockClock) -> None:
    """8 MiB are sent to a handler that never answers: the server holds one MiB and some."""
    begun: list[int] = []

    def handle(_context: RequestContext, _body: Propose, payload: bytes) -> object:
        begun.append(len(payload))
        return hold(payload)

    async def hold(payload: bytes) -> Reply:
        await trio.sleep_forever()
        return Reply(ProposeReply(payload))

    limits = RpcLimits(bytes_in_flight_max=1 << 20)
    async with calling(new_server({Propose: handle}, limits=limits)) as stranger:  # type: ignore[dict-item]
        payload = bytes(256 << 10)
        for _ in range(32):
            await stranger.send(Propose(b""), payload=payload)
        tracemalloc.start()
        await trio.sleep(1)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(begun) == 4
        assert held < 4 << 20


async def test_answers_that_nobody_takes_hold_up_who_asks(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A client asks on and on and reads nothing: the server stops, and hangs up after 30 s."""
    begun: list[bytes] = []

    def handle(command: bytes) -> Reply:
        begun.append(command)
        return Reply(ProposeReply(b""), (bytes(100_000),))

    server = new_server(proposing(handle), limits=RpcLimits(bytes_in_flight_max=1_000_000))
    network = SimulatedNetwork(Random(0))
    async with trio.open_nursery() as nursery:
        serve = partial(server.serve_stream, listener=BROKERS)
        address = await nursery.start(network.node("s").serve, serve, Address("s", 9))
        stranger = await greeted(await network.node("c").dial(address))
        begin = trio.current_time()
        with pytest.raises(trio.BrokenResourceError):
            await stranger.send_for_ever(Propose(bytes(1000)))
        assert 30 <= trio.current_time() - begin < 32
        nursery.cancel_scope.cancel()
    assert len(begun) == 10  # and 64 KiB of the first answer are under way
    assert "took nothing for 30 s" in caplog.text


async def test_room_comes_back_with_each_answer(autojump_clock: MockClock) -> None:
    """A window of 2 lets 100 requests through, two at a time."""
    busy, busiest = 0, 0

    async def handle(_number: int) -> Reply:
        nonlocal busy, busiest
        busy += 1
        busiest = max(busy, busiest)
        await trio.sleep(0.01)
        busy -= 1
        return Reply(BEATEN)

    limits = RpcLimits(requests_in_flight_max=2)
    async with calling(new_server(beating(handle), limits=limits)) as stranger:
        await stranger.send(*(beat(number) for number in range(100)))
        answered = [(await stranger.receive()).correlation_id for _ in range(100)]
    assert sorted(answered) == list(range(1, 101))
    assert busiest == 2


async def test_an_answer_over_the_limit_becomes_an_error(autojump_clock: MockClock) -> None:
    """Whoever asked hears why instead, and goes on."""

    def handle(command: bytes) -> Reply:
        return Reply(ProposeReply(b""), (bytes(int(command)),))

    limits = RpcLimits(frame_bytes_max=10_000, header_bytes_max=1_000)
    async with calling(new_server(proposing(handle), limits=limits)) as stranger:
        await stranger.send(Propose(b"10000"), Propose(b"9000"))
        answers = [await stranger.receive() for _ in range(2)]
    assert [answer.error for answer in answers] == [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.NONE]
    assert "ask for less at once" in answers[0].message


async def test_a_server_is_left_by_who_asks_nothing(autojump_clock: MockClock) -> None:
    """After 600 s without a request the connection is closed; a long wait for an answer is none."""

    async def handle(_number: int) -> Reply:
        await trio.sleep(2000)
        return Reply(BEATEN)

    async with calling(new_server(beating(handle))) as stranger:
        await stranger.send(beat(1))
        assert (await stranger.receive()).correlation_id == 1
        begin = trio.current_time()
        assert await stranger.receive_end() == []
        assert trio.current_time() - begin == pytest.approx(600)


async def test_connections_over_the_limit_are_closed_at_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Of three connections the last is closed; when another ends, there is room again."""
    server = new_server(ECHO, limits=RpcLimits(connections_max=2))
    async with connected(server, CLIENTS) as first:
        await greeted(first)
        async with connected(server, CLIENTS) as second:
            await greeted(second)
            async with connected(server, CLIENTS) as third, connected(server, CLIENTS) as fourth:
                assert await Stranger(third).receive_end() == []
                assert await Stranger(fourth).receive_end() == []
        assert server.connections == 1
        async with connected(server, CLIENTS) as fifth:
            await greeted(fifth)
    assert caplog.text.count("connections are closed at once") == 1
