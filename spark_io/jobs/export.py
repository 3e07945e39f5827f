"""`python -m spark_io.jobs.export`: offset ranges of topics to Parquet files, each offset once.

Owns the command and the order of its work: read the folder and the log's bounds, plan, one Spark
task for each range.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from functools import partial
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from spark_io.jobs.command import (
    CONTEXT,
    EXIT_CODES,
    bootstrap_option,
    dry_run_option,
    run,
    write_table,
)
from spark_io.jobs.export_folder import PartitionFolder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spark_io.jobs.export_plan import Planned
    from spark_io.jobs.export_task import Exported
    from spark_io.options.source import SourceOptions
    from spark_io.ranges import OffsetRange


RECORDS_PER_FILE = 100_000  # 100 MB of records of 1 KB: neither many small files nor long tasks
NOTHING = "no full file is missing"


def main(argv: Sequence[str] | None = None) -> int:
    return run(export, "spark_io.jobs.export", argv)


@click.command(
    context_settings=CONTEXT,
    epilog=cleandoc(f"""
    Examples:

    python -m spark_io.jobs.export orders returns --folder /mnt/exports

    python -m spark_io.jobs.export orders --folder /mnt/exports --final --dry-run

    {EXIT_CODES}
    """),
)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "--folder",
    metavar="FOLDER",
    required=True,
    help="On a file system that all machines of Spark have under this name.",
)
@click.option(
    "--records-per-file",
    type=click.IntRange(min=1),
    metavar="N",
    default=RECORDS_PER_FILE,
    show_default=True,
    help="Files end at multiples of it.",
)
@click.option(
    "--final", "is_final", is_flag=True, help="Also what does not fill a file, up to the end."
)
@click.option(
    "--allow-loss",
    is_flag=True,
    help="Go on if retention has deleted something before it was exported.",
)
@dry_run_option("Show which files would be written, and write none.")
@bootstrap_option()
def export(folder: str, **given: Any) -> int:  # noqa: ANN401  # click's
    """Write TOPICs to files of Parquet: topic=T/partition=P/START-END.parquet.

    Writes what no file holds yet, so it may be called again at any time, also after a crash, and
    while another one is at work. All columns of the source are in the files, with headers and tags.
    """
    from spark_io.jobs.export_plan import check_loss
    from spark_io.options.source import source_options

    root = _root(folder)
    options = source_options(
        {
            "bootstrap.servers": given["bootstrap"],
            "subscribe": ",".join(given["topics"]),
            "failOnDataLoss": str(not given["allow_loss"]),
        },
        is_stream=False,
    )
    logs = _logs(options)
    plan = partial(_plan, root, logs, given["records_per_file"])
    # Planned twice: the difference is what would not fill a file yet.
    planned, all_planned = (plan(is_final=is_final) for is_final in (given["is_final"], True))
    if given["is_dry"]:
        _show_plan(planned)
    if not given["allow_loss"]:
        check_loss(planned)
    if not given["is_dry"]:
        _export(root, options, logs, planned)
    _tell_waiting(_size(all_planned) - _size(planned))
    return 0


def _root(folder: str) -> Path:
    if "://" in folder:
        raise click.UsageError(
            f"--folder {folder}: files get their names by renaming and locks, which an address has "
            "not; give a folder of a file system"
        )
    return Path(folder).absolute()


def _logs(options: SourceOptions) -> list[OffsetRange]:
    """The log start and end offsets of all partitions, as they are now."""
    from spark_io.lookup import Lookup
    from spark_io.ranges import OffsetRange

    with Lookup(options) as lookup:
        keys = lookup.keys()
        begins, ends = lookup.earliest(keys), lookup.latest(keys)
    return [OffsetRange(*key, begins[key], ends[key]) for key in keys]


def _plan(
    root: Path, logs: Iterable[OffsetRange], records_per_file: int, *, is_final: bool
) -> list[Planned]:
    """The missing ranges of all partitions, by the files in their folders now."""
    from spark_io.jobs.export_plan import plan

    planned: list[Planned] = []
    for log in logs:
        files = _folder(root, log).ranges()
        planned += plan(log, files, records_per_file=records_per_file, is_final=is_final)
    return planned


def _folder(root: Path, log: OffsetRange) -> PartitionFolder:
    return PartitionFolder(root, log.topic, log.partition)


def _show_plan(planned: Sequence[Planned]) -> None:
    rows = [
        (each.range.topic, each.range.partition, each.range.start, each.range.end, each.range.size,
         "deleted" if each.is_lost else "")
        for each in planned
    ]  # fmt: skip
    write_table(["topic", "partition", "start", "end", "offsets", "note"], rows)
    if not planned:
        click.echo(NOTHING)


def _size(planned: Iterable[Planned]) -> int:
    return sum(each.range.size for each in planned)


def _tell_waiting(count: int) -> None:
    if count:
        click.echo(
            f"{count} offsets at the ends do not fill a file yet: --final writes them", err=True
        )


def _export(
    root: Path, options: SourceOptions, logs: Iterable[OffsetRange], planned: Sequence[Planned]
) -> None:
    _remove_leftovers(root, logs)
    if not planned:
        click.echo(NOTHING)
        return
    from spark_io.jobs.command import open_session, shown_progress
    from spark_io.jobs.export_task import export_range

    with open_session("raftmq export") as session, shown_progress(session):
        ranges = [each.range for each in planned]
        # A task for each range: one that fails is retried alone.
        tasks = session.sparkContext.parallelize(ranges, len(ranges))
        done = tasks.map(partial(export_range, str(root), options)).collect()
    _tell(done)


def _remove_leftovers(root: Path, logs: Iterable[OffsetRange]) -> None:
    """Remove files of runs that died. Their ranges are planned again."""
    count = sum(_folder(root, log).remove_leftovers() for log in logs)
    if count:
        click.echo(f"export: removed {count} files that a run before did not finish", err=True)


def _tell(done: Iterable[Exported]) -> None:
    files: dict[tuple[str, int], list[int]] = defaultdict(list)
    for each in done:
        files[each.range.topic, each.range.partition].append(each.record_count)
    rows = [(*key, len(counts), sum(counts)) for key, counts in sorted(files.items())]
    write_table(["topic", "partition", "files", "records"], rows)


if __name__ == "__main__":
    sys.exit(main())
