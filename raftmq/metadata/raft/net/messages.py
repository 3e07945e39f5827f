"""Messages between quorum nodes (votes, AppendEntries, snapshots, observers) and their frames.

A frame is `u32 length | u32 crc32c | payload`, little-endian; the payload is a msgpack array that
begins with the tag of the message. Owns types, validation and limits; `engine.guard` acts on them.
Fields may be added at the end, with a default. A connection begins with one Hello from either side.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Annotated, TypeAlias

import msgspec
from crc32c import crc32c

from raftmq.errors import RemoteProtocolError
from raftmq.wire.foreign import refuse_foreign
from raftmq.wire.messages.cluster import VOTERS_MAX
from raftmq.wire.nesting import Decoder

PROTOCOL_VERSION = 1  # raised if older nodes must not connect; they refuse each other
FRAME_HEADER = struct.Struct("<II")  # length, CRC-32C
FRAME_BYTES_MAX = 4 << 20  # two commands of the largest size (1 MiB) and room to spare
# Of peers before their Hello, and of guests: they send only a Hello and requests. Memory that a
# stranger can occupy is bounded by it.
SMALL_FRAME_BYTES_MAX = 64 << 10
APPEND_BYTES_MAX = 1 << 20  # entries of one AppendEntries; a single larger entry is sent alone
REASON_LENGTH_MAX = 4096  # characters of a refusal, which goes into the log of the peer

Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]  # fits into signed 64 bits
Name = Annotated[str, msgspec.Meta(max_length=255)]
Token = Annotated[bytes, msgspec.Meta(max_length=64)]  # disk ids have 16 bytes, nonces 8
# Command, index, term: the order that PySyncObj uses.
Entry: TypeAlias = tuple[bytes, Natural, Natural]


class Role(IntEnum):
    VOTER = 0
    OBSERVER = 1  # follows committed entries, does not vote
    VISITOR = 2  # asks for the status and leaves


class Standing(IntEnum):
    """Whether a voter's disk counts (decision 0012)."""

    BLANK = 0  # new, perhaps in place of a lost disk: neither votes nor counts
    ESTABLISHED = 1  # it holds everything that it ever promised


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="kind"):
    """Base of the union; the tag of a subclass is never reused."""


class NodeHello(Message, frozen=True, tag=1):
    """Identifies the sender. `start_count` and `nonce` distinguish processes on one directory.

    `is_replacement`: its operator says that the blank disk replaces a lost one (decision 0028).
    """

    protocol_version: int
    cluster_id: Name
    role: Role
    node_id: int
    disk_id: Token = b""
    start_count: Natural = 0
    nonce: Token = b""
    standing: Standing = Standing.BLANK
    enrolled_index: Natural = 0  # of the entry that enrolled the disk; 0: none that it knows of
    term: Natural = 0
    voters: Annotated[tuple[Natural, ...], msgspec.Meta(max_length=VOTERS_MAX)] = ()  # all of them
    is_replacement: bool = False


class Refusal(Message, frozen=True, tag=2):
    """Sent instead of serving the peer.

    `is_final`: a retry will not help, an operator must act. `must_stop`: the peer's process must
    stop, as its directory is an older copy.
    """

    reason: Annotated[str, msgspec.Meta(max_length=REASON_LENGTH_MAX)]
    is_final: bool = False
    must_stop: bool = False


class KeepAlive(Message, frozen=True, tag=3):
    """Shows an idle peer to be alive."""


class StandingChanged(Message, frozen=True, tag=4):
    standing: Standing
    term: Natural


class PreVote(Message, frozen=True, tag=5):
    """Asks for a vote in `term` without changing any state (Ongaro's thesis, 9.6)."""

    term: Natural
    last_log_index: Natural
    last_log_term: Natural


class PreVoteReply(Message, frozen=True, tag=6):
    term: Natural  # of the PreVote
    is_granted: bool
    current_term: Natural


class RequestVote(Message, frozen=True, tag=7):
    term: Natural
    last_log_index: Natural
    last_log_term: Natural


class VoteReply(Message, frozen=True, tag=8):
    """A vote. A node that refuses sends nothing."""

    term: Natural


class AppendEntries(Message, frozen=True, tag=9):
    term: Natural
    commit_index: Natural
    previous_index: Natural
    previous_term: Natural
    entries: tuple[Entry, ...]
    round: Natural  # of the leader's read barriers; the answer echoes it


class AppendReply(Message, frozen=True, tag=10):
    """Success: the log matches the leader's below `next_index`; else: try from there."""

    term: Natural
    next_index: Natural
    is_reset: bool
    is_success: bool
    round: Natural
    standing: Standing
    last_index: Natural  # the last entry of the follower's log


class SnapshotOffer(Message, frozen=True, tag=11):
    """Sent instead of AppendEntries if the log does not reach back far enough; a heartbeat, too."""

    term: Natural
    round: Natural
    index: Natural
    snapshot_term: Natural
    size_bytes: Natural
    crc: Natural


