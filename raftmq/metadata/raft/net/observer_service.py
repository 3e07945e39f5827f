"""Serves committed entries to observers and the status to visitors; `ask_status` is the client.

Owns a voter's answers to guests (observers fetch with a long poll, so a slow one blocks no other),
and the visitor's side of a status request over a given stream. A visitor belongs to no cluster and
has no id: every process that can reach a voter may ask. The caller combines the answers of several
voters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from raftmq.errors import RemoteProtocolError, Unreachable
from raftmq.metadata.raft.net.connection import HANDSHAKE_SECONDS_MAX, open_connection, shake_hands
from raftmq.metadata.raft.net.messages import (
    APPEND_BYTES_MAX,
    PROTOCOL_VERSION,
    NodeHello,
    ObserverEntries,
    ObserverFetch,
    ObserverOffer,
    Refusal,
    Role,
    SnapshotFetch,
    StatusReply,
    StatusRequest,
)
from raftmq.metadata.raft.status import LeaderWatch, decode_status, encode_status, quorum_status

if TYPE_CHECKING:
    from raftmq.metadata.raft.engine.node import RaftNode
    from raftmq.metadata.raft.net.connection import QuorumConnection
    from raftmq.metadata.raft.net.messages import AnyMessage
    from raftmq.metadata.raft.settings import QuorumSettings
    from raftmq.metadata.raft.snapshot.snapshotter import Snapshotter
    from raftmq.metadata.raft.snapshot.transfer import SnapshotId
    from raftmq.metadata.raft.status import QuorumStatus


# For handshake and status together: a voter answers from memory, but its event loop may be busy.
ANSWER_SECONDS_MAX = 5.0
NO_NODE = -1
_HELLO = NodeHello(PROTOCOL_VERSION, cluster_id="", role=Role.VISITOR, node_id=NO_NODE)


async def ask_status(stream: trio.abc.Stream) -> QuorumStatus:
    """The status of the quorum as this voter sees it. The stream is closed afterwards.

    Raises:
        Unreachable: it refuses guests for now, closes the stream, or does not answer within
            HANDSHAKE_SECONDS_MAX, or in all within ANSWER_SECONDS_MAX.
        RemoteProtocolError: it is no voter, or one of another version.
    """
    async with open_connection(stream, name="voter") as connection:
        with trio.move_on_after(ANSWER_SECONDS_MAX):
            await _introduce(connection)  # bounded by HANDSHAKE_SECONDS_MAX itself
            return await _status(connection)  # bounded by ANSWER_SECONDS_MAX
    raise Unreachable(f"no answer within {ANSWER_SECONDS_MAX:g} s")


async def _introduce(connection: QuorumConnection) -> None:
    # Bounded by HANDSHAKE_SECONDS_MAX.
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


def _judge(hello: NodeHello) -> Refusal | None:
    is_known = hello.protocol_version == PROTOCOL_VERSION and hello.role is Role.VOTER
    return None if is_known else Refusal("a visitor asks voters of its own version only")


async def _status(connection: QuorumConnection) -> QuorumStatus:
    await connection.send(StatusRequest())  # waits for room in the send queue
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
    except ValueError as error:  # a voter of another build, or none
        raise RemoteProtocolError(f"its status does not decode: {error}") from error


# -- Hosting --------------------------------------------------------------------------------------
# The voter's side: entries to observers, the status to visitors.
#
# Owns the answers to guests, the position of each observer, and the log line that explains why
# there is no leader. An observer pulls: it names the next index, and gets committed entries, or the
# offer of a snapshot if those were compacted. Only entries that are applied here, and so committed
# and synced, are served. Without new entries the answer comes after a long poll, empty: an observer
# that gets no answer at all knows that the voter is in trouble.


# The long poll: an observer without new entries gets an empty answer after this time. Shorter ones
# would cost requests of idle clusters; observers wait three times as long for an answer.
ANSWER_SECONDS = 5.0
FIRST_ENTRY = 2  # entry 1 is the base of every log, and is never sent


class _Guest:
    """Attributes:
    last_answer: the leader and the term in its last answer.
    """

    def __init__(self, hello: NodeHello) -> None:
        self.node_id, self.role = hello.node_id, hello.role
        self.last_answer: tuple[int | None, int] | None = None


class ObserverService:
    """Attributes:
    observers: the next index of each connected observer, by node id.
    """

    def __init__(
        self, node: RaftNode, snapshotter: Snapshotter, settings: QuorumSettings[Any]
    ) -> None:
        self._node, self._snapshotter, self._settings = node, snapshotter, settings
        self._changed = trio.lowlevel.ParkingLot()
        self._seen = (node.last_applied, self._leader())
        self._leader_watch = LeaderWatch(node, now=trio.current_time())
        self.observers: dict[int, int] = {}

    def on_turn(self) -> None:
        self._leader_watch.on_turn(trio.current_time())
        seen = (self._node.last_applied, self._leader())
        if seen != self._seen:  # wakes the long polls
            self._seen = seen
            self._changed.unpark_all()

    async def serve(self, connection: QuorumConnection, hello: NodeHello) -> None:
        """Serve one guest until it leaves or sends a message that guests must not send."""
        guest = _Guest(hello)
        try:
            # Until the guest sends, leaves, or falls silent.
            while (message := await connection.receive()) is not None:
                # One answer at a time: the guest waits for it.
                await connection.send(await self._answer(guest, message))
        finally:
            if guest.role is Role.OBSERVER:  # a visitor may name any id
                self.observers.pop(guest.node_id, None)

    async def _answer(self, guest: _Guest, message: AnyMessage) -> AnyMessage:
        match message:
            case StatusRequest():
                voters = self._settings.voters
                status = quorum_status(
                    self._node, self._settings.cluster_id, self.observers, voters
                )
                return StatusReply(encode_status(status))
            case ObserverFetch() if guest.role is Role.OBSERVER:
                # An observer with another quorum's image would mix two histories (decision 0012).
                if self._is_of_another_history(message):
                    return Refusal(
                        f"the quorum was begun anew since observer {guest.node_id} followed it:"
                        " start the observer anew, with an empty directory",
                        is_final=True,
                    )
                self.observers[guest.node_id] = message.next_index
                return await self._entries_from(guest, message.next_index)  # the long poll
            case SnapshotFetch() if guest.role is Role.OBSERVER:
                # Until the disk has read the chunk.
                return await self._snapshotter.read_chunk(guest.node_id, message)
        raise RemoteProtocolError(f"a {type(message).__name__} from {guest.role.name}")

    def _is_of_another_history(self, message: ObserverFetch) -> bool:
        ours, theirs = self._node.membership.quorum_id, message.quorum_id
        return bool(ours) and bool(theirs) and ours != theirs

    async def _entries_from(self, guest: _Guest, next_index: int) -> AnyMessage:
        if next_index < FIRST_ENTRY:  # no observer that works asks for entry 1: see FIRST_ENTRY
            raise RemoteProtocolError(
                f"entry {next_index} is asked for, {FIRST_ENTRY} is the first"
            )
        with trio.move_on_after(ANSWER_SECONDS):
            # Until an entry is applied or the leader changes: `on_turn` wakes this task.
            while self._node.last_applied < next_index and guest.last_answer == self._leader():
                await self._changed.park()
        # Compacted: the observer needs a snapshot first.
        if next_index <= self._node.journal.first_index:
            snapshot = self._snapshotter.offer_to(guest.node_id)
            if snapshot is not None:  # None: it is still being installed
                return ObserverOffer(*_fields_of(snapshot))
            # Its snapshot is still being installed here: an empty answer, and it will ask again.
            next_index = self._node.last_applied + 1
        guest.last_answer = self._leader()
        return self._entries(next_index, *guest.last_answer)

    def _entries(self, next_index: int, leader_id: int | None, term: int) -> ObserverEntries:
        node, end = self._node, self._node.last_applied + 1
        has_entries = next_index < end
        entries = node.journal.entries(next_index, end, APPEND_BYTES_MAX) if has_entries else ()
        return ObserverEntries(node.commit_index, tuple(entries), leader_id, term)

    def _leader(self) -> tuple[int | None, int]:
        return self._node.heard_leader_id, self._node.term


def _fields_of(snapshot: SnapshotId) -> tuple[int, int, int, int]:
    return snapshot.index, snapshot.term, snapshot.size_bytes, snapshot.crc
