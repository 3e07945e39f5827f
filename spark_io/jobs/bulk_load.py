"""`python -m spark_io.jobs.bulk_load`: load any Spark format into a topic, idempotently.

Owns the command, and the order in which rows become records. Invariant: a second run of the same
generation sends the same records in the same order and tasks, so that brokers skip them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

import rich_click as click

from spark_io.jobs.causes import JobError
from spark_io.jobs.command import (
    CONTEXT,
    EXIT_CODES,
    dry_run_option,
    run,
    sending_options,
    shown,
    write_table,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession


# -- Rows as records ------------------------------------------------------------------------------
# Rows of any source as records, the same ones in the same tasks and order in each run.
#
# How a source cuts its rows into tasks may differ from run to run. Invariant: the task that sends a
# record, and the record before it, follow from its key, its value and its order columns alone, so
# that equal rows come in an equal order, in any run.


_SENDABLE = ("binary", "string")
_ORDER = "_order"  # prefix of columns that are only sorted by, and not sent


@dataclass(frozen=True, kw_only=True)
class RowShape:
    """How a row becomes a record, in SQL.

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


def records_of(frame: DataFrame, shape: RowShape) -> DataFrame:
    """With `value` and perhaps `key`, and the order columns that `in_order` sorts by.

    Raises:
        JobError: nothing says what the value is.
    """
    from pyspark.sql import functions as sql

    columns = {"value": _value(frame, shape)}
    if shape.key is not None:
        columns["key"] = sql.expr(shape.key)
    order = {f"{_ORDER}{at}": sql.expr(text) for at, text in enumerate(shape.order_by)}
    named = [column.alias(name) for name, column in {**columns, **order}.items()]
    return _as_text(frame.select(*named), list(columns))


def in_order(records: DataFrame, *, tasks: int) -> DataFrame:
    """Each record in its task, sorted, as they are sent.

    1. Without an order by the user: any task, as long as equal rows go to the same one.
    2. With a key: records of a key are in one task, which keeps their order.
    3. Without a key all records are ordered, which one task can do only.
    """
    names = [name for name in records.columns if not name.startswith(_ORDER)]
    order = [name for name in records.columns if name.startswith(_ORDER)]
    if not order:
        placed = records.repartition(tasks, *names)
    elif "key" in names:
        placed = records.repartition(tasks, "key")
    else:
        placed = records.repartition(1)
    return placed.sortWithinPartitions(*order, *names).select(*names)


def _value(frame: DataFrame, shape: RowShape) -> Column:
    from pyspark.sql import functions as sql

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
    """Cast columns that are neither bytes nor text."""
    from pyspark.sql import functions as sql

    types = dict(rows.dtypes)
    casts = {name: sql.col(name).cast("string") for name in names if types[name] not in _SENDABLE}
    return rows.withColumns(casts) if casts else rows


# -- Bulk load ------------------------------------------------------------------------------------


FIRST_ROWS = 5  # of a dry run: enough to see a wrong column


def main(argv: Sequence[str] | None = None) -> int:
    return run(bulk_load, "spark_io.jobs.bulk_load", argv)


@click.command(
    context_settings=CONTEXT,
    epilog=cleandoc(f"""
    Examples:

    python -m spark_io.jobs.bulk_load orders.csv --format csv --option header=true --to orders
    --id orders-csv --generation 1 --key id --value-json '*'

    python -m spark_io.jobs.bulk_load --format jdbc --option url=jdbc:postgresql:shop --option
    dbtable=orders --to orders --id orders-db --generation 20261122 --key id --value total
    --order-by changed_at

    {EXIT_CODES}
    """),
)
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.option("--format", "source", metavar="FORMAT", required=True, help="csv, parquet, json...")
@click.option(
    "--option", "options", metavar="KEY=VALUE", multiple=True, help="Of that format. Repeatable."
)
@click.option("--schema", metavar="DDL", help="Of what is read, as in 'id INT, name STRING'.")
@click.option("--key", metavar="EXPR", help="A column, or SQL; else records have no key.")
@click.option("--value", metavar="EXPR", help="The same for values; else the column value.")
@click.option(
    "--value-json", metavar="COLUMNS", help="An object of JSON of these; '*' for all of them."
)
@click.option(
    "--order-by",
    metavar="EXPR",
    multiple=True,
    help="Records of a key are sent in this order; without a key all of them, by one task."
    " Repeatable.",
)
@sending_options
@dry_run_option(
    "Show columns, some records and their number, and send nothing; brokers are asked about the"
    " topic."
)
def bulk_load(paths: tuple[str, ...], **given: Any) -> int:  # noqa: ANN401  # click's
    """Send what Spark reads at the PATHs to a topic, a record for each row.

    Keys and values that are neither bytes nor text become text, as SQL casts them. A second run
    with the same rows adds nothing.
    """
    if given["value"] is not None and given["value_json"] is not None:
        raise click.UsageError("--value and --value-json: say one of them")
    options = _options(given["options"])
    from spark_io.jobs.command import open_session
    from spark_io.jobs.sending import SinkTarget, check_target, send

    shape = RowShape(
        key=given["key"],
        value=given["value"],
        json_columns=_names(given["value_json"]),
        order_by=given["order_by"],
    )
    target = SinkTarget.of(given)
    with open_session("raftmq bulk_load") as session:
        check_target(target)
        frame = _read(session, paths, options, given)
        records = records_of(frame, shape)
        if given["is_dry"]:
            _show(frame, records)
        else:
            send(in_order(records, tasks=given["tasks"]), target)
    return 0


def _options(pairs: Sequence[str]) -> dict[str, str]:
    """Errors do not repeat values, which may be secrets."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise click.UsageError(f"--option {name}: expected KEY=VALUE")
        found[name] = value
    return found


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _read(
    session: SparkSession,
    paths: Sequence[str],
    options: Mapping[str, str],
    given: Mapping[str, Any],
) -> DataFrame:
    reader = session.read.format(given["source"]).options(**options)
    if given["schema"]:
        reader = reader.schema(given["schema"])
    return reader.load(list(paths)) if paths else reader.load()


def _show(frame: DataFrame, records: DataFrame) -> None:
    write_table(["column", "type"], frame.dtypes)
    click.echo()
    first = [[shown(value) for value in row] for row in records.limit(FIRST_ROWS).collect()]
    write_table(records.columns, first)
    click.echo(f"{frame.count()} records")


if __name__ == "__main__":
    sys.exit(main())
