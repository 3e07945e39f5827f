"""What was consumed, as Arrow: every column, cut to a range, out of batches as they are sent."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.client.consumer.batch import BatchPart, ConsumedBatch
from raftmq.errors import CorruptRecord
from raftmq.model import RecordFormat
from raftmq.wire.batch.records import RecordBatch, encode_batch, stamp_log_append_time
from tests.unit.wire.batches import RawChunk, columns_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

pa = pytest.importorskip("pyarrow")

from spark_io.arrow_rows import garbage_kept, to_record_batch  # noqa: E402
from spark_io.schema import COLUMNS, arrow_schema  # noqa: E402

ALL = arrow_schema(include_headers=True, include_tags=True)
OFFSETS_MAX = 1 << 62
HEADERS = [[("h", b"1")], None, [("h", None), ("g", b"2")]]
TAGS = [["x"], None, ["y", "x"]]


def wire_batch(base_offset: int = 0, **columns: Any) -> RecordBatch:
    given = {"timestamp": 1000} | columns
    if "timestamps" in columns:
        del given["timestamp"]
    return RecordBatch.decode(bytes(encode_batch(base_offset=base_offset, **given)))


def consumed(*batches: RecordBatch) -> ConsumedBatch:
    parts = [BatchPart(batch, 0, batch.header.record_count) for batch in batches]
    return ConsumedBatch("t", 3, parts, high_watermark=OFFSETS_MAX)


def schema_of(*names: str) -> pa.Schema:
    types = {column.name: column.spark_type for column in COLUMNS}
    return arrow_schema([(name, types[name], True) for name in names])


def rows_of(
    batch: ConsumedBatch, *names: str, start: int = 0, end: int = OFFSETS_MAX
) -> dict[str, list[Any]] | None:
    """Columns as lists, checked as Spark checks them; all columns if none are named."""
    schema = schema_of(*names) if names else ALL
    rows = to_record_batch(batch, schema, start=start, end=end)
    if rows is None:
        return None
    rows.validate(full=True)
    assert rows.schema.equals(schema, check_metadata=True)
    return dict(rows.to_pydict())


def keys_of(keys: Sequence[object]) -> list[Any]:
    rows = rows_of(consumed(wire_batch(values=[b"v"] * len(keys), keys=keys)), "key")
    assert rows is not None
    return rows["key"]


def ms_of(*timestamps: int) -> list[int | None]:
    batch = consumed(wire_batch(values=[b"v"] * len(timestamps), timestamps=timestamps))
    rows = to_record_batch(batch, schema_of("timestamp"), start=0, end=OFFSETS_MAX)
    microseconds = rows.column("timestamp").cast(pa.int64()).to_pylist()
    return [each if each is None else each // 1000 for each in microseconds]


def test_all_columns() -> None:
    """Of three records in one batch."""
    values, keys = [b"a", None, b""], [b"k", None, b"l"]
    wire = wire_batch(
        10, values=values, keys=keys, headers=HEADERS, tags=TAGS, timestamps=[1, 2, 1 << 40]
    )
    rows = rows_of(consumed(wire))
    assert rows is not None
    assert [each and each.timestamp() for each in rows.pop("timestamp")] == [
        0.001,
        0.002,
        (1 << 40) / 1000,
    ]
    assert rows == {
        "key": keys,
        "value": values,
        "topic": ["t"] * 3,
        "partition": [3] * 3,
        "offset": [10, 11, 12],
        "timestampType": [0] * 3,
        "headers": [
            [{"key": "h", "value": b"1"}],
            [],
            [{"key": "h", "value": None}, {"key": "g", "value": b"2"}],
        ],
        "tags": [["x"], [], ["x", "y"]],
    }


# Of one length, whose bytes are copied as they are, and of others.
TEXTS = {
    "one length": [b"abc", b"d\xc4\x03", b"\xc4\x03f"],
    "none": [b"", b"", b""],
    "one": [b"abc"],
    "two lengths": [b"abc", b"de"],
    "as long in sum": [b"abc", b"a", b"abcde"],
    "null": [b"abc", None, b"abc"],
    "nulls": [None, None],
    "long": [bytes([each]) * 255 for each in range(5)],
    "longer": [bytes([each]) * 256 for each in range(5)],
    "on the border": [b"a" * 255, b"a" * 256, b"a" * 255],
    "longest": [bytes([each]) * 65_536 for each in range(3)],
}


@pytest.mark.parametrize("texts", TEXTS.values(), ids=TEXTS)
def test_texts_of_any_length(texts: list[bytes | None]) -> None:
    rows = rows_of(consumed(wire_batch(values=texts, keys=texts)), "value", "key")
    assert rows == {"value": texts, "key": texts}


@pytest.mark.parametrize("second", TEXTS.values(), ids=TEXTS)
def test_texts_of_two_batches(second: list[bytes | None]) -> None:
    """Also where a task's range begins or ends within one of them."""
    first = [b"abc", b"def", b"ghi"]
    texts = first + second
    batches = consumed(wire_batch(values=first), wire_batch(3, values=second))
    for start, end in ((0, len(texts)), (1, len(texts)), (2, len(texts) - 1), (4, 100)):
        found = rows_of(batches, "value", "offset", start=start, end=end)
        wanted = {"value": texts[start:end], "offset": [*range(len(texts))][start:end]}
        assert found == (wanted if wanted["value"] else None)


