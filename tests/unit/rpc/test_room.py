"""Half requests of all connections together: bounded, in turn, and over in time (A10.6)."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from raftmq.rpc.protocol import BROKER_CONNECTIONS_MAX, RpcLimits
from raftmq.rpc.reply import Reply
from raftmq.rpc.request_memory import SMALL_BYTES, MemoryClaim, RequestMemory
from raftmq.wire.envelopes import encode_request
from raftmq.wire.frames import PREFIX
from raftmq.wire.messages.cluster import Propose, ProposeReply
from raftmq.wire.messages.hello import Hello
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
    never,
    new_server,
    proposing,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from trio.testing import MockClock

    from raftmq.rpc.context import Listener
    from raftmq.rpc.server import RpcServer

KIB, MIB = 1 << 10, 1 << 20
LARGE = encode_request(9, Propose(bytes(900 * KIB)))
BUFFERED_MAX = 2 * MIB + len(LARGE) + 20 * SMALL_BYTES  # of twenty connections


@given(seed=st.integers(0, 1 << 32))
def test_room_is_given_in_turn_and_somebody_finishes(seed: int) -> None:
    """Whoever wants, has frames handled and leaves, in any order."""
    random, room = Random(seed), RequestMemory(1000)
    granted: list[int] = []
    claims = [MemoryClaim(lambda number=number: granted.append(number)) for number in range(8)]
    waiting: list[int] = []
    for _ in range(80):
        number = random.randrange(len(claims))
        claim = claims[number]
        granted.clear()
        if claim.is_waiting or random.random() < 0.3:
            room.leave(claim)
            waiting = [other for other in waiting if other != number]
        else:
            room.want(claim, claim.size + random.choice((1, 100, 400, 999, 5000)))
            waiting += [] if claim is room._finishing and number in granted else [number]
        assert [other for other in granted if other in waiting] == waiting[
            : len([other for other in granted if other in waiting])
        ], "out of turn"
        waiting = [other for other in waiting if other not in granted]
        assert room.held_bytes == sum(claim.size for claim in claims)
        assert room.held_bytes - (room._finishing.size if room._finishing else 0) <= 1000
        assert [claims[other].is_waiting for other in waiting] == [True] * len(waiting)
        assert not waiting or (room._finishing and not room._finishing.is_waiting)
    for claim in claims:
        room.leave(claim)
    assert room.held_bytes == 0


def buffered(server: RpcServer) -> int:
    return sum(connection._frames.buffered_bytes for connection in server._connections)


def promise(size: int) -> bytes:
    """The beginning of a frame of which nothing else comes."""
    return PREFIX.pack(size, 100) + b"x"


def new_bounded() -> RpcServer:
    limits = RpcLimits(unhandled_bytes_max=2 * MIB, idle_seconds_max=10_000.0)
    handlers = {**ECHO, **beating(lambda _number: Reply(BEATEN))}
    return new_server(handlers, limits=limits)


async def test_half_requests_of_all_are_bounded(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Twenty send all but the end; small requests, and those of brokers, go on meanwhile."""
    server = new_bounded()
    async with AsyncExitStack() as stack:
        for _ in range(20):
            stranger = await stack.enter_async_context(calling(server, CLIENTS))
            await stranger.stream.send_all(LARGE[:-1])
        await trio.sleep(1)
        assert buffered(server) <= BUFFERED_MAX
        small = await stack.enter_async_context(calling(server, BROKERS))
        await small.send(beat(1))
        assert (await small.receive()).error == 0
        broker = await stack.enter_async_context(calling(server, BROKERS, node_id=3))
        await broker.stream.send_all(LARGE)
        assert (await broker.receive()).correlation_id == 9
        await trio.sleep(20 * 35)
        assert buffered(server) == 0
    assert "bytes does not arrive" in caplog.text


async def test_who_waits_is_read_when_there_is_room(autojump_clock: MockClock) -> None:
    """A whole request behind three half ones is answered once these are given up."""
    server = new_bounded()
    async with AsyncExitStack() as stack:
        for _ in range(3):
            stranger = await stack.enter_async_context(calling(server, CLIENTS))
            await stranger.stream.send_all(LARGE[:-1])
        await trio.sleep(1)
        patient = await stack.enter_async_context(calling(server, CLIENTS))
        begin = trio.current_time()
        await patient.stream.send_all(LARGE)
        while (answer := await patient.receive()).correlation_id != 9:
            assert answer.correlation_id == 0, "signs of life, while it waits"
        assert 25 < trio.current_time() - begin < 40


async def test_a_trickle_is_ended(autojump_clock: MockClock) -> None:
    """A byte every ten seconds is progress, but not enough of it."""
    server = new_bounded()
    async with calling(server, CLIENTS) as stranger:
        begin = trio.current_time()
        await stranger.stream.send_all(LARGE[: 100 * KIB])
        position = 100 * KIB
        while server.connections:
            await trio.sleep(10)
            with suppress(trio.BrokenResourceError):
                await stranger.stream.send_all(LARGE[position : position + 1])
            position += 1
        assert trio.current_time() - begin < 60


