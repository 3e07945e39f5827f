"""A task that reads, against a client that a script plays: trouble on the way, and its end.

What real brokers answer is in tests/cluster/test_spark_io_reading.py.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Self, cast

import pytest

pytest.importorskip("pyspark")

from raftmq.client.consumer.batch import BatchPart, ConsumedBatch
from raftmq.errors import (
    CorruptRecord,
    LeaderNotAvailable,
    LogTruncation,
    OffsetOutOfRange,
    RaftmqError,
    RequestTimedOut,
    Unreachable,
    UnsupportedCompression,
)
from raftmq.wire.batch.records import RecordBatch, encode_batch
from spark_io import reading
from spark_io.options.source import source_options
from spark_io.ranges import OffsetRange
from spark_io.reading import (
    AHEAD_RECORDS,
    FETCHING,
    FILTERED_WAIT_MS,
    PARTITION_BYTES_MAX,
    PARTITION_BYTES_MIN,
    RECORD_BYTES,
    RangesReader,
)
from spark_io.schema import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq import sync
    from spark_io.offsets import Key

SCHEMA = arrow_schema([("partition", "int", False), ("offset", "bigint", False)])


class Silence:
    """Nothing comes for a moment; meanwhile the position moves over what holds no records."""

    def __init__(self, position: int | None = None) -> None:
        self.position = position


def records(start: int, end: int, partition: int = 0) -> ConsumedBatch:
    values = [b"v"] * (end - start)
    batch = RecordBatch.decode(encode_batch(values=values, timestamp=1, base_offset=start))
    return ConsumedBatch("t", partition, [BatchPart(batch, 0, len(values))], high_watermark=100)


class Script:
    """A client whose consumers hand out one step after the other; the last one is repeated.

    Attributes:
        opened: with which arguments.
        paused: the numbers of partitions that are.
        sought: partitions and offsets.
    """

    def __init__(self, *steps: ConsumedBatch | Silence | RaftmqError, **edges: Any) -> None:
        self._steps, self._edges = list(steps), {"earliest": 0, "latest": 100, **edges}
        self._positions: dict[int, int | None] = {}
        self.opened: list[dict[str, Any]] = []
        self.paused: set[int] = set()
        self.sought: list[tuple[int, int]] = []
        self.admin = self

    # A client.

    def consumer(self, **arguments: Any) -> Script:
        self.opened.append(arguments)
        return self

    # Its admin.

    def with_timeout(self, _seconds: float) -> Script:
        return self

    def offsets(
        self, _topic: str, at: str, *, partitions: list[int], isolation_level: str
    ) -> dict[int, int]:
        assert isolation_level == "read_committed"
        edge = self._edges[at]
        if isinstance(edge, RaftmqError):
            raise edge
        return dict.fromkeys(partitions, edge)

    # A consumer.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def batches(self, *, timeout: float) -> Iterator[ConsumedBatch]:
        step = self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]
        if isinstance(step, RaftmqError):
            raise step
        if isinstance(step, Silence):
            self._positions[0] = step.position
        else:
            assert step.partition not in self.paused
            self._positions[step.partition] = step.end_offset
            yield step

    def position(self, _topic: str, partition: int) -> int | None:
        return self._positions.get(partition)

    def pause(self, *keys: Key) -> None:
        self.paused |= {partition for _, partition in keys}

    def resume(self, *keys: Key) -> None:
        self.paused -= {partition for _, partition in keys}

    def seek(self, _topic: str, partition: int, *, offset: int) -> None:
        self.sought.append((partition, offset))
        self._positions[partition] = offset


def reader_of(script: Script, *asked: OffsetRange, **given: str) -> RangesReader:
    base = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", **given}
    options = source_options(base, is_stream=False)
    return RangesReader(cast("sync.Client", script), options, asked, SCHEMA)


def rows(reader: RangesReader) -> list[tuple[int, int]]:
    """Partitions and offsets, as they come."""
    columns = ("partition", "offset")
    return [
        row
        for batch in reader.batches()
        for row in zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
    ]


def read(script: Script, start: int, end: int, **given: str) -> list[int]:
    """The offsets of one partition that come."""
    found = rows(reader_of(script, OffsetRange("t", 0, start, end), **given))
    assert {partition for partition, _ in found} <= {0}
    return [offset for _, offset in found]


def test_what_is_beyond_the_range_is_cut() -> None:
    script = Script(records(0, 10), records(10, 20))
    assert read(script, 3, 12) == list(range(3, 12))
    assert len(script.opened) == 1


def test_an_empty_range() -> None:
    assert read(Script(Silence()), 5, 5) == []


def test_a_range_that_ends_without_records() -> None:
    """Control batches: the position moves over them, and nothing more will come."""
    assert read(Script(records(0, 5), Silence(5), Silence(7)), 0, 7) == list(range(5))
    assert read(Script(Silence(None), Silence(9)), 0, 7) == []


def test_how_the_consumer_is_opened() -> None:
    script = Script(records(4, 6))
    read(script, 4, 6)
    assert script.opened == [
        {
            "assign": [("t", 0)],
            "start": {("t", 0): 4},
            "isolation_level": "read_committed",
            "tags": None,
            **FETCHING,
            "max_partition_fetch_bytes": PARTITION_BYTES_MIN,
        }
    ]


def test_a_range_of_which_nothing_passes() -> None:
    """It is over where the position is behind it, though no row has come; brokers are to say soon
    where it is."""
    script = Script(Silence(3), Silence(6), Silence(20))
    assert read(script, 0, 8, tags="eu & !test") == []
    [opened] = script.opened
    assert (opened["tags"], opened["fetch_max_wait_ms"]) == ("eu & !test", FILTERED_WAIT_MS)
    script = Script(Silence(8))
    assert read(script, 0, 8, **{"tags": "eu", "kafka.fetch.max.wait.ms": "100"}) == []
    assert script.opened[0]["fetch_max_wait_ms"] == 100


def test_what_is_left_out_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the position moves, brokers answer: silence is where it stands still."""
    clock = iter(range(1000))
    monkeypatch.setattr(reading.time, "monotonic", lambda: float(next(clock)))
    moving = [Silence(position) for position in range(1, 60)]
    assert read(Script(*moving, records(60, 62)), 0, 62, retryTimeoutMs="5000") == [60, 61]
    with pytest.raises(RequestTimedOut, match="at offset 59 of 0 to 62"):
        read(Script(*moving), 0, 62, retryTimeoutMs="5000")


