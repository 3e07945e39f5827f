"""What the nodes of the quorum say to each other, and the bytes of it.

A frame is `u32 length | u32 crc32c | payload`, little-endian; the payload is a msgpack array that
begins with the number of the message. Owns shapes, validation and limits; what a message means is
decided in `guard`. Fields may be added at the end, with a default. A connection begins with one
Hello from either side.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Annotated, TypeAlias

import msgspec
from crc32c import crc32c

from raftmq.errors import RemoteProtocolError
from raftmq.wire.nesting import Decoder

PROTOCOL_VERSION = 1
FRAME_HEADER = struct.Struct("<II")
FRAME_BYTES_MAX = 4 << 20  # two commands of the largest size and room to spare
SMALL_FRAME_BYTES_MAX = 64 << 10  # of strangers and guests: they greet, and ask
APPEND_BYTES_MAX = 1 << 20  # entries of one AppendEntries; one larger entry travels alone
CHUNK_BYTES_MAX = 1 << 20
VOTERS_MAX = 99
REASON_LENGTH_MAX = 4096

Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Name = Annotated[str, msgspec.Meta(max_length=255)]
Token = Annotated[bytes, msgspec.Meta(max_length=64)]
# Command, index, term: the order that PySyncObj uses.
Entry: TypeAlias = tuple[bytes, Natural, Natural]


class Role(IntEnum):
    VOTER = 0
    OBSERVER = 1  # follows committed entries, does not vote
    VISITOR = 2  # asks for the status and leaves


class Standing(IntEnum):
    """What a voter's disk is worth (docs/decisions/0012)."""

    BLANK = 0  # it holds nothing, and nobody told yet whether it should: neither votes nor counts
    ESTABLISHED = 1  # it holds everything that it ever promised


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="kind"):
    """Base of the union; each subclass has a number for ever."""


