"""What programs hand in beside bytes: text, numbers, datetimes, and objects with serializers."""

from __future__ import annotations

import json
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from raftmq.client.producer import bulk
from raftmq.client.producer.batch import BatchMetadata, RecordMetadata
from raftmq.client.producer.options import producer_options
from raftmq.errors import InvalidConfig, InvalidRecord
from raftmq.wire.batch.records import RecordBatch
from tests.unit.client.producer.shell import NOW_MS, open_producer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trio.testing import MockClock

    from raftmq.wire.batch.records import Record
    from tests.unit.client.world import World

MOMENT = datetime(2026, 11, 23, 12, 30, 0, 250_000, tzinfo=UTC)
MOMENT_MS = 1_795_437_000_250


def records(world: World) -> list[Record]:
    batches = world.topics["t"].partitions[0].batches
    return [record for _, _, data in batches for record in RecordBatch.decode(data).records()]


async def test_text(autojump_clock: MockClock) -> None:
    """Values and those of headers become UTF-8; keys stay text, numbers numbers (A2.6)."""
    headers = {"trace": "ä", "none": None, "bytes": b"b"}
    kept = (("trace", "ä".encode()), ("none", None), ("bytes", b"b"))
    async with open_producer() as (world, producer):
        await producer.send("t", "wört", key="kéy", headers=headers)
        await producer.send_many("t", ["wört"], key=lambda _: "kéy", headers=lambda _: headers)
        await producer.send_columns("t", values=["wört"], keys=["kéy"], headers=[headers])
        await producer.send("t", "", key=7)
        found = [(one.key, one.value, one.headers) for one in records(world)]
        assert found == [("kéy", "wört".encode(), kept)] * 3 + [(7, b"", ())]
        with pytest.raises(InvalidRecord, match="value is not valid Unicode"):
            await producer.send("t", "\ud800")


async def test_moments(autojump_clock: MockClock) -> None:
    """A datetime with any time zone, as a number of milliseconds, in all calls."""
    elsewhere = MOMENT.astimezone(timezone(timedelta(hours=-7)))
    async with open_producer() as (world, producer):
        for given in (MOMENT_MS, MOMENT, elsewhere):
            sent = await producer.send("t", b"", timestamp=given)
            assert sent.timestamp == MOMENT_MS
        await producer.send_many("t", [b""], timestamp=lambda _: elsewhere)
        await producer.send_columns("t", values=[b"", b""], timestamps=[MOMENT, MOMENT_MS])
        assert [one.timestamp for one in records(world)] == [MOMENT_MS] * 6
        assert (await producer.send("t", b"")).timestamp == NOW_MS


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (MOMENT.replace(tzinfo=None), r"has no time zone: write datetime\(\.\.\., tzinfo=UTC\)"),
        (datetime(1969, 12, 31, tzinfo=UTC), "0 or more"),
        ("2026-11-23", "is a str, expected int milliseconds, or a datetime"),
        (True, "is a bool, expected int milliseconds, or a datetime"),
        (MOMENT.date(), "is a date, expected int milliseconds, or a datetime"),
    ],
)
async def test_moments_that_are_none(autojump_clock: MockClock, given: Any, told: str) -> None:
    """The error names the argument, and of a column the index."""
    async with open_producer() as (_, producer):
        with pytest.raises(InvalidRecord, match=f"^timestamp .*{told}"):
            await producer.send("t", b"", timestamp=given)
        with pytest.raises(InvalidRecord, match=rf"^timestamps\[1\] .*{told}"):
            await producer.send_columns("t", values=[b"", b""], timestamps=[MOMENT_MS, given])


async def test_serializers(autojump_clock: MockClock) -> None:
    """Of values and keys, in every call; None stays None, and a record without a key has none."""

    def key(given: tuple[str, int]) -> str:
        return f"{given[0]}-{given[1]}"

    options: dict[str, Any] = {"value_serializer": json.dumps, "key_serializer": key}
    async with open_producer(**options) as (world, producer):
        await producer.send("t", {"a": 1}, key=("c", 17))
        producer.send_nowait("t", {"a": 1}, key=("c", 17))
        await (await producer.enqueue("t", {"a": 1}, key=("c", 17)))
        await producer.send_many("t", [1], value=lambda n: {"a": n}, key=lambda _: ("c", 17))
        await producer.send_columns("t", values=[{"a": 1}], keys=[("c", 17)])
        await producer.enqueue_columns("t", values=[{"a": 1}], keys=[("c", 17)])
        await producer.send("t", None)
        await producer.send_many("t", [None, "x"])
        await producer.flush()
        found = [(one.key, one.value) for one in records(world)]
        assert found == [("c-17", b'{"a": 1}')] * 6 + [(None, None)] * 2 + [(None, b'"x"')]


async def test_a_serializer_that_fails(autojump_clock: MockClock) -> None:
    """Its own error reaches the call; nothing is kept of the record. What it returns is checked."""
    rows = [*range(70), {1, 2}, 3]
    async with open_producer(value_serializer=json.dumps) as (world, producer):
        with pytest.raises(TypeError, match="not JSON serializable"):
            await producer.send("t", {1, 2})
        with pytest.raises(TypeError, match="not JSON serializable"):
            await producer.send_many("t", [1, {1, 2}])
        await producer.send("t", 1)
        assert [one.value for one in records(world)] == [b"1"]
        for call in (producer.send_many("t", rows), producer.send_columns("t", values=rows)):
            with pytest.raises(TypeError) as caught:
                await call
            assert caught.value.__notes__ == [
                "raised by value_serializer, of record 70; the 64 records that were handed in "
                "before are sent"
            ]
    async with open_producer(value_serializer=lambda value: value) as (_, producer):
        with pytest.raises(InvalidRecord, match="value is a dict, expected bytes, str or None"):
            await producer.send("t", {})
    with pytest.raises(InvalidConfig, match="value_serializer = 'json': expected a function"):
        producer_options({"value_serializer": "json"})


async def test_a_total_for_the_bar(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generator has no length: the program says how many rows will come."""
    totals: list[int | None] = []

    @contextmanager
    def bar(total: int | None) -> Iterator[Callable[[int], object]]:
        totals.append(total)
        yield bulk._nothing

    monkeypatch.setattr(bulk, "_bar", bar)
    told: list[int] = []
    async with open_producer() as (_, producer):
        rows = (b"x" for _ in range(100))
        await producer.send_many("t", rows, progress=told.append, total=100)
        assert told[-1] == 100
        await producer.send_many("t", (b"x" for _ in range(3)), progress=True, total=3)
        await producer.send_many("t", [b"x", b"x"], progress=True)
    assert totals == [3, 2]


def test_results_have_no_tuple_methods_for_numbers() -> None:
    """Who asks a result for its count gets the number of records, or an error that says why not."""
    batch = BatchMetadata("t", 0, 7, 3)
    assert batch.count == batch.record_count == 3
    one = RecordMetadata("t", 0, 7, MOMENT_MS)
    with pytest.raises(AttributeError, match="it is of one record"):
        _ = one.count
    topic, partition, offset, timestamp = one
    assert (topic, partition, offset, timestamp) == one
