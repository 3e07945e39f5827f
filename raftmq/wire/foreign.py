"""Which other protocol the first bytes of a connection belong to: HTTP, TLS, Kafka's, the quorum's.

A wrong port in a configuration is a common mistake, and "frame of 542393671 bytes" does not explain
it. Looks at the first bytes of a connection only, which belong to a
Hello or its answer: these are short, so that no frame of ours looks like one of the others. Pure.
"""

from __future__ import annotations

from raftmq.errors import ForeignProtocol

HTTP, HTTP_SERVER, TLS, TLS_SERVER, KAFKA, QUORUM = (
    "HTTP", "HTTP server", "TLS", "TLS server", "Kafka", "quorum",
)  # fmt: skip
_TO_BROWSERS = (
    b"this port speaks raftmq's own protocol, not HTTP: connect with raftmq's SDK or command line\n"
)
HTTP_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_TO_BROWSERS), _TO_BROWSERS)
)
_METHODS = (
    b"GET ",
    b"HEAD",
    b"POST",
    b"PUT ",
    b"DELE",
    b"OPTI",
    b"PATC",
    b"CONN",
    b"TRAC",
    b"PRI ",
)
NO_CLIENTS = "serves no clients: give the address of a listener for clients"
VOTERS_MEET = f"is where voters meet, and {NO_CLIENTS}"
_WHAT = {
    HTTP: "an HTTP request came, and this port speaks raftmq's own protocol",
    HTTP_SERVER: "an HTTP server answered, no raftmq: check host and port",
    TLS: "a TLS handshake came, and this port takes none",
    TLS_SERVER: "a TLS server answered, and raftmq connects without TLS: check host and port",
    KAFKA: "a request of a Kafka client came, and raftmq has a protocol of its own",
    QUORUM: f"the other side speaks the quorum's protocol: it {VOTERS_MEET}",
}
_KAFKA_BYTES_MAX = 1 << 16  # of a first request; it has the length in big-endian
_KAFKA_API_KEYS = 100
FIRST_BYTES = 10  # of a connection: by these every other protocol is recognized


def refuse_foreign(first: bytes | bytearray | memoryview, *, is_quorum: bool = False) -> None:
    """
    Args:
        first: the bytes that a connection has brought so far. All but QUORUM is recognized by the
            first 6, most by 4, before a length that is too large is refused.
        is_quorum: here the quorum's own protocol is spoken.

    Raises:
        ForeignProtocol: it is the beginning of something else, certainly no frame of raftmq.
    """
    protocol = _protocol_of(bytes(first[:FIRST_BYTES]))
    if protocol and not (is_quorum and protocol == QUORUM):
        raise ForeignProtocol(_WHAT[protocol], protocol)


def _protocol_of(first: bytes) -> str:
    """The protocol that begins with these bytes; "" if it may be ours.

    Ours begins with a length below 64 KiB in little-endian: its third and fourth byte are 0.
    """
    if first.startswith(_METHODS):
        return HTTP
    if first.startswith(b"HTTP"):
        return HTTP_SERVER
    # A record of TLS: its type (21 alert, 22 handshake), then the version, 3.1 to 3.4.
    if first[1:2] == b"\3" and first[2:3] in (b"\1", b"\2", b"\3", b"\4"):
        return {b"\x16": TLS, b"\x15": TLS_SERVER}.get(first[:1], "")
    length, api_key = int.from_bytes(first[:4], "big"), int.from_bytes(first[4:6], "big")
    if first[:2] == b"\0\0" and 8 <= length < _KAFKA_BYTES_MAX and api_key < _KAFKA_API_KEYS:
        return KAFKA
    # The quorum's frames: length, CRC, and an array of msgpack that begins with 1, its Hello. Ours
    # have the length of the header in place of the CRC, and it is shorter than the frame.
    if first[8:9] >= b"\x90" and first[9:10] == b"\1" and _contradicts(first):
        return QUORUM
    return ""


def _contradicts(first: bytes) -> bool:
    return int.from_bytes(first[4:8], "little") > int.from_bytes(first[:4], "little")
