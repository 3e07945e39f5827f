"""A network of one program that can die, or whose requests arrive late.

For a crash of a client within this process: whatever its tasks still try while they are cancelled,
such as an abort or to leave a group, goes nowhere. What is held is delivered later, in order, even
if its program has given up meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import trio

from raftmq.client.network.network import AnyioTcpNetwork

if TYPE_CHECKING:
    from raftmq.client.network.network import AnyioNetwork, Stream
    from raftmq.model import Address
    from raftmq.wire.batch.header import Buffer


class MortalNetwork:
    """`network`: that of its machine.

    Attributes:
        is_dead: nothing leaves any more.
        is_holding: what leaves is on its way, and arrives later.
    """

    def __init__(self, network: AnyioNetwork | None = None) -> None:
        self._network = network or AnyioTcpNetwork()
        self._streams: list[MortalStream] = []
        self.is_dead = self.is_holding = False

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

    async def hold(self, seconds: float) -> None:
        """What is sent meanwhile arrives when that time is over."""
        self.is_holding = True
        try:
            await trio.sleep(seconds)
        finally:
            self.is_holding = False
        for stream in list(self._streams):
            await stream.release()


class MortalStream:
    def __init__(self, stream: Stream, network: MortalNetwork) -> None:
        self._stream, self._network = stream, network
        self._held: list[bytes] = []
        self._is_closed = False

    @property
    def _is_held(self) -> bool:
        """Also while what was held is delivered: nothing overtakes it."""
        return self._network.is_holding or bool(self._held)

    async def send(self, data: Buffer, /) -> None:
        await self._wait_alive()
        if self._is_held:
            self._held.append(bytes(data))
            await trio.lowlevel.checkpoint()
        else:
            await self._stream.send(data)

    def send_now(self, data: Buffer, /) -> int:
        if self._network.is_dead:
            return 0
        if self._is_held:
            self._held.append(bytes(data))
            return len(data)
        return self._stream.send_now(data)

    async def release(self) -> None:
        """Deliver what is held, and close if that was asked meanwhile."""
        try:
            while self._held:
                await self._stream.send(self._held[0])
                self._held.pop(0)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._held.clear()
        if self._is_closed:
            await self._stream.aclose()

    async def receive(self, max_bytes: int, /) -> bytes:
        try:
            return await self._stream.receive(max_bytes)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._wait_alive()  # a program that has crashed learns nothing
            raise

    async def aclose(self) -> None:
        self._is_closed = True
        if self._network.is_dead or not self._is_held:
            await self._stream.aclose()

    async def _wait_alive(self) -> None:
        if self._network.is_dead:
            await trio.sleep_forever()
