"""What all bodies share: strict types, limits, fields of the future and of the past."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest

from raftmq.errors import InvalidRequest, RemoteProtocolError
from raftmq.wire.bodies import (
    MESSAGE_CHARS_MAX,
    PARTITIONS_MAX,
    Body,
    Nothing,
    TopicOutcome,
    check_limits,
    clip_message,
)
from raftmq.wire.messages.cluster import BrokerHeartbeat, Propose
from raftmq.wire.messages.configs import AlterConfigs
from raftmq.wire.messages.hello import Hello
from raftmq.wire.messages.metadata import Metadata
from raftmq.wire.messages.produce import Produce, ProducePartition
from tests.bodies import decode_body, encode_body

TOPIC_ID = bytes(range(16))
PARTITION = [TOPIC_ID, 0, -1, 100]


def packed(*fields: Any) -> bytes:
    return msgspec.msgpack.encode(fields)


def test_fields_of_the_future_are_passed_over() -> None:
    """A newer version has added two fields at the end, and one to a part (A2.7)."""
    data = packed(1, 2, [[*PARTITION, "of the future"]], {"new": 1}, None)
    body = decode_body(Produce, data)
    assert body == Produce(1, 2, (ProducePartition(TOPIC_ID, 0, -1, 100),))


def test_fields_that_an_older_version_lacks_get_their_defaults() -> None:
    """A Metadata without fields, as long as that is what the first version sends."""
    assert decode_body(Metadata, packed()) == Metadata()


def test_a_message_without_fields_is_an_empty_array() -> None:
    """One byte."""
    assert encode_body(Nothing()) == b"\x90"
    assert decode_body(Nothing, b"\x90") == Nothing()


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Produce, [True, 0, []]),  # a bool is no number
        (Produce, [1.0, 0, []]),
        (Produce, ["1", 0, []]),
        (Produce, [1, 0]),  # a field is missing that has no default
        (Produce, [-2, 0, []]),
        (Produce, [1, -1, []]),
        (Produce, [1, 1 << 31, []]),
        (Produce, [1, 0, None]),
        (Produce, [1, 0, {}]),
        (Produce, [1, 0, [[TOPIC_ID[1:], 0, -1, 0]]]),
        (Produce, [1, 0, [[TOPIC_ID + b"x", 0, -1, 0]]]),
        (Produce, [1, 0, [["sixteen letters!", 0, -1, 0]]]),
        (Produce, [1, 0, [PARTITION] * (PARTITIONS_MAX + 1)]),
        (Metadata, [["x" * 256]]),
        (Metadata, [[b"bytes"]]),
        (Metadata, [None, "", 0]),
        (Hello, ["", -2]),
        (Hello, ["", 0, "", "", {"feature": -1}]),
        (Hello, ["", 0, "", "", {1: 1}]),
        (Hello, ["", 0, "", "", {f"feature {number}": 1 for number in range(65)}]),
        (BrokerHeartbeat, [1, 1, 1, float("nan")]),
        (BrokerHeartbeat, [1, 1, 1, float("inf")]),
        (BrokerHeartbeat, [1, 1, 1, 0.0, 1]),  # a number is no bool
        (AlterConfigs, [[[TOPIC_ID, {"retention.ms": 5}]]]),
        (Propose, ["text"]),
        (Propose, [bytes((1 << 20) + 1)]),
    ],
)
def test_values_of_another_type_or_over_a_limit_are_refused(
    kind: type[Body], fields: list[Any]
) -> None:
    """The error names the message, and where in it the value stands."""
    with pytest.raises(RemoteProtocolError, match=rf"^{kind.__name__}: "):
        decode_body(kind, packed(*fields))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc0",
        b"\x80",
        b"\xc1",  # never used in msgpack
        b"\x91",  # ends too early
        b"\x90\x90",  # goes on too long
        b"\x91\xa2\xff\xff",  # no UTF-8
        b"\x91" * 100_000,  # nested deeper than any stack
        b"\x9a" + b"\x91" * 100_000,
        b"\x96\xa0\x00\xa0\xa0\x80" + b"\x91" * 100_000,  # ... in a field that nobody knows
    ],
    ids=lambda data: data[:8].hex() or "empty",
)
def test_rubbish_is_refused(data: bytes) -> None:
    """Whatever it is, it is the sender's mistake."""
    with pytest.raises(RemoteProtocolError, match="Hello: "):
        decode_body(Hello, data)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (Produce, b"\x93\x01\x01\xdd\xff\xff\xff\xff"),
        (Metadata, b"\x91\xdd\xff\xff\xff\xff"),
        (Hello, b"\x91\xdb\xff\xff\xff\xff"),
        (Hello, b"\x95\xa0\x00\xa0\xa0\xdf\xff\xff\xff\xff"),
        (Propose, b"\x91\xc6\xff\xff\xff\xff"),
        (Hello, b"\xdd\xff\xff\xff\xff"),
        (Produce, b"\x93\x01\x01\xdc\x27\x10"),  # as many as are allowed
    ],
)
def test_a_claim_of_many_items_costs_no_memory(kind: type[Body], data: bytes) -> None:
    """A few bytes claim four thousand million of something; nothing is set aside for them."""
    with pytest.raises(RemoteProtocolError):  # the first time, the decoder is made
        decode_body(kind, data)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            decode_body(kind, data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_what_a_user_gave_is_checked_before_it_is_sent() -> None:
    """A name that is too long is told here; the broker would hang up on it."""
    with pytest.raises(InvalidRequest, match=r"Metadata: .*length <= 255.*\[0\]"):
        check_limits(Metadata(topics=("x" * 256,)))


@pytest.mark.parametrize("name", ["\ud800", 5, None])
def test_what_cannot_be_sent_at_all_is_told_alike(name: Any) -> None:
    """Half a surrogate pair, and what is no text."""
    with pytest.raises(InvalidRequest, match="Metadata: "):
        check_limits(Metadata(topics=(name,)))


def test_what_is_within_the_limits_comes_back() -> None:
    """The longest name."""
    body = Metadata(topics=("x" * 255,))
    assert check_limits(body) is body


@pytest.mark.parametrize(
    ("message", "clipped"),
    [
        ("", ""),
        ("x" * MESSAGE_CHARS_MAX, "x" * MESSAGE_CHARS_MAX),
        ("x" * (MESSAGE_CHARS_MAX + 1), "x" * (MESSAGE_CHARS_MAX - 1) + "…"),
        ("file \udcff", "file ?"),
    ],
    ids=["empty", "longest", "too long", "a name that is no UTF-8"],
)
def test_messages_of_errors_are_made_to_fit(message: str, clipped: str) -> None:
    """An error must never be the reason why its answer cannot be read."""
    assert clip_message(message) == clipped
    outcome = TopicOutcome(TOPIC_ID, 1, clip_message(message))
    assert decode_body(TopicOutcome, encode_body(outcome)) == outcome
