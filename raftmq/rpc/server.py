"""Serves streams: whoever accepts them hands them in, each with the listener it came from.

Owns the number of connections and their names in the log. One connection harms no other: whatever
is wrong with one ends that one; only a broken invariant ends the server (decision 0003).
"""

from __future__ import annotations

import logging
import math
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import trio

from raftmq.rpc.accepting import SAID_SECONDS
from raftmq.rpc.arrival import Arrival
from raftmq.rpc.connection import Connection
from raftmq.rpc.context import ANONYMOUS, Identity, Listener, RequestContext
from raftmq.rpc.limits import BROKER_CONNECTIONS_MAX, Limits
from raftmq.rpc.room import Room
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
        self._open = [0, 0]  # on listeners for clients, and on the one for brokers
        self._guests: set[int] = set()  # connections of clients on the one for brokers
        # Apart, so that clients cannot hold up replication.
        self._rooms = [Room(self._limits.unhandled_bytes_max) for _ in (False, True)]
        self._refused, self._say_at = 0, -math.inf

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
        if self._refuses_stranger(listener):
            await trio.aclose_forcefully(stream)
            return
        if not peer and isinstance(stream, TcpStream):
            peer = stream.peer_name
        number = next(self._numbers)
        name = f"connection-{number} listener={listener.name} peer={peer}"
        arrival = Arrival(self._limits.stall_seconds_max)
        connection = Connection(
            stream, name=name, limits=self._limits, run_sync=self._run_sync, arrival=arrival
        )
        stranger = RequestContext(principal, listener, "", number, peer)
        session = Session(
            self._service,
            connection,
            stranger,
            self._metadata_version,
            self._on_batch,
            partial(self._on_greeted, arrival),
        )
        self._connections.add(connection)
        self._open[listener.is_for_brokers] += 1
        try:
            await session.run()
        except Exception as error:
            if is_broken_invariant(error):
                raise
            logger.error("connection failed: with=%s", connection.name, exc_info=error)
        finally:
            self._connections.discard(connection)
            self._open[listener.is_for_brokers] -= 1
            self._guests.discard(number)
            if listener.is_for_brokers and session.node_id >= 0:
                self._on_left(session.node_id)

    def _refuses_stranger(self, listener: Listener) -> bool:
        """Clients take no place of a broker."""
        count, count_max = self._open[listener.is_for_brokers], self._limits.connections_max
        if listener.is_for_brokers:
            for_brokers = min(BROKER_CONNECTIONS_MAX, count_max)
            count_max = for_brokers if listener.clients_at else for_brokers + count_max
        if count < count_max:
            return False
        self._say_refused(listener, count)
        return True

    def _on_greeted(self, arrival: Arrival, context: RequestContext) -> str:
        """Whoever is no broker is a client, also where there is one listener for both."""
        is_broker = context.listener.is_for_brokers and context.node_id != ABSENT
        if context.listener.is_for_brokers and not is_broker:
            if len(self._guests) >= self._limits.connections_max:
                self._say_refused(context.listener, len(self._guests))
                return "too many clients"
            self._guests.add(context.connection_id)
        arrival.room = self._rooms[is_broker]
        return ""

    def _say_refused(self, listener: Listener, count: int) -> None:
        """Now and then, not for each connection."""
        self._refused += 1
        if trio.current_time() >= self._say_at:
            self._say_at = trio.current_time() + SAID_SECONDS
            logger.warning(
                "connections are closed at once: listener=%s open=%d refused=%d so far",
                listener.name,
                count,
                self._refused,
            )
