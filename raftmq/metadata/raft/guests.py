"""Connections of those who do not vote: observers and visitors.

Owns how many there may be at a time and how each of them ends. What they are served is the
business of `serve_guest`, which the driver hands in; it is cancelled when its connection ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import trio

from raftmq.errors import RemoteProtocolError
from raftmq.metadata.raft.handshake import refuse
from raftmq.metadata.raft.messages import Hello, Refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from raftmq.metadata.raft.connection import Connection

    ServeGuest: TypeAlias = Callable[[Connection, Hello], Awaitable[None]]

GUESTS_MAX = 64


class Guests:
    def __init__(self) -> None:
        self._count = 0

    async def serve(
        self, connection: Connection, hello: Hello, serve_guest: ServeGuest | None
    ) -> None:
        """Until the guest leaves, or `serve_guest` returns."""
        if serve_guest is None:
            await refuse(connection, Refusal("no guests are served here yet: come back later"))
            return
        if self._count >= GUESTS_MAX:
            reason = f"{self._count} guests are here already: ask another voter, or later"
            await refuse(connection, Refusal(reason))
            return
        self._count += 1
        try:
            await serve_until_closed(connection, hello, serve_guest)
        finally:
            self._count -= 1


async def serve_until_closed(connection: Connection, hello: Hello, serve_guest: ServeGuest) -> None:
    async def cancel_when_closed() -> None:
        await connection.wait_closed()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_when_closed)
        try:
            await serve_guest(connection, hello)
            await connection.finish("served")
        except RemoteProtocolError as error:
            connection.close(str(error), is_fault=True)
