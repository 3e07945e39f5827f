"""Two ends of a connection in memory, on either event loop, and a broker that a test plays.

Owns no expectations. Both ends are a `Stream` as the client knows it; nothing is lost or delayed.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from raftmq.client.network.channel import Channel, open_channel
from raftmq.wire.envelopes import DecodedRequest, decode_request, encode_response
from raftmq.wire.frames import FrameReader
from raftmq.wire.messages.cluster import Ping, Propose
from raftmq.wire.messages.hello import Hello, HelloReply, versions_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from raftmq.client.network.network import Stream
    from raftmq.rpc.protocol import RpcLimits
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.bodies import Body

VERSIONS = versions_of((Ping, Propose))
HELLO_REPLY = HelloReply("cluster-a", 7, VERSIONS)


class MemoryStream:
    """Attributes:
    writes: every buffer that was sent, in order.
    is_closed: on this side.
    """

    def __init__(
        self,
        sending: MemoryObjectSendStream[bytes],
        receiving: MemoryObjectReceiveStream[bytes],
    ) -> None:
        self.writes: list[bytes] = []
        self.is_closed = False
        self._sending, self._receiving = sending, receiving
        self._rest = b""

    async def send(self, data: Buffer, /) -> None:
        self.writes.append(bytes(data))
        await self._sending.send(self.writes[-1])

    async def receive(self, max_bytes: int, /) -> bytes:
        data = self._rest
        if not data:
            try:
                data = await self._receiving.receive()
            except anyio.EndOfStream:
                return b""
        self._rest = data[max_bytes:]
        return data[:max_bytes]

    async def aclose(self) -> None:
        self.is_closed = True
        self._sending.close()
        self._receiving.close()


def stream_pair() -> tuple[MemoryStream, MemoryStream]:
    there = anyio.create_memory_object_stream[bytes](math.inf)
    back = anyio.create_memory_object_stream[bytes](math.inf)
    return MemoryStream(there[0], back[1]), MemoryStream(back[0], there[1])


class Puppet:
    """A broker that answers only what a test tells it to."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._frames = FrameReader(frame_bytes_max=1 << 30, header_bytes_max=1 << 30)
        self._received: list[tuple[DecodedRequest, bytes]] = []

    async def receive(self) -> tuple[DecodedRequest, bytes]:
        """The next request that is no ping, and its payload."""
        while not self._received:
            data = await self.stream.receive(1 << 20)
            assert data, "the client hung up"
            for frame in self._frames.receive(data):
                request = decode_request(frame.header)
                if not isinstance(request.body, Ping):
                    self._received.append((request, bytes(frame.payload)))
        return self._received.pop(0)

    async def answer(self, number: int, body: Body | None, *, error: int = 0) -> None:
        await self.stream.send(encode_response(number, body, error=error, message="told"))

    async def greet(self, reply: HelloReply = HELLO_REPLY) -> None:
        request, _ = await self.receive()
        await self.answer(request.correlation_id, reply)


@asynccontextmanager
async def puppet_channel(
    limits: RpcLimits | None = None, reply: HelloReply = HELLO_REPLY
) -> AsyncIterator[tuple[Channel, Puppet, MemoryStream]]:
    """A channel that has been greeted by a puppet, and the stream that it has."""
    left, right = stream_pair()
    puppet = Puppet(right)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(puppet.greet, reply)
        try:
            async with open_channel(left, Hello(), limits, name="puppet") as channel:
                yield channel, puppet, left
        finally:
            await right.aclose()


async def propose(
    channel: Channel, command: bytes = b"x", payload: bytes = b"", *, timeout_seconds: float = 30
) -> bytes:
    """Ask, and return the result."""
    pieces = (payload,) if payload else ()
    answer = await channel.request(Propose(command), pieces, timeout_seconds=timeout_seconds)
    result: bytes = answer.body.result
    return result
