"""Headers of requests and responses: what is answered, and what ends a connection."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from raftmq.errors import ErrorCode, RemoteProtocolError, UnsupportedVersion
from raftmq.wire.bodies import MESSAGE_CHARS_MAX, Body, Request
from raftmq.wire.envelopes import (
    DecodedRequest,
    ResponseHeader,
    decode_reply,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from raftmq.wire.frames import Frame, FrameReader
from raftmq.wire.messages.cluster import Ping
from raftmq.wire.messages.fetch import Fetch, FetchPartition, FetchReply, PartitionFetched
from raftmq.wire.messages.hello import Hello
from raftmq.wire.messages.produce import Produce, ProducePartition
from tests.unit.wire.random_bodies import REQUEST_CLASSES, random_body

if TYPE_CHECKING:
    from collections.abc import Callable

TOPIC_ID = bytes(range(16))
TRACE = {"traceparent": "00-1-2-01"}
PRODUCE = Produce(-1, 30_000, (ProducePartition(TOPIC_ID, 3, 7, 500),))
FETCH = Fetch(500, 1, 1 << 20, partitions=(FetchPartition(TOPIC_ID, 3, 12_345, 7, 6),))
FETCHED = FetchReply(9, (PartitionFetched(TOPIC_ID, 3, 0, 12_400, 5, 800),))


def headers_in(stream: bytes) -> list[bytes]:
    reader = FrameReader(frame_bytes_max=1 << 20, header_bytes_max=1 << 20)
    return [frame.header for frame in reader.receive(stream)]


def header_of(frame: bytes) -> bytes:
    (header,) = headers_in(frame)
    return header


def packed(*fields: Any) -> bytes:
    return msgspec.msgpack.encode(fields)


def answer(header: bytes) -> tuple[ResponseHeader, Body]:
    response = decode_response(header)
    return response, decode_reply(FetchReply, response.body)


@pytest.mark.parametrize("kind", REQUEST_CLASSES, ids=lambda kind: kind.__name__)
def test_every_request_is_read_as_it_was_asked(kind: type[Request]) -> None:
    """Number, version, correlation id, body and trace come through."""
    body = random_body(kind, Random(kind.__name__))
    request = decode_request(header_of(encode_request(2**63 - 1, body, trace=TRACE)))
    assert request == DecodedRequest(2**63 - 1, body, TRACE)
    assert type(request.body) is kind


@pytest.mark.parametrize("kind", REQUEST_CLASSES, ids=lambda kind: kind.__name__)
def test_every_reply_is_read_as_it_was_answered(kind: type[Request]) -> None:
    """Correlation id, throttling, version of the metadata and body come through."""
    body = random_body(kind.reply, Random(kind.__name__))
    frame = encode_response(8, body, throttle_ms=20, metadata_version=77)
    response = decode_response(header_of(frame))
    assert (response.correlation_id, response.error) == (8, ErrorCode.NONE)
    assert (response.throttle_ms, response.metadata_version) == (20, 77)
    assert decode_reply(kind.reply, response.body) == body


def test_the_payload_follows_the_header() -> None:
    """What is sent behind the encoded request comes out as the payload of its frame."""
    reader = FrameReader(frame_bytes_max=1 << 20, header_bytes_max=1 << 20)
    (frame,) = reader.receive(encode_request(1, PRODUCE, payload_length=500) + bytes(500))
    assert frame == Frame(frame.header, bytes(500))
    assert decode_request(frame.header).body == PRODUCE


def test_an_error_travels_without_a_body() -> None:
    """Number and message; the body is nil, and nobody reads it."""
    response = decode_response(header_of(encode_response(5, error=41, message="ask broker 2")))
    assert (response.error, response.message) == (ErrorCode.NOT_CONTROLLER, "ask broker 2")
    assert bytes(response.body) == b"\xc0"


def test_the_message_of_an_error_is_made_to_fit() -> None:
    """A very long text, with a file name that is no UTF-8, arrives as far as it can."""
    frame = encode_response(5, error=56, message="\udcff" + "x" * 5000)
    message = decode_response(header_of(frame)).message
    assert len(message) == MESSAGE_CHARS_MAX
    assert message.startswith("?xxx")


@pytest.mark.parametrize(
    ("api_key", "version", "reason"),
    [
        (18, 1, "request 18 in version 1: known here are versions 0 to 0: upgrade"),
        (4711, 0, "request 4711 in version 0: no such request is known here: upgrade"),
        (32_767, 32_767, "no such request"),
    ],
)
def test_a_request_of_another_version_can_be_answered(
    api_key: int, version: int, reason: str
) -> None:
    """Whatever the body looks like: the error carries the correlation id."""
    header = packed(api_key, version, 99, {"looks": ["like", "nothing", "known"]})
    with pytest.raises(UnsupportedVersion, match=reason) as caught:
        decode_request(header)
    assert caught.value.correlation_id == 99


def test_headers_can_grow_at_their_end() -> None:
    """A newer version has added fields to both headers."""
    request = packed(1000, 0, 7, [], {}, "of the future")
    assert decode_request(request) == DecodedRequest(7, Ping(), {})
    response = packed(7, 0, "", 0, 5, [], "of the future")
    assert decode_response(response).metadata_version == 5


def test_headers_may_lack_what_has_a_default() -> None:
    """The shortest request and the shortest response."""
    assert decode_request(packed(1000, 0, 7, [])) == DecodedRequest(7, Ping(), {})
    assert decode_response(packed(7)) == ResponseHeader(7, body=decode_response(packed(7)).body)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xc0",
        packed(),
        packed(18, 0, 7),  # without a body
        packed(18, 0, 7, None),
        packed(True, 0, 7, []),
        packed(18.0, 0, 7, []),
        packed(-1, 0, 7, []),
        packed(1 << 15, 0, 7, []),
        packed(18, -1, 7, []),
        packed(18, 0, -1, []),
        packed(18, 0, 1 << 63, []),
        packed(18, 0, "7", []),
        packed(18, 0, 7, [], None),
        packed(18, 0, 7, [], {"key": 1}),
        packed(18, 0, 7, [], {"k" * 65: ""}),
        packed(18, 0, 7, [], {"key": "v" * 257}),
        packed(18, 0, 7, [], {str(number): "" for number in range(17)}),
        packed(4711, 0, 7, [], {"k" * 65: ""}),  # that it is unknown is no excuse
        packed(18, 0, 7, []) + b"\x00",
        b"\x94\x12\x00\x07" + b"\x91" * 100_000,
        b"\x94\x12\x00\x07\xdd\xff\xff\xff\xff",
        b"\x95\x12\x00\x07\x90\xdf\xff\xff\xff\xff",
    ],
    ids=lambda header: header[:12].hex() or "empty",
)
def test_a_malformed_request_is_a_protocol_error(header: bytes) -> None:
    """Its connection ends; there is nobody who could be answered."""
    with pytest.raises(RemoteProtocolError):
        decode_request(header)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        packed(),
        packed(-1),
        packed(7, 1 << 15),
        packed(7, "41"),
        packed(7, 41, "x" * (MESSAGE_CHARS_MAX + 1)),
        packed(7, 41, "", -1),
        packed(7, 41, "", 0, -2),
        packed(7, 0, "", 0, 0, [False]),
        packed(7, 0, "", 0, 0, None),
        packed(7),
        packed(7) + b"\x00",
        b"\x96\x07\x00\xa0\x00\x00" + b"\x91" * 100_000,
    ],
    ids=lambda header: header[:12].hex() or "empty",
)
def test_a_malformed_response_is_a_protocol_error(header: bytes) -> None:
    """In its header or in its body: whoever asked hangs up."""
    with pytest.raises(RemoteProtocolError):
        answer(header)


@pytest.mark.parametrize(
    ("frame", "decode"),
    [
        (encode_request(300, PRODUCE, trace=TRACE), decode_request),
        (encode_request(300, FETCH), decode_request),
        (encode_request(300, Hello("cluster", 5, "me", "raftmq 1", {"a": 1})), decode_request),
        (encode_response(300, FETCHED, metadata_version=1 << 40), answer),
    ],
    ids=["Produce", "Fetch", "Hello", "FetchReply"],
)
def test_a_damaged_byte_is_an_error_or_another_message(
    frame: bytes, decode: Callable[[bytes], object]
) -> None:
    """Each byte of a frame takes each value: it is refused, waited for or valid; nothing else."""
    outcomes = set()
    for position in range(len(frame)):
        for value in range(256):
            damaged = bytearray(frame)
            damaged[position] = value
            outcomes.add(outcome_of(bytes(damaged), decode))
    assert outcomes >= {"valid", "waited for", "RemoteProtocolError"}
    refused = {"RemoteProtocolError", "UnsupportedVersion", "ForeignProtocol"}
    assert outcomes <= {"valid", "waited for", *refused}


def outcome_of(stream: bytes, decode: Callable[[bytes], object]) -> str:
    try:
        headers = headers_in(stream)
        for header in headers:
            decode(header)
    except (RemoteProtocolError, UnsupportedVersion) as error:
        return type(error).__name__
    return "valid" if headers else "waited for"


@pytest.mark.parametrize("frame", [encode_request(300, PRODUCE), encode_request(300, FETCH)])
def test_half_a_header_is_no_request(frame: bytes) -> None:
    """A header is cut at each byte."""
    header = header_of(frame)
    for end in range(len(header)):
        with pytest.raises(RemoteProtocolError):
            decode_request(header[:end])
