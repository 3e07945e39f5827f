"""Many records at once: rows, columns, what is told of them, and what a bad row does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from raftmq.client.producer.batch import BatchMetadata
from raftmq.errors import (
    ErrorCode,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    OutcomeUnknown,
)
from raftmq.wire.batch.records import RecordBatch
from tests.unit.client.producer.shell import in_log, open_producer, open_stage, used_bytes
from tests.unit.client.world import World, limited, refused, silent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from trio.testing import MockClock

TOO_LARGE = refused(ErrorCode.MESSAGE_TOO_LARGE)
FAR = 10**15  # a timestamp that is ahead
ONE_BATCH: dict[str, Any] = {"batch_size": 1 << 20, "linger_ms": 1000, "idempotence": False}


class Arrow:
    """As an Arrow array looks to us: a length, slices, and a list at the end."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, part: slice) -> Arrow:
        return Arrow(self._items[part])

    def to_pylist(self) -> list[Any]:
        return self._items


def stands(world: World, results: list[Any], topic: str = "t") -> list[str]:
    """What is found where the results say."""
    logs = {result.partition: in_log(world, result.partition, topic) for result in results}
    return [
        logs[result.partition][offset]
        for result in results
        for offset in range(result.base_offset, result.end_offset)
    ]


@pytest.mark.parametrize("kind", ["list", "generator", "async", "tuple"])
async def test_rows_of_any_kind(autojump_clock: MockClock, kind: str) -> None:
    """Five thousand of them, in order, with one result for each batch and none for a record."""
    rows = [b"%d" % number for number in range(5_000)]

    async def ticking() -> AsyncIterator[bytes]:
        for row in rows:
            yield row

    given: dict[str, Any] = {
        "list": rows, "generator": iter(rows), "async": ticking(), "tuple": tuple(rows)
    }  # fmt: skip
    async with open_producer(batch_size=10_000) as (world, producer):
        results = await producer.send_many("t", given[kind])
        assert in_log(world) == [row.decode() for row in rows]
        assert stands(world, results) == in_log(world)
        assert len(results) == len(world.topics["t"].partitions[0].batches) < 10
        assert await producer.send_many("t", []) == []
        assert used_bytes(producer) == 0


async def test_one_result_for_each_batch(autojump_clock: MockClock) -> None:
    """Also where keys go to many partitions, and others send to the same batches."""
    world = World(2)
    world.add_topic("many", *[1, 2] * 4)
    async with open_producer(world, batch_size=2000) as (_, producer):
        rows = [b"%06d" % number for number in range(5000)]
        other = producer.send_nowait("many", b"other", key=b"0")
        results = await producer.send_many("many", rows, key=lambda row: row[-2:])
        assert sorted(stands(world, results, "many")) == [row.decode() for row in rows]
        batches = sum(len(partition.batches) for partition in world.topics["many"].partitions)
        assert batches - 1 <= len(results) <= batches
        assert (await other).partition in range(8)


async def test_functions_of_a_row(autojump_clock: MockClock) -> None:
    """Each part of a record may be taken from its row."""
    async with open_producer() as (world, producer):
        [result] = await producer.send_many(
            "t",
            [{"n": 1, "v": "one"}, {"n": 2, "v": "two"}],
            value=lambda row: row["v"].encode(),
            key=lambda row: row["n"],
            headers=lambda row: {"n": b"%d" % row["n"]},
            tags=lambda row: [row["v"]],
            timestamp=lambda row: row["n"] * 1000,
            partition=0,
        )
        assert (result.base_offset, result.record_count) == (0, 2)
        [(_, _, data)] = world.topics["t"].partitions[0].batches
        batch = RecordBatch.decode(data)
        assert [dict(headers) for headers in batch.headers] == [{"n": b"1"}, {"n": b"2"}]
        assert [list(tags) for tags in batch.tags] == [["one"], ["two"]]
        assert list(batch.timestamps) == [1000, 2000]


