"""Request and response headers: api key, version, correlation id, error; encode and decode.

Owns both headers and the way from bytes to a checked request. A header is a msgpack array like a
body and grows like one; its first three fields never change, so that a request of an unknown kind
or version can be answered with an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
from msgspec import Meta, field

from raftmq.errors import ErrorCode, RemoteProtocolError, UnsupportedVersion
from raftmq.wire.bodies import (
    ABSENT,
    Body,
    BodyT,
    ErrorMessage,
    ErrorNumber,
    Milliseconds,
    Natural,
    NaturalOrAbsent,
    Request,
    Version,
    clip_message,
    decode_checked_body,
)
from raftmq.wire.frames import encode_frame
from raftmq.wire.messages import REQUESTS
from raftmq.wire.nesting import check_nesting

if TYPE_CHECKING:
    from collections.abc import Mapping

TRACE_ENTRIES_MAX = 16  # with their lengths below: 5 KB of a request at most
TraceKey: TypeAlias = Annotated[str, Meta(max_length=64)]
TraceValue: TypeAlias = Annotated[str, Meta(max_length=256)]
Trace: TypeAlias = Annotated[dict[TraceKey, TraceValue], Meta(max_length=TRACE_ENTRIES_MAX)]
NIL = msgspec.Raw(b"\xc0")  # msgpack's nil: the body of an error


class RequestHeader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`trace`: the client's tracing context, passed along unread."""

    api_key: Version
    version: Version
    correlation_id: Natural
    body: msgspec.Raw
    trace: Trace = field(default_factory=dict)


class ResponseHeader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The body of an error is nil. `metadata_version`: of the answering broker; -1: none yet."""

    correlation_id: Natural
    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    throttle_ms: Milliseconds = 0
    metadata_version: NaturalOrAbsent = ABSENT
    body: msgspec.Raw = NIL


class DecodedRequest(msgspec.Struct, frozen=True):
    correlation_id: int
    body: Request
    trace: Mapping[str, str]


_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(RequestHeader)
_response_decoder = msgspec.msgpack.Decoder(ResponseHeader)


def encode_request(
    correlation_id: int,
    body: Request,
    *,
    payload_length: int = 0,
    trace: Mapping[str, str] | None = None,
) -> bytes:
    """The frame of a request, without its payload."""
    fields = (body.api_key, body.version, correlation_id, body, trace or {})
    return encode_frame(_encoder.encode(fields), payload_length)


def decode_request(header: bytes) -> DecodedRequest:
    """The request of a frame's header.

    Raises:
        UnsupportedVersion: an unknown request or version; carries the correlation id, so that it
            can be answered.
        RemoteProtocolError: not a request, or over a limit.
    """
    try:
        check_nesting(header)  # includes the body, which is part of these bytes
        request = _request_decoder.decode(header)
    except ValueError as error:  # msgspec's errors are ValueErrors
        raise RemoteProtocolError(f"request header of {len(header)} bytes: {error}") from error
    body_type = REQUESTS.get((request.api_key, request.version))
    if body_type is None:  # of another version: answered, and the connection goes on
        raise _unsupported(request)
    body = decode_checked_body(body_type, request.body)
    return DecodedRequest(request.correlation_id, body, request.trace)


def _unsupported(request: RequestHeader) -> UnsupportedVersion:
    known = [version for key, version in REQUESTS if key == request.api_key]
    what = f"request {request.api_key} in version {request.version}"
    if known:
        reason = f"known here are versions {min(known)} to {max(known)}"
    else:
        reason = "no such request is known here"
    return UnsupportedVersion(
        f"{what}: {reason}: upgrade the older side", correlation_id=request.correlation_id
    )


def encode_response(
    correlation_id: int,
    body: Body | None = None,
    *,
    error: int = ErrorCode.NONE,
    message: str = "",
    throttle_ms: int = 0,
    metadata_version: int = ABSENT,
    payload_length: int = 0,
) -> bytes:
    """The frame of a response, without its payload. A `message` that is too long is clipped."""
    if message:
        message = clip_message(message)
    fields = (correlation_id, int(error), message, throttle_ms, metadata_version, body)
    return encode_frame(_encoder.encode(fields), payload_length)


def decode_response(header: bytes) -> ResponseHeader:
    """The header, with a body for `decode_reply`.

    Raises:
        RemoteProtocolError: not a response, or over a limit.
    """
    try:
        check_nesting(header)  # includes the body, which is part of these bytes
        return _response_decoder.decode(header)
    except ValueError as error:  # msgspec's errors are ValueErrors
        raise RemoteProtocolError(f"response header of {len(header)} bytes: {error}") from error


def decode_reply(reply_type: type[BodyT], raw: msgspec.Raw) -> BodyT:
    """The body of a response to a request whose `reply` is `reply_type`; of `decode_response`.

    Raises:
        RemoteProtocolError: not such a body, or over a limit.
    """
    return decode_checked_body(reply_type, raw)
