"""The one door to the network: every connection is dialled or accepted here.

Decides nothing and knows no protocol; `sockets.py` holds what is the same without trio. The
simulated twin in `tests/simulation/network.py` passes the same conformance suite
(tests/unit/rpc/test_network.py) and adds what a kernel does not do on demand: links that stall, one
end that learns of a break long before the other.

Promises: a stream delivers bytes in order and at most once, in pieces of any size; a peer that has
gone silent breaks the stream after SILENCE_SECONDS_MAX (trio.BrokenResourceError).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn, Protocol, TypeAlias

import trio

from raftmq.model import Address
from raftmq.rpc.accepting import Acceptor
from raftmq.rpc.address import format_address
from raftmq.rpc.sockets import CONNECT_SECONDS_MAX, set_options, translated, unreachable
from raftmq.rpc.tcp_stream import TcpStream

Handler: TypeAlias = Callable[[trio.abc.Stream], Awaitable[object]]


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
        with translated("connect to", address):
            with trio.move_on_after(self._connect_seconds_max):
                stream = await trio.open_tcp_stream(address.host, address.port)
                set_options(stream.socket)
                return TcpStream(stream)
            raise unreachable("connect to", address, "no answer in time")

    async def open_listeners(self, address: Address) -> list[trio.SocketListener]:
        """One listener for each IP address that the host has."""
        with translated("listen on", address):
            listeners = await trio.open_tcp_listeners(address.port, host=address.host)
            for listener in listeners:
                set_options(listener.socket)  # Linux hands them on to what is accepted
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

        async with trio.open_nursery() as nursery:
            for listener in listeners:
                name = format_address(Address(address.host, port))
                nursery.start_soon(Acceptor(listener, handle, name=name).run)
        raise AssertionError("acceptors never return")