def test_a_range_that_was_passed_over_before_its_turn() -> None:
    """Nothing is waited for."""
    script = Script(records(0, 8, 0), Silence())
    script.position = lambda _topic, partition: 9 if partition == 1 else None  # type: ignore[method-assign]
    assert rows(reader_of(script, T0, T1, tags="eu")) == in_partition(0, 0, 8)


def test_small_ranges_are_fetched_in_small_pieces() -> None:
    """What lies behind them in a long log is for others."""
    for size, most in ((1000, 1000 * RECORD_BYTES), (1_000_000, PARTITION_BYTES_MAX)):
        script = Script(Silence())
        reader_of(script, T0, OffsetRange("t", 1, 0, size))
        assert script.opened[0]["max_partition_fetch_bytes"] == most


def test_options_of_the_consumer_come_first() -> None:
    script = Script(records(4, 6))
    read(script, 4, 6, **{"kafka.max.poll.records": "7", "raftmq.prefetch.bytes": "4096"})
    assert script.opened[0]["max_poll_records"] == 7
    assert script.opened[0]["prefetch_bytes"] == 4096


def test_an_election_on_the_way() -> None:
    """Nothing is missing and nothing comes twice."""
    script = Script(
        records(0, 4), LeaderNotAvailable("t-0"), Silence(4), Unreachable("t-0"), records(4, 8)
    )
    assert read(script, 0, 8) == list(range(8))


