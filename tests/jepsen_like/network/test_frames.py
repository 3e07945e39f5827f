"""What is read of a frame, and the RSTs that are made of one."""

from __future__ import annotations

import struct

import pytest

from jepsen_like.network.frames import (
    ACK,
    FIN,
    RST,
    SYN,
    checksum,
    is_tcp,
    read_segment,
    reset_source,
    reset_target,
)
from jepsen_like.network.hosts import CLIENTS, node_host
from tests.jepsen_like.network.tcp_frames import (
    CLIENT_PORT,
    N1,
    N2,
    SERVER_PORT,
    answer_frame,
    tcp_frame,
    udp_frame,
)


def test_addresses_follow_from_numbers() -> None:
    """A node and the clients: each has the address and the hardware address of its number."""
    assert (node_host(3).name, node_host(3).address) == ("n3", "10.77.0.3")
    assert CLIENTS.address == "10.77.0.254"
    assert node_host(3).hardware_address == bytes.fromhex("02000a4d0003")


@pytest.mark.parametrize("node_id", [0, 254, 255])
def test_number_without_address(node_id: int) -> None:
    """A node whose number is that of the clients, the network or everybody."""
    with pytest.raises(AssertionError, match="no address"):
        node_host(node_id)


def test_segment_is_read() -> None:
    """A segment with a payload: all that is said of the connection."""
    segment = read_segment(tcp_frame(payload=b"12345"))
    assert (segment.source_port, segment.target_port) == (CLIENT_PORT, SERVER_PORT)
    assert (segment.sequence, segment.end, segment.acknowledged) == (1000, 1005, 5000)
    assert segment.flags == ACK


def test_payload_may_be_missing() -> None:
    """Only the headers were kept: the length that they tell is enough."""
    frame = tcp_frame(payload=b"12345")
    assert read_segment(frame[:54]) == read_segment(frame)


@pytest.mark.parametrize("flags", [SYN, SYN | ACK, FIN | ACK])
def test_begin_and_end_take_a_number(flags: int) -> None:
    """SYN and FIN count as one byte each."""
    assert read_segment(tcp_frame(flags=flags)).end == 1001


def test_numbers_wrap() -> None:
    """A segment that goes over the end of the 32 bits."""
    assert read_segment(tcp_frame(sequence=(1 << 32) - 2, payload=b"123")).end == 1


@pytest.mark.parametrize(
    "frame",
    [
        udp_frame(payload=bytes(40)),
        N2.hardware_address + N1.hardware_address + b"\x08\x06" + bytes(46),  # ARP
        tcp_frame()[:53],
        b"",
    ],
)
def test_not_tcp(frame: bytes) -> None:
    """Another protocol, another kind of frame, half a header, nothing at all."""
    assert not is_tcp(frame)


def test_reset_for_the_source() -> None:
    """It comes from the other end, with the very number that the source expects."""
    reset = _must(reset_source(tcp_frame(payload=b"12345")))
    assert reset[:12] == N1.hardware_address + N2.hardware_address
    segment = read_segment(reset)
    assert (segment.source_port, segment.target_port) == (SERVER_PORT, CLIENT_PORT)
    assert (segment.source, segment.target) == (b"\x0a\x4d\x00\x02", b"\x0a\x4d\x00\x01")
    assert (segment.sequence, segment.flags) == (5000, RST)


@pytest.mark.parametrize(("is_delivered", "sequence"), [(False, 1000), (True, 1005)])
def test_reset_for_the_target(*, is_delivered: bool, sequence: int) -> None:
    """In place of a segment it has that one's number; after it, the next."""
    reset = _must(reset_target(tcp_frame(payload=b"12345"), is_delivered=is_delivered))
    assert reset[:12] == N2.hardware_address + N1.hardware_address
    segment = read_segment(reset)
    assert (segment.sequence, segment.acknowledged) == (sequence, 5000)
    assert segment.flags == RST | ACK


def test_connection_that_begins_is_refused() -> None:
    """A SYN: whoever sent it hears that nobody listens; the other end never hears of it."""
    syn = tcp_frame(flags=SYN, acknowledged=0)
    segment = read_segment(_must(reset_source(syn)))
    assert (segment.sequence, segment.acknowledged, segment.flags) == (0, 1001, RST | ACK)
    assert reset_target(syn, is_delivered=False) is None


def test_reset_is_not_answered() -> None:
    """A RST passes by: no other comes of it, or the two would never end."""
    reset = answer_frame(flags=RST)
    assert reset_source(reset) is None
    assert reset_target(reset, is_delivered=False) is None


@pytest.mark.parametrize("payload", [b"", b"odd"])
def test_checksums_are_right(payload: bytes) -> None:
    """A host drops what has a wrong one; summed with it, a right one gives zero."""
    frame = tcp_frame(payload=payload)
    for reset in (_must(reset_source(frame)), _must(reset_target(frame, is_delivered=True))):
        assert len(reset) == 54
        assert checksum(reset[14:34]) == 0
        assert checksum(reset[26:34] + struct.pack("!HH", 6, 20) + reset[34:]) == 0


def test_checksum_of_a_known_header() -> None:
    """The example of an IPv4 header that is found in every text about it."""
    header = bytes.fromhex("45000073000040004011" + "0000" + "c0a80001c0a800c7")
    assert checksum(header) == 0xB861


def _must(frame: bytes | None) -> bytes:
    assert frame is not None
    return frame
