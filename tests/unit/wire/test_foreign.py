"""Other protocols that come to a port of raftmq; its own are never taken for them."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.errors import ForeignProtocol
from raftmq.metadata.raft.net.messages import MessageReader, NodeHello, Role
from raftmq.metadata.raft.net.messages import encode_frame as encode_quorum_frame
from raftmq.wire.envelopes import encode_request
from raftmq.wire.foreign import (
    HTTP,
    HTTP_SERVER,
    KAFKA,
    QUORUM,
    TLS,
    TLS_SERVER,
    refuse_foreign,
)
from raftmq.wire.frames import FrameReader, encode_frame
from raftmq.wire.messages.hello import Hello


def tls_handshake() -> bytes:
    """As a client of this Python begins it."""
    sent = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="here")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return sent.read()


# ApiVersions v3 of librdkafka, whose length is 43.
KAFKA_REQUEST = bytes.fromhex("0000002b 0012 0003 00000001 0007 72646b61666b61 00")
FOREIGN = [
    (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", HTTP),
    (b"POST /topics HTTP/1.1\r\n", HTTP),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", HTTP),
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", HTTP_SERVER),
    (tls_handshake(), TLS),
    (bytes.fromhex("15 03 03 00 02 02 28"), TLS_SERVER),
    (KAFKA_REQUEST, KAFKA),
    (encode_quorum_frame(NodeHello(1, "a", Role.VISITOR, -1)), QUORUM),
]


@pytest.mark.parametrize(("first", "protocol"), FOREIGN[:6])
def test_another_protocol_byte_by_byte(first: bytes, protocol: str) -> None:
    """A slow network cuts HTTP and TLS anywhere: they are recognized all the same."""
    frames = FrameReader(frame_bytes_max=1 << 26, header_bytes_max=1 << 21)
    for reader in (frames, MessageReader()):
        with pytest.raises(ForeignProtocol) as caught:
            list(map(reader.receive, (bytes([byte]) for byte in first)))
        assert caught.value.protocol == protocol


@pytest.mark.parametrize(("first", "protocol"), FOREIGN)
def test_another_protocol(first: bytes, protocol: str) -> None:
    """It is called by its name, before anything of it is kept."""
    frames = FrameReader(frame_bytes_max=1 << 26, header_bytes_max=1 << 21)
    with pytest.raises(ForeignProtocol) as caught:
        frames.receive(first)
    assert caught.value.protocol == protocol
    assert frames.buffered_bytes == 0


def test_a_port_of_voters() -> None:
    """HTTP is called so there, too; the quorum's own Hello is at home."""
    with pytest.raises(ForeignProtocol, match="an HTTP request came"):
        MessageReader().receive(FOREIGN[0][0])
    hello = NodeHello(1, "a", Role.VISITOR, -1)
    assert MessageReader().receive(encode_quorum_frame(hello)) == [hello]


@given(st.text(max_size=200), st.text(max_size=200), st.integers(0, 1 << 31))
def test_a_hello_is_none_of_them(cluster_id: str, client_id: str, number: int) -> None:
    """However it is filled in."""
    hello = Hello(cluster_id=cluster_id, client_id=client_id, software="raftmq 0.1.0")
    frame = encode_request(number, hello)
    for length in range(1, 12):
        refuse_foreign(frame[:length])


@given(st.binary(max_size=60_000))
def test_a_short_frame_is_none_of_them(header: bytes) -> None:
    """Whatever it holds: all that comes first is shorter than 64 KiB."""
    refuse_foreign(encode_frame(header))
