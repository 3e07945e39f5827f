"""Fetching: from whoever leads, again and again, and nothing that was not checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import trio

from raftmq.client.administration.offsets import list_offset
from raftmq.errors import (
    CorruptRecord,
    Disconnected,
    ErrorCode,
    OffsetOutOfRange,
    RequestTimedOut,
    ServerError,
    Unreachable,
)
from raftmq.rpc.reply import Reply
from raftmq.wire.batch.header import iter_batches
from raftmq.wire.batch.records import RecordBatch
from raftmq.wire.messages.fetch import Fetch
from raftmq.wire.messages.offsets import EARLIEST, LATEST
from tests.fetching import fetch
from tests.producing import produce
from tests.unit.client.world import batch, lost, open_world, refused, silent

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock

    from tests.unit.client.world import Step, Turn


def values(data: bytes | memoryview) -> list[bytes]:
    return [
        bytes(value or b"")
        for position, _ in iter_batches(data)
        for value in RecordBatch.decode(data, position).values
    ]


async def test_what_was_produced_is_fetched(autojump_clock: MockClock) -> None:
    """Whole batches, from the one that holds the offset, and both ends of what there is."""
    async with open_world() as (world, _), world.client() as client:
        for text in "abc":
            await produce(client, "t", 0, batch(text, text))
        found = await fetch(client, "t", 0, 3)
        assert values(found.data) == [b"b", b"b", b"c", b"c"]
        assert found[1:] == (6, 0)
        assert await fetch(client, "t", 0, 6) == (b"", 6, 0)
        (body,) = [one for one in world.brokers[1].asked if isinstance(one, Fetch)][:1]
        assert (body.bytes_min, body.partitions[0].leader_epoch) == (1, 0)
        assert 400 < body.max_wait_ms <= 500


@pytest.mark.parametrize(
    "step",
    [
        lost,
        refused(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        refused(ErrorCode.UNKNOWN_LEADER_EPOCH),
        refused(ErrorCode.KAFKA_STORAGE_ERROR),
        refused(ErrorCode.OFFSET_NOT_AVAILABLE),
    ],
)
async def test_a_fetch_is_repeated(autojump_clock: MockClock, step: Step) -> None:
    """It changes nothing, so whatever may be over soon is tried again."""
    async with open_world() as (world, _), world.client() as client:
        await produce(client, "t", 0, batch("a"))
        world.brokers[1].fetches = [step]
        assert values((await fetch(client, "t", 0, 0)).data) == [b"a"]


@pytest.mark.parametrize("gives_hints", [False, True])
async def test_a_leader_that_was_replaced(autojump_clock: MockClock, gives_hints: bool) -> None:
    """The new one is found at once."""
    async with open_world() as (world, _), world.client() as client:
        world.gives_hints = gives_hints
        await produce(client, "t", 0, batch("a"))
        await fetch(client, "t", 0, 0)
        world.lead("t", 0, 2)
        begin = trio.current_time()
        assert values((await fetch(client, "t", 0, 0)).data) == [b"a"]
        assert trio.current_time() - begin < 0.1
        assert world.brokers[2].count(Fetch) == 1


@pytest.mark.parametrize(
    ("step", "error"), [(lost, (Disconnected, Unreachable)), (silent, RequestTimedOut)]
)
async def test_nobody_answers_until_the_time_is_over(
    autojump_clock: MockClock, step: Step, error: type[Exception] | tuple[type[Exception], ...]
) -> None:
    """The last failure is told, in time."""
    async with open_world() as (world, _), world.client() as client:
        world.brokers[1].fetches = [step] * 100
        begin = trio.current_time()
        with pytest.raises(error):
            await fetch(client, "t", 0, 0, max_wait_seconds=1, timeout_seconds=2)
        assert 2 < trio.current_time() - begin <= 3


async def test_waiting_is_counted_over_all_attempts(autojump_clock: MockClock) -> None:
    """Three seconds to wait for records: the second attempt has what the first has left."""
    async with open_world() as (world, _), world.client() as client:

        async def late(turn: Turn) -> Reply:
            await trio.sleep(2)
            return turn.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)

        world.brokers[1].fetches = [late]
        await fetch(client, "t", 0, 0, max_wait_seconds=3)
        first, second = (one for one in world.brokers[1].asked if isinstance(one, Fetch))
        assert 2_900 < first.max_wait_ms <= 3_000
        assert 800 < second.max_wait_ms < 1_000


async def test_an_offset_that_is_not_there(autojump_clock: MockClock) -> None:
    """No repetition would help: the caller is told at once."""
    async with open_world() as (world, _), world.client() as client:
        with pytest.raises(OffsetOutOfRange):
            await fetch(client, "t", 0, 5)
        assert world.brokers[1].count(Fetch) == 1


def with_data(change: Callable[[bytes], bytes]) -> Step:
    """The right answer, but for its batches."""

    def step(turn: Turn) -> Reply:
        right = turn.carry_out()
        body: Any = right.body
        data = change(bytes(right.payload[0]))
        told = msgspec.structs.replace(body.partitions[0], length=len(data))
        return Reply(msgspec.structs.replace(body, partitions=(told,)), (data,))

    return step


SIZE = len(batch("a"))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda data: data[:-1] + b"\0", "CRC"),
        (lambda data: data[:-1], "1 are missing"),
        (lambda data: data[SIZE:], "offsets 1 to 2, wanted 0"),
        (lambda data: data[:SIZE] + data[2 * SIZE :], "base offset 2, expected 1"),
        (lambda data: data[:SIZE] + data[:SIZE], "base offset 0, expected 1"),
        (lambda data: data + batch("x"), "base offset 0, expected 3"),
    ],
)
async def test_what_came_is_not_what_was_asked_for(
    autojump_clock: MockClock, change: Callable[[bytes], bytes], problem: str
) -> None:
    """Damaged, cut off, of another offset, with a gap, twice: told, with the place."""
    async with open_world() as (world, _), world.client() as client:
        for text in "abc":
            await produce(client, "t", 0, batch(text))
        world.brokers[1].fetches = [with_data(change)]
        with pytest.raises(CorruptRecord, match=f"{problem}.* of fetch of t-0 from 0"):
            await fetch(client, "t", 0, 0)


async def test_what_is_not_committed_is_not_accepted(autojump_clock: MockClock) -> None:
    """Batches beyond the high watermark may be gone tomorrow."""
    async with open_world() as (world, _), world.client() as client:
        await produce(client, "t", 0, batch("a"))

        def step(turn: Turn) -> Reply:
            right = turn.carry_out()
            body: Any = right.body
            told = msgspec.structs.replace(body.partitions[0], high_watermark=0)
            return msgspec.structs.replace(
                right, body=msgspec.structs.replace(body, partitions=(told,))
            )

        world.brokers[1].fetches = [step]
        with pytest.raises(CorruptRecord, match="committed is up to 0"):
            await fetch(client, "t", 0, 0)


async def test_lengths_that_do_not_fit(autojump_clock: MockClock) -> None:
    """The payload is another one than the answer says."""
    async with open_world() as (world, _), world.client() as client:
        world.brokers[1].fetches = [
            lambda turn: msgspec.structs.replace(turn.carry_out(), payload=(b"xyz",))
        ]
        with pytest.raises(CorruptRecord, match="3 bytes came, 0 were announced"):
            await fetch(client, "t", 0, 0)


async def test_an_answer_about_something_else(autojump_clock: MockClock) -> None:
    """A broker that answers for another partition has not answered."""
    async with open_world() as (world, _), world.client() as client:

        def step(turn: Turn) -> Reply:
            body: Any = turn.carry_out().body
            told = msgspec.structs.replace(body.partitions[0], partition=7)
            return Reply(msgspec.structs.replace(body, partitions=(told,)))

        world.brokers[1].fetches = [step]
        with pytest.raises(ServerError, match="broker 1 was asked for partition 0"):
            await fetch(client, "t", 0, 0)


async def test_offsets_by_time(autojump_clock: MockClock) -> None:
    """Both ends of the log, and a time after the last record; also from a new leader."""
    async with open_world() as (world, _), world.client() as client:
        await produce(client, "t", 0, batch("a", "b"))
        assert await list_offset(client, "t", 0, EARLIEST) == 0
        assert await list_offset(client, "t", 0, LATEST) == 2
        world.lead("t", 0, 2)
        assert await list_offset(client, "t", 0, LATEST) == 2
        assert await list_offset(client, "t", 0, 1 << 50) == -1
