"""A server that answers only what a test tells it to, and a channel to it.

Owns no expectations.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import memory_stream_pair

from raftmq.errors import RaftmqError
from raftmq.rpc.trio_channel import Channel, open_channel
from raftmq.wire.envelopes import DecodedRequest, decode_request, encode_response
from raftmq.wire.frames import FrameReader
from raftmq.wire.messages.cluster import Ping, Propose
from raftmq.wire.messages.hello import Hello, HelloReply, versions_of
from tests.unit.rpc.talk import propose

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from raftmq.rpc.protocol import RpcLimits
    from raftmq.wire.bodies import Body

VERSIONS = versions_of((Ping, Propose))
HELLO_REPLY = HelloReply("cluster-a", 7, VERSIONS)


class Puppet:
    """A server that answers only what a test tells it to."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._frames = FrameReader(frame_bytes_max=1 << 30, header_bytes_max=1 << 30)
        self._received: list[DecodedRequest] = []

    async def receive(self) -> DecodedRequest:
        """The next request that is no ping."""
        while not self._received:
            frames = self._frames.receive(await self.stream.receive_some())
            requests = [decode_request(frame.header) for frame in frames]
            self._received += [found for found in requests if not isinstance(found.body, Ping)]
        return self._received.pop(0)

    async def answer(self, number: int, body: Body | None, error: int = 0) -> None:
        await self.stream.send_all(encode_response(number, body, error=error, message="told"))


@asynccontextmanager
async def puppet_channel(
    limits: RpcLimits | None = None, reply: HelloReply = HELLO_REPLY
) -> AsyncIterator[tuple[Channel, Puppet]]:
    """A channel that has been greeted by a puppet."""
    left, right = memory_stream_pair()
    puppet = Puppet(right)

    async def greet() -> None:
        hello = await puppet.receive()
        await puppet.answer(hello.correlation_id, reply)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(greet)
        async with open_channel(left, Hello(), limits, name="puppet") as channel:
            yield channel, puppet


async def raised(channel: Channel, timeout_seconds: float = 30) -> RaftmqError:
    """What a request raises."""
    with pytest.raises(RaftmqError) as found:
        await propose(channel, timeout_seconds=timeout_seconds)
    return found.value


async def propose_with(channel: Channel, payload: bytes, timeout_seconds: float = 1) -> None:
    await channel.request(Propose(b""), (payload,), timeout_seconds=timeout_seconds)
