"""What a server does with one request: is it allowed, who handles it, what became of it.

Owns the one place where requests are authorised, and the way from errors to answers. Knows nothing
of streams. Errors of raftmq are answered as what they are, unexpected ones as UNKNOWN_SERVER_ERROR
and logged; broken invariants pass (decision 0003).
"""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from raftmq.errors import (
    ClusterAuthorizationFailed,
    ErrorCode,
    InconsistentClusterId,
    RaftmqError,
    UnsupportedVersion,
)
from raftmq.rpc.context import Identity, Listener, RequestContext
from raftmq.rpc.reply import PendingReply, Reply
from raftmq.wire.apis import CLUSTER_APIS, SUPPORTED, ApiKey
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.hello import ApiVersions, Hello, HelloReply

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftmq.wire.bodies import Request
    from raftmq.wire.envelopes import DecodedRequest

# None: whoever asked waits for no answer.
HandlerResult: TypeAlias = Reply | PendingReply | Awaitable[Reply | None] | None
Handler: TypeAlias = Callable[[RequestContext, Any, bytes | memoryview], HandlerResult]
Authorize: TypeAlias = Callable[[RequestContext, "Request"], None]

OWN_APIS = frozenset({ApiKey.HELLO, ApiKey.PING})  # answered without a handler
UNEXPECTED = "unexpected error; the log of the broker has more"

_REPR = reprlib.Repr()
_REPR.maxother = 300  # characters of a request in the log

logger = logging.getLogger(__name__)


class Service:
    """`authorize` raises the error with which to refuse."""

    def __init__(
        self, identity: Identity, handlers: Mapping[ApiKey, Handler], *, authorize: Authorize
    ) -> None:
        own = OWN_APIS & handlers.keys()
        assert not own, f"answered by the server itself: {own}"
        self.identity = identity
        self._handlers, self._authorize = dict(handlers), authorize
        self._for_clients = {k: h for k, h in handlers.items() if k not in CLUSTER_APIS}

    def greet(self, hello: Hello, listener: Listener, *, frame_bytes_max: int) -> HelloReply:
        """
        Raises:
            InconsistentClusterId: another cluster was asked for.
            ClusterAuthorizationFailed: a client, on a listener that is for brokers alone.
        """
        cluster_id, node_id, features = self.identity
        if hello.cluster_id not in ("", cluster_id):
            raise InconsistentClusterId(
                f"cluster {hello.cluster_id!r} was asked for, this is {cluster_id!r}: "
                "check the address"
            )
        if listener.clients_at and hello.node_id == ABSENT:
            raise ClusterAuthorizationFailed(
                f"listener {listener.name!r} of broker {node_id} is for other brokers, clients are"
                f" served on {listener.clients_at}"
            )
        handlers = self._handlers if listener.is_for_brokers else self._for_clients
        known = sorted(OWN_APIS | handlers.keys())
        return HelloReply(
            cluster_id=cluster_id,
            node_id=node_id,
            api_versions=tuple(ApiVersions(key, *SUPPORTED[key]) for key in known),
            features=dict(features),
            frame_bytes_max=frame_bytes_max,
            listener=listener.name,
        )

    def call(
        self, context: RequestContext, request: DecodedRequest, payload: bytes | memoryview
    ) -> HandlerResult:
        """The answer, or what it will come from: an awaitable goes to `finish`."""
        try:
            handler = self._handler(request.api_key, context.listener)
            self._authorize(context, request.body)
            return handler(context, request.body, payload)
        except Exception as error:
            return failure(error, context, request.body)

    async def finish(
        self, context: RequestContext, request: DecodedRequest, answer: Awaitable[Reply | None]
    ) -> Reply | None:
        try:
            return await answer
        except Exception as error:
            return failure(error, context, request.body)

    def _handler(self, api_key: ApiKey, listener: Listener) -> Handler:
        known = self._handlers if listener.is_for_brokers else self._for_clients
        handler = known.get(api_key)
        if handler is not None:
            return handler
        if not listener.is_for_brokers and api_key in CLUSTER_APIS:
            raise ClusterAuthorizationFailed(
                f"{api_key.name} on listener {listener.name!r}: only brokers ask for it, "
                "on a listener of theirs"
            )
        raise UnsupportedVersion(f"{api_key.name}: this broker does not serve it")


def failure(error: Exception, context: RequestContext, body: Request) -> Reply:
    """The answer that tells of `error`. Raises it again if it is a broken invariant."""
    if isinstance(error, RaftmqError):
        return Reply(None, error=error.code, message=str(error))
    if is_broken_invariant(error):
        raise error
    logger.error(
        "request failed: connection=%d client=%r principal=%r request=%s",
        context.connection_id,
        context.client_id,
        context.principal,
        _REPR.repr(body),
        exc_info=error,
    )
    return Reply(None, error=ErrorCode.UNKNOWN_SERVER_ERROR, message=UNEXPECTED)


def is_broken_invariant(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(AssertionError) is not None
    return isinstance(error, AssertionError)
