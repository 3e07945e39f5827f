"""Two ends of a connection in memory, on either event loop, and a broker that a test plays.

Owns no expectations. Both ends are a `Stream` as programs know it; nothing is lost.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest

from raftmq.errors import RaftmqError
from raftmq.wire.envelopes import DecodedRequest, decode_request, encode_response
from raftmq.wire.frames import FrameReader
from raftmq.wire.messages.cluster import Ping, Propose
from raftmq.wire.messages.hello import Hello, HelloReply, versions_of
from tests.unit.rpc.shells import open_channel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from raftmq.client.network.network import Stream
    from raftmq.rpc.channel import Channel
    from raftmq.rpc.protocol import RpcLimits
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.bodies import Body

VERSIONS = versions_of((Ping, Propose))
HELLO_REPLY = HelloReply("cluster-a", 7, VERSIONS)


class MemoryStream:
    """Attributes:
    writes: every buffer that was sent, in order.
    is_closed: on this side.
    send_seconds: how long each of them takes.
    space: bytes that leave without waiting.
    """

    def __init__(
        self,
        sending: MemoryObjectSendStream[bytes],
        receiving: MemoryObjectReceiveStream[bytes],
    ) -> None:
        self.writes: list[bytes] = []
        self.is_closed, self.send_seconds, self.space = False, 0.0, 0
        self._sending, self._receiving = sending, receiving
        self._rest = b""

    async def send(self, data: Buffer, /) -> None:
        if self.send_seconds:
            await anyio.sleep(self.send_seconds)
        self.writes.append(bytes(data))
        await self._sending.send(self.writes[-1])

    def send_now(self, data: Buffer, /) -> int:
        """At most `space` bytes, which are few or none in the tests of that."""
        taken = bytes(data[: self.space])
        if taken:
            self.writes.append(taken)
            self._sending.send_nowait(taken)
        return len(taken)

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
    """A broker that answers only what a test tells it to.

    Attributes:
        caller: the other end.
    """

    def __init__(self, stream: Stream, caller: MemoryStream | None = None) -> None:
        self.stream, self.caller = stream, caller
        self._frames = FrameReader(frame_bytes_max=1 << 30, header_bytes_max=1 << 30)
        self._received: list[DecodedRequest] = []

    async def receive(self) -> DecodedRequest:
        """The next request that is no ping."""
        while not self._received:
            data = await self.stream.receive(1 << 20)
            assert data, "the client hung up"
            for frame in self._frames.receive(data):
                request = decode_request(frame.header)
                if not isinstance(request.body, Ping):
                    self._received.append(request)
        return self._received.pop(0)

    async def answer(self, number: int, body: Body | None, error: int = 0) -> None:
        await self.stream.send(encode_response(number, body, error=error, message="told"))

    async def greet(self, reply: HelloReply = HELLO_REPLY) -> None:
        request = await self.receive()
        await self.answer(request.correlation_id, reply)


@asynccontextmanager
async def puppet_channel(
    shell: str, limits: RpcLimits | None = None, reply: HelloReply = HELLO_REPLY
) -> AsyncIterator[tuple[Channel, Puppet]]:
    """A channel that has been greeted by a puppet."""
    left, right = stream_pair()
    puppet = Puppet(right, left)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(puppet.greet, reply)
        try:
            async with open_channel(shell, left, Hello(), limits, name="puppet") as channel:
                yield channel, puppet
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


async def raised(channel: Channel, timeout_seconds: float = 30) -> RaftmqError:
    """What a request raises."""
    with pytest.raises(RaftmqError) as found:
        await propose(channel, timeout_seconds=timeout_seconds)
    return found.value


async def propose_with(channel: Channel, payload: bytes, timeout_seconds: float = 1) -> None:
    await channel.request(Propose(b""), (payload,), timeout_seconds=timeout_seconds)