@given(st.lists(st.lists(st.binary(max_size=3), min_size=1, max_size=4), min_size=1, max_size=3))
def test_texts_of_any_batches(columns: list[list[bytes]]) -> None:
    wires, base = [], 0
    for column in columns:
        wires.append(wire_batch(base, values=column))
        base += len(column)
    texts = [text for column in columns for text in column]
    assert rows_of(consumed(*wires), "value") == {"value": texts}


def test_part_of_a_batch() -> None:
    """As it is handed out where it has more records than a consumer takes at once."""
    wire = wire_batch(values=[b"a", b"b", b"c", b"d"], timestamps=[1, 2, 3, 4])
    batch = ConsumedBatch("t", 3, [BatchPart(wire, 1, 3)], high_watermark=OFFSETS_MAX)
    rows = rows_of(batch, "value", "offset", "timestamp", "timestampType")
    assert rows is not None
    assert (rows["value"], rows["offset"]) == ([b"b", b"c"], [1, 2])
    assert [each.microsecond for each in rows["timestamp"]] == [2000, 3000]


def test_records_of_kafka() -> None:
    """The other format, without headers, keys or values."""
    wire = wire_batch(values=[None, None], record_format=RecordFormat.KAFKA)
    rows = rows_of(consumed(wire), "value", "key", "headers", "tags", "offset")
    assert rows == {
        "value": [None] * 2,
        "key": [None] * 2,
        "headers": [[], []],
        "tags": [[], []],
        "offset": [0, 1],
    }


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        (0, 100, [11, 14, 20, 21, 22]),
        (11, 23, [11, 14, 20, 21, 22]),
        (12, 22, [14, 20, 21]),
        (15, 20, None),
        (14, 15, [14]),
        (22, 22, None),
        (30, 20, None),
        (0, 11, None),
        (23, 100, None),
    ],
)
def test_a_range_of_offsets(start: int, end: int, found: list[int] | None) -> None:
    """Of two batches, the first of which has gaps; all columns are cut alike."""
    texts, tail = [[b"11", b"14"], [b"20", b"21", b"22"]], {"headers": HEADERS, "tags": TAGS}
    gaps = wire_batch(10, values=texts[0], keys=texts[0], offset_deltas=[1, 4], timestamps=[11, 14])
    rest = wire_batch(20, values=texts[1], keys=texts[1], timestamps=[20, 21, 22], **tail)
    rows = rows_of(consumed(gaps, rest), start=start, end=end)
    if found is None:
        assert rows is None
        return
    assert rows is not None
    assert rows["offset"] == found
    assert rows["value"] == rows["key"] == [b"%d" % each for each in found]
    assert [each.microsecond // 1000 for each in rows["timestamp"]] == found
    tagged = {20: ["x"], 21: [], 22: ["x", "y"]}
    assert rows["tags"] == [tagged.get(each, []) for each in found]
    assert {len(column) for column in rows.values()} == {len(found)}


def test_only_the_columns_that_are_asked_for() -> None:
    """A broken column of others is never seen."""
    broken = RawChunk(2, values=b"\x92\xc4\x01a\xc4\x01b", keys=b"\x92\x81\x81")
    batch = consumed(RecordBatch.decode(bytes(columns_batch(broken))))
    assert rows_of(batch, "value", "offset") == {"value": [b"a", b"b"], "offset": [0, 1]}
    with pytest.raises(CorruptRecord):
        rows_of(batch, "key")


SEVEN = bytes(7) + b"\7"


def test_keys_that_are_no_bytes() -> None:
    """Integers become eight bytes, the highest first, whether all keys are some or not."""
    assert keys_of([7, None, -(1 << 63)]) == [SEVEN, None, b"\x80" + bytes(7)]
    assert keys_of([7, b"k", None]) == [SEVEN, b"k", None]
    assert keys_of([b"k", 7, "\u00fc"]) == [b"k", SEVEN, "\u00fc".encode()]


def test_who_stamped_the_records() -> None:
    """The broker those of the second batch, the producer the others."""
    stamped = encode_batch(values=[b"b"] * 2, timestamp=1, base_offset=1)
    stamp_log_append_time(stamped, 5)
    wires = [
        wire_batch(values=[b"a"]),
        RecordBatch.decode(bytes(stamped)),
        wire_batch(3, values=[b"c"]),
    ]
    rows = rows_of(consumed(*wires), "timestampType", "timestamp", start=0, end=3)
    assert rows is not None
    assert rows["timestampType"] == [0, 1, 1]
    assert [each.microsecond for each in rows["timestamp"]] == [0, 5000, 5000]


def test_times_that_spark_cannot_hold() -> None:
    """Null, as those that are missing: one such record must not stand in the way of a topic."""
    last = (1 << 63) // 1000 - 1
    assert ms_of(5, -1, 1 << 62, -2, last) == [5, None, None, -2, last]
    assert ms_of(-last, -last - 1) == [-last, None]


def test_no_collection_in_between() -> None:
    """And afterwards as before, whoever else has switched it off within, or at all."""
    assert gc.isenabled()
    with garbage_kept():
        with garbage_kept():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_collections_go_on_after_an_error() -> None:
    """Of a batch that cannot be decoded."""
    broken = RawChunk(1, values=b"\x91\x81")
    with pytest.raises(CorruptRecord):
        rows_of(consumed(RecordBatch.decode(bytes(columns_batch(broken)))), "value")
    assert gc.isenabled()
