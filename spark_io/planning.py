"""The plan of a query: Spark tasks for the ranges between two offsets, and the check for data loss.

Asks the cluster where logs begin and end by now; decides with `ranges.py`. Data loss is an error,
or with `failOnDataLoss=false` a warning in the log, never silent.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from raftmq.errors import InvalidConfig, OffsetOutOfRange
from spark_io.offsets import flat, name_of, nested
from spark_io.positions import shown
from spark_io.ranges import check_loss, ranges, tasks

if TYPE_CHECKING:
    from spark_io.lookup import Lookup
    from spark_io.offsets import Offsets
    from spark_io.options.source import SourceOptions
    from spark_io.ranges import OffsetRange

logger = logging.getLogger("spark_io")


@dataclass(frozen=True)
class Split(InputPartition):
    """What one task reads, in this order."""

    ranges: tuple[OffsetRange, ...]


def plan(
    options: SourceOptions,
    lookup: Lookup,
    start: Offsets,
    end: Offsets,
    begins: Offsets | None = None,
) -> list[Split]:
    """Cut what lies between `start` and `end` into tasks.

    Args:
        begins: of `begins_of`, where it was asked just now.

    Raises:
        OffsetOutOfRange: records of it are gone, and `failOnDataLoss` is true.
    """
    if begins is None:
        begins = begins_of(lookup, start, end)
    end = _without_gone(start, end, begins)
    _check_loss(options, check_loss(start, end, begins))
    planned = tasks(
        ranges(start, end, begins),
        min_records=options.min_records_per_partition,
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
    )
    return [Split(tuple(each)) for each in planned]


def check_left_out(options: SourceOptions, start: Offsets, end: Offsets) -> None:
    """Called before Spark records an end that lacks partitions of the checkpoint.

    Raises:
        OffsetOutOfRange: they are deleted or not chosen, and `failOnDataLoss` is true.
    """
    left_out = flat(start).keys() - flat(end).keys()
    if left_out and options.fail_on_data_loss:
        raise OffsetOutOfRange(
            f"the checkpoint of this query has {shown(left_out)}, and they are not read any more: "
            "deleted, or not chosen. Choose them again, with subscribe or as before; or give this "
            'query another checkpointLocation; or forget them with .option("failOnDataLoss", '
            '"false")'
        )


def begins_of(lookup: Lookup, start: Offsets, end: Offsets) -> Offsets:
    """The log start offsets of all partitions that still exist."""
    there = set(lookup.existing({*flat(start), *flat(end)}))
    return nested(lookup.earliest(sorted(there)))


def within_logs(options: SourceOptions, lookup: Lookup, asked: Offsets) -> Offsets:
    """The end offsets of a batch, at most the ends of the logs: a batch does not wait for more
    records.

    Raises:
        OffsetOutOfRange: a log ends before, and `failOnDataLoss` is true.
    """
    wanted = flat(asked)
    ends = lookup.latest(wanted)
    early = {key: ends[key] for key, offset in wanted.items() if ends[key] < offset}
    for key, end in early.items():
        what = f"{name_of(key)} ends at offset {end}, before {wanted[key]} where reading is to end"
        if options.fail_on_data_loss:
            raise OffsetOutOfRange(
                f"{what}: name an offset up to {end} in endingOffsets, or -1 for all that is there"
            )
        logger.warning("data loss: %s", what)
    return nested({**wanted, **early})


def check_order(start: Offsets, end: Offsets) -> None:
    """
    Raises:
        InvalidConfig: a batch would end before it begins.
    """
    ends = flat(end)
    late = {key: begin for key, begin in flat(start).items() if begin > ends.get(key, begin)}
    if late:
        raise InvalidConfig(
            [f"{name_of(key)} would be read from offset {begin}, and only up to {ends[key]}: choose"
             " an earlier start or a later end" for key, begin in late.items()]
        )  # fmt: skip


def _without_gone(start: Offsets, end: Offsets, begins: Offsets) -> Offsets:
    """Without topics that were deleted since: the `end` of a checkpoint may still name them.

    Those that are in neither of the others were added and are gone again, which `check_loss` finds,
    too.
    """
    gone = flat(start).keys() - flat(begins).keys()
    return nested({key: offset for key, offset in flat(end).items() if key not in gone})


def _check_loss(options: SourceOptions, losses: list[str]) -> None:
    if not losses:
        return
    if options.fail_on_data_loss:
        raise OffsetOutOfRange(
            f'{"; ".join(losses)}. Read what is left with .option("failOnDataLoss", "false"), '
            "or begin again with another checkpointLocation"
        )
    for loss in losses:
        logger.warning("data loss: %s", loss)
