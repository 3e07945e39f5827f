"""Who sent a request and over which listener: what handlers and authorisation get to know.

Pure: names and values only. The principal comes from the listener, never from the client's words.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

ANONYMOUS = "anonymous"  # the principal where a listener proves none
NO_TRACE: Mapping[str, str] = MappingProxyType({})
# How a listener for brokers alone turns a client away; where that matters, clients know it by it.
CLIENTS_ELSEWHERE = "is for other brokers, clients are served on"


class Listener(NamedTuple):
    """Where connections are accepted. One for brokers serves requests that clients may not send.

    Attributes:
        clients_at: of a listener for brokers alone, for error texts: where clients are served
            instead. Empty where clients share this listener.
    """

    name: str
    is_for_brokers: bool = False
    clients_at: str = ""

    def refusal(self, node_id: int) -> str:
        """The error for a client at a listener for brokers alone."""
        return f"listener {self.name!r} of broker {node_id} {CLIENTS_ELSEWHERE} {self.clients_at}"


class ServerIdentity(NamedTuple):
    """What a server says of itself in its Hello."""

    cluster_id: str
    node_id: int
    features: Mapping[str, int] = MappingProxyType({})


class RequestContext(NamedTuple):
    """One for each connection; a request with a trace gets a copy.

    Attributes:
        principal: the authenticated identity, as far as the listener knows one (TLS).
        listener: where the connection came in.
        client_id: what the client calls itself; for logs and quotas, never for rights.
        connection_id: unique in the life of the server.
        peer: address of the other end, for logs.
        node_id: the broker that the other side claims to be, -1 for clients. Nothing proves it.
        trace: trace headers of the request, to follow it through the cluster.
    """

    principal: str
    listener: Listener
    client_id: str
    connection_id: int
    peer: str
    node_id: int = -1
    trace: Mapping[str, str] = NO_TRACE

    @property
    def is_of_broker(self) -> bool:
        """A connection without a node id is a client's, also on a listener for both."""
        return self.listener.is_for_brokers and self.node_id >= 0
