"""A visitor: comes to one voter, asks how the quorum is, and leaves.

Owns the visitor's side of the conversation over a stream that it is handed. A visitor belongs to
no cluster and has no id: whoever reaches a voter may ask. What the answers of several voters mean
together is for the caller to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.errors import RemoteProtocolError, Unreachable
from raftmq.metadata.raft.connection import open_connection
from raftmq.metadata.raft.handshake import HANDSHAKE_SECONDS_MAX, shake_hands
from raftmq.metadata.raft.messages import (
    PROTOCOL_VERSION,
    Hello,
    Refusal,
    Role,
    StatusReply,
    StatusRequest,
)
from raftmq.metadata.raft.status import decode_status

if TYPE_CHECKING:
    from raftmq.metadata.raft.connection import Connection
    from raftmq.metadata.raft.status import QuorumStatus

ANSWER_SECONDS_MAX = 5.0
NO_NODE = -1
_HELLO = Hello(PROTOCOL_VERSION, cluster_id="", role=Role.VISITOR, node_id=NO_NODE)


async def ask_status(stream: trio.abc.Stream) -> QuorumStatus:
    """The quorum as the voter at the other end sees it. The stream is closed afterwards.

    Raises:
        Unreachable: it refuses guests for now, hangs up, or is silent for HANDSHAKE_SECONDS_MAX,
            or after its greeting for ANSWER_SECONDS_MAX.
        RemoteProtocolError: it is no voter, or one of another version.
    """
    async with open_connection(stream, name="voter") as connection:
        with trio.move_on_after(ANSWER_SECONDS_MAX):
            await _introduce(connection)
            return await _status(connection)
    raise Unreachable(f"no answer within {ANSWER_SECONDS_MAX:g} s")


async def _introduce(connection: Connection) -> None:
    met = await shake_hands(connection, own=_HELLO, judge=_judge)
    if met.refusal is not None:
        raise Unreachable(f"refused: {met.refusal.reason}")
    if met.is_silent:
        raise Unreachable(f"no answer within {HANDSHAKE_SECONDS_MAX:g} s: paused, or very busy")
    if met.rejected is not None:
        hello, _ = met.rejected
        here = (
            f"a node ({hello.role.name.lower()}) of version {hello.protocol_version} answers there"
        )
        raise RemoteProtocolError(f"{here}, no voter of version {PROTOCOL_VERSION}")
    if met.hello is None:
        raise RemoteProtocolError(
            "it hung up without a greeting, or is no voter of this version: give the address that"
            " the voters know each other by"
        )


def _judge(hello: Hello) -> Refusal | None:
    is_known = hello.protocol_version == PROTOCOL_VERSION and hello.role is Role.VOTER
    return None if is_known else Refusal("a visitor asks voters of its own version only")


async def _status(connection: Connection) -> QuorumStatus:
    await connection.send(StatusRequest())
    match await connection.receive():
        case StatusReply(status=data):
            return _decoded(data)
        case Refusal(reason=reason):
            raise Unreachable(f"refused: {reason}")
        case None:
            raise Unreachable("it hung up instead of answering")
        case other:
            raise RemoteProtocolError(f"a {type(other).__name__} instead of its status")


def _decoded(data: bytes) -> QuorumStatus:
    try:
        return decode_status(data)
    except ValueError as error:
        raise RemoteProtocolError(f"its status does not decode: {error}") from error
