"""A network of one program that can die: from then on nothing leaves it, and its connections end.

For a crash of a client within this process: whatever its tasks still try while they are cancelled,
such as an abort or to leave a group, goes nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import trio

from raftmq.client.network.network import AnyioTcpNetwork

if TYPE_CHECKING:
    from raftmq.client.network.network import Stream
    from raftmq.model import Address
    from raftmq.wire.batch.header import Buffer


class MortalNetwork:
    """Attributes:
    is_dead: nothing leaves any more.
    """

    def __init__(self) -> None:
        self._network = AnyioTcpNetwork()
        self._streams: list[MortalStream] = []
        self.is_dead = False

    async def dial(self, address: Address, /) -> MortalStream:
        if self.is_dead:
            await trio.sleep_forever()
        stream = MortalStream(await self._network.dial(address), self)
        self._streams.append(stream)
        return stream

    async def die(self) -> None:
        """Brokers see that the connections are closed, as of a program that has crashed."""
        self.is_dead = True
        for stream in self._streams:
            await stream.aclose()


class MortalStream:
    def __init__(self, stream: Stream, network: MortalNetwork) -> None:
        self._stream, self._network = stream, network

    async def send(self, data: Buffer, /) -> None:
        await self._wait_alive()
        await self._stream.send(data)

    def send_now(self, data: Buffer, /) -> int:
        return 0 if self._network.is_dead else self._stream.send_now(data)

    async def receive(self, max_bytes: int, /) -> bytes:
        try:
            return await self._stream.receive(max_bytes)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._wait_alive()  # a program that has crashed learns nothing
            raise

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def _wait_alive(self) -> None:
        if self._network.is_dead:
            await trio.sleep_forever()
