"""Followers whose words come in another order, whose first batch is odd, or is not whole."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.broker.replication.fetch_exchange import FetchSettings
from raftmq.rpc.protocol import RpcLimits
from raftmq.wire.messages.corruption import ReportCorruption
from raftmq.wire.messages.fetch import WITHOUT_SESSION, Fetch
from tests.unit.broker.copying import world
from tests.unit.broker.test_fetcher import acknowledged
from tests.unit.broker.test_leader_fetcher import fetched, following, reply
from tests.unit.partition.replica_world import KEY, led_by, settle
from tests.unit.storage.batches import batch, values_of

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.broker.copying import World

IN_LINE = RpcLimits().requests_in_flight_max + 12


def proposed(found: World) -> list[tuple[int, ...]]:
    """The in-sync sets that broker 1 has proposed."""
    return [tuple(sorted(member[0] for member in p.isr)) for _, p in found.brokers[1].wishes]


async def test_word_of_what_is_held_does_not_overtake_the_fetch(
    autojump_clock: MockClock,
) -> None:
    """The connection has more requests in line than it may have in flight."""
    async with world(1, 2, settings=FetchSettings(max_wait_ms=2000)) as found:
        leader, follower = await found.assign(led_by(1, min_isr=2))
        await acknowledged(leader, b"a")
        await settle()  # until its next fetch waits at the leader
        me = found.brokers[2]
        me.disk.seconds = 0.05
        waits = Fetch(1500, 1, 100, 0, WITHOUT_SESSION)
        async with trio.open_nursery() as nursery:
            for _ in range(IN_LINE):
                nursery.start_soon(partial(me.peers.request, 1, waits, timeout_seconds=30))
            await settle()
            leader.append(batch(b"b"), acks=1)
        await settle(20)
        assert follower.log.held_end_offset == 2
        assert leader.high_watermark == 2
        assert found.brokers[1].wishes == []


@pytest.mark.parametrize("min_isr", [1, 2])
async def test_a_newcomer_joins_where_the_log_begins_within_a_batch(
    min_isr: int, autojump_clock: MockClock
) -> None:
    """What it copies reaches back before the leader's log start, and nothing is appended after."""
    async with world(1, 2) as found:
        leader = await found.brokers[1].take_up(led_by(1, isr=(1,)))
        leader.append(batch(b"a", b"b", b"c", b"d"), acks=1)
        await settle()
        await found.brokers[1].directory.delete_records(leader.log, 2)
        decided = led_by(1, change=1, isr=(1,), min_isr=min_isr)
        _, follower = await found.assign(decided)
        await settle(10)
        assert values_of(follower.log) == [b"c", b"d"]
        assert not follower.lags_log_start
        assert proposed(found) == [(1, 2)]


async def test_a_bad_first_batch_is_asked_for_again(autojump_clock: MockClock) -> None:
    """An empty log gets a damaged one, and nothing else is under way that would wake anybody. The
    leader is told, so that it looks at its disk.
    """
    async with following() as (leader, _, replica):
        good = bytearray(batch(b"new"))
        good[12:16] = bytes(4)  # as the leader of epoch 0 writes it
        bad = good[:-1] + bytes([good[-1] ^ 0xFF])
        await leader.answer(1, reply(fetched(len(bad)), data=bytes(bad)))
        with trio.fail_after(10):
            await leader.wait_requests(3)
        assert leader.reports == [ReportCorruption(*KEY, 0, 0)]
        assert values_of(replica.log) == []
        await leader.answer(2, reply(fetched(len(good)), data=bytes(good)))
        assert values_of(replica.log) == [b"new"]
