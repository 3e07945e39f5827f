"""Who asks, and how the question came here: what handlers and authorisation are told.

Pure: names and values only.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

ANONYMOUS = "anonymous"
NO_TRACE: Mapping[str, str] = MappingProxyType({})


class Listener(NamedTuple):
    """Where connections are accepted. Brokers may ask for more than clients may.

    Attributes:
        clients_at: of a listener for brokers, in words: where clients are served instead; empty:
            nowhere else, so they are served here.
    """

    name: str
    is_for_brokers: bool = False
    clients_at: str = ""


class ServerIdentity(NamedTuple):
    """What a server says of itself in the first exchange."""

    cluster_id: str
    node_id: int
    features: Mapping[str, int] = MappingProxyType({})


class RequestContext(NamedTuple):
    """One for each connection, unless a request brings a trace.

    Attributes:
        principal: who it is, as far as the listener knows (TLS).
        listener: where the connection came in.
        client_id: what the client calls itself; for logs and quotas, never for rights.
        connection_id: unique in the life of the server.
        peer: address of the other end, for logs.
        node_id: the broker that the client says it is, -1 if it is none. Nothing proves it.
        trace: what the request carries for whoever follows it through the cluster.
    """

    principal: str
    listener: Listener
    client_id: str
    connection_id: int
    peer: str
    node_id: int = -1
    trace: Mapping[str, str] = NO_TRACE
