"""Bodies of the protocol as bytes, without the envelope of a request or a reply around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from raftmq.errors import RemoteProtocolError
from raftmq.wire.bodies import Body, BodyT, decode_checked_body
from raftmq.wire.nesting import check_nesting

if TYPE_CHECKING:
    from raftmq.wire.batch.header import Buffer


def encode_body(body: Body) -> bytes:
    return msgspec.msgpack.encode(body)


def decode_body(body_type: type[BodyT], data: Buffer) -> BodyT:
    """As an envelope's: its nesting is checked first.

    Raises:
        RemoteProtocolError: not such a body, or over a limit; names the field.
    """
    try:
        check_nesting(data)
    except ValueError as error:
        raise RemoteProtocolError(f"{body_type.__name__}: {error}") from error
    return decode_checked_body(body_type, data)
