"""What is measured: sink, source, copying stream, microbatches of few rows. In Spark's environment.

The works of a section take turns in each round, and the order rotates. The first round of all is
not counted: it starts workers and lets the JVM compile. In that round it is seen that all rows went
where they should.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.peers.servers import tree_cpu_seconds
from benchmarks.spark_parts.around import cached_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from benchmarks.spark_peers.sides import Side, Way

COPY_MICROBATCHES = 4
FEW_ROWS, FEW_SIZE = 10, 100
FEW_MICROBATCHES, FEW_UNCOUNTED = 6, 2  # the first ones of a query start its workers
EMPTY_SECONDS, LOOK_SECONDS = 3.0, 0.1
# All triggers say what they took, also those that find nothing, and nothing that was said is lost.
PROGRESS = {
    "spark.sql.streaming.noDataProgressEventInterval": "0",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
}
DONE_SECONDS_MAX = 600


class Taken(NamedTuple):
    """By one work: seconds, and CPU seconds of Spark with its Python processes, and of servers."""

    seconds: float
    spark_cpu: float
    servers_cpu: float


Work = Callable[[bool], Taken]  # is told whether to look for all rows
Round = dict[str, Taken]


@dataclass(frozen=True)
class World:
    """Attributes:
    sides: both.
    process_id: of Spark's JVM, below which all of its processes are.
    folder: for files of Spark.
    """

    spark: SparkSession
    sides: Sequence[Side]
    process_id: int
    folder: Path
    rounds: int
    tell: Callable[[str], None]
    numbers: Iterator[int] = field(default_factory=count)

    def ways(self) -> list[Way]:
        return [way for side in self.sides for way in side.ways()]

    def take_turns(self, works: Mapping[str, Work]) -> list[Round]:
        return [self._round(works, number) for number in range(self.rounds + 1)][1:]

    def _round(self, works: Mapping[str, Work], number: int) -> Round:
        names = list(works)
        at = number % len(names)
        found = dict[str, Taken]()
        for name in (*names[at:], *names[:at]):
            found[name] = works[name](number == 0)
            self.tell(f"  round {number}: {name}: {found[name].seconds:.2f} s")
        return {name: found[name] for name in names}

    @contextmanager
    def measured(self, side: Side) -> Iterator[list[float]]:
        """Seconds and CPU seconds, there once the block has ended."""
        found = list[float]()
        before = self._now(side)
        yield found
        found += [now - then for now, then in zip(self._now(side), before, strict=True)]

    def _now(self, side: Side) -> tuple[float, float, float]:
        return time.perf_counter(), tree_cpu_seconds(self.process_id), side.cpu_seconds()

    def new_checkpoint(self) -> str:
        return str(self.folder / f"checkpoint-{next(self.numbers)}")


# -- batches -----------------------------------------------------------------------------------


def sink(world: World, size: int, number: int) -> list[Round]:
    """Rows in Spark's memory into a new topic."""
    with cached_rows(world.spark, size, number) as frame:
        return world.take_turns(
            {way.title: partial(_sink, world, way, frame) for way in world.ways()}
        )


def _sink(world: World, way: Way, frame: DataFrame, is_seen: bool) -> Taken:
    with way.side.topic() as topic:
        with world.measured(way.side) as taken:
            _write(way.side, frame, topic, way.options)
        if is_seen:
            _see(way.side, topic, frame.count())
        return Taken(*taken)


def source(world: World, size: int, number: int) -> list[Round]:
    """A topic into Spark, which drops the rows."""
    with _filled(world, size, number) as topics:
        works: dict[str, Work] = {}
        for side, topic in topics.items():
            pair, everything = partial(side.read_pair, topic), partial(side.read, topic)
            works[f"{side.name}: key and value"] = partial(_source, world, side, pair, number)
            works[f"{side.name}: all columns"] = partial(_source, world, side, everything, number)
        return world.take_turns(works)


def _source(
    world: World, side: Side, read: Callable[[], DataFrame], number: int, is_seen: bool
) -> Taken:
    with world.measured(side) as taken:
        read().write.format("noop").mode("overwrite").save()
    if is_seen:
        assert read().count() == number
    return Taken(*taken)


@contextmanager
def _filled(world: World, size: int, number: int) -> Iterator[dict[Side, str]]:
    """A topic of each side, with the same rows."""
    with ExitStack() as kept:
        topics = {side: kept.enter_context(side.topic()) for side in world.sides}
        with cached_rows(world.spark, size, number) as frame:
            for side, topic in topics.items():
                _write(side, frame, topic, side.ways()[0].options)
        yield topics


def _write(side: Side, frame: DataFrame, topic: str, options: Mapping[str, str]) -> None:
    writer = frame.write.format(side.format).mode("append")
    writer.options(**side.sink(topic)).options(**options).save()


