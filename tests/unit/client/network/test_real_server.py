"""The client's half of the protocol against the broker's, over real sockets, on both event loops.

The server runs on trio in a thread of its own, as it does in another process.
"""

from __future__ import annotations

import threading
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import anyio
import trio

from raftmq.client.network.channel import AnyioConnector, open_channel
from raftmq.client.network.network import AnyioTcpNetwork
from raftmq.model import Address
from raftmq.rpc import network as rpc_network
from raftmq.rpc.context import Listener, ServerIdentity
from raftmq.rpc.peers import Peers
from raftmq.rpc.protocol import RpcLimits
from raftmq.rpc.reply import Reply
from raftmq.rpc.server import RpcServer
from raftmq.wire.messages.cluster import Propose, ProposeReply
from raftmq.wire.messages.hello import Hello
from tests.unit.client.backends import on_trio_and_asyncio
from tests.unit.rpc.puppet import propose

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from raftmq.rpc.channel import Channel
    from raftmq.rpc.context import RequestContext

LISTENER = Listener("brokers", is_for_brokers=True)
MEGABYTES_16 = bytes(range(256)) * (16 << 12)


def echo(_context: RequestContext, body: Propose, payload: bytes) -> Reply:
    return Reply(ProposeReply(body.command), (payload,) if payload else ())


@contextmanager
def serving() -> Iterator[Address]:
    """A server that echoes, in a thread."""
    server = RpcServer(
        ServerIdentity("cluster-a", 7), {Propose: echo}, authorize=lambda _c, _b: None
    )
    found: list[tuple[Address, trio.lowlevel.TrioToken, trio.CancelScope]] = []
    is_up = threading.Event()

    async def main() -> None:
        serve = partial(server.serve_stream, listener=LISTENER)
        async with trio.open_nursery() as nursery:
            address = await nursery.start(
                rpc_network.TcpNetwork().serve, serve, Address("127.0.0.1", 0)
            )
            token = trio.lowlevel.current_trio_token()
            found.append((address, token, nursery.cancel_scope))
            is_up.set()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    is_up.wait()
    [(address, token, scope)] = found
    yield address
    token.run_sync_soon(scope.cancel)
    thread.join()


@asynccontextmanager
async def channel_to_server() -> AsyncIterator[Channel]:
    with serving() as address:
        stream = await AnyioTcpNetwork().dial(address)
        async with open_channel(stream, Hello(client_id="test")) as channel:
            yield channel


@on_trio_and_asyncio
async def test_large_payloads_in_both_directions() -> None:
    """16 MiB there and back, as they are."""
    async with channel_to_server() as channel:
        answer = await channel.request(Propose(b"x"), (MEGABYTES_16,), timeout_seconds=30)
        assert answer.body == ProposeReply(b"x")
        assert answer.payload == MEGABYTES_16
        assert channel.server.node_id == 7


@on_trio_and_asyncio
async def test_many_at_once() -> None:
    """Five hundred requests of many sizes, more than may be in flight: each gets its own answer."""

    async def ask(number: int) -> None:
        payload = bytes([number % 256]) * (number % 7 * 5000)
        answer = await channel.request(
            Propose(b"%d" % number), (payload[:100], payload[100:]), timeout_seconds=30
        )
        assert answer.body.result == b"%d" % number
        assert answer.payload == payload

    async with channel_to_server() as channel, anyio.create_task_group() as tasks:
        for number in range(500):
            tasks.start_soon(ask, number)


@on_trio_and_asyncio
async def test_cancelled_in_the_middle_of_a_large_request() -> None:
    """16 MiB are on their way when nobody waits for them any more: no half of a frame is left."""
    async with channel_to_server() as channel:
        for steps in (1, 3, 10, 30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(propose, channel, b"x", MEGABYTES_16)
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            assert await propose(channel, b"next") == b"next"


@on_trio_and_asyncio
async def test_peers_dial_and_ask() -> None:
    """The first request dials; leaving ends everything at once."""
    with serving() as address:
        make_hello = partial(Hello, client_id="test")
        connector = AnyioConnector(AnyioTcpNetwork(), make_hello, RpcLimits())
        peers = Peers(connector, random=Random(0))
        peers.set_addresses({7: address})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peers.run)
            answer = await peers.request(7, Propose(b"x"), timeout_seconds=30)
            assert answer.body.result == b"x"
            assert peers.is_connected(7)
            assert peers.send_one_way(7, Propose(b"y"))
            tasks.cancel_scope.cancel()
        assert not peers.is_connected(7)