async def test_slow_rows_do_not_wait_for_others(autojump_clock: MockClock) -> None:
    """A row that comes every second is in the log soon after."""

    async def ticking() -> AsyncIterator[bytes]:
        for number in range(5):
            await trio.sleep(1)
            if number:
                assert len(in_log(world)) == number
            yield b"x"

    async with open_producer() as (world, producer):
        await producer.send_many("t", ticking())
        assert len(in_log(world)) == 5


@pytest.mark.parametrize("at", [0, 1, 63, 64, 5000])
async def test_a_bad_row_in_the_middle(autojump_clock: MockClock, at: int) -> None:
    """It is named; those before it, in whole portions, are sent, and the note says how many."""
    rows: list[Any] = [b"x"] * 6000
    rows[at] = 1.5
    async with open_producer() as (world, producer):
        with pytest.raises(InvalidRecord, match=r"values\[\d+\] is a float") as caught:
            await producer.send_many("t", iter(rows))
        note = caught.value.__notes__[-1]
        await producer.flush()
        assert note == f"the {len(in_log(world))} records before were handed in, and are sent"
        assert at - 4096 < len(in_log(world)) <= at
        assert used_bytes(producer) == 0


async def test_a_row_that_is_too_large(autojump_clock: MockClock) -> None:
    """Named by its number."""
    async with open_producer(max_request_size=1000) as (world, producer):
        with pytest.raises(MessageTooLarge) as caught:
            await producer.send_many("t", [b"x"] * 70 + [b"x" * 1001])
        assert caught.value.__notes__ == [
            "it is record 70",
            "the 64 records before were handed in, and are sent",
        ]
        await producer.flush()
        assert len(in_log(world)) == 64


async def test_the_end_of_rows_comes_late(autojump_clock: MockClock) -> None:
    """All that was handed in is delivered by then: there is nothing left to wait for."""

    async def lingering() -> AsyncIterator[bytes]:
        for number in range(100):
            yield b"%d" % number
        await trio.sleep(1)
        yield b"last"
        await trio.sleep(5)

    async with open_producer() as (_, producer):
        with trio.fail_after(30):
            sent = await producer.send_many("t", lingering())
        assert sum(each.record_count for each in sent) == 101


async def test_rows_that_fail(autojump_clock: MockClock) -> None:
    """Whatever a generator or a function raises comes out; flush tells what became of the rest."""

    def failing() -> Iterator[bytes]:
        yield from [b"x"] * 64
        raise KeyError("mine")

    async with open_producer(linger_ms=1) as (world, producer):
        world.brokers[1].produces += [TOO_LARGE]
        with pytest.raises(KeyError, match="mine"):
            await producer.send_many("t", failing())
        with pytest.raises(MessageTooLarge) as caught:
            await producer.flush()
        assert caught.value.__notes__[-1].startswith("64 records or more")
        await producer.flush()


async def test_failures_of_brokers(autojump_clock: MockClock) -> None:
    """The first one is raised, once all are settled, and says how many arrived; flush is silent."""
    async with open_producer(batch_size=100) as (world, producer):
        await producer.send("t", b"dials")
        world.brokers[1].produces += [TOO_LARGE]
        with pytest.raises(MessageTooLarge) as caught:
            await producer.send_many("t", [b"%04d" % number for number in range(1000)])
        delivered = len(in_log(world)) - 1
        [note] = caught.value.__notes__
        assert note.endswith(f"records {delivered} were delivered")
        await producer.flush()
        assert used_bytes(producer) == 0


async def test_a_call_that_is_cancelled_knows_nothing(autojump_clock: MockClock) -> None:
    """Its records go on; leaving the block tells what became of them."""
    async with open_stage() as stage:
        stage.world.brokers[1].produces += [silent] * 9
        caught = None
        try:
            async with stage.client.producer(delivery_timeout_ms=5000) as producer:
                with trio.move_on_after(1):
                    await producer.send_many("t", [b"x"] * 10)
        except OutcomeUnknown as error:
            caught = error
        assert caught is not None
        assert caught.__notes__ == [
            "10 records or more ended so, and no other call has reported it"
        ]


