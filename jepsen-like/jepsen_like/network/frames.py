"""Ethernet frames with TCP over IPv4: parsed as far as faults need it, and RSTs made in answer.

Pure. Only TCP over IPv4 without IP options is understood, which is all that a Linux host sends
here; of other frames only the two hardware addresses are read.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

ETHERNET_BYTES = 14
HEADERS_BYTES = 54  # Ethernet, IPv4, TCP without options: all that is ever read of a frame

FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10

_IPV4 = b"\x08\x00\x45"  # the type of the frame, then version 4 with a header of 20 bytes
_TCP = 6
_WRAP = 1 << 32

_IP_HEADER = struct.Struct("!BBHHHBBH4s4s")
_TCP_HEADER = struct.Struct("!HHIIBBHHH")
_READ = struct.Struct("!16xH8x4s4sHHIIBB")


class Segment(NamedTuple):
    """What a TCP segment says of its connection. `end`: the number after its last byte."""

    source: bytes
    target: bytes
    source_port: int
    target_port: int
    sequence: int
    end: int
    acknowledged: int
    flags: int


def is_tcp(frame: bytes) -> bool:
    return frame[12:15] == _IPV4 and frame[23] == _TCP and len(frame) >= HEADERS_BYTES


def flags_of(frame: bytes) -> int:
    """Of a frame for which `is_tcp` holds."""
    return frame[47]


def read_segment(frame: bytes) -> Segment:
    """Of a frame for which `is_tcp` holds; its payload may be missing."""
    length, source, target, source_port, target_port, sequence, acknowledged, offset, flags = (
        _READ.unpack_from(frame)
    )
    payload_bytes = length - 20 - (offset >> 4) * 4
    end = sequence + payload_bytes + bool(flags & SYN) + bool(flags & FIN)
    return Segment(
        source, target, source_port, target_port, sequence, end % _WRAP, acknowledged, flags
    )


def reset_source(frame: bytes) -> bytes | None:
    """The RST for the sender of this segment, as if from the other end.

    Its number is what the sender itself just said that it expects next, so it is believed at once.
    """
    segment = read_segment(frame)
    if segment.flags & RST:
        return None
    if segment.flags & ACK:
        return _make_back(frame, segment, sequence=segment.acknowledged, flags=RST)
    return _make_back(frame, segment, sequence=0, acknowledged=segment.end, flags=RST | ACK)


def reset_target(frame: bytes, *, is_delivered: bool) -> bytes | None:
    """The RST for the receiver of this segment, as if from the sender, in place of it or after it.

    None where the receiver knows of no connection yet, or of its end already.
    """
    segment = read_segment(frame)
    if segment.flags & RST or not segment.flags & ACK:
        return None
    sequence = segment.end if is_delivered else segment.sequence
    return frame[:12] + _make_reset(
        segment, sequence=sequence, acknowledged=segment.acknowledged, flags=RST | ACK
    )


def _make_back(
    frame: bytes, segment: Segment, *, sequence: int, flags: int, acknowledged: int = 0
) -> bytes:
    back = segment._replace(
        source=segment.target,
        target=segment.source,
        source_port=segment.target_port,
        target_port=segment.source_port,
    )
    addresses = frame[6:12] + frame[:6]
    return addresses + _make_reset(back, sequence=sequence, acknowledged=acknowledged, flags=flags)


def _make_reset(way: Segment, *, sequence: int, acknowledged: int, flags: int) -> bytes:
    """All of the frame but its hardware addresses: type, IPv4, TCP."""
    tcp = _fill_checksum(
        _TCP_HEADER.pack(
            way.source_port, way.target_port, sequence, acknowledged, 5 << 4, flags, 0, 0, 0
        ),
        at=16,
        # The checksum of TCP also covers who talks to whom.
        before=way.source + way.target + struct.pack("!HH", _TCP, _TCP_HEADER.size),
    )
    ip = _IP_HEADER.pack(0x45, 0, 40, 0, 0x4000, 64, _TCP, 0, way.source, way.target)
    return _IPV4[:2] + _fill_checksum(ip, at=10) + tcp


def _fill_checksum(header: bytes, *, at: int, before: bytes = b"") -> bytes:
    return header[:at] + struct.pack("!H", checksum(before + header)) + header[at + 2 :]


def checksum(data: bytes) -> int:
    """The Internet's, of an even number of bytes; 0 if a right checksum is among them."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
