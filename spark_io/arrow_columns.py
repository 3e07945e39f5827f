"""DataFrame rows as columns for `Producer.send_columns`: the sink's column types, grouped by topic.

Owns which columns a DataFrame may have and of which types, and checks it before a task starts
(`check_columns`). Invariant: rows of one topic keep their order. Nothing runs once per row in
Python.
"""

from __future__ import annotations

from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from raftmq.errors import InvalidConfig, InvalidRecord
from spark_io.arrow_rows import garbage_kept
from spark_io.schema import spark_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# Spark types that each column may have: those of Spark's sink for Kafka, and `tags`.
EXPECTED = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "tags": ("array<string>",),
    "timestamp": ("timestamp",),
}
# Columns of the source that cannot be sent: a query that copies a topic need not drop them.
LEFT_OUT = {"offset", "timestampType"}


class TopicColumns(NamedTuple):
    """Arguments of `send_columns(topic, **columns)`, without columns that are null in every row."""

    topic: str
    columns: dict[str, list[Any]]


def check_columns(columns: pa.Schema | Iterable[tuple[str, str]], *, has_topic: bool) -> None:
    """Whether a DataFrame can be written.

    Args:
        columns: name and simpleString of each.
        has_topic: the option `topic` is set.

    Raises:
        InvalidConfig: names each column that is missing, not known or of a wrong type.
    """
    if isinstance(columns, pa.Schema):
        columns = [(field.name, spark_type(field.type)) for field in columns]
    given = list(columns)
    names = [name for name, _ in given]
    problems = _missing(names, has_topic=has_topic)
    problems += [f"there are two columns {name}" for name in EXPECTED if names.count(name) > 1]
    problems += _unknown(names)
    problems += [problem for column in given if (problem := _problem_of(*column))]
    if problems:
        raise InvalidConfig(problems)


def _missing(names: list[str], *, has_topic: bool) -> list[str]:
    problems = []
    if "value" not in names:
        problems.append(
            f"there is no column value among {', '.join(names)}: it is what is sent; "
            "to_json(struct(*)) AS value sends all columns as JSON"
        )
    if "topic" not in names and not has_topic:
        problems.append("no topic: set the option topic, or add a column topic")
    return problems


def _unknown(names: list[str]) -> list[str]:
    unknown = [name for name in names if name not in EXPECTED and name not in LEFT_OUT]
    if not unknown:
        return []
    return [f"not sent, so drop or rename: {', '.join(unknown)}; columns are {', '.join(EXPECTED)}"]


def _problem_of(name: str, given_type: str) -> str:
    """What is wrong with the type of one column, or an empty string."""
    expected = EXPECTED.get(name)
    if expected is None or given_type in expected:
        return ""
    return f"column {name} is {given_type}, expected {' or '.join(expected)}: cast it"


def columns_of(batch: pa.RecordBatch, *, topic: str | None) -> list[TopicColumns]:
    """What to send of a batch, by topic, in the order in which topics first occur.

    Args:
        topic: of all rows, in place of the column; None: the column says it.

    Raises:
        InvalidConfig: see `check_columns`.
        InvalidRecord: a null where there cannot be one; names the column.
    """
    check_columns(batch.schema, has_topic=topic is not None)
    if not batch.num_rows:
        return []
    groups = _by_topic(batch) if topic is None else [(topic, batch)]
    with garbage_kept():
        return [TopicColumns(name, _arguments_of(rows)) for name, rows in groups]


def _by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """One stable sort: many topics cost no more than a few, and rows keep their order."""
    topics = batch.column("topic")
    if topics.null_count:
        raise InvalidRecord(
            f"column topic is null in {topics.null_count} of {len(topics)} rows: "
            "give each row a topic, or set the option topic"
        )
    encoded = topics.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    # Rows of one topic are in order already.
    if len(names) > 1:
        batch = batch.take(pc.sort_indices(encoded.indices))
    start = 0
    for name, count in zip(names, pc.value_counts(encoded.indices).field("counts"), strict=True):
        yield name, batch.slice(start, count.as_py())
        start += count.as_py()


def _arguments_of(rows: pa.RecordBatch) -> dict[str, list[Any]]:
    present = set(rows.schema.names)
    return {
        argument: convert(name, rows.column(name))
        for name, (argument, convert) in _ARGUMENTS.items()
        # A column of nulls only is as good as none, and costs nothing then.
        if name in present and (name == "value" or rows.column(name).null_count < rows.num_rows)
    }


def _bytes(_: str, column: pa.Array) -> list[Any]:
    """Text becomes UTF-8."""
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    return _list(column)


def _numbers(name: str, column: pa.Array) -> list[Any]:
    if column.null_count:
        raise InvalidRecord(
            f"column {name} is null in {column.null_count} of {len(column)} rows: "
            f"give each row a {name}, or none of them"
        )
    return _list(column)


def _milliseconds(name: str, column: pa.Array) -> list[Any]:
    in_ms = pa.timestamp("ms", tz=column.type.tz)
    return _numbers(name, column.cast(in_ms, safe=False).cast(pa.int64()))


def _headers(name: str, column: pa.Array) -> list[Any]:
    flat = column.flatten()
    names, values = flat.field("key"), flat.field("value")
    _check_no_nulls(name, flat, "header")
    _check_no_nulls(name, names, "header's key")
    return _cut(list(zip(_list(names), _list(values), strict=True)), column)


def _tags(name: str, column: pa.Array) -> list[Any]:
    flat = column.flatten()
    _check_no_nulls(name, flat, "tag")
    return _cut(_list(flat), column)


def _check_no_nulls(name: str, items: pa.Array, what: str) -> None:
    if items.null_count:
        raise InvalidRecord(f"column {name}: a {what} is null; leave it out, or give it some text")


def _cut(items: list[Any], column: pa.Array) -> list[Any]:
    """Cut the flat `items` into lists as long as those of `column`; a null list has no items."""
    lengths = _list(pc.fill_null(pc.list_value_length(column), 0))
    ends = list(accumulate(lengths))
    return list(map(items.__getitem__, map(slice, chain([0], ends), ends)))


def _list(column: pa.Array) -> list[Any]:
    """As `to_pylist`, which older pyarrows run thirty times as slowly."""
    found: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return found


_ARGUMENTS: dict[str, tuple[str, Callable[[str, pa.Array], list[Any]]]] = {
    "value": ("values", _bytes),
    "key": ("keys", _bytes),
    "headers": ("headers", _headers),
    "tags": ("tags", _tags),
    "timestamp": ("timestamps", _milliseconds),
    "partition": ("partitions", _numbers),
}