def two_times(count: int) -> dict[str, Any]:
    """Columns in which every other record is ahead."""
    stamps = [FAR if number % 2 else 1000 for number in range(count)]
    return {"values": [b"%d" % number for number in range(count)], "timestamps": stamps}


async def test_a_batch_in_thousands_of_pieces_by_time(autojump_clock: MockClock) -> None:
    """Those ahead fail, each in a piece of its own; all others are delivered."""
    async with open_producer(**ONE_BATCH) as (world, producer):
        world.brokers[1].produces += [limited(ErrorCode.INVALID_TIMESTAMP, FAR - 1)]
        with pytest.raises(InvalidTimestamp) as caught:
            await producer.send_columns("t", **two_times(1500))
        assert caught.value.__notes__ == ["of 1500 records 750 were delivered"]
        assert in_log(world) == [str(number) for number in range(0, 1500, 2)]
        await producer.flush()
        assert used_bytes(producer) == 0


async def test_a_call_that_ends_with_thousands_of_pieces(autojump_clock: MockClock) -> None:
    """Of those that failed flush tells, as nobody else does."""

    async def failing() -> AsyncIterator[int]:
        for number in range(64 + 256 + 1024):
            yield number
        await trio.sleep(5)
        raise KeyError("mine")

    async with open_producer(**ONE_BATCH) as (world, producer):
        world.brokers[1].produces += [limited(ErrorCode.INVALID_TIMESTAMP, FAR - 1)]
        with pytest.raises(KeyError, match="mine"):
            await producer.send_many(
                "t", failing(), value=b"%d".__mod__, timestamp=lambda row: FAR if row % 2 else 1000
            )
        with pytest.raises(InvalidTimestamp) as caught:
            await producer.flush()
        assert caught.value.__notes__[-1].startswith("672 records or more")
        assert len(in_log(world)) == 672


async def test_progress(autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]) -> None:
    """A function is told how many were handed in; a bar goes to stderr."""
    told: list[int] = []
    async with open_producer() as (_, producer):
        await producer.send_many("t", [b"x"] * 9000, progress=told.append)
        assert told == sorted(told)
        assert told[-1] == 9000
        assert len(told) < 20
        await producer.send_columns("t", values=[b"x"] * 10, progress=True)
        assert not capsys.readouterr().out


async def test_large_rows_in_small_portions(autojump_clock: MockClock) -> None:
    """Of rows that come one by one no more are held than the buffer has room for."""
    held = most = 0

    def rows() -> Iterator[bytes]:
        nonlocal held, most
        for _ in range(300):
            held += 100_000
            most = max(most, held - 100_000 * world.topics["t"].partitions[0].end_offset)
            yield bytes(100_000)

    async with open_producer(buffer_memory=2 << 20) as (world, producer):
        await producer.send_many("t", rows())
        assert len(in_log(world)) == 300
    assert most < (2 << 20) + 64 * 100_000


async def test_columns(autojump_clock: MockClock) -> None:
    """Lists and Arrow arrays, with everything that a record may have."""
    world = World(1)
    world.add_topic("many", 1, 1, 1)
    async with open_producer(world) as (_, producer):
        results = await producer.send_columns(
            "many",
            values=Arrow([b"a", None, memoryview(b"c")]),
            keys=Arrow(["k", "k", "k"]),
            headers=[{"h": b"1"}, None, [("h", b"2")]],
            tags=[["x"], None, {"y"}],
            timestamps=Arrow([1, 2, 3]),
            partitions=[2, 2, 2],
        )
        assert results == [BatchMetadata("many", 2, 0, 3)]
        [(_, _, data)] = world.topics["many"].partitions[2].batches
        batch = RecordBatch.decode(data)
        assert list(batch.keys) == ["k"] * 3
        assert list(batch.values) == [b"a", None, b"c"]
        assert list(batch.timestamps) == [1, 2, 3]
        assert [list(tags) for tags in batch.tags] == [["x"], [], ["y"]]
        assert await producer.send_columns("many", values=[]) == []