class SnapshotFetch(Message, frozen=True, tag=12):
    index: Natural
    snapshot_term: Natural
    size_bytes: Natural
    crc: Natural
    offset: Natural


class SnapshotChunk(Message, frozen=True, tag=13):
    index: Natural
    snapshot_term: Natural
    size_bytes: Natural
    crc: Natural
    offset: Natural
    data: bytes


class SnapshotGone(Message, frozen=True, tag=14):
    """The requested snapshot was replaced by a newer one, which the next offer names."""

    index: Natural
    snapshot_term: Natural
    size_bytes: Natural
    crc: Natural


class ObserverFetch(Message, frozen=True, tag=15):
    """Asks for committed entries from `next_index` on; a long poll if there are none."""

    next_index: Natural
    quorum_id: Token = b""  # of the log that the observer has applied; empty: none yet


class ObserverEntries(Message, frozen=True, tag=16):
    """Committed entries, or none; `commit_index` is the sender's, to measure the lag.

    `leader_id` leads in `term`, as far as the sender knows.
    """

    commit_index: Natural
    entries: tuple[Entry, ...]
    leader_id: int | None = None
    term: Natural = 0


class ObserverOffer(Message, frozen=True, tag=17):
    """The requested entries were compacted: fetch this snapshot first."""

    index: Natural
    snapshot_term: Natural
    size_bytes: Natural
    crc: Natural


class StatusRequest(Message, frozen=True, tag=18):
    """Answered by StatusReply, to visitors and observers alike."""


class StatusReply(Message, frozen=True, tag=19):
    status: bytes  # JSON, as `raftmq quorum status -o json` shows it


class Welcome(Message, frozen=True, tag=20):
    """Between voters: the Hello is accepted. Before it the connection is not used."""


AnyMessage: TypeAlias = (
    NodeHello | Refusal | KeepAlive | StandingChanged | PreVote | PreVoteReply | RequestVote
    | VoteReply | AppendEntries | AppendReply | SnapshotOffer | SnapshotFetch | SnapshotChunk
    | SnapshotGone | ObserverFetch | ObserverEntries | ObserverOffer | StatusRequest | StatusReply
    | Welcome
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_decoder = Decoder[AnyMessage](AnyMessage)


def encode_frame(message: AnyMessage) -> bytes:
    """The bytes on the wire. Senders keep below the frame limit: it is only asserted."""
    payload = _encoder.encode(message)
    assert len(payload) <= FRAME_BYTES_MAX, f"{type(message).__name__} of {len(payload)} bytes"
    return FRAME_HEADER.pack(len(payload), crc32c(payload)) + payload


class MessageReader:
    """Cuts a stream of bytes into messages; holds at most one frame and one read.

    Limits are checked before anything is buffered: RemoteProtocolError ends the connection.

    Attributes:
        frame_bytes_max: from now on; lower for peers that have no reason to send much.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._is_first = True
        self.frame_bytes_max = FRAME_BYTES_MAX

    @property
    def buffered_bytes(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._buffer)

    def receive(self, data: bytes | bytearray) -> list[AnyMessage]:
        """The messages that `data` completes, in order.

        Raises:
            RemoteProtocolError: too long, damaged, or no known message.
        """
        self._buffer += data
        if self._is_first:
            self._is_first = len(self._buffer) < FRAME_HEADER.size  # no frame is shorter
            refuse_foreign(self._buffer, is_quorum=True)
        messages: list[AnyMessage] = []
        position = 0
        while (message_end := self._end_of_frame(position)) is not None:
            messages.append(self._decode(position, message_end))
            position = message_end
        del self._buffer[:position]
        return messages

    def _end_of_frame(self, position: int) -> int | None:
        # The rest of the header is still to come.
        if len(self._buffer) - position < FRAME_HEADER.size:
            return None
        length, _ = FRAME_HEADER.unpack_from(self._buffer, position)
        if length > self.frame_bytes_max:  # before more of it is buffered
            raise RemoteProtocolError(f"frame of {length} bytes, at most {self.frame_bytes_max}")
        end = position + FRAME_HEADER.size + length
        return end if end <= len(self._buffer) else None

    def _decode(self, position: int, end: int) -> AnyMessage:
        _, crc = FRAME_HEADER.unpack_from(self._buffer, position)
        payload = bytes(memoryview(self._buffer)[position + FRAME_HEADER.size : end])
        if crc32c(payload) != crc:  # damaged on the way, or sent by a faulty node
            raise RemoteProtocolError(f"frame of {len(payload)} bytes fails its CRC")
        try:
            return _decoder.decode(payload)
        except ValueError as error:  # msgspec's errors are ValueErrors
            raise RemoteProtocolError(f"frame of {len(payload)} bytes: {error}") from error
