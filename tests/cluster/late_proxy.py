"""A proxy before a broker that may deliver late, as an overloaded or stalled one in the field does.

Told to, it keeps back what a client sends from some bytes on, and drops that client; much later it
delivers what it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.model import Address

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK_BYTES = 1 << 16
DROP_SECONDS = 0.3  # until it drops the client of which it keeps something back
LINGER_SECONDS = 1.0  # after it has delivered

_BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


class LateProxy:
    """Attributes:
    address: where it listens.
    is_keeping: it has kept something back, and not delivered it yet.
    is_shut: it lets nobody in.
    """

    def __init__(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        self.address = Address(*listener.socket.getsockname()[:2])
        self._listener, self._nursery = listener, nursery
        self._target: Address | None = None
        self._begins: Callable[[bytes], bool] = lambda _: False
        self._is_due, self._is_delivered = trio.Event(), trio.Event()
        self.is_keeping = self.is_shut = False

    def keep_back(self, begins: Callable[[bytes], bool]) -> None:
        """From the first chunk on of which `begins` says so."""
        self._begins = begins

    async def deliver(self) -> int:
        """How many bytes were late."""
        assert self.is_keeping, "nothing was kept back"
        self._is_due.set()
        await self._is_delivered.wait()
        return self._late_bytes

    def start(self, target: Address) -> None:
        self._target = target
        self._nursery.start_soon(trio.serve_listeners, self._serve, [self._listener])

    async def _serve(self, client: trio.SocketStream) -> None:
        assert self._target is not None, "not started"
        if self.is_shut:
            return
        try:
            broker = await trio.open_tcp_stream(self._target.host, self._target.port)
        except OSError:
            return
        async with broker, trio.open_nursery() as nursery:
            nursery.start_soon(self._pass_answers, broker, client)
            kept = await self._pass_requests(client, broker)
            if kept is not None:
                await self._deliver(kept, broker)
            nursery.cancel_scope.cancel()

    async def _pass_answers(self, broker: trio.SocketStream, client: trio.SocketStream) -> None:
        try:
            while data := await broker.receive_some(CHUNK_BYTES):
                await client.send_all(data)
        except _BROKEN:
            pass
        await client.aclose()

    async def _pass_requests(
        self, client: trio.SocketStream, broker: trio.SocketStream
    ) -> bytearray | None:
        """What is kept back of this client; None if all was passed on."""
        try:
            while data := await client.receive_some(CHUNK_BYTES):
                if not self.is_keeping and self._begins(data):
                    self.is_keeping = True
                    return await self._keep(bytearray(data), client)
                await broker.send_all(data)
        except _BROKEN:
            pass
        return None

    async def _keep(self, kept: bytearray, client: trio.SocketStream) -> bytearray:
        with trio.move_on_after(DROP_SECONDS):
            while data := await client.receive_some(CHUNK_BYTES):
                kept += data
        await client.aclose()
        return kept

    async def _deliver(self, kept: bytearray, broker: trio.SocketStream) -> None:
        await self._is_due.wait()
        self._late_bytes = len(kept)
        await broker.send_all(kept)
        await trio.sleep(LINGER_SECONDS)
        self.is_keeping, self._begins = False, lambda _: False
        self._is_delivered.set()
