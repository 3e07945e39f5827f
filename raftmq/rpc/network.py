"""The one door to the network: every connection is dialled or accepted here.

Owns the options of sockets and the translation of OSError into Unreachable. Decides nothing and
knows no protocol. The simulated twin in `tests/simulation/network.py` passes the same conformance
suite (tests/unit/rpc/test_network.py) and adds what a kernel does not do on demand: links that
stall, one end that learns of a break long before the other.

Promises: a stream delivers bytes in order and at most once, in pieces of any size; a peer that has
gone silent breaks the stream after SILENCE_SECONDS_MAX (trio.BrokenResourceError).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, Protocol, TypeAlias

import trio

from raftmq.errors import Unreachable
from raftmq.model import Address
from raftmq.rpc.address import format_address
from raftmq.rpc.tcp_stream import TcpStream

Handler: TypeAlias = Callable[[trio.abc.Stream], Awaitable[object]]

CONNECT_SECONDS_MAX = 5.0
KEEPALIVE_IDLE_SECONDS = 5
KEEPALIVE_INTERVAL_SECONDS = 1
KEEPALIVE_COUNT = 3
SILENCE_SECONDS_MAX = KEEPALIVE_IDLE_SECONDS + KEEPALIVE_INTERVAL_SECONDS * KEEPALIVE_COUNT

# The keep-alive finds a dead peer on an idle connection, the user timeout one that leaves bytes
# unacknowledged, for which the kernel would otherwise wait a quarter of an hour. The latter also
# breaks a connection whose reader has left a full window untouched for so long.
_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_COUNT),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_SECONDS_MAX * 1000),
)


class Network(Protocol):
    """What a node needs of a network."""

    async def dial(self, address: Address) -> trio.abc.Stream:
        """A new connection.

        Raises:
            Unreachable: `was_refused` if nobody listens at any address of the host; else unknown,
                or no answer in time.
        """

    async def serve(
        self,
        handler: Handler,
        address: Address,
        *,
        task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run `handler(stream)` for each connection, until cancelled.

        The stream is closed when the handler returns; what the handler raises ends `serve`.
        Started with the address that is listened on: port 0 becomes a free one. Raises
        Unreachable when the address cannot be listened on.
        """


class TcpNetwork:
    """The Network of this machine."""

    def __init__(self, *, connect_seconds_max: float = CONNECT_SECONDS_MAX) -> None:
        self._connect_seconds_max = connect_seconds_max

    async def dial(self, address: Address) -> TcpStream:
        with _translated("connect to", address):
            with trio.fail_after(self._connect_seconds_max):
                stream = await trio.open_tcp_stream(address.host, address.port)
            _set_options(stream.socket)
            return TcpStream(stream)

    async def open_listeners(self, address: Address) -> list[trio.SocketListener]:
        """One listener for each IP address that the host has."""
        with _translated("listen on", address):
            listeners = await trio.open_tcp_listeners(address.port, host=address.host)
            for listener in listeners:
                _set_options(listener.socket)  # Linux hands them on to what is accepted
            return listeners

    async def serve(
        self,
        handler: Callable[[TcpStream], Awaitable[object]],
        address: Address,
        *,
        task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
    ) -> NoReturn:
        listeners = await self.open_listeners(address)
        port = listeners[0].socket.getsockname()[1]
        task_status.started(Address(address.host, port))

        async def handle(stream: trio.SocketStream) -> None:
            await handler(TcpStream(stream))

        await trio.serve_listeners(handle, listeners)


def _set_options(endpoint: trio.socket.SocketType) -> None:
    for level, option, value in _OPTIONS:
        endpoint.setsockopt(level, option, value)


@contextmanager
def _translated(operation: str, address: Address) -> Iterator[None]:
    try:
        yield
    except trio.TooSlowError as error:
        raise _unreachable(operation, address, "no answer in time") from error
    except UnicodeError as error:  # a host that cannot be a name on the wire
        raise _unreachable(operation, address, str(error)) from error
    except OSError as error:
        refused = all(isinstance(each, ConnectionRefusedError) for each in _attempts(error))
        raise _unreachable(operation, address, _reason(error), was_refused=refused) from error


def _unreachable(
    operation: str, address: Address, reason: str, *, was_refused: bool = False
) -> Unreachable:
    what = f"{operation} {format_address(address)}: {reason}"
    return Unreachable(what, was_refused=was_refused)


def _reason(error: OSError) -> str:
    """What the system said of the first attempt."""
    first = _attempts(error)[0]
    if isinstance(first, OSError) and not isinstance(first, socket.gaierror) and first.errno:
        return os.strerror(first.errno)  # without the address, which is said already
    return getattr(first, "strerror", None) or str(error)


def _attempts(error: BaseException) -> list[BaseException]:
    """One for each address that the host has; trio puts a summary of all of them around it."""
    inner = error.__cause__ or error
    if isinstance(inner, BaseExceptionGroup):
        return [leaf for part in inner.exceptions for leaf in _attempts(part)]
    return [inner]
