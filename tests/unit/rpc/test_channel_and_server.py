"""A channel and a server over both networks: real TCP, and the simulated one with its troubles.

Every request is echoed with its payload; what comes back is compared byte for byte.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.disk.files import FileSlice, OsFiles
from raftmq.errors import Disconnected, RaftmqError, RequestTimedOut, Unreachable
from raftmq.model import Address
from raftmq.rpc.network import TcpNetwork
from raftmq.rpc.protocol import RpcLimits
from raftmq.rpc.reply import Reply
from raftmq.rpc.server import RpcServer
from raftmq.rpc.trio_channel import open_channel
from raftmq.wire.messages.cluster import Propose, ProposeReply
from raftmq.wire.messages.hello import Hello
from tests.simulation.deterministic import run
from tests.simulation.network import SimulatedNetwork
from tests.unit.rpc.talk import BROKERS, IDENTITY, allow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from raftmq.rpc.channel import Channel
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.network import Network

    Talk = Callable[[Callable[[Channel], Awaitable[None]]], None]

REQUESTS = 60
SMALL = RpcLimits(requests_in_flight_max=8, bytes_in_flight_max=200_000)


class Echo:
    """A server; every third answer comes later."""

    def __init__(self, limits: RpcLimits = SMALL) -> None:
        handlers = {Propose: self._handle}
        self.server = RpcServer(IDENTITY, handlers, authorize=allow, limits=limits)
        self.begun: Counter[bytes] = Counter()

    async def serve(self, stream: trio.abc.Stream) -> None:
        await self.server.serve_stream(stream, BROKERS)

    def _handle(
        self, _context: RequestContext, body: Propose, payload: bytes
    ) -> Reply | Awaitable[Reply]:
        self.begun[body.command] += 1
        reply = Reply(ProposeReply(body.command), (payload,))
        return self._later(reply) if int(body.command) % 3 == 0 else reply

    async def _later(self, reply: Reply) -> Reply:
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        return reply


def payload_of(number: int) -> bytes:
    """Mostly small, sometimes larger than what any socket takes at once."""
    size = Random(number).choice([0, 10, 1000, 70_000, 300_000])
    return Random(number).randbytes(size)


async def ask(channel: Channel, number: int) -> None:
    command, payload = b"%d" % number, payload_of(number)
    answer = await channel.request(Propose(command), (payload,), timeout_seconds=60)
    assert answer.body.result == command
    assert bytes(answer.payload) == payload


async def converse(network: Network, host: str, test: Callable[[Channel], Awaitable[None]]) -> None:
    """Run `test` with a channel to a server that echoes."""
    async with trio.open_nursery() as nursery:
        address = await nursery.start(network.serve, Echo().serve, Address(host, 0))
        async with open_channel(await network.dial(address), Hello(), SMALL) as channel:
            await test(channel)
        nursery.cancel_scope.cancel()


@pytest.fixture(params=["tcp", "simulated"])
def talk(request: pytest.FixtureRequest) -> Talk:
    if request.param == "tcp":
        return lambda test: trio.run(converse, TcpNetwork(), "127.0.0.1", test)
    node = SimulatedNetwork(Random(0)).node("n1")
    return lambda test: run("a", partial(converse, node, "n1", test))


def test_everybody_gets_their_own_answer(talk: Talk) -> None:
    """Sixty at once through a window of eight, payloads from nothing to 300 kB (A2.8)."""

    async def test(channel: Channel) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(REQUESTS):
                nursery.start_soon(ask, channel, number)

    talk(test)


def test_the_impatient_harm_nobody(talk: Talk) -> None:
    """Every other one is cancelled, each at another moment; the rest is answered."""

    async def hurry(channel: Channel, number: int) -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, channel, number)
                for _ in range(number):
                    await trio.lowlevel.checkpoint()
                scope.cancel()

    async def test(channel: Channel) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(REQUESTS):
                nursery.start_soon(hurry if number % 2 else ask, channel, number)
        await ask(channel, REQUESTS)
        assert not channel._conversation._in_flight
        assert channel._outbox.queued_bytes == 0

    talk(test)


@pytest.mark.parametrize("seed", range(8))
def test_a_connection_that_breaks_at_any_moment(seed: int) -> None:
    """Each request is answered, or fails; one that certainly did not happen was not begun."""
    random, network, echo = Random(seed), SimulatedNetwork(Random(seed)), Echo()
    outcomes: dict[bytes, RaftmqError | None] = {}

    async def try_to_ask(channel: Channel, number: int) -> None:
        outcomes[b"%d" % number] = None
        try:
            await ask(channel, number)
        except (Disconnected, Unreachable, RequestTimedOut) as error:
            outcomes[b"%d" % number] = error

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            address = await nursery.start(network.node("s").serve, echo.serve, Address("s", 1))
            stream = await network.node("c").dial(address)
            opening = open_channel(stream, Hello(), SMALL)
            async with opening as channel, trio.open_nursery() as asking:
                for number in range(REQUESTS):
                    asking.start_soon(try_to_ask, channel, number)
                await trio.sleep(random.uniform(0, 0.3))
                network.reset("c", "s", late_seconds=0.1)
            nursery.cancel_scope.cancel()

    run(f"break {seed}", main)
    assert len(outcomes) == REQUESTS
    assert max(echo.begun.values(), default=0) <= 1
    for command, error in outcomes.items():
        if error is None:
            assert echo.begun[command] == 1
        elif error.definite:
            assert echo.begun[command] == 0


async def test_a_file_is_answered_over_tcp(tmp_path: Path) -> None:
    """Slices of a file of 3 MB, of any size and place, between other answers."""
    content = Random(0).randbytes(3_000_000)
    file = OsFiles().open(tmp_path / "records", create=True)
    file.write(0, [content])

    def handle(_context: RequestContext, body: Propose, _payload: bytes) -> Reply:
        position, length = map(int, body.command.split())
        part = FileSlice(file, position, length)
        return Reply(ProposeReply(body.command), (b"<", part, part, b">"))

    async def fetch(channel: Channel, position: int, length: int) -> None:
        command = b"%d %d" % (position, length)
        answer = await channel.request(Propose(command), timeout_seconds=60)
        part = content[position : position + length]
        assert bytes(answer.payload) == b"<" + part + part + b">"

    server = RpcServer(IDENTITY, {Propose: handle}, authorize=allow)
    network = TcpNetwork()
    async with trio.open_nursery() as nursery:
        serve = partial(server.serve_stream, listener=BROKERS)
        address = await nursery.start(network.serve, serve, Address("127.0.0.1", 0))
        opening = open_channel(await network.dial(address), Hello())
        async with opening as channel, trio.open_nursery() as fetching:
            for length in (0, 1, 4000, 130_000, 200_000, 1_500_000, 3_000_000):
                fetching.start_soon(fetch, channel, (3_000_000 - length) // 2, length)
        nursery.cancel_scope.cancel()


async def test_a_file_that_was_cut_ends_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The frame cannot be completed any more: the client hears of the end, not of other bytes."""
    file = OsFiles().open(tmp_path / "records", create=True)
    file.write(0, [bytes(1000)])
    reply = Reply(ProposeReply(b""), (FileSlice(file, 0, 500_000),))
    handlers = {Propose: lambda _context, _body, _payload: reply}
    server, network = RpcServer(IDENTITY, handlers, authorize=allow), TcpNetwork()
    async with trio.open_nursery() as nursery:
        serve = partial(server.serve_stream, listener=BROKERS)
        address = await nursery.start(network.serve, serve, Address("127.0.0.1", 0))
        async with open_channel(await network.dial(address), Hello()) as channel:
            with pytest.raises(Disconnected):
                await channel.request(Propose(b""), timeout_seconds=60)
        nursery.cancel_scope.cancel()
    assert "ends at byte 1000" in caplog.text
