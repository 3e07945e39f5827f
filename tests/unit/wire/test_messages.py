"""Every message: there and back, a limit on everything, and nothing that cannot grow."""

from __future__ import annotations

import re
from random import Random
from typing import TYPE_CHECKING

import msgspec
import pytest
from msgspec import inspect

from raftmq.errors import RemoteProtocolError
from raftmq.wire.envelopes import RequestHeader, ResponseHeader
from raftmq.wire.messages.produce import split_payload
from tests import protocol_rows
from tests.bodies import decode_body, encode_body
from tests.protocol_rows import PAGE
from tests.unit.wire.random_bodies import (
    REPLY_CLASSES,
    REQUEST_CLASSES,
    all_parts,
    field_types,
    inner_types,
    random_body,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.wire.bodies import Body

CLASSES = (*REQUEST_CLASSES, *REPLY_CLASSES)
SAMPLES = 30


def samples(kind: type[Body]) -> Iterator[Body]:
    for seed in range(SAMPLES):
        yield random_body(kind, Random(f"{kind.__name__} {seed}"))


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_message_survives_the_wire(kind: type[Body]) -> None:
    """Random messages, many fields at their limits, are encoded and read back equal."""
    for body in samples(kind):
        assert decode_body(kind, encode_body(body)) == body


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_no_message_is_read_from_half_of_its_bytes(kind: type[Body]) -> None:
    """A message is cut at each byte: never is something else made of the rest."""
    data = max((encode_body(body) for body in samples(kind)), key=len)[:300]
    for end in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            decode_body(kind, data[:end])


@pytest.mark.parametrize("kind", all_parts(), ids=lambda kind: kind.__name__)
def test_every_part_can_grow_at_its_end(kind: type[Body]) -> None:
    """Each class passes over a field that it does not know, wherever it stands in a message."""
    body = random_body(kind, Random(kind.__name__))
    fields = msgspec.msgpack.decode(encode_body(body))
    assert decode_body(kind, msgspec.msgpack.encode([*fields, "of the future"])) == body


@pytest.mark.parametrize("kind", all_parts(), ids=lambda kind: kind.__name__)
def test_what_is_not_sent_gets_its_default(kind: type[Body]) -> None:
    """Each class is read from the fields alone that have no default."""
    fields = msgspec.structs.fields(kind)
    required = [field.name for field in fields if field.required]
    body = random_body(kind, Random(kind.__name__))
    values = [getattr(body, name) for name in required]
    assert decode_body(kind, msgspec.msgpack.encode(values)) == kind(*values)


@pytest.mark.parametrize(
    "kind", [*all_parts(), RequestHeader, ResponseHeader], ids=lambda kind: kind.__name__
)
def test_everything_has_a_limit(kind: type[msgspec.Struct]) -> None:
    """No number, text, list or map may be as large as somebody likes."""
    unlimited = [
        f"{kind.__name__}.{name}: {inner}"
        for name, info in field_types(kind).items()
        for inner in inner_types(info)
        if not has_limit(inner)
    ]
    assert unlimited == []


def has_limit(info: inspect.Type) -> bool:
    match info:
        case inspect.IntType(ge=least, le=most) | inspect.FloatType(ge=least, le=most):
            return least is not None and most is not None
        case (
            inspect.StrType(max_length=most)
            | inspect.BytesType(max_length=most)
            | inspect.VarTupleType(max_length=most)
            | inspect.DictType(max_length=most)
        ):
            return most is not None
    fixed = (inspect.BoolType, inspect.NoneType, inspect.StructType, inspect.UnionType)
    return isinstance(info, (*fixed, inspect.RawType))


def test_the_page_describes_the_fields_that_are_sent() -> None:
    """docs/PROTOCOL.md has a row for each class, with its fields in the order of the wire, their
    types and limits.
    """
    page = PAGE.read_text("utf-8")
    assert page == protocol_rows.rows(page), (
        "docs/PROTOCOL.md is not what the classes say: python -m tests.protocol_rows"
    )


def test_the_page_has_the_numbers_of_the_requests() -> None:
    """docs/PROTOCOL.md names each request with its number."""
    rows = re.findall(r"^\| (\d+) `(\w+)` \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert {name: int(number) for number, name in rows} == {
        kind.__name__: kind.api_key for kind in REQUEST_CLASSES
    }


def test_a_payload_is_split_at_the_lengths() -> None:
    """Three partitions, one of them without records."""
    parts = split_payload([3, 0, 2], b"abcde")
    assert [bytes(part) for part in parts] == [b"abc", b"", b"de"]


@pytest.mark.parametrize("lengths", [[], [4], [6], [3, 1], [3, 3]])
def test_a_payload_that_is_shorter_or_longer_is_refused(lengths: list[int]) -> None:
    """Nobody can tell to whom the rest belongs."""
    with pytest.raises(RemoteProtocolError, match="payload of 5 bytes"):
        split_payload(lengths, b"abcde")
