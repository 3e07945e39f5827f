"""Framing: cuts the byte stream of a connection into length-prefixed frames, within limits.

    u32 length | u32 header length | header | payload          little-endian

`length` counts everything after itself. Does not decode header or payload. Limits are checked
before anything is buffered: a reader holds at most one frame and one read.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import msgspec

from raftmq.errors import RemoteProtocolError
from raftmq.wire.foreign import FIRST_BYTES, refuse_foreign

if TYPE_CHECKING:
    from typing import NoReturn, TypeAlias

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


class Frame(msgspec.Struct, frozen=True):
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
        # Of the connection, for `refuse_foreign`; None once it has passed.
        self._first: bytearray | None = bytearray()

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
        if self._first is not None:
            self._check_first(self._first, data)
        if self._pieces:
            self._keep(data)
            if self._buffered_bytes < self._needed_bytes:
                return []  # joined once, when it is complete: not at each read
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._buffered_bytes = 0
        # Frames are views of it, or wait in it: the caller may fill its own buffer again.
        if type(data) is not bytes:
            data = bytes(data)
        frames: list[Frame] = []
        position, available = 0, len(data)
        while available >= PREFIX.size:
            length, header_length = PREFIX.unpack_from(data, position)
            if (
                not HEADER_LENGTH_BYTES + header_length <= length <= self._frame_bytes_max
                or header_length > self._header_bytes_max
            ):
                self._refuse(length, header_length)
            size = LENGTH.size + length
            if size > available:
                break
            frames.append(_cut(data, position, header_length, size))
            position, available = position + size, available - size
        if available:  # the beginning of the next frame
            rest = data[position:]
            self._needed_bytes = self._bytes_needed_after(rest)
            self._keep(rest)
        return frames

    def _check_first(self, first: bytearray, data: Bytes) -> None:
        first += data[: FIRST_BYTES - len(first)]
        refuse_foreign(first)
        if len(first) == FIRST_BYTES:
            self._first = None

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

    def _bytes_needed_after(self, begun: bytes) -> int:
        """How many bytes, with these, have to arrive before the next step is possible."""
        if len(begun) < LENGTH.size:
            return LENGTH.size
        (length,) = LENGTH.unpack_from(begun)
        # A length is refused at once, before its header length arrives.
        if not HEADER_LENGTH_BYTES <= length <= self._frame_bytes_max:
            self._refuse(length, 0)
        return LENGTH.size + length if len(begun) >= PREFIX.size else PREFIX.size

    def _refuse(self, length: int, header_length: int) -> NoReturn:
        """Lengths over their limits, or that contradict each other."""
        if length > self._frame_bytes_max:
            problem = f"frame of {length} bytes, at most {self._frame_bytes_max}: send less at once"
        elif length < HEADER_LENGTH_BYTES:  # it would end inside of its own header
            problem = f"frame of {length} bytes, at least {HEADER_LENGTH_BYTES}"
        elif header_length > self._header_bytes_max:
            problem = (
                f"frame with a header of {header_length} bytes, at most {self._header_bytes_max}"
            )
        else:
            problem = f"frame of {length} bytes with a header of {header_length} bytes"
        raise RemoteProtocolError(problem)


def _cut(data: bytes, position: int, header_length: int, size: int) -> Frame:
    """The frame of `size` bytes at `position`."""
    header_start = position + PREFIX.size
    payload_start, end = header_start + header_length, position + size
    header = data[header_start:payload_start]
    if end - payload_start < LARGE_BYTES:
        return Frame(header, data[payload_start:end])
    return Frame(header, memoryview(data)[payload_start:end])
