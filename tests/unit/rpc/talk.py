"""Both sides of a conversation: servers over streams in memory, and a client that knows no rules.

Owns no expectations. Handlers are those of the tests; requests are Propose (bytes in, bytes out)
and BrokerHeartbeat, which carries a number.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import trio
from trio.testing import memory_stream_pair

from raftmq.errors import ErrorCode
from raftmq.rpc.context import Listener, ServerIdentity
from raftmq.rpc.protocol import RpcLimits
from raftmq.rpc.reply import PendingReply, Reply
from raftmq.rpc.server import RpcServer
from raftmq.wire.bodies import ABSENT
from raftmq.wire.envelopes import decode_response, encode_request
from raftmq.wire.frames import FrameReader
from raftmq.wire.messages.cluster import (
    BrokerHeartbeat,
    BrokerHeartbeatReply,
    Propose,
    ProposeReply,
)
from raftmq.wire.messages.hello import Hello
from tests.unit.rpc.shells import open_channel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from raftmq.rpc.channel import Channel
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.server import Authorize, Handler
    from raftmq.wire.bodies import Request
    from raftmq.wire.envelopes import ResponseHeader

BROKERS, CLIENTS = Listener("brokers", is_for_brokers=True), Listener("clients")
IDENTITY = ServerIdentity("cluster-a", 7, {"transactions": 2})
LIMITS = RpcLimits()
BEATEN = BrokerHeartbeatReply(is_fenced=False, may_shut_down=False)


def beat(number: int) -> BrokerHeartbeat:
    return BrokerHeartbeat(number, 0, 0)


def allow(_context: RequestContext, _body: Request) -> None:
    """Whoever asks may."""


def proposing(
    handle: Callable[[bytes], Reply | PendingReply | Awaitable[Reply]],
) -> Mapping[type[Request], Handler]:
    """A server of Propose that only looks at the command."""
    return {Propose: lambda _context, body, _payload: handle(body.command)}


def beating(
    handle: Callable[[int], Reply | Awaitable[Reply] | None],
) -> Mapping[type[Request], Handler]:
    return {BrokerHeartbeat: lambda _context, body, _payload: handle(body.broker_id)}


def echo(command: bytes) -> Reply:
    return Reply(ProposeReply(command))


ECHO = proposing(echo)


async def never() -> Reply:
    """Part of a handler that never answers."""
    await trio.sleep_forever()
    raise AssertionError("woken")


def new_server(
    handlers: Mapping[type[Request], Handler],
    *,
    authorize: Authorize = allow,
    limits: RpcLimits = LIMITS,
    on_left: Callable[[int], None] = lambda _node_id: None,
) -> RpcServer:
    return RpcServer(
        IDENTITY,
        handlers,
        authorize=authorize,
        limits=limits,
        metadata_version=lambda: 42,
        on_left=on_left,
    )


@asynccontextmanager
async def connected(
    server: RpcServer, listener: Listener = BROKERS, *, principal: str = "alice"
) -> AsyncIterator[trio.abc.Stream]:
    """The client's end of a connection to `server`."""
    left, right = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        serve = partial(server.serve_stream, principal=principal, peer="here")
        nursery.start_soon(serve, right, listener)
        yield left
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def channel_to(
    handlers: Mapping[type[Request], Handler],
    listener: Listener = BROKERS,
    *,
    limits: RpcLimits = LIMITS,
    hello: Hello | None = None,
    shell: str = "trio",
) -> AsyncIterator[Channel]:
    greeting = hello or Hello(client_id="test")
    async with (
        connected(new_server(handlers), listener) as stream,
        open_channel(shell, stream, greeting, limits) as channel,
    ):
        yield channel


async def propose(channel: Channel, command: bytes = b"x", timeout_seconds: float = 30) -> bytes:
    """Ask, and return the result."""
    answer = await channel.request(Propose(command), timeout_seconds=timeout_seconds)
    result: bytes = answer.body.result
    return result


class Stranger:
    """Sends and receives whatever a test wants."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._numbers = count(1)
        self._frames = FrameReader(frame_bytes_max=1 << 30, header_bytes_max=1 << 30)
        self._received: list[ResponseHeader] = []

    async def send(self, *bodies: Request, number: int | None = None, payload: bytes = b"") -> None:
        """All at once; numbered from 1 unless told."""
        data = b"".join(
            encode_request(
                next(self._numbers) if number is None else number, body, payload_length=len(payload)
            )
            + payload
            for body in bodies
        )
        await self.stream.send_all(data)

    async def send_for_ever(self, body: Request) -> None:
        while True:
            await self.send(body)

    async def greet(self, *, node_id: int = ABSENT) -> ResponseHeader:
        await self.send(Hello(client_id="stranger", node_id=node_id), number=1_000_000)
        return await self.receive()

    async def receive(self) -> ResponseHeader:
        while not self._received:
            data = await self.stream.receive_some()
            assert data, "the server hung up"
            frames = self._frames.receive(data)
            self._received += [decode_response(frame.header) for frame in frames]
        return self._received.pop(0)

    async def receive_end(self) -> Sequence[ResponseHeader]:
        """What comes before the server hangs up."""
        while data := await self.stream.receive_some():
            frames = self._frames.receive(data)
            self._received += [decode_response(frame.header) for frame in frames]
        return self._received


async def greeted(stream: trio.abc.Stream, *, node_id: int = ABSENT) -> Stranger:
    stranger = Stranger(stream)
    assert (await stranger.greet(node_id=node_id)).error == ErrorCode.NONE
    return stranger


@asynccontextmanager
async def calling(
    server: RpcServer, listener: Listener = BROKERS, *, node_id: int = ABSENT
) -> AsyncIterator[Stranger]:
    """One that has said Hello, over a connection of its own."""
    async with connected(server, listener) as stream:
        yield await greeted(stream, node_id=node_id)
