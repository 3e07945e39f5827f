"""Records as text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from raftmq.cli.data.record_format import (
    compile_format,
    write_json_lines,
    write_readable,
    write_values,
)
from raftmq.client.consumer.batch import BatchPart, ConsumedBatch
from raftmq.wire.batch.records import RecordBatch, encode_batch
from raftmq.wire.batch.scheduling import delivery_of

ALL = slice(0, 1 << 30)


def batch_of(values: list[bytes | None], **columns: Any) -> ConsumedBatch:
    columns.setdefault("timestamp", 1000)
    batch = RecordBatch.decode(bytes(encode_batch(values=values, **columns)))
    return ConsumedBatch("t", 3, [BatchPart(batch, 0, len(values))], high_watermark=9)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("%s", b"v1"),
        (r"%t-%p@%o %k: %s\n", b"t-3@0 k1: v1\nt-3@1 : \nt-3@2 7: \xff\n"),
        ("%S/%K ", b"2/2 -1/-1 1/1 "),
        ("%h|", b"a=1,b=NULL||c=,c=2|"),
        ("%T,", b"1000,1000,1000,"),
        ("%%%R", b"%\0\0\0\2%\xff\xff\xff\xff%\0\0\0\1"),
        (r"%%\x41", b"%A%A%A"),
        ("", b""),
    ],
)
def test_a_format(form: str, expected: bytes) -> None:
    """Letters, escapes, and text around them; what is null is empty, and has the length -1."""
    headers = [[("a", b"1"), ("b", None)], None, [("c", b""), ("c", b"2")]]
    batch = batch_of([b"v1", None, b"\xff"], keys=[b"k1", None, 7], headers=headers)
    found = compile_format(form)(batch, ALL)
    assert found == expected if form != "%s" else found.startswith(expected)


def test_text_keys() -> None:
    """They are printed as their UTF-8 bytes, whose number %K is."""
    batch = batch_of([b"v", b"v"], keys=["kéy", "k"])
    assert compile_format("%k %K;")(batch, ALL) == "kéy 4;k 1;".encode()
    assert b'"key":"k\\u00e9y"' in write_json_lines(batch, ALL).replace(b": ", b":")


@pytest.mark.parametrize("form", ["%q", "%", r"\q", "%s %"])
def test_no_format(form: str) -> None:
    """A letter or an escape that there is not is named."""
    with pytest.raises(ValueError, match="there are"):
        compile_format(form)


@pytest.mark.parametrize("form", ["%s;", "x;"])
def test_some_of_a_batch(form: str) -> None:
    """Each format writes the records that it is asked for, and no others."""
    batch = batch_of([b"1", b"2", b"3", b"4"])
    assert compile_format(form)(batch, slice(1, 3)).count(b";") == 2
    assert write_values(batch, slice(1, 3)) == write_readable(batch, slice(1, 3)) == b"2\n3\n"
    assert write_json_lines(batch, slice(1, 3)).count(b"\n") == 2
    assert write_values(batch, slice(0, 0)) == write_json_lines(batch, slice(0, 0)) == b""


def test_values() -> None:
    """As they are on a pipe; on a terminal nothing moves the cursor."""
    batch = batch_of([b"a\tb", None, b"\x1b[2J\xff", "ä".encode()])
    assert write_values(batch, ALL) == b"a\tb\n\n\x1b[2J\xff\n\xc3\xa4\n"
    assert write_readable(batch, ALL).decode() == "a\tb\n\n\\x1b[2J\\xff\nä\n"


def test_json() -> None:
    """One object a line; bytes that are no text have another name. In ASCII, in one form."""
    headers = [[("a", b"\xff")], None, None]
    plain = batch_of([b"v", b"\xff", None], keys=[b"\xfe", 7, None], headers=headers)
    foreign = batch_of(["ä".encode()], tags=[["x"]])
    lines = write_json_lines(plain, ALL) + write_json_lines(foreign, ALL)
    assert lines.isascii()
    assert lines.count(b'{"topic":"t","partition":3,"offset":0,') == 2
    first, second, third, fourth = map(json.loads, lines.splitlines())
    assert first == {
        "topic": "t", "partition": 3, "offset": 0, "timestamp": 1000, "key_base64": "/g==",
        "value": "v", "headers": [{"name": "a", "value_base64": "/w=="}], "tags": [],
    }  # fmt: skip
    assert (second["key"], second["value_base64"], second["offset"]) == (7, "/w==", 1)
    assert (third["key"], third["value"], third["headers"]) == (None, None, [])
    assert (fourth["value"], fourth["tags"]) == ("ä", ["x"])


def test_json_of_records_that_were_scheduled() -> None:
    """They say when they were made and were due; others do not (A12.2)."""
    original = encode_batch(values=[b"b", b"c"], timestamps=[1000, 1001], due_ms=5000)
    delivery = RecordBatch.decode(bytes(delivery_of(original, original_offset=0, now_ms=6000)))
    plain = RecordBatch.decode(bytes(encode_batch(values=[b"a"], timestamp=1000)))
    parts = [BatchPart(plain, 0, 1), BatchPart(delivery, 0, 2)]
    batch = ConsumedBatch("t", 3, parts, high_watermark=9)
    rows = [json.loads(line) for line in write_json_lines(batch, ALL).splitlines()]
    assert [row["timestamp"] for row in rows] == [1000, 6000, 6000]
    assert "due" not in rows[0]
    assert [(row["scheduled_at"], row["due"]) for row in rows[1:]] == [(1000, 5000), (1001, 5000)]
    assert len(write_json_lines(batch, slice(0, 1)).splitlines()) == 1
