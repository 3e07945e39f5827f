"""`spark.readStream.format("raftmq")`: start and end offsets of each microbatch, by read limits.

Lives as long as the query, in a process of its own; what it pickles for tasks holds no connection.
Spark keeps the offsets in its checkpoint: nothing is committed to the cluster.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from spark_io.lookup import Lookup
from spark_io.offsets import flat, from_json_dict, is_enough, limited, nested, to_json_dict
from spark_io.planning import Split, begins_of, check_left_out, plan
from spark_io.positions import resolve
from spark_io.python_processes import told_in_one_line
from spark_io.reading import read_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit

    from raftmq.errors import InvalidConfig
    from spark_io.offsets import Offsets
    from spark_io.options.source import SourceOptions

    JsonOffsets = dict[str, dict[str, int]]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """
    Args:
        schema: the columns that are wanted.
    """

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options, self._schema = options, schema
        self._lookup = Lookup(options)
        self._target: Offsets | None = None  # where a query with the trigger availableNow ends
        self._latest: Offsets | None = None
        # What the next plan needs to know of logs, and of which microbatch.
        self._begins: tuple[Offsets, Offsets, Offsets] | None = None
        self._triggered_at = time.monotonic()

    @told_in_one_line()
    def initialOffset(self) -> JsonOffsets:
        keys = self._lookup.keys()
        return to_json_dict(resolve(self._options.starting, keys, self._lookup))

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        # With both limits this one is Spark's; `_is_waiting` applies the minimum.
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @told_in_one_line()
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ends({})

    @told_in_one_line()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> JsonOffsets:
        begun = from_json_dict(start)
        self._begins = None  # also where this fails: logs may have changed since
        end = self._latest = self._ends(begun) if self._target is None else self._target
        check_left_out(self._options, begun, end)
        begins = self._log_starts(begun, end) if end != begun else {}
        if not isinstance(limit, ReadAllAvailable):  # a query that runs once waits for no more
            if self._is_waiting(begun, end, begins):  # an end equal to the start: no microbatch
                return to_json_dict(begun)
            self._triggered_at = time.monotonic()
            records_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            end = limited(begun, end, records_max, begins=begins)
        if end != begun:
            self._begins = begun, end, begins
        return to_json_dict(end)

    def reportLatestOffset(self) -> JsonOffsets | None:
        return None if self._latest is None else to_json_dict(self._latest)

    @told_in_one_line()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        offsets = from_json_dict(start), from_json_dict(end)
        begins = None  # out of the checkpoint: of another process
        if self._begins is not None and self._begins[:2] == offsets:
            begins = self._begins[2]
        return plan(self._options, self._lookup, *offsets, begins)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Split), "one of those that were planned"
        return read_ranges(self._options, partition.ranges, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: Spark's checkpoint has the query's offsets."""

    def stop(self) -> None:
        self._lookup.close()

    # -- limits ----------------------------------------------------------------------------

    def _ends(self, start: Offsets) -> Offsets:
        return nested(self._lookup.latest(self._lookup.keys(known=flat(start))))

    def _log_starts(self, start: Offsets, end: Offsets) -> Offsets:
        if self._target is not None:  # partitions of which may be gone by now
            return begins_of(self._lookup, start, end)
        return nested(self._lookup.earliest(flat(end)))

    def _is_waiting(self, start: Offsets, end: Offsets, begins: Offsets) -> bool:
        """Whether to wait for `minOffsetsPerTrigger`; a query with availableNow never does."""
        records_min = self._options.min_offsets_per_trigger
        waited = time.monotonic() - self._triggered_at
        return (
            records_min is not None
            and self._target is None
            and waited < self._options.max_trigger_delay_seconds
            and not is_enough(start, end, records_min, begins=begins)
        )


class RefusedReader(DataSourceStreamReader):
    """Raises what is wrong with the options of a stream once Spark asks where it begins.

    Where `streamReader` itself raises, Spark reports that its own variable `reader` is not bound.
    """

    def __init__(self, error: InvalidConfig) -> None:
        self._error = error

    @told_in_one_line()
    def initialOffset(self) -> NoReturn:
        raise self._error

    # Of a query that has a checkpoint this is the first question.
    @told_in_one_line()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> NoReturn:
        raise self._error

    def read(self, partition: InputPartition) -> NoReturn:
        raise self._error
