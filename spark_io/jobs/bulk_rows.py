"""Rows of any source as records, the same ones in the same tasks and order in each run.

How a source cuts its rows into tasks may differ from run to run. Invariant: which task sends a
record, and behind which other one, follows from its key, its value and what it is ordered by alone,
so that equal rows come in an equal order, whoever reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from spark_io.jobs.causes import JobError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

_SENDABLE = ("binary", "string")
_ORDER = "_order"  # how columns begin that are there for the order alone


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What becomes of a row, in SQL.

    Attributes:
        key: None: records have none.
        value: None, and no `json_columns` either: the column `value`.
        json_columns: their names and values are the value, as an object of JSON.
        order_by: records of a key come in this order; without a key, all of them.
    """

    key: str | None = None
    value: str | None = None
    json_columns: Sequence[str] = ()
    order_by: Sequence[str] = ()


def records_of(frame: DataFrame, shape: Shape) -> DataFrame:
    """With `value` and perhaps `key`, and whatever `in_order` needs.

    Raises:
        JobError: nothing says what the value is.
    """
    columns = {"value": _value(frame, shape)}
    if shape.key is not None:
        columns["key"] = sql.expr(shape.key)
    order = {f"{_ORDER}{at}": sql.expr(text) for at, text in enumerate(shape.order_by)}
    named = [column.alias(name) for name, column in {**columns, **order}.items()]
    return _as_text(frame.select(*named), list(columns))


def in_order(records: DataFrame, *, tasks: int) -> DataFrame:
    """As they are sent: each record in its task, behind those that come before it."""
    names = [name for name in records.columns if not name.startswith(_ORDER)]
    order = [name for name in records.columns if name.startswith(_ORDER)]
    if not order:
        placed = records.repartition(tasks, *names)
    elif "key" in names:
        placed = records.repartition(tasks, "key")
    else:
        placed = records.repartition(1)
    return placed.sortWithinPartitions(*order, *names).select(*names)


def _value(frame: DataFrame, shape: Shape) -> Column:
    if shape.value is not None:
        return sql.expr(shape.value)
    if shape.json_columns:
        return sql.to_json(sql.struct(*shape.json_columns))
    if "value" not in frame.columns:
        raise JobError(
            f"there is no column value among {', '.join(frame.columns)}: say --value EXPR, or "
            "--value-json COLUMNS"
        )
    return sql.col("value")


def _as_text(rows: DataFrame, names: list[str]) -> DataFrame:
    """What is neither bytes nor text."""
    types = dict(rows.dtypes)
    casts = {name: sql.col(name).cast("string") for name in names if types[name] not in _SENDABLE}
    return rows.withColumns(casts) if casts else rows
