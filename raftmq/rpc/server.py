"""Serves streams: whoever accepts them hands them in, each with the listener it came from.

Owns the number of connections and their names in the log. One connection harms no other: whatever
is wrong with one ends that one; only a broken invariant ends the server (decision 0003).
"""

from __future__ import annotations

import logging
from itertools import count
from typing import TYPE_CHECKING

import trio

from raftmq.rpc.connection import Connection
from raftmq.rpc.context import ANONYMOUS, Identity, Listener, RequestContext
from raftmq.rpc.limits import Limits
from raftmq.rpc.service import Authorize, Handler, Service, is_broken_invariant
from raftmq.rpc.session import Session
from raftmq.rpc.tcp_stream import TcpStream
from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from raftmq.rpc.sending import RunSync
    from raftmq.wire.apis import ApiKey

logger = logging.getLogger(__name__)


class Server:
    """Handlers for all connections.

    Args:
        handlers: called with a context, a body and a payload, in order of arrival, and must not
            wait. They return the answer, or an awaitable of it, which is cancelled when the
            connection ends; None where no answer is wanted.
        authorize: called once for each request that has a handler; raises to refuse it.
        metadata_version: what each answer tells, so that the other side knows when it is behind.
        on_batch: called with True before requests are handled that have arrived together, and with
            False after the last of them.
        on_left: told when a connection that a broker had opened is over, whatever the reason.
        run_sync: runs what waits for a disk, in a worker thread.
    """

    def __init__(
        self,
        identity: Identity,
        handlers: Mapping[ApiKey, Handler],
        *,
        authorize: Authorize,
        limits: Limits | None = None,
        metadata_version: Callable[[], int] = lambda: ABSENT,
        on_batch: Callable[[bool], None] = lambda _begins: None,
        on_left: Callable[[int], None] = lambda _node_id: None,
        run_sync: RunSync = trio.to_thread.run_sync,
    ) -> None:
        self._service = Service(identity, handlers, authorize=authorize)
        self._limits = limits or Limits()
        self._metadata_version, self._run_sync = metadata_version, run_sync
        self._on_batch, self._on_left = on_batch, on_left
        self._numbers = count(1)
        self._connections: set[Connection] = set()
        self._is_full = False

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def serve_stream(
        self,
        stream: trio.abc.Stream,
        listener: Listener,
        *,
        principal: str = ANONYMOUS,
        peer: str = "",
    ) -> None:
        """Until either side hangs up; the stream is closed then, also when this is cancelled."""
        if self._refuses_more():
            await trio.aclose_forcefully(stream)
            return
        if not peer and isinstance(stream, TcpStream):
            peer = stream.peer_name
        number = next(self._numbers)
        name = f"connection-{number} listener={listener.name} peer={peer}"
        connection = Connection(stream, name=name, limits=self._limits, run_sync=self._run_sync)
        stranger = RequestContext(principal, listener, "", number, peer)
        session = Session(
            self._service, connection, stranger, self._metadata_version, self._on_batch
        )
        self._connections.add(connection)
        try:
            await session.run()
        except Exception as error:
            if is_broken_invariant(error):
                raise
            logger.error("connection failed: with=%s", connection.name, exc_info=error)
        finally:
            self._connections.discard(connection)
            if session.node_id >= 0:
                self._on_left(session.node_id)

    def _refuses_more(self) -> bool:
        """Says so once, not for each connection."""
        is_full = len(self._connections) >= self._limits.connections_max
        if is_full and not self._is_full:
            logger.warning("connections are closed at once: open=%d", len(self._connections))
        self._is_full = is_full
        return is_full
