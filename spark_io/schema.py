"""The source's columns: names, Spark types (DDL) and Arrow types, in one table.

Invariant: the types that `ddl` declares to Spark and those that `arrow_schema` builds are the same;
Spark compares them strictly. Types are written as Spark's `simpleString` does, which is valid DDL,
too. Names and types are those of Spark's source for Kafka; `tags` is raftmq's own, an array, as
tags are words in order without values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from raftmq.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Iterable


class Column(NamedTuple):
    name: str
    arrow_type: pa.DataType
    may_be_null: bool = False

    @property
    def spark_type(self) -> str:
        return spark_type(self.arrow_type)


def array_of(item: pa.DataType) -> pa.DataType:
    """A list type with the item name that Spark expects."""
    return pa.list_(pa.field("element", item))


HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
COLUMNS = (
    Column("key", pa.binary(), may_be_null=True),
    Column("value", pa.binary(), may_be_null=True),
    Column("topic", pa.string()),
    Column("partition", pa.int32()),
    Column("offset", pa.int64()),
    Column("timestamp", pa.timestamp("us", tz="UTC"), may_be_null=True),
    Column("timestampType", pa.int32()),
    Column("headers", array_of(HEADER)),
    Column("tags", array_of(pa.string())),
)
_BY_NAME = {column.name: column for column in COLUMNS}
_SPARK_TYPES = {
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.bool_(): "boolean",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
}


def spark_type(arrow_type: pa.DataType) -> str:
    """Spark's `simpleString` of a type; Arrow's own name for types that no column can have."""
    types = pa.types
    if types.is_list(arrow_type) or types.is_large_list(arrow_type):
        return f"array<{spark_type(arrow_type.value_type)}>"
    if types.is_struct(arrow_type):
        return f"struct<{','.join(f'{each.name}:{spark_type(each.type)}' for each in arrow_type)}>"
    if types.is_timestamp(arrow_type):
        return "timestamp" if arrow_type.tz else "timestamp_ntz"
    return _SPARK_TYPES.get(arrow_type, str(arrow_type))


def ddl(*, include_headers: bool = False, include_tags: bool = False) -> str:
    """The schema as Spark's DDL, for queries that do not choose columns."""
    columns = _included(include_headers=include_headers, include_tags=include_tags)
    return ", ".join([f"{column.name} {column.spark_type}" for column in columns])


def arrow_schema(
    chosen: Iterable[tuple[str, str, bool]] | None = None,
    *,
    include_headers: bool = False,
    include_tags: bool = False,
) -> pa.Schema:
    """The Arrow schema of the same columns.

    Args:
        chosen: name, simpleString and nullable of some columns, in any order, as
            `.schema("value BINARY, offset LONG")` asks for them. None: those of `ddl`.
        include_headers, include_tags: count only where none are chosen.

    Raises:
        InvalidConfig: names each column that does not exist, or has another type.
    """
    if chosen is None:
        columns = _included(include_headers=include_headers, include_tags=include_tags)
        return pa.schema([(column.name, column.arrow_type) for column in columns])
    fields = list(chosen)
    problems = _problems_of(fields)
    if problems:
        raise InvalidConfig(problems)
    return pa.schema(
        [pa.field(name, _BY_NAME[name].arrow_type, nullable) for name, _, nullable in fields]
    )


def _included(*, include_headers: bool, include_tags: bool) -> list[Column]:
    is_left_out = {"headers": not include_headers, "tags": not include_tags}
    return [column for column in COLUMNS if not is_left_out.get(column.name)]


def _problems_of(fields: list[tuple[str, str, bool]]) -> list[str]:
    if not fields:
        return [f"the schema has no columns: choose some of {_all()}"]
    names = [name for name, _, _ in fields]
    twice = [f"column {name} is chosen twice" for name in _repeated(names)]
    return twice + [problem for field in fields if (problem := _problem_of(*field))]


def _problem_of(name: str, given_type: str, nullable: bool) -> str:
    """What is wrong with one column that was chosen, or an empty string."""
    column = _BY_NAME.get(name)
    if column is None:
        return f"there is no column {name!r}: choose among {_all()}"
    if given_type != column.spark_type:
        return f"column {name} is {column.spark_type}, and cannot be read as {given_type}"
    if column.may_be_null and not nullable:
        return f"column {name} may be null: leave out NOT NULL"
    return ""


def _repeated(names: list[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if names.count(name) > 1]


def _all() -> str:
    return ", ".join([f"{column.name} {column.spark_type}" for column in COLUMNS])