async def test_columns_that_nobody_waits_for(autojump_clock: MockClock) -> None:
    """One call after the other, in their order; memory stays within the buffer."""
    async with open_producer(buffer_memory=2 << 20, linger_ms=60_000) as (world, producer):
        for number in range(40):
            await producer.enqueue_columns("t", values=[b"%d" % number] * 10)
        await producer.flush()
        assert in_log(world) == [str(number) for number in range(40) for _ in range(10)]
        for _ in range(40):
            await producer.enqueue_columns("t", values=[bytes(10_000)] * 20)
            assert used_bytes(producer) <= 2 << 20
    assert len(in_log(world)) == 40 * 10 + 40 * 20


@pytest.mark.parametrize("is_flushed", [True, False])
async def test_columns_that_nobody_waits_for_fail(
    autojump_clock: MockClock, *, is_flushed: bool
) -> None:
    """Told by `flush`, or by the end of the block; bad ones at once."""
    async with open_stage() as (world, _, client):
        world.brokers[1].produces += [TOO_LARGE] * 9
        with pytest.raises(MessageTooLarge) as caught:  # noqa: PT012
            async with client.producer() as producer:
                with pytest.raises(InvalidRecord, match=r"values\[1\] is an int"):
                    await producer.enqueue_columns("t", values=[b"", 5])
                await producer.enqueue_columns("t", values=[b"x"] * 3)
                if is_flushed:
                    await producer.flush()
        assert "t-0" in str(caught.value)
        assert not in_log(world)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"values": [b""], "keys": []}, "different lengths: 1 values, 0 keys"),
        ({"values": b"abc"}, "values is a bytes, expected a list or an Arrow array"),
        ({"values": None}, "values is None"),
        ({"values": iter([b""])}, "values is a list_iterator, expected a list"),
        ({"values": [b"", 5]}, r"values\[1\] is an int"),
        ({"values": [b""], "keys": [1.5]}, r"keys\[0\] is a float"),
        ({"values": [b""], "timestamps": [-1]}, r"timestamps\[0\] = -1"),
        ({"values": [b""], "timestamps": [None]}, r"timestamps\[0\] is a NoneType"),
        ({"values": [b""], "partitions": [1]}, "partition 1: topic 't' has the partitions 0 to 0"),
        ({"values": [b""], "partitions": ["0"]}, r"partitions\[0\] is a str"),
        ({"values": [b""], "partitions": [-1]}, "partition -1"),
        ({"values": [b""], "headers": [{"a": 1}]}, r"headers\[0\]"),
        ({"values": [b""], "tags": ["a"]}, r"tags\[0\] is a str"),
    ],
)
async def test_columns_that_cannot_be_sent(
    autojump_clock: MockClock, columns: dict[str, Any], told: str
) -> None:
    """The column and the index are named, and nothing is kept."""
    async with open_producer() as (world, producer):
        with pytest.raises(InvalidRecord, match=told):
            await producer.send_columns("t", **columns)
        assert used_bytes(producer) == 0
        assert not in_log(world)


async def test_arrow_itself(autojump_clock: MockClock) -> None:
    """Arrays and chunked arrays of pyarrow, where it is installed."""
    arrow = pytest.importorskip("pyarrow")
    async with open_producer() as (world, producer):
        values = arrow.chunked_array([[b"a", b"b"], [None]], type=arrow.binary())
        [result] = await producer.send_columns("t", values=values, keys=arrow.array(["x"] * 3))
        assert result.record_count == 3
        assert in_log(world) == ["a", "b", ""]