@pytest.mark.parametrize("listener", [CLIENTS, BROKERS])
async def test_strangers_get_no_room(
    listener: Listener, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A large frame before a Hello ends its connection; one behind it in the same bytes may be."""
    server = new_server(ECHO)
    async with AsyncExitStack() as stack:
        for _ in range(4):
            stream = await stack.enter_async_context(connected(server, listener))
            await stream.send_all(promise(RpcLimits().frame_bytes_max - 100))
            assert await Stranger(stream).receive_end() == []
        stream = await stack.enter_async_context(connected(server, listener))
        await stream.send_all(encode_request(1, Hello()) + LARGE)
        stranger = Stranger(stream)
        assert [(await stranger.receive()).correlation_id for _ in range(2)] == [1, 9]
    assert caplog.text.count("frame of 67108768 bytes before Hello, at most 65536") == 4


async def test_promises_take_no_room(autojump_clock: MockClock) -> None:
    """Others are served at once while many wait for the rest of the largest frame there may be."""
    server = new_server(ECHO)
    async with AsyncExitStack() as stack:
        for _ in range(20):
            stranger = await stack.enter_async_context(calling(server, CLIENTS))
            await stranger.stream.send_all(promise(RpcLimits().frame_bytes_max - 100))
        await trio.sleep(1)
        stranger = await stack.enter_async_context(calling(server, CLIENTS))
        begin = trio.current_time()
        await stranger.stream.send_all(LARGE)
        assert (await stranger.receive()).correlation_id == 9
        assert trio.current_time() == begin


async def test_one_finishes_where_all_room_is_taken(autojump_clock: MockClock) -> None:
    """Two hold what there is and stop; those who send all of theirs are served at once."""
    server = new_bounded()
    async with AsyncExitStack() as stack:
        for _ in range(2):
            stranger = await stack.enter_async_context(calling(server, CLIENTS))
            await stranger.stream.send_all(LARGE[:-1])
        await trio.sleep(1)
        begin = trio.current_time()
        for _ in range(3):
            stranger = await stack.enter_async_context(calling(server, CLIENTS))
            await stranger.stream.send_all(LARGE)
            assert (await stranger.receive()).correlation_id == 9
        assert trio.current_time() == begin


@pytest.mark.parametrize("is_first", [True, False])
async def test_who_may_ask_nothing_more_has_no_room(
    is_first: bool, autojump_clock: MockClock
) -> None:
    """Four wait for an answer, before a large request or to it; more that they ask has to wait, and
    the requests of others are handled.
    """
    begun: list[bytes] = []

    def handle(command: bytes) -> Reply | Awaitable[Reply]:
        begun.append(command)
        return never() if len(begun) <= 4 else Reply(ProposeReply(b""))

    limits = RpcLimits(requests_in_flight_max=1, unhandled_bytes_max=2 * MIB)
    server = new_server(proposing(handle), limits=limits)
    small = encode_request(8, Propose(b"small"))
    large = encode_request(9, Propose(bytes(586 * KIB)))  # its end is read with what follows
    async with AsyncExitStack() as stack:
        for _ in range(4):
            stranger = await stack.enter_async_context(calling(server))
            await stranger.stream.send_all(small + large if is_first else large + small * 3)
        await trio.sleep(100)
        assert len(begun) == 4
        stranger = await stack.enter_async_context(calling(server))
        begin = trio.current_time()
        await stranger.stream.send_all(LARGE)
        with trio.fail_after(1000):
            assert (await stranger.receive()).correlation_id == 9
        assert trio.current_time() == begin
        assert server.connections == 5, "they are shown life, and stay"


async def test_no_large_reads_without_room(autojump_clock: MockClock) -> None:
    """Twenty that have just sent a large request send half of another, all at the same time."""
    server = new_bounded()
    async with AsyncExitStack() as stack:
        strangers = [await stack.enter_async_context(calling(server, CLIENTS)) for _ in range(20)]
        for stranger in strangers:
            await stranger.stream.send_all(LARGE)
            assert (await stranger.receive()).correlation_id == 9
        await trio.sleep(1)
        for stranger in strangers:
            await stranger.stream.send_all(LARGE[:-1])
        await trio.sleep(1)
        assert buffered(server) <= BUFFERED_MAX


async def test_one_listener_for_all(autojump_clock: MockClock) -> None:
    """Clients have their places there and leave those of brokers; so it is with room."""
    limits = RpcLimits(connections_max=3, unhandled_bytes_max=2 * MIB)
    server = new_server(ECHO, limits=limits)
    async with AsyncExitStack() as stack:
        for _ in range(3):
            client = await stack.enter_async_context(calling(server, BROKERS))
            await client.stream.send_all(encode_request(9, Propose(bytes(MIB)))[:-1])
        await trio.sleep(1)
        client = Stranger(await stack.enter_async_context(connected(server, BROKERS)))
        await client.send(Hello())
        assert await client.receive_end() == []
        broker = await stack.enter_async_context(calling(server, BROKERS, node_id=3))
        begin = trio.current_time()
        await broker.stream.send_all(LARGE)
        assert (await broker.receive()).correlation_id == 9
        assert trio.current_time() == begin


async def test_one_listener_for_all_has_as_many_places(autojump_clock: MockClock) -> None:
    """What a node takes of clients does not depend on how many listeners it has."""
    server = new_server(ECHO)
    async with AsyncExitStack() as stack:
        for _ in range(BROKER_CONNECTIONS_MAX + 10):
            await stack.enter_async_context(calling(server, BROKERS))
        assert server.connections == BROKER_CONNECTIONS_MAX + 10


@pytest.mark.parametrize("listener", [CLIENTS, BROKERS])
async def test_a_node_id_counts_only_where_brokers_call(
    listener: Listener, autojump_clock: MockClock
) -> None:
    """On the clients' listener it has a client's room, and nobody asks why that broker has left."""
    left: list[int] = []
    server = new_server(ECHO, on_left=left.append)
    clients, brokers = server._rooms
    async with calling(server, listener, node_id=3) as stranger:
        await stranger.stream.send_all(LARGE[:-1])
        await trio.sleep(1)
        assert (brokers if listener is BROKERS else clients).held_bytes > 0
        assert (clients if listener is BROKERS else brokers).held_bytes == 0
    assert left == ([3] if listener is BROKERS else [])