def _see(side: Side, topic: str, number: int) -> None:
    found = side.read(topic).count()
    assert found == number, f"{side.name}: {found:,} rows of {number:,}"


# -- streams -----------------------------------------------------------------------------------


def copy(world: World, size: int, number: int) -> list[Round]:
    """A stream from a topic to a new one, `availableNow`, from its start to its end."""
    with _filled(world, size, number) as topics:
        return world.take_turns(
            {
                way.title: partial(_copy, world, way, topics[way.side], number)
                for way in world.ways()
            }
        )


def _copy(world: World, way: Way, source: str, number: int, is_seen: bool) -> Taken:
    limit = -(-number // COPY_MICROBATCHES)
    with way.side.topic() as topic:
        with world.measured(way.side) as taken:
            _run_stream(world, way, source, topic, limit)
        if is_seen:
            _see(way.side, topic, number)
        return Taken(*taken)


def few(world: World) -> list[Round]:
    """Microbatches of ten rows, from topic to topic: the median, and CPU of the whole by one."""
    with ExitStack() as kept:
        topics = {side: kept.enter_context(side.topic()) for side in world.sides}
        number = FEW_ROWS * FEW_MICROBATCHES
        with cached_rows(world.spark, FEW_SIZE, number) as frame:
            # One row of each of ten partitions is what the limit of a microbatch comes to.
            partition = f"cast(cast(key as string) as int) % {FEW_ROWS} as partition"
            spread = frame.selectExpr("*", partition)
            for side, topic in topics.items():
                # The plain one: fences of another delivery would count in that limit.
                _write(side, spread, topic, side.ways()[0].options)
        return world.take_turns(
            {way.title: partial(_few, world, way, topics[way.side]) for way in world.ways()}
        )


def _few(world: World, way: Way, source: str, is_seen: bool) -> Taken:
    with way.side.topic() as topic:
        with world.measured(way.side) as taken:
            query = _run_stream(world, way, source, topic, FEW_ROWS)
        found = [one for one in query.recentProgress if one.numInputRows]
        assert [one.numInputRows for one in found] == [FEW_ROWS] * FEW_MICROBATCHES, found
        if is_seen:
            _see(way.side, topic, FEW_ROWS * FEW_MICROBATCHES)
        return Taken(_trigger_seconds(found[FEW_UNCOUNTED:]), *_each(taken, FEW_MICROBATCHES))


def empty(world: World) -> list[Round]:
    """Triggers of a stream that find nothing: the median, and CPU of one."""
    for name, value in PROGRESS.items():
        world.spark.conf.set(name, value)
    works: dict[str, Work] = {}
    with ExitStack() as kept:
        for side in world.sides:
            source, target = (kept.enter_context(side.topic()) for _ in range(2))
            works[side.name] = partial(_empty, world, side.ways()[0], source, target)
        return world.take_turns(works)


def _empty(world: World, way: Way, source: str, target: str, _is_seen: bool) -> Taken:
    query = _stream(world, way, way.side.read_stream(source), target).start()
    try:
        _wait_empty(query)
        began = len(query.recentProgress)
        with world.measured(way.side) as taken:
            time.sleep(EMPTY_SECONDS)
        found = query.recentProgress[began:]
    finally:
        query.stop()
    assert not any(one.numInputRows for one in found)
    return Taken(_trigger_seconds(found), *_each(taken, len(found)))


def _wait_empty(query: StreamingQuery) -> None:
    """Until a trigger has found nothing: the first one of a query always has a microbatch."""
    deadline = time.monotonic() + DONE_SECONDS_MAX
    while (last := query.lastProgress) is None or "addBatch" in last.durationMs:
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(LOOK_SECONDS)


def _run_stream(world: World, way: Way, source: str, target: str, limit: int) -> StreamingQuery:
    """To the end of `source`, with at most so many rows in a microbatch."""
    rows = way.side.read_stream(source, maxOffsetsPerTrigger=str(limit))
    query = _stream(world, way, rows, target).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(DONE_SECONDS_MAX)
    finally:
        query.stop()
    return query


def _stream(world: World, way: Way, rows: DataFrame, target: str) -> DataStreamWriter:
    writer = rows.writeStream.format(way.side.format).options(**way.side.sink(target))
    return writer.options(**way.options).option("checkpointLocation", world.new_checkpoint())


def _trigger_seconds(found: Sequence[StreamingQueryProgress]) -> float:
    return median(one.durationMs["triggerExecution"] for one in found) / 1000


def _each(taken: Sequence[float], number: int) -> list[float]:
    """CPU seconds of one of so many."""
    _, *cpu = taken
    return [seconds / number for seconds in cpu]
