"""Which timestamp the result has: the producer's, or the leader's that stamps the records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from raftmq.rpc.reply import Reply
from tests.unit.client.producer.shell import open_producer

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.client.world import Step, Turn

SENT, STAMPED = 1000, 2000


def stamps(**told: object) -> Step:
    """The leader appends, and tells its own time."""

    def step(turn: Turn) -> Reply:
        [done] = turn.carry_out().body.partitions  # type: ignore[union-attr]
        body = turn.refuse().body
        return Reply(replace(body, partitions=(replace(done, **told),)))

    return step


async def test_the_producers_time(autojump_clock: MockClock) -> None:
    """A topic with CreateTime: `send` and `send_many` tell what the program gave."""
    async with open_producer() as (_, producer):
        assert (await producer.send("t", b"x", timestamp=SENT)).timestamp == SENT
        [result] = await producer.send_many("t", [b"x"])
        assert result.log_append_time is None


async def test_the_leaders_time(autojump_clock: MockClock) -> None:
    """A topic with LogAppendTime: the leader has replaced the producer's time by its own."""
    async with open_producer() as (world, producer):
        world.brokers[1].produces += [stamps(log_append_time_ms=STAMPED)] * 3
        assert (await producer.send("t", b"x", timestamp=SENT)).timestamp == STAMPED
        [result] = await producer.send_many("t", [b"x"])
        assert result.log_append_time == STAMPED
        told: list[object] = []
        producer.send_nowait("t", b"x", on_delivery=lambda _error, found: told.append(found))
        await producer.flush()
        assert [found.timestamp for found in told] == [STAMPED]  # type: ignore[attr-defined]


async def test_a_duplicate(autojump_clock: MockClock) -> None:
    """A record is sent again, and the leader has its time, or has forgotten it."""
    async with open_producer() as (world, producer):
        world.brokers[1].produces += [
            stamps(base_offsets=(0,), log_append_times_ms=(STAMPED,)),
            stamps(base_offsets=(1,), log_append_times_ms=(-1,)),
        ]
        assert (await producer.send("t", b"x", timestamp=SENT)).timestamp == STAMPED
        assert (await producer.send("t", b"x", timestamp=SENT)).timestamp == -1
