"""Rows of Spark as columns for a producer: by topic, in order, and what is wrong with them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.client.consumer.batch import BatchPart, ConsumedBatch
from raftmq.client.producer.producer import Producer
from raftmq.errors import InvalidConfig, InvalidRecord
from raftmq.wire.batch.records import RecordBatch, encode_batch

pa = pytest.importorskip("pyarrow")

from spark_io.arrow_columns import EXPECTED, check_columns, columns_of  # noqa: E402
from spark_io.arrow_rows import to_record_batch  # noqa: E402
from spark_io.schema import COLUMNS, arrow_schema, spark_type  # noqa: E402

TYPES = {column.name: column.arrow_type for column in COLUMNS}


def rows(**columns: list[Any]) -> pa.RecordBatch:
    """With the types that Spark's source has; `value` where nothing is said of it."""
    count = len(next(iter(columns.values())))
    given = {"value": [b"v"] * count} | columns
    return pa.record_batch({name: pa.array(items, TYPES[name]) for name, items in given.items()})


def sent(batch: pa.RecordBatch) -> dict[str, list[Any]]:
    """The columns of the one topic."""
    [(topic, columns)] = columns_of(batch, topic="t")
    assert topic == "t"
    return columns


def refused(batch: pa.RecordBatch, topic: str | None = "t") -> str:
    with pytest.raises(InvalidRecord) as caught:
        columns_of(batch, topic=topic)
    return str(caught.value)


def problems_of(*columns: tuple[str, str], has_topic: bool = True) -> list[str]:
    with pytest.raises(InvalidConfig) as caught:
        check_columns(columns, has_topic=has_topic)
    return caught.value.problems


def test_all_columns() -> None:
    """Each as the producer takes it; those of the source that cannot be sent are left out."""
    given = rows(
        value=[b"a", None],
        key=[None, b"k"],
        topic=["elsewhere"] * 2,
        partition=[1, 0],
        offset=[5, 6],
        timestamp=[1_999, 2_000],
        timestampType=[0, 0],
        headers=[[("h", b"1"), ("g", None)], None],
        tags=[[], ["x", "y"]],
    )
    assert sent(given) == {
        "values": [b"a", None],
        "keys": [None, b"k"],
        "partitions": [1, 0],
        "timestamps": [1, 2],
        "headers": [[("h", b"1"), ("g", None)], []],
        "tags": [[], ["x", "y"]],
    }


def test_the_producer_has_these_parameters() -> None:
    """Nobody else would notice before the first row."""
    parameters = set(inspect.signature(Producer.send_columns).parameters)
    full = rows(**{name: [None] for name in EXPECTED if name != "value"})
    assert sent(full) == {"values": [b"v"]}
    full = rows(key=[b""], partition=[0], headers=[[]], tags=[[]], timestamp=[0])
    assert set(sent(full)) == parameters - {"self", "topic", "progress"}


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_bytes_and_text(kind: pa.DataType) -> None:
    """Text becomes UTF-8; a part of a batch is only that part."""
    column = pa.array(["-", "\u00fc", None, "", "-"], kind)
    given = pa.record_batch({"value": column, "key": column}).slice(1, 3)
    assert sent(given) == {
        "values": ["\u00fc".encode(), None, b""],
        "keys": ["\u00fc".encode(), None, b""],
    }


def test_a_part_of_headers_and_tags() -> None:
    """Lists know where theirs begin, also when the rows before are cut off."""
    headers = [[("a", b"1")], [("b", b"2")], None, [("c", None), ("d", b"")]]
    given = rows(headers=headers, tags=[["a"], ["b"], None, ["c", "d"]]).slice(1)
    assert sent(given)["headers"] == [headers[1], [], headers[3]]
    assert sent(given)["tags"] == [["b"], [], ["c", "d"]]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_any_unit(unit: str) -> None:
    """In the time zone of whoever runs Spark."""
    times = pa.array([1_700_000_000], pa.timestamp("s", tz="Europe/Berlin"))
    given = pa.record_batch(
        {
            "value": pa.array(["a"]),
            "timestamp": times.cast(pa.timestamp(unit, tz="Europe/Berlin")),
        }
    )
    assert sent(given)["timestamps"] == [1_700_000_000_000]


def test_rows_of_several_topics() -> None:
    """By topic, as they first occur; each keeps its order."""
    given = rows(
        topic=["b", "a", "b", "c", "a"],
        value=[b"0", b"1", b"2", b"3", b"4"],
        partition=[0, None, 2, 3, None],
    )
    assert columns_of(given, topic=None) == [
        ("b", {"values": [b"0", b"2"], "partitions": [0, 2]}),
        ("a", {"values": [b"1", b"4"]}),
        ("c", {"values": [b"3"], "partitions": [3]}),
    ]


