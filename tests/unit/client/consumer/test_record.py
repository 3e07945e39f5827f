"""`ConsumerRecord`: its fields, what it says of text, JSON, time and size, and what it is not."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from raftmq.client.consumer.record import ConsumerRecord
from raftmq.errors import UndecodableRecord


def record(value: Any = b"a", **fields: Any) -> ConsumerRecord:
    given = {"key": b"k", "offset": 7, "timestamp": 1_700_000_000_123, **fields}
    return ConsumerRecord(topic="orders", partition=3, value=value, **given)


def test_names_that_tuples_have() -> None:
    """Someone looks for the number of records, or unpacks: no method of a tuple answers."""
    one = record()
    for name in ("count", "index"):
        with pytest.raises(AttributeError):
            getattr(one, name)
    with pytest.raises(TypeError):
        len(one)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        tuple(one)  # type: ignore[call-overload]


def test_a_record_is_what_its_fields_are() -> None:
    """Equal fields are equal records, also as keys of a dict; nothing can be changed."""
    one, same, other = record(), record(), record(b"b")
    assert (one == same, one == other, one == ("orders", 3)) == (True, False, False)
    assert {one: 1}[same] == 1
    assert pickle.loads(pickle.dumps(one)) == one
    assert hash(record({"a": []})) == hash(record({"a": []}))
    with pytest.raises(AttributeError):
        one.value = b"b"  # type: ignore[misc]
    assert msgspec.structs.replace(one, value=b"b") == other
    assert repr(one).startswith("ConsumerRecord(topic='orders', partition=3, offset=7, ")


def test_text_and_json() -> None:
    """A value is read as what it is."""
    assert record("Ä".encode()).text() == "Ä"
    assert record(b'{"a": [1, null]}').json() == {"a": [1, None]}
    assert (record("made").text(), record("3").json()) == ("made", 3)


@pytest.mark.parametrize(
    ("value", "call", "told"),
    [
        (b"\xff", "text", "value: 'utf-8' codec can't decode byte 0xff"),
        (None, "text", "value: None, not bytes of text"),
        (b"{", "json", "value: no JSON: Expecting property name"),
        (b"\xff", "json", "value: no JSON: "),
        (b"[" * 200_000, "json", "value: no JSON: maximum recursion depth"),
        (None, "json", "value: None, not bytes of JSON"),
        ({"a": 1}, "json", "value: a dict, not bytes of JSON"),
    ],
)
def test_a_value_that_is_something_else(value: object, call: str, told: str) -> None:
    """The error says where it stands, and has the record; nothing was changed (definite)."""
    one = record(value)
    with pytest.raises(UndecodableRecord) as caught:
        getattr(one, call)()
    error = caught.value
    assert str(error).startswith(f"orders-3 offset 7: {told}")
    assert (error.topic, error.partition, error.offset) == ("orders", 3, 7)
    assert error.record is one
    assert (error.definite, error.retriable) == (True, False)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_time() -> None:
    """The timestamp in UTC, to the millisecond; a record may have none, or one beyond all years."""
    assert record().time == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert record(timestamp=-1).time is None
    with pytest.raises(UndecodableRecord, match="after the year 9999"):
        _ = record(timestamp=2**62).time


def test_the_size() -> None:
    """Bytes of key, value, headers and tags, whatever they are (A2.1)."""
    assert record(b"abc").size == 1 + 3
    assert record(None, key=None).size == 0
    assert record(b"", key=7).size == 8
    headers = (("Ä", b"12"), ("b", None))
    assert record(b"abc", key="Ä", headers=headers, tags=("red", "x")).size == 2 + 3 + 5 + 4