def test_what_no_repetition_mends_is_told_at_once() -> None:
    with pytest.raises(UnsupportedCompression):
        read(Script(records(0, 4), UnsupportedCompression("t-0 at offset 4")), 0, 8)


def silence(script: Script, **given: str) -> RaftmqError:
    with pytest.raises(RaftmqError) as caught:
        read(script, 0, 8, retryTimeoutMs="1", **given)
    return caught.value


def test_silence_has_an_end() -> None:
    error = silence(Script(records(0, 4), Silence(4)))
    assert type(error) is RequestTimedOut
    assert str(error) == (
        "t-0: nothing has come for 0.001 s (retryTimeoutMs) at offset 4 of 0 to 8"
    )


def test_silence_tells_its_cause() -> None:
    """That of the consumer, or what is said of the partition."""
    error = silence(Script(CorruptRecord("t-0 at offset 0: bits")))
    assert isinstance(error, CorruptRecord)
    error = silence(Script(Silence(), latest=LeaderNotAvailable("t-0: nobody leads")))
    assert isinstance(error, RequestTimedOut)
    assert str(error).endswith("at offset 0 of 0 to 8: t-0: nobody leads")


def test_a_log_that_ends_before_the_range() -> None:
    """The topic was deleted and made again since: what is awaited will not come."""
    error = silence(Script(records(0, 4), Silence(4), latest=4))
    assert isinstance(error, OffsetOutOfRange)
    assert "offsets 0 to 8 some are gone, from 4 on: deleted, or the topic was" in str(error)
    assert "at offset 4 of 0 to 8: the last one is 3" in str(error.__cause__)
    script = Script(records(0, 4), Silence(4), latest=4)
    assert read(script, 0, 8, retryTimeoutMs="1", failOnDataLoss="false") == list(range(4))


GONE = OffsetOutOfRange("offset 2 is not there").at("t", 0)


def test_records_that_are_gone_are_an_error() -> None:
    with pytest.raises(OffsetOutOfRange) as caught:
        read(Script(GONE, earliest=5), 2, 8)
    assert str(caught.value).startswith("t-0: of the offsets 2 to 8 some are gone, from 2 on")
    assert '.option("failOnDataLoss", "false")' in str(caught.value)