@given(st.lists(st.integers(0, 40), min_size=1), st.integers(0, 5))
def test_however_the_topics_are_mixed(topics: list[int], skipped: int) -> None:
    """Nothing is lost, and nothing overtakes."""
    names = [f"t{number}" for number in topics]
    values = [b"%d" % index for index in range(len(names))]
    batch = rows(topic=["z"] * skipped + names, value=[b"z"] * skipped + values).slice(skipped)
    expected: dict[str, list[bytes]] = {}
    for name, value in zip(names, values, strict=True):
        expected.setdefault(name, []).append(value)
    found = columns_of(batch, topic=None)
    assert [(topic, columns["values"]) for topic, columns in found] == list(expected.items())


def test_no_rows() -> None:
    """Nothing to send, to no topic."""
    assert columns_of(rows(topic=[]), topic=None) == []
    assert columns_of(rows(value=[]), topic="t") == []


def test_nulls_where_there_can_be_none() -> None:
    """Each message names the column, and what to do."""
    assert refused(rows(topic=["a", None]), topic=None) == (
        "column topic is null in 1 of 2 rows: give each row a topic, or set the option topic"
    )
    assert refused(rows(partition=[0, None, None])) == (
        "column partition is null in 2 of 3 rows: give each row a partition, or none of them"
    )
    assert "column timestamp is null in 1 of 2" in refused(rows(timestamp=[0, None]))
    assert "column tags: a tag is null" in refused(rows(tags=[["a", None]]))
    assert "column headers: a header is null" in refused(rows(headers=[[None]]))
    assert "column headers: a header's key is null" in refused(rows(headers=[[(None, b"")]]))


def test_columns_that_can_be_sent() -> None:
    """Told by their names and types alone, as the driver knows them."""
    everything = [(name, kind) for name, kinds in EXPECTED.items() for kind in kinds[:1]]
    check_columns(everything, has_topic=False)
    check_columns([("value", "string"), ("key", "string")], has_topic=True)
    check_columns([(each.name, each.spark_type) for each in COLUMNS], has_topic=False)
    check_columns(arrow_schema(include_headers=True, include_tags=True), has_topic=False)


def test_columns_that_cannot() -> None:
    """All at once, before a task has started."""
    wrong = ("timestamp", "bigint"), ("headers", "map<string,binary>"), ("keys", "binary")
    assert problems_of(*wrong, has_topic=False) == [
        "there is no column value among timestamp, headers, keys: it is what is sent; "
        "to_json(struct(*)) AS value sends all columns as JSON",
        "no topic: set the option topic, or add a column topic",
        "not sent, so drop or rename: keys; columns are "
        "value, key, topic, partition, headers, tags, timestamp",
        "column timestamp is bigint, expected timestamp: cast it",
        "column headers is map<string,binary>, "
        "expected array<struct<key:string,value:binary>>: cast it",
    ]
    assert problems_of(("value", "int")) == [
        "column value is int, expected binary or string: cast it"
    ]
    assert problems_of(("value", "string"), ("value", "binary")) == ["there are two columns value"]


def test_wrong_types_are_noticed_in_tasks_too() -> None:
    """Where nobody has asked before."""
    batch = pa.record_batch(
        {"value": pa.array([1]), "timestamp": pa.array([0], pa.timestamp("us"))}
    )
    with pytest.raises(InvalidConfig) as caught:
        columns_of(batch, topic=None)
    assert caught.value.problems[1:] == [
        "column value is bigint, expected binary or string: cast it",
        "column timestamp is timestamp_ntz, expected timestamp: cast it",
    ]
    assert spark_type(batch.schema.field("value").type) == "bigint"


BYTES = st.one_of(st.none(), st.binary(max_size=300))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
NAME = TEXT.filter(bool)
ROW = st.tuples(
    BYTES,
    BYTES,
    st.lists(st.tuples(TEXT, BYTES), max_size=3),
    st.sets(NAME, max_size=3).map(sorted),
    st.integers(0, 1 << 42),
)


@given(st.lists(ROW, min_size=1, max_size=40), st.integers(0, 10), st.booleans())
def test_there_and_back(given_rows: list[Any], cut: int, has_gaps: bool) -> None:
    """Rows become columns, a batch on the wire, and the same rows again, in any range."""
    names = ["key", "value", "headers", "tags", "timestamp"]
    columns = list(map(list, zip(*given_rows, strict=True)))
    columns[4] = [ms * 1000 for ms in columns[4]]
    batch = rows(**dict(zip(names, columns, strict=True))).select(names)
    deltas = [2 * index for index in range(len(given_rows))] if has_gaps else None
    wire = encode_batch(**sent(batch), offset_deltas=deltas, base_offset=5)
    whole = [BatchPart(RecordBatch.decode(bytes(wire)), 0, len(given_rows))]
    back = to_record_batch(
        ConsumedBatch("t", 0, whole, high_watermark=0),
        batch.schema,
        start=5 + (deltas or range(100))[min(cut, len(given_rows) - 1)],
        end=1 << 40,
    )
    assert back is not None
    assert back.equals(batch.slice(min(cut, len(given_rows) - 1)))
