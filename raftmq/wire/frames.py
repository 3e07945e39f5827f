"""Framing: cuts the byte stream of a connection into length-prefixed frames, within limits.

    u32 length | u32 header length | header | payload          little-endian

`length` counts everything after itself. Does not decode header or payload. Limits are checked
before anything is buffered: a reader holds at most one frame and one read.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import RemoteProtocolError
from raftmq.wire.foreign import FIRST_BYTES, refuse_foreign

if TYPE_CHECKING:
    from typing import TypeAlias

    Bytes: TypeAlias = bytes | bytearray | memoryview

PREFIX = struct.Struct("<II")
LENGTH = struct.Struct("<I")
# Bytes of the header length, which `length` counts beside header and payload.
HEADER_LENGTH_BYTES = PREFIX.size - LENGTH.size
# Bytes of a read below which it is copied to the piece before it: a peer that sends single bytes
# must not make the reader keep an object for each.
SMALL_BYTES = 4 << 10
# Bytes of a payload from which on it is a view of the read and no copy: the rest of that read, at
# most one, stays in memory with it.
LARGE_BYTES = 64 << 10
FRAME_BYTES_MAX = (1 << 32) - 1  # what the u32 can say; each side sets a much smaller limit


class Frame(NamedTuple):
    """One frame; its bytes are not changed any more."""

    header: bytes
    payload: bytes | memoryview


def encode_frame(header: bytes, payload_length: int = 0) -> bytes:
    """The beginning of a frame; `payload_length` bytes of payload follow it on the stream."""
    length = HEADER_LENGTH_BYTES + len(header) + payload_length
    assert length <= FRAME_BYTES_MAX, f"frame of {length} bytes"
    return PREFIX.pack(length, len(header)) + header


class FrameReader:
    """Cuts a stream of bytes into frames.

    Args:
        frame_bytes_max: limit of what follows the length: header and payload with its 4 bytes.
        header_bytes_max: limit of the header.
    """

    def __init__(self, *, frame_bytes_max: int, header_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._header_bytes_max = header_bytes_max
        self._pieces: list[bytes | bytearray] = []  # of a frame that is not complete yet
        self._buffered_bytes = self._needed_bytes = 0
        self._first = bytearray()  # of the connection, for `refuse_foreign`

    @property
    def buffered_bytes(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return self._buffered_bytes

    @property
    def needed_bytes(self) -> int:
        """Length of the frame that is not complete yet, or of its prefix while that is missing; 0
        between frames."""
        return self._needed_bytes if self._pieces else 0

    def receive(self, data: Bytes) -> list[Frame]:
        """The frames that `data` completes, in order.

        Raises:
            RemoteProtocolError: a length over its limit, or two that contradict each other. The
                frames that `data` completed before that one are lost with the connection.
            ForeignProtocol: these are the first bytes, and of another protocol.
        """
        if len(self._first) < FIRST_BYTES:
            self._first += data[: FIRST_BYTES - len(self._first)]
            refuse_foreign(self._first)
        if self._pieces:
            self._keep(data)
            if self._buffered_bytes < self._needed_bytes:
                return []  # joined once, when it is complete: not at each read
            data = b"".join(self._pieces)
            self._pieces.clear()
        frames: list[Frame] = []
        view, position = memoryview(data), 0
        while (end := self._end_of_frame(view, position)) is not None:
            frames.append(_cut(view, position, end))
            position = end
        self._buffered_bytes = 0
        if position < len(view):  # the beginning of the next frame
            self._needed_bytes = _needed_bytes(view, position)
            self._keep(view[position:])
        return frames

    def _keep(self, data: Bytes) -> None:
        """Buffer part of a frame: large pieces as they are, small ones appended to each other."""
        self._buffered_bytes += len(data)
        last = self._pieces[-1] if self._pieces else None
        if len(data) >= SMALL_BYTES:  # large: kept as it is, to be joined once
            self._pieces.append(bytes(data))
        elif isinstance(last, bytearray) and len(last) < SMALL_BYTES:
            last += data
        else:
            self._pieces.append(bytearray(data))

    def _end_of_frame(self, view: memoryview, position: int) -> int | None:
        """Where the frame at `position` ends; None while it is not complete."""
        available = len(view) - position
        if available >= LENGTH.size:  # refuse a length at once, before its header length arrives
            self._check_length(LENGTH.unpack_from(view, position)[0])
        if available < PREFIX.size:
            return None
        length, header_length = PREFIX.unpack_from(view, position)
        self._check_header_length(header_length, length)
        end: int = position + LENGTH.size + length
        return end if end <= len(view) else None

    def _check_length(self, length: int) -> None:
        if length > self._frame_bytes_max:
            raise RemoteProtocolError(
                f"frame of {length} bytes, at most {self._frame_bytes_max}: send less at once"
            )
        if length < HEADER_LENGTH_BYTES:  # it would end inside of its own header
            raise RemoteProtocolError(f"frame of {length} bytes, at least {HEADER_LENGTH_BYTES}")

    def _check_header_length(self, header_length: int, length: int) -> None:
        if header_length > self._header_bytes_max:
            raise RemoteProtocolError(
                f"frame with a header of {header_length} bytes, at most {self._header_bytes_max}"
            )
        if header_length > length - HEADER_LENGTH_BYTES:  # the two lengths contradict each other
            raise RemoteProtocolError(
                f"frame of {length} bytes with a header of {header_length} bytes"
            )


def _needed_bytes(view: memoryview, position: int) -> int:
    """How many bytes from `position` on have to arrive before the next step is possible."""
    available = len(view) - position
    if available < PREFIX.size:
        return LENGTH.size if available < LENGTH.size else PREFIX.size
    length: int = LENGTH.unpack_from(view, position)[0]
    return LENGTH.size + length


def _cut(view: memoryview, position: int, end: int) -> Frame:
    _, header_length = PREFIX.unpack_from(view, position)
    header_start = position + PREFIX.size
    payload_start = header_start + header_length
    payload = view[payload_start:end]
    # A view only of immutable bytes: the caller's buffer may be filled again by the next read.
    if len(payload) < LARGE_BYTES or not isinstance(view.obj, bytes):
        return Frame(bytes(view[header_start:payload_start]), bytes(payload))
    return Frame(bytes(view[header_start:payload_start]), payload)
