"""Frames of TCP segments as a host would send them, made without the code that is tested."""

from __future__ import annotations

import struct

from jepsen_like.network.frames import ACK
from jepsen_like.network.hosts import Host, node_host

N1, N2, N3 = node_host(1), node_host(2), node_host(3)
CLIENT_PORT, SERVER_PORT = 40_000, 9292


def tcp_frame(
    source: Host = N1,
    target: Host = N2,
    *,
    source_port: int = CLIENT_PORT,
    target_port: int = SERVER_PORT,
    sequence: int = 1000,
    acknowledged: int = 5000,
    flags: int = ACK,
    payload: bytes = b"",
) -> bytes:
    tcp = struct.pack(
        "!HHIIBBHHH", source_port, target_port, sequence, acknowledged, 5 << 4, flags, 100, 0, 0
    )
    length = 20 + len(tcp) + len(payload)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, length, 1, 0x4000, 64, 6, 0)
    return _ethernet(source, target) + ip + _addresses(source, target) + tcp + payload


def udp_frame(source: Host = N1, target: Host = N2, *, payload: bytes = b"") -> bytes:
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 28 + len(payload), 1, 0x4000, 64, 17, 0)
    udp = struct.pack("!HHHH", CLIENT_PORT, SERVER_PORT, 8 + len(payload), 0)
    return _ethernet(source, target) + ip + _addresses(source, target) + udp + payload


def answer_frame(**of_segment: int) -> bytes:
    """From the server's end back to the client's."""
    return tcp_frame(N2, N1, source_port=SERVER_PORT, target_port=CLIENT_PORT, **of_segment)


def _ethernet(source: Host, target: Host) -> bytes:
    return target.hardware_address + source.hardware_address + b"\x08\x00"


def _addresses(source: Host, target: Host) -> bytes:
    return bytes([10, 77, 0, source.number, 10, 77, 0, target.number])
