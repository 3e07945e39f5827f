"""Sockets of the client: dialling and byte streams, on asyncio and on trio; its errors translated.

A failed dial raises Unreachable, a connection that breaks anyio.BrokenResourceError, one that was
closed on this side anyio.ClosedResourceError, each with its reason. Decides nothing and knows no
protocol.

Promises: a stream delivers bytes in order and at most once, in pieces of any size; a peer that has
gone silent breaks it after SILENCE_SECONDS_MAX (`rpc/sockets.py`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

import anyio
from anyio.abc import SocketAttribute

from raftmq.rpc.sockets import CONNECT_SECONDS_MAX, set_options, translated, unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import SocketStream

    from raftmq.model import Address
    from raftmq.wire.batch.header import Buffer


CLOSED_HERE = "this end of the connection was closed"


class Stream(Protocol):
    """One connection. One task may send and one may receive at a time."""

    async def send(self, data: Buffer, /) -> None:
        """Send all of `data`. After a cancellation an unknown part of it was sent."""

    def send_now(self, data: Buffer, /) -> int:
        """As many bytes of `data` as leave without waiting, which may be none.

        Only while no task is sending. Hides errors: the next `send` raises them.
        """

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
        found = stream.extra(SocketAttribute.raw_socket)
        kind = type(found).__name__
        # These two have no number once they are closed, when it may be another's; that of uvloop
        # does not tell.
        self._descriptor = found.fileno if kind in {"socket", "TransportSocket"} else None
        self._waits_itself = kind == "socket"  # on trio; asyncio reads in its own way

    async def send(self, data: Buffer, /) -> None:
        try:
            await self._stream.send(data)  # type: ignore[arg-type]  # any buffer will do
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise _in_words(error) from error

    def send_now(self, data: Buffer, /) -> int:
        # What `send` was given has left when it returns, also on asyncio: anyio lets its transport
        # keep nothing.
        if self._descriptor is None:
            return 0
        try:
            return os.write(self._descriptor(), data)
        except OSError:  # full, or broken: the next `send` finds out
            return 0

    async def receive(self, max_bytes: int, /) -> bytes:
        if self._waits_itself and self._descriptor is not None:
            return await _received(self._descriptor, max_bytes)
        try:
            return await self._stream.receive(max_bytes)
        except anyio.EndOfStream:  # the broker has closed its side
            return b""
        # The library's own error has no text.
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise _in_words(error) from error

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _received(descriptor: Callable[[], int], max_bytes: int) -> bytes:
    """Waits before it reads: after a caller took all that had arrived, a read at once, as in anyio,
    would find nothing and cost a system call."""
    while (number := descriptor()) >= 0:
        try:
            # Until data, the end of the stream or an error has arrived, or this end is closed.
            await anyio.wait_readable(number)
            return os.read(descriptor(), max_bytes)
        except BlockingIOError:
            pass  # spurious readiness: the kernel dropped a segment with a bad checksum
        except anyio.ClosedResourceError:
            break
        except OSError as error:
            if descriptor() < 0:  # closed after it was woken
                break
            raise anyio.BrokenResourceError(f"the connection broke: {error}") from error
    raise anyio.ClosedResourceError(CLOSED_HERE)


def _in_words(error: Exception) -> Exception:
    if isinstance(error, anyio.ClosedResourceError):
        return anyio.ClosedResourceError(CLOSED_HERE)
    reason = error.__cause__ or error
    return anyio.BrokenResourceError(f"the connection broke: {str(reason) or repr(reason)}")
