"""`raftmq consume -g` among other members: it goes on when its partitions become theirs, and what
was written when somebody ends it is committed, and nothing else."""

from __future__ import annotations

import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.cli.data import stopping as stopping_module
from raftmq.cli.data.consume_group import GroupEnds, write_all
from raftmq.cli.data.consume_run import wish_of
from raftmq.cli.data.record_format import write_json_lines, write_values
from raftmq.cli.data.stopping import Stopping
from raftmq.cli.terminal.exits import CommandError
from tests.unit.client.consumer.reading import append_control
from tests.unit.client.group.grouped import SESSION_SECONDS, grouped, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from raftmq.cli.data.record_format import Format
    from tests.unit.client.group.grouped import Grouped

ORDERS = wish_of(("orders",), "earliest", (), None, None, until_end=False)


class Pipe:
    """Takes so many bytes, and no more before there is room.

    Args:
        seconds: which the first block takes.
    """

    def __init__(self, room: int = 1 << 30, *, seconds: float = 0.0) -> None:
        self.data, self._room, self._seconds = b"", room, seconds
        self._changed = trio.Event()

    @property
    def byte_count(self) -> int:
        return len(self.data)

    @property
    def lines(self) -> list[bytes]:
        return self.data.splitlines()

    async def write(self, data: bytes) -> None:
        await trio.sleep(0 if self.data else self._seconds)
        while data:
            taken, data = data[: self._room], data[self._room :]
            self.data += taken
            self._room -= len(taken)
            if data:
                await self._changed.wait()

    def give(self, room: int) -> None:
        self._room += room
        changed, self._changed = self._changed, trio.Event()
        changed.set()


async def consume(
    here: Grouped,
    name: str,
    pipe: Pipe,
    stopping: Stopping | None = None,
    form: Format = write_values,
) -> None:
    """As the command does it."""
    stopping = stopping or Stopping()
    with stopping.whole:
        async with here.consumer(name, commit="manual", max_poll_records=10_000) as c:
            await write_all(c, ORDERS, None, form, pipe, stopping)


@asynccontextmanager
async def consuming(
    here: Grouped, pipe: Pipe, form: Format = write_values
) -> AsyncIterator[Stopping]:
    """Until the block ends; then it has ended by itself."""
    stopping = Stopping()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(consume, here, "a", pipe, stopping, form)
        yield stopping
        nursery.cancel_scope.deadline = trio.current_time() + 10
    assert not nursery.cancel_scope.cancelled_caught


async def test_its_partition_goes_to_another_while_it_writes(autojump_clock: MockClock) -> None:
    """Standard output stands still while its session ends: the commit is refused, the other member
    prints that again, and this one goes on with what it is dealt out then."""
    async with grouped(1) as here:
        here.append(0, "old")
        slow = Pipe(seconds=4 * SESSION_SECONDS)
        here.nursery.start_soon(consume, here, "a", slow)
        await trio.sleep(2.0)
        here.world.network.isolate("a")
        other = here.begin("b")
        await until(lambda: other.values == ["old"])
        here.world.network.heal()
        await until(lambda: slow.data)
        await trio.sleep(2.0)
        await other.leave()
        here.append(0, "new")
        await until(lambda: len(slow.lines) == 2)
        assert slow.lines == [b"old", b"new"]
        await until(lambda: here.committed(0) == 2)


async def test_control_batches_behind_the_last_record(autojump_clock: MockClock) -> None:
    """They are committed, too, though nothing is written for them: no lag is left."""
    async with grouped(1) as here:
        here.append(0, "a")
        pipe = Pipe()
        async with consuming(here, pipe) as stopping:
            await until(lambda: here.committed(0) == 1)
            append_control(here.world, 0, topic="orders")
            await until(lambda: here.committed(0) == 2, seconds=5)
            stopping.on_signal(signal.SIGTERM)
        assert pipe.lines == [b"a"]


