"""The simulated network for clients: trio streams under anyio's names."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
import trio

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.model import Address
    from raftmq.wire.batch.header import Buffer
    from tests.simulation.network import NodeNetwork


class ClientNetwork:
    """`node`: where the client runs."""

    def __init__(self, node: NodeNetwork) -> None:
        self._node = node

    async def dial(self, address: Address, /) -> TranslatedStream:
        return TranslatedStream(await self._node.dial(address))


class TranslatedStream:
    """Any stream of trio."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def send(self, data: Buffer, /) -> None:
        with _translated():
            await self._stream.send_all(data)

    def send_now(self, _data: Buffer, /) -> int:
        return 0  # a socket that is always full: the writing task's way

    async def receive(self, max_bytes: int, /) -> bytes:
        with _translated():
            return bytes(await self._stream.receive_some(max_bytes))

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except trio.BrokenResourceError as error:
        raise anyio.BrokenResourceError(str(error)) from error
    except trio.ClosedResourceError as error:
        raise anyio.ClosedResourceError(str(error)) from error
