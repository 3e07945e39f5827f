"""Tasks out of offsets: where they begin, what is missing, and who decides about it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

import pytest

pytest.importorskip("pyspark")

from raftmq.errors import InvalidConfig, OffsetOutOfRange
from spark_io.options.source import SourceOptions, source_options
from spark_io.planning import Split, begins_of, check_order, plan, within_logs
from spark_io.ranges import OffsetRange
from tests.unit.spark_io.tasks import sent_away

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_io.lookup import Lookup
    from spark_io.offsets import Key, Offsets


class Logs:
    """A cluster, as far as planning asks for it: where each partition begins and ends."""

    def __init__(self, begins: dict[Key, int], ends: dict[Key, int] | None = None) -> None:
        self.begins, self.ends = begins, ends or {}

    def existing(self, keys: Iterable[Key]) -> list[Key]:
        return sorted(key for key in keys if key in self.begins)

    def earliest(self, keys: Iterable[Key]) -> dict[Key, int]:
        return {key: self.begins[key] for key in keys}

    def latest(self, keys: Iterable[Key]) -> dict[Key, int]:
        return {key: self.ends[key] for key in keys}


def logs(begins: dict[Key, int], ends: dict[Key, int] | None = None) -> Lookup:
    return cast("Lookup", Logs(begins, ends))


def options(**given: str) -> SourceOptions:
    base = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
    return source_options({**base, **given}, is_stream=True)


def planned(found: list[Split]) -> list[str]:
    return [" ".join(map(str, each.ranges)) for each in found]


T0, T1 = ("t", 0), ("t", 1)
START: Offsets = {"t": {0: 10, 1: 5}}
END: Offsets = {"t": {0: 30, 1: 5}}


def test_what_a_task_reads() -> None:
    """Partitions that have anything."""
    found = plan(options(), logs({T0: 0, T1: 0}), START, END)
    assert found == [Split((OffsetRange("t", 0, 10, 30),))]
    assert sent_away(found) == found


def test_how_many_tasks_follows_from_offsets_and_options() -> None:
    there, end = logs({T0: 0, T1: 0}), cast("Offsets", {"t": {0: 30, 1: 25}})
    together = ["t-0[10:30] t-1[5:25]"]
    assert planned(plan(options(), there, START, end)) == together
    assert planned(plan(options(minRecordsPerPartition="21"), there, START, end)) == together
    each = ["t-0[10:30]", "t-1[5:25]"]
    assert planned(plan(options(minRecordsPerPartition="20"), there, START, end)) == each
    assert planned(plan(options(minPartitions="2"), there, START, end)) == each
    assert planned(plan(options(maxRecordsPerPartition="39"), there, START, end)) == each


def test_more_tasks() -> None:
    there = logs({T0: 0, T1: 0})
    assert planned(plan(options(minPartitions="2"), there, START, END)) == [
        "t-0[10:20]",
        "t-0[20:30]",
    ]
    assert planned(plan(options(maxRecordsPerPartition="7"), there, START, END)) == [
        "t-0[10:16]",
        "t-0[16:23]",
        "t-0[23:30]",
    ]


def test_a_partition_that_was_added_begins_where_its_log_does() -> None:
    end: Offsets = {"t": {0: 30, 1: 5, 2: 4}}
    found = plan(options(), logs({T0: 0, T1: 0, ("t", 2): 0}), START, end)
    assert planned(found) == ["t-0[10:30] t-2[0:4]"]


LOSSES = {
    "deleted": ({T0: 17, T1: 0}, END, "t-0 has lost the offsets 10 to 16", ["t-0[17:30]"]),
    "all deleted": ({T0: 40, T1: 0}, END, "t-0 has lost the offsets 10 to 29", []),
    "made again": ({T0: 0, T1: 0}, {"t": {0: 3, 1: 5}}, "t-0 ends before offset 10", ["t-0[0:3]"]),
    "gone": ({T0: 0}, {"t": {0: 30}}, "t-1 is gone", ["t-0[10:30]"]),
    "gone since": ({T1: 0}, END, "t-0 is gone, with what was to be read from offset 10", []),
    "added, gone": (
        {T0: 0, T1: 0},
        {"t": {0: 30, 1: 5, 2: 9}},
        "t-2 was added and is gone again",
        ["t-0[10:30]"],
    ),
}


@pytest.mark.parametrize(("begins", "end", "told", "_left"), LOSSES.values(), ids=LOSSES)
def test_a_loss_is_an_error(
    begins: dict[Key, int], end: Offsets, told: str, _left: list[str]
) -> None:
    with pytest.raises(OffsetOutOfRange) as caught:
        plan(options(), logs(begins), START, end)
    assert told in str(caught.value)
    assert '.option("failOnDataLoss", "false")' in str(caught.value)


@pytest.mark.parametrize(("begins", "end", "told", "left"), LOSSES.values(), ids=LOSSES)
def test_or_it_is_passed_over_loudly(
    begins: dict[Key, int],
    end: Offsets,
    told: str,
    left: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "spark_io"):
        assert planned(plan(options(failOnDataLoss="false"), logs(begins), START, end)) == left
    [warning] = caplog.messages
    assert warning.startswith(f"data loss: {told}")


def test_nobody_asks_for_partitions_that_are_gone() -> None:
    """Of which the answer would be waited for."""
    assert begins_of(logs({T0: 2}), START, END) == {"t": {0: 2}}


def test_a_batch_that_is_to_end_after_the_log() -> None:
    """Told when it is planned, and not after a task has waited for it in vain."""
    there = logs({T0: 0, T1: 0}, {T0: 30, T1: 4})
    with pytest.raises(OffsetOutOfRange, match=r"t-1 ends at offset 4, before 5 .* endingOffsets"):
        within_logs(options(), there, END)


def test_a_batch_that_takes_what_there_is(caplog: pytest.LogCaptureFixture) -> None:
    there = logs({T0: 0, T1: 0}, {T0: 31, T1: 4})
    lenient = options(failOnDataLoss="false")
    assert within_logs(lenient, there, END) == {"t": {0: 30, 1: 4}}
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_batch_that_would_end_before_it_begins() -> None:
    check_order(START, END)
    with pytest.raises(InvalidConfig, match="t-0 would be read from offset 31, and only up to 30"):
        check_order({"t": {0: 31, 1: 5}}, END)
