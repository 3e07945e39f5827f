"""Asking a node over its own port how the quorum is, as an operator's tool would."""

from __future__ import annotations

import trio

from raftmq.errors import RaftmqError
from raftmq.metadata.raft.net.connection import open_connection, shake_hands
from raftmq.metadata.raft.net.messages import (
    PROTOCOL_VERSION,
    NodeHello,
    Role,
    StatusReply,
    StatusRequest,
)
from raftmq.metadata.raft.status import QuorumStatus, decode_status
from raftmq.model import Address
from raftmq.rpc.network import TcpNetwork
from tests.cluster.quorum_words import HOST

_VISIT_SECONDS_MAX = 2.0
_HELLO = NodeHello(PROTOCOL_VERSION, "", Role.VISITOR, node_id=0)


def ask_status(port: int) -> QuorumStatus | None:
    """None if nobody answers, for now."""
    return trio.run(_ask_status, Address(HOST, port))


async def _ask_status(address: Address) -> QuorumStatus | None:
    with trio.move_on_after(_VISIT_SECONDS_MAX):
        try:
            stream = await TcpNetwork().dial(address)
        except (OSError, RaftmqError):
            return None
        async with open_connection(stream, name="visited") as connection:
            await shake_hands(connection, own=_HELLO, judge=lambda _: None)
            connection.send_soon(StatusRequest())
            reply = await connection.receive()
            return decode_status(reply.status) if isinstance(reply, StatusReply) else None
    return None