@pytest.mark.parametrize(
    ("begin", "position", "found"),
    [(5, 5, [5, 6, 7]), (8, 8, []), (20, 8, []), (0, 8, [])],
    ids=["some", "all", "more", "beyond the end"],
)
def test_or_they_are_passed_over(
    begin: int, position: int, found: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Loudly. Where the log begins earlier, it has ended before the position."""
    script = Script(GONE, records(5, 10), earliest=begin)
    with caplog.at_level(logging.WARNING, "spark_io"):
        assert read(script, 2, 8, failOnDataLoss="false") == found
    [warning] = caplog.messages
    assert f"data loss: topic=t partition=0 from=2 to={position}: t-0" in warning


def test_a_log_that_was_cut_while_it_was_read() -> None:
    """After an unclean election: other records stand there, and are read."""
    cut = LogTruncation("cut at 3", offset=3).at("t", 0)
    with pytest.raises(OffsetOutOfRange, match="from 5 on") as caught:
        read(Script(records(0, 5), cut), 0, 8)
    assert caught.value.__cause__ is cut
    script = Script(records(0, 5), cut, records(5, 8))
    assert read(script, 0, 8, failOnDataLoss="false") == list(range(8))
    assert script.sought == [(0, 5)]


# -- Several ranges -------------------------------------------------------------------------------


def in_partition(partition: int, start: int, end: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(start, end)]


T0, T1, T2 = (OffsetRange("t", partition, 0, 8) for partition in range(3))


def test_ranges_come_one_after_the_other() -> None:
    """Whichever partition answers first: a sink with a name needs the same rows in the same order.
    What has come too early is kept, and nothing more of that partition is fetched meanwhile."""
    script = Script(
        records(0, 5, 1), records(0, 3, 0), records(0, 8, 2), records(3, 8, 0), records(5, 8, 1)
    )
    assert rows(reader_of(script, T0, T1, T2)) == [
        *in_partition(0, 0, 8),
        *in_partition(1, 0, 8),
        *in_partition(2, 0, 8),
    ]
    assert script.opened[0]["start"] == {("t", 0): 0, ("t", 1): 0, ("t", 2): 0}
    assert script.paused == {0, 1, 2}


def test_a_range_whose_turn_is_far_away_is_not_fetched() -> None:
    """It would be kept for long, or fetched twice."""
    large = OffsetRange("t", 0, 0, AHEAD_RECORDS + 10)
    script = Script(
        records(0, 5, 0), records(5, 20, 0), records(0, 8, 1), Silence(large.end), records(0, 8, 2)
    )
    found = reader_of(script, large, T1, T2).batches()
    next(found)
    assert script.paused == {1, 2}
    next(found)
    assert script.paused == set()
    assert [batch.num_rows for batch in found] == [8, 8]
    assert script.paused == {0, 1, 2}


def test_the_end_of_a_range_is_not_waited_for() -> None:
    """Where a marker came with the last records, the position is behind it."""
    script = Script(records(0, 7, 0), records(0, 8, 1))
    known = script._positions
    script.position = lambda _topic, partition: 8 if known and partition == 0 else None  # type: ignore[method-assign]
    assert rows(reader_of(script, T0, T1)) == [*in_partition(0, 0, 7), *in_partition(1, 0, 8)]


def test_a_range_that_is_gone_before_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    """Others are read; and nothing is, where a loss is an error."""
    gone = OffsetOutOfRange("offset 0 is not there").at("t", 1)
    steps = [gone, records(0, 8, 0), records(0, 8, 2)]
    with pytest.raises(OffsetOutOfRange, match="t-1: of the offsets 0 to 8 some are gone"):
        rows(reader_of(Script(*steps), T0, T1, T2))
    lossy = {"failOnDataLoss": "false"}
    with caplog.at_level(logging.WARNING, "spark_io"):
        found = rows(reader_of(Script(*steps, earliest=20), T0, T1, T2, **lossy))
    assert found == [*in_partition(0, 0, 8), *in_partition(2, 0, 8)]
    [warning] = caplog.messages
    assert "data loss: topic=t partition=1 from=0 to=8" in warning
    script = Script(gone, records(6, 8, 1), records(0, 8, 0), earliest=6)
    found = rows(reader_of(script, T0, T1, **lossy))
    assert found == [*in_partition(0, 0, 8), *in_partition(1, 6, 8)]
    assert script.sought == [(1, 6)]


@pytest.mark.parametrize(("begin", "left"), [(6, [6, 7]), (20, [])])
def test_what_was_kept_before_a_loss_is_read(begin: int, left: list[int]) -> None:
    """Also where all that comes behind it is gone."""
    gone = OffsetOutOfRange("offset 3 is not there").at("t", 1)
    script = Script(records(0, 3, 1), gone, records(0, 8, 0), *after(left), earliest=begin)
    found = rows(reader_of(script, T0, T1, failOnDataLoss="false"))
    assert found == [
        *in_partition(0, 0, 8),
        *in_partition(1, 0, 3),
        *((1, offset) for offset in left),
    ]
    assert script.sought == [(1, min(begin, 8))]


def after(left: list[int]) -> list[ConsumedBatch | Silence]:
    return [records(left[0], 8, 1)] if left else [Silence()]


def test_the_silence_of_a_range_is_told_as_its_own() -> None:
    script = Script(records(0, 8, 0), Silence(8))
    with pytest.raises(RequestTimedOut) as caught:
        rows(reader_of(script, T0, T1, retryTimeoutMs="1"))
    assert str(caught.value) == (
        "t-1: nothing has come for 0.001 s (retryTimeoutMs) at offset 0 of 0 to 8"
    )
