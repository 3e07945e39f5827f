"""`python -m spark_io.jobs.replay`: files of Parquet back to a topic, once in all runs."""

from __future__ import annotations

import sys
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

import rich_click as click

from spark_io.jobs.command import CONTEXT, EXIT_CODES, dry_run_option, run, sending_options
from spark_io.jobs.tables import write_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame


def main(argv: Sequence[str] | None = None) -> int:
    return run(replay, "spark_io.jobs.replay", argv)


@click.command(
    context_settings=CONTEXT,
    epilog=cleandoc(f"""
    Examples:

    python -m spark_io.jobs.replay /mnt/exports/topic=orders --to orders-copy --id copy
    --generation 1 --keep-timestamps

    python -m spark_io.jobs.replay s3a://bucket/orders --to orders --id restore
    --generation 20261122 --by-key --dry-run

    {EXIT_CODES}
    """),
)
@click.argument("folder", metavar="FOLDER")
@sending_options
@click.option(
    "--keep-partitions/--by-key",
    "keep_partitions",
    default=None,
    help="Each record goes to the partition that its column says, or to that of its key; else the"
    " former, where there is such a column.",
)
@click.option(
    "--keep-timestamps", is_flag=True, help="As they are in the files; else the time of now."
)
@dry_run_option("Count what would be sent, and send nothing.")
def replay(folder: str, **given: Any) -> int:  # noqa: ANN401  # click's
    """Send the rows of the files in FOLDER to a topic, in the order of their offsets.

    FOLDER is that of a topic that was exported, or any with a column value, and perhaps key,
    headers, tags, timestamp, partition and offset. A second run adds nothing.
    """
    from spark_io.jobs.replay_rows import check_one_topic, rows_to_replay
    from spark_io.jobs.sending import Target, send
    from spark_io.jobs.session import open_session

    with open_session("raftmq replay") as session:
        frame = session.read.parquet(folder)
        check_one_topic(frame.inputFiles())
        rows = rows_to_replay(
            frame,
            keep_partitions=given["keep_partitions"],
            keep_timestamps=given["keep_timestamps"],
            tasks=given["tasks"],
        )
        if given["is_dry"]:
            _show_counts(frame)
        else:
            send(rows, Target.of(given))
    return 0


def _show_counts(frame: DataFrame) -> None:
    """By partition, where there are any."""
    from pyspark.sql import functions as sql

    numbers = [sql.count(sql.lit(1)).alias("rows")]
    if "offset" in frame.columns:
        numbers += [sql.min("offset").alias("first"), sql.max("offset").alias("last")]
    groups = [name for name in ("partition",) if name in frame.columns]
    counts = frame.groupBy(*groups).agg(*numbers).orderBy(*groups)
    write_table(counts.columns, counts.collect())


if __name__ == "__main__":
    sys.exit(main())
