"""Sockets of the client: dialling and byte streams, on asyncio and on trio; its errors translated.

A failed dial raises Unreachable, a connection that breaks anyio.BrokenResourceError, one that was
closed on this side anyio.ClosedResourceError, each with its reason. Decides nothing and knows no
protocol.

Promises: a stream delivers bytes in order and at most once, in pieces of any size; a peer that has
gone silent breaks it after SILENCE_SECONDS_MAX (`rpc/sockets.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import anyio
from anyio.abc import SocketAttribute

from raftmq.rpc.sockets import CONNECT_SECONDS_MAX, set_options, translated, unreachable

if TYPE_CHECKING:
    from anyio.abc import SocketStream

    from raftmq.model import Address
    from raftmq.wire.batch.header import Buffer


class Stream(Protocol):
    """One connection. One task may send and one may receive at a time."""

    async def send(self, data: Buffer, /) -> None:
        """Send all of `data`. After a cancellation an unknown part of it was sent."""

    async def receive(self, max_bytes: int, /) -> bytes:
        """What has arrived, at least one byte; b"" when the broker has hung up."""

    async def aclose(self) -> None: ...


class AnyioNetwork(Protocol):
    """How a client dials; simulations have another one."""

    async def dial(self, address: Address, /) -> Stream:
        """A new connection.

        Raises:
            Unreachable: `was_refused` if no process listens at any address of the host; else an
                unknown host, or no answer in time.
        """


class AnyioTcpNetwork:
    """TCP of this machine."""

    def __init__(self, *, connect_seconds_max: float = CONNECT_SECONDS_MAX) -> None:
        self._connect_seconds_max = connect_seconds_max

    async def dial(self, address: Address, /) -> AnyioTcpStream:
        with translated("connect to", address):
            with anyio.move_on_after(self._connect_seconds_max):
                return await _connect(address)
            raise unreachable("connect to", address, "no answer in time")


async def _connect(address: Address) -> AnyioTcpStream:
    stream = await anyio.connect_tcp(address.host, address.port)
    try:
        set_options(stream.extra(SocketAttribute.raw_socket))
    # Also when cancelled: the socket would stay open otherwise.
    except BaseException:
        await anyio.aclose_forcefully(stream)
        raise
    return AnyioTcpStream(stream)


class AnyioTcpStream:
    """Takes over `stream`."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream

    async def send(self, data: Buffer, /) -> None:
        try:
            await self._stream.send(data)  # type: ignore[arg-type]  # any buffer will do
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise _in_words(error) from error

    async def receive(self, max_bytes: int, /) -> bytes:
        try:
            return await self._stream.receive(max_bytes)
        except anyio.EndOfStream:  # the broker has closed its side
            return b""
        # The library's own error has no text.
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise _in_words(error) from error

    async def aclose(self) -> None:
        await self._stream.aclose()


def _in_words(error: Exception) -> Exception:
    if isinstance(error, anyio.ClosedResourceError):
        return anyio.ClosedResourceError("this end of the connection was closed")
    reason = error.__cause__ or error
    return anyio.BrokenResourceError(f"the connection broke: {str(reason) or repr(reason)}")