class NodeHello(Message, frozen=True, tag=1):
    """Who is there. `start_count` and `nonce` tell one run of a voter's directory from another.

    `is_replacement`: its operator says that a blank disk takes the seat of one that is lost.
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
    """Said instead of serving.

    `is_final`: coming back will not help, somebody must act. `must_stop`: nor may whoever is
    refused go on elsewhere, as its directory is an older copy.
    """

    reason: Annotated[str, msgspec.Meta(max_length=REASON_LENGTH_MAX)]
    is_final: bool = False
    must_stop: bool = False


class KeepAlive(Message, frozen=True, tag=3):
    """Keeps the connection from looking dead."""


class StandingChanged(Message, frozen=True, tag=4):
    standing: Standing
    term: Natural


class PreVote(Message, frozen=True, tag=5):
    """Would you vote for me in `term`? Changes nothing anywhere (Ongaro's thesis, 9.6)."""

    term: Natural
    last_log_index: Natural
    last_log_term: Natural


class PreVoteReply(Message, frozen=True, tag=6):
    term: Natural  # of the question
    is_granted: bool
    current_term: Natural


class RequestVote(Message, frozen=True, tag=7):
    term: Natural
    last_log_index: Natural
    last_log_term: Natural


class VoteReply(Message, frozen=True, tag=8):
    """A vote. A refusal is silent."""

    term: Natural


class AppendEntries(Message, frozen=True, tag=9):
    term: Natural
    commit_index: Natural
    previous_index: Natural
    previous_term: Natural
    entries: tuple[Entry, ...]
    round: Natural  # of the leader's read barriers: an answer to it came after the question


class AppendReply(Message, frozen=True, tag=10):
    """The log matches the leader's below `next_index` (success), or must be tried from there."""

    term: Natural
    next_index: Natural
    is_reset: bool
    is_success: bool
    round: Natural
    standing: Standing
    last_index: Natural  # where the log that answers ends


class SnapshotOffer(Message, frozen=True, tag=11):
    """In place of AppendEntries where the log does not reach back far enough; a heartbeat, too."""

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
    """The snapshot that was asked for has been replaced: ask again from the newest."""

    index: Natural
    snapshot_term: Natural
    size_bytes: Natural
    crc: Natural


class ObserverFetch(Message, frozen=True, tag=15):
    """Send committed entries from `next_index` on: what there is now, or there soon is."""

    next_index: Natural
    quorum_id: Token = b""  # whose history the observer has seen; empty: none yet


class ObserverEntries(Message, frozen=True, tag=16):
    """Committed entries, or none; `commit_index` is what the sender knows, to measure the lag.

    `leader_id` leads in `term`, as far as the sender hears.
    """

    commit_index: Natural
    entries: tuple[Entry, ...]
    leader_id: int | None = None
    term: Natural = 0


class ObserverOffer(Message, frozen=True, tag=17):
    """The entries asked for are gone: fetch this snapshot first."""

    index: Natural
    snapshot_term: Natural
    size_bytes: Natural
    crc: Natural


class StatusRequest(Message, frozen=True, tag=18):
    """Answered by StatusReply, to whoever asks."""


class StatusReply(Message, frozen=True, tag=19):
    status: bytes  # JSON, as `raftmq quorum status -o json` shows it


class Welcome(Message, frozen=True, tag=20):
    """Between voters: your Hello is accepted. Only then is there a connection."""


AnyMessage: TypeAlias = (
    NodeHello | Refusal | KeepAlive | StandingChanged | PreVote | PreVoteReply | RequestVote
    | VoteReply | AppendEntries | AppendReply | SnapshotOffer | SnapshotFetch | SnapshotChunk
    | SnapshotGone | ObserverFetch | ObserverEntries | ObserverOffer | StatusRequest | StatusReply
    | Welcome
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_decoder = Decoder[AnyMessage](AnyMessage)


def encode_frame(message: AnyMessage) -> bytes:
    """The bytes on the wire. A frame over the limit is our own mistake."""
    payload = _encoder.encode(message)
    assert len(payload) <= FRAME_BYTES_MAX, f"{type(message).__name__} of {len(payload)} bytes"
    return FRAME_HEADER.pack(len(payload), crc32c(payload)) + payload


class MessageReader:
    """Cuts a stream of bytes into messages; holds at most one frame and one read.

    Limits are checked before anything is kept: RemoteProtocolError ends the connection.

    Attributes:
        frame_bytes_max: from now on; less for those who have no reason to send much.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.frame_bytes_max = FRAME_BYTES_MAX

    @property
    def buffered_bytes(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._buffer)

    def receive(self, data: bytes | bytearray) -> list[AnyMessage]:
        """The messages that `data` completes, in order.

        Raises:
            RemoteProtocolError: too long, damaged, or no message of ours.
        """
        self._buffer += data
        messages: list[AnyMessage] = []
        position = 0
        while (message_end := self._end_of_frame(position)) is not None:
            messages.append(self._decode(position, message_end))
            position = message_end
        del self._buffer[:position]
        return messages

    def _end_of_frame(self, position: int) -> int | None:
        if len(self._buffer) - position < FRAME_HEADER.size:
            return None
        length, _ = FRAME_HEADER.unpack_from(self._buffer, position)
        if length > self.frame_bytes_max:
            raise RemoteProtocolError(f"frame of {length} bytes, at most {self.frame_bytes_max}")
        end = position + FRAME_HEADER.size + length
        return end if end <= len(self._buffer) else None

    def _decode(self, position: int, end: int) -> AnyMessage:
        _, crc = FRAME_HEADER.unpack_from(self._buffer, position)
        payload = bytes(memoryview(self._buffer)[position + FRAME_HEADER.size : end])
        if crc32c(payload) != crc:
            raise RemoteProtocolError(f"frame of {len(payload)} bytes fails its CRC")
        try:
            return _decoder.decode(payload)
        except ValueError as error:  # msgspec's errors are ValueErrors
            raise RemoteProtocolError(f"frame of {len(payload)} bytes: {error}") from error
