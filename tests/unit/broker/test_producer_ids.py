"""Ids for producers: each once, out of blocks, whatever becomes of the quorum."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import trio
import trio.testing

from raftmq.broker.requests.producer_ids import (
    AGAIN_SECONDS,
    BLOCK_COUNT,
    PROPOSE_SECONDS,
    ProducerIdAllocation,
)
from raftmq.errors import ErrorCode, error_for
from raftmq.metadata.commands import NO_EPOCH
from raftmq.rpc.reply import Reply
from raftmq.wire.messages.producers import InitProducerId, InitProducerIdReply
from tests.unit.broker.asking import NODE, Link, cluster_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from tests.simulation.quorum_fake import FakeCluster


class Stage(NamedTuple):
    cluster: FakeCluster
    link: Link
    ids: ProducerIdAllocation


@asynccontextmanager
async def open_stage(*, epoch: int | None = None) -> AsyncIterator[Stage]:
    """Broker 2 of two, which has registered."""
    cluster = await cluster_of(None, None)
    link = Link(cluster)
    known = cluster.leader.image.brokers[NODE].broker_epoch
    ids = ProducerIdAllocation(NODE, link, broker_epoch=lambda: known if epoch is None else epoch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ids.run)
        yield Stage(cluster, link, ids)
        nursery.cancel_scope.cancel()


async def ask(ids: ProducerIdAllocation, timeout_ms: int = 30_000) -> InitProducerIdReply:
    answer = ids.init(InitProducerId(timeout_ms))
    found = await answer if isinstance(answer, Awaitable) else answer
    assert isinstance(found, Reply)
    assert isinstance(found.body, InitProducerIdReply)
    return found.body


async def test_each_once(autojump_clock: MockClock) -> None:
    """Over several blocks, which follow each other without anybody having to wait."""
    async with open_stage() as (_, link, ids):
        given = []
        for _ in range(3 * BLOCK_COUNT):
            given.append((await ask(ids)).producer_id)
            await trio.testing.wait_all_tasks_blocked()
        assert len(set(given)) == 3 * BLOCK_COUNT
        assert len(link.sent) == 4


async def test_many_share_one_proposal(autojump_clock: MockClock) -> None:
    """Whoever asks while it is on its way waits for it."""
    async with open_stage() as (cluster, link, ids):
        cluster.delay_seconds = 1.0
        given: list[int] = []

        async def ask_one(seconds: float) -> None:
            await trio.sleep(seconds)
            given.append((await ask(ids)).producer_id)

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(ask_one, number / 100)
        assert len(set(given)) == 100
        assert len(link.sent) == 1


async def test_more_ask_than_a_block_holds(autojump_clock: MockClock) -> None:
    """The others wait for the next one."""
    async with open_stage() as (cluster, link, ids):
        cluster.delay_seconds = 1.0
        given: list[int] = []

        async def ask_one() -> None:
            given.append((await ask(ids)).producer_id)

        async with trio.open_nursery() as nursery:
            for _ in range(BLOCK_COUNT + 10):
                nursery.start_soon(ask_one)
        assert len(set(given)) == BLOCK_COUNT + 10
        assert len(link.sent) == 2


async def test_nobody_leads(autojump_clock: MockClock) -> None:
    """It is told soon, so that another broker is asked; once somebody leads there are ids."""
    async with open_stage() as (cluster, _, ids):
        cluster.delay_seconds = 2 * PROPOSE_SECONDS
        begin = trio.current_time()
        reply = await ask(ids)
        assert trio.current_time() - begin < PROPOSE_SECONDS + 1
        assert error_for(reply.error, "").retriable
        assert reply.message.startswith("broker 2 has no producer ids to give: ")
        cluster.delay_seconds = 0.0
        await trio.sleep(60)
        assert (await ask(ids)).error == ErrorCode.NONE


async def test_an_unknown_outcome(autojump_clock: MockClock) -> None:
    """The block may be ours or nobody's: nobody gets an id of it."""
    async with open_stage() as (cluster, _, ids):
        cluster.lose_answers(1)
        assert error_for((await ask(ids)).error, "").retriable
        assert (await ask(ids)).producer_id >= BLOCK_COUNT


async def test_time_that_is_short(autojump_clock: MockClock) -> None:
    """Whoever has less time than the quorum needs is told in time; the block is there later."""
    async with open_stage() as (cluster, link, ids):
        cluster.delay_seconds = 2.0
        begin = trio.current_time()
        reply = await ask(ids, timeout_ms=500)
        assert trio.current_time() - begin == 0.5
        assert "not answered in time" in reply.message
        await trio.sleep(2)
        assert (await ask(ids)).producer_id >= 0
        assert len(link.sent) == 1


async def test_a_registration_that_is_over(autojump_clock: MockClock) -> None:
    """Refused by the quorum: for whoever asks it is worth another try."""
    async with open_stage(epoch=999_999) as (_, _, ids):
        reply = await ask(ids)
        assert error_for(reply.error, "").retriable


async def test_a_registration_brings_a_block(autojump_clock: MockClock) -> None:
    """Ids are there before anybody asks, one command for each process; another registration of the
    same process needs no more of them."""
    async with open_stage() as (cluster, link, ids):
        for _ in range(3):
            ids.on_epoch()
            await trio.sleep(60)
        assert len(link.sent) == 1
        cluster.delay_seconds = 2 * PROPOSE_SECONDS
        for _ in range(BLOCK_COUNT):
            assert (await ask(ids)).error == ErrorCode.NONE


async def test_a_block_is_fetched_when_that_can_be_done(autojump_clock: MockClock) -> None:
    """The quorum is gone at the registration: it is asked again, though nobody wants an id."""
    async with open_stage() as (cluster, _, ids):
        cluster.delay_seconds = 2 * PROPOSE_SECONDS
        ids.on_epoch()
        await trio.sleep(100)
        cluster.delay_seconds = 0.0
        await trio.sleep(2 * PROPOSE_SECONDS + AGAIN_SECONDS)
        cluster.delay_seconds = 2 * PROPOSE_SECONDS
        assert (await ask(ids)).error == ErrorCode.NONE


async def test_who_is_not_registered_asks_for_none(autojump_clock: MockClock) -> None:
    """The quorum would refuse it."""
    async with open_stage(epoch=NO_EPOCH) as (_, link, ids):
        ids.on_epoch()
        await trio.sleep(100)
        assert link.sent == []


async def test_what_is_left_is_given_out_meanwhile(autojump_clock: MockClock) -> None:
    """The quorum is gone when the block runs short: it serves to the end, then it is told."""
    async with open_stage() as (cluster, _, ids):
        await ask(ids)
        cluster.delay_seconds = 2 * PROPOSE_SECONDS
        for _ in range(BLOCK_COUNT - 1):
            assert (await ask(ids)).error == ErrorCode.NONE
        assert (await ask(ids)).error == ErrorCode.NOT_CONTROLLER