async def test_it_is_ended_while_nothing_comes(autojump_clock: MockClock) -> None:
    """At once, and it leaves the group: another member need not wait for its session to end."""
    async with grouped(1) as here:
        here.append(0, "a")
        async with consuming(here, Pipe()) as stopping:
            await until(lambda: here.committed(0) == 1)
            stopping.on_signal(signal.SIGTERM)
        begin = trio.current_time()
        other = here.begin("b")
        here.append(0, "b")
        await until(lambda: other.values == ["b"])
        assert trio.current_time() - begin < SESSION_SECONDS / 2


@pytest.mark.parametrize("form", [write_values, write_json_lines])
@pytest.mark.parametrize("more", [0, 1 << 20])
@pytest.mark.parametrize("records", [0, 1, 7, 10])
@pytest.mark.parametrize("cut", [0, 1])
async def test_it_is_ended_while_it_writes(
    records: int, cut: int, more: int, form: Format, autojump_clock: MockClock
) -> None:
    """Records that were taken whole are committed, and one that was begun if its rest is taken
    soon; the next member begins behind them."""
    values = [f"value {number}" for number in range(10)]
    async with grouped(1) as here:
        whole = Pipe()
        here.append(0, *values)
        async with here.consumer("c", commit="none") as c:
            batch = await anext(c.batches())
            await whole.write(form(batch, slice(0, records)))
        pipe = Pipe(whole.byte_count + cut)
        async with consuming(here, pipe, form) as stopping:
            await until(lambda: pipe.byte_count >= min(whole.byte_count + cut, 1))
            await trio.sleep(1)
            stopping.on_signal(signal.SIGINT)
            await trio.sleep(0.5)
            pipe.give(more)
        is_finished = bool(cut and more and records < 10)
        written = records + is_finished
        assert len(pipe.data.split(b"\n")) - 1 == written
        assert (here.committed(0) or 0) == written
        other = here.begin("b")
        await until(lambda: len(other.values) == 10 - written, seconds=SESSION_SECONDS / 2)
        assert other.values == values[written:]


async def test_a_leader_that_dies_before_the_end(autojump_clock: MockClock) -> None:
    """-e: once the partition is given up, the member ends; of other members' it says nothing."""
    first, second, other = ("orders", 0), ("orders", 1), ("orders", 2)
    ends, pipe, results = GroupEnds({first: 1, second: 1}, {other: "dead"}), Pipe(), list[bool]()
    async with grouped(2) as here:
        here.append(0, "a")
        here.world.lead("orders", 1, -1)
        async with here.consumer("a", commit="manual") as c, trio.open_nursery() as nursery:
            assert not ends.is_reached(c)  # without partitions it waits for a rebalance

            async def write() -> None:
                results.append(await write_all(c, ORDERS, ends, write_values, pipe, Stopping()))

            nursery.start_soon(write)
            await until(lambda: here.committed(0) == 1)
            assert list(ends.unread(c)) == [second]
            assert not results
            ends.give_up(second, "no leader")
            await until(lambda: results)
            assert ends.missed(c) == {second: "no leader"}
            # It is read after all, while the others are.
            here.world.lead("orders", 1, 1)
            here.append(1, "b")
            async for _ in c:
                break
            assert ends.missed(c) == {}
    assert (pipe.lines, results) == ([b"a"], [True])


async def test_nobody_takes_the_commit(autojump_clock: MockClock) -> None:
    """It ends nevertheless, after a few seconds."""
    async with grouped(1) as here:
        here.append(0, *map(str, range(10)))
        pipe = Pipe(4)
        async with consuming(here, pipe) as stopping:
            await until(lambda: pipe.data)
            here.world.network.isolate("a")
            stopping.on_signal(signal.SIGTERM)
            begin = trio.current_time()
        assert trio.current_time() - begin < stopping_module.ORDER_SECONDS_MAX + 3
        assert here.committed(0) is None


async def test_how_it_ends(autojump_clock: MockClock) -> None:
    """As shells have it; without a signal it has not been ended."""
    stopping = Stopping()
    stopping.end()
    stopping.on_signal(signal.SIGTERM)
    with stopping.breaking_off():
        await trio.sleep_forever()
    with pytest.raises(CommandError, match="ended by SIGTERM") as raised:
        stopping.end()
    assert raised.value.exit_code == 143
    stopping.on_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        stopping.end()
