"""Settling: questions to leaders, waiting for it, room for more commits, and forgetting.

A11.3.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import trio

from raftmq.broker.transactions import settling
from raftmq.broker.transactions.unsettled import REST_SECONDS, ROUND_SECONDS
from raftmq.errors import ErrorCode
from raftmq.metadata.apply import transaction_checks as checks
from raftmq.metadata.commands import DeleteTopic, EndTransactions, ForgetSettled
from tests.unit.broker.asking import ORDERS, said
from tests.unit.broker.groups.coordinating import ELSEWHERE, settle
from tests.unit.broker.transactions.transacting import ID, OTHER_ID, end_of, transacting

if TYPE_CHECKING:
    import pytest
    from trio.testing import MockClock

    from tests.unit.broker.transactions.transacting import Transacting


def unsettled_of(here: Transacting, name: str = ID) -> list[tuple[int, ...]]:
    """The partitions of each commit that the metadata still list."""
    row = here.row(name)
    assert row is not None
    return [tuple(number for _, number in one.partitions) for one in row.settling]


async def test_what_rests_is_forgotten(autojump_clock: MockClock) -> None:
    """Asked of each leader, one request for all of its partitions; then one command."""
    async with transacting(partition_count=6) as here:
        await here.end(await here.opened(), partitions=range(6))
        assert unsettled_of(here) == [(0, 1, 2, 3, 4, 5)]
        await trio.sleep(2 * ROUND_SECONDS)
        assert sorted(broker for _, broker, _ in here.leaders.asked) == [1, 2, 3]
        await trio.sleep(REST_SECONDS + 2 * ROUND_SECONDS)
        assert unsettled_of(here) == []
        assert len(here.log(ForgetSettled)) == 1
        asked = len(here.leaders.asked)
        await trio.sleep(60)
        assert len(here.leaders.asked) == asked


async def test_the_next_end_takes_it_along(autojump_clock: MockClock) -> None:
    """An id that goes on costs no command of its own."""
    async with transacting() as here:
        reply = await here.end(await here.opened(), partitions=[0])
        for _ in range(10):
            await trio.sleep(1.0)
            reply = await here.end(reply, partitions=[0])
            assert reply.is_committed
        assert len(unsettled_of(here)) == 1
        assert not here.log(ForgetSettled)


async def test_a_client_waits_until_its_records_can_be_read(autojump_clock: MockClock) -> None:
    """It is answered as soon as the leaders have their markers, asked every few milliseconds."""
    async with transacting() as here:
        here.leaders.unsettled.add((ORDERS, 1))
        here.cluster.follow_seconds = 0.02
        opened, began_at = await here.opened(), trio.current_time()
        asked = here.begin(end_of(opened, partitions=[0, 1], wait_settled=True))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asked.answer)
            await trio.sleep(0.1)
            assert not asked.is_answered
            here.leaders.unsettled.clear()
        assert asked.body.is_settled
        assert trio.current_time() - began_at < 0.4


async def test_a_client_that_waits_in_vain(autojump_clock: MockClock) -> None:
    """It is told at its time that it is committed, and cannot be read everywhere yet."""
    async with transacting() as here:
        here.leaders.silent.add(2)
        opened = await here.opened()
        reply = await here.end(opened, partitions=[0, 1], wait_settled=True, timeout_ms=3_000)
        assert (reply.error, reply.is_committed, reply.is_settled) == (0, True, False)
        # Nothing to wait for: no partitions, or an abort.
        reply = await here.end(reply, wait_settled=True)
        assert reply.is_settled
        assert not (await here.end(reply, is_commit=False, wait_settled=True)).is_settled


async def test_a_silent_leader_holds_up_nobody_else(autojump_clock: MockClock) -> None:
    """It has one question at a time, and is asked less and less often; the others are settled."""
    async with transacting(ID, OTHER_ID) as here:
        here.leaders.silent.add(1)
        await here.end(await here.opened(), partitions=[0, 1])
        other = await here.opened(OTHER_ID)
        await here.end(other, name=OTHER_ID, partitions=[2])
        await trio.sleep(10)
        assert unsettled_of(here, OTHER_ID) == []
        assert unsettled_of(here) == [(0,)]
        await trio.sleep(600)
        times = [at for at, broker, _ in here.leaders.asked if broker == 1]
        assert len(times) < 40
        assert all(after - before >= 0.5 for before, after in itertools.pairwise(times))
        here.leaders.silent.clear()
        await trio.sleep(40)
        assert unsettled_of(here) == []


async def test_partitions_of_a_deleted_topic_are_settled(autojump_clock: MockClock) -> None:
    """Nobody will read them."""
    async with transacting() as here:
        here.leaders.unsettled.add((ORDERS, 0))
        await here.end(await here.opened(), partitions=[0])
        await trio.sleep(5)
        assert unsettled_of(here) == [(0,)]
        await said(here.cluster, DeleteTopic(ORDERS))
        await trio.sleep(40)
        assert unsettled_of(here) == []


async def test_too_many_commits_wait_for_room(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator asks at once, and decides the end when there is room; a client whose time is
    over may ask again."""
    monkeypatch.setattr(checks, "UNSETTLED_MAX", 2)
    async with transacting() as here:
        here.leaders.unsettled.add((ORDERS, 0))
        reply = await here.opened()
        for _ in range(2):
            reply = await here.end(reply, partitions=[0])
        refused = await here.end(reply, partitions=[0], timeout_ms=1_000)
        assert refused.error == ErrorCode.CONCURRENT_TRANSACTIONS
        sent = len(here.log(EndTransactions))
        asked = here.begin(end_of(reply, partitions=[0]))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asked.answer)
            await trio.sleep(10)
            assert len(here.log(EndTransactions)) == sent + 1
            here.leaders.unsettled.clear()
            began_at = trio.current_time()
        assert asked.body.is_committed
        assert trio.current_time() - began_at <= ROUND_SECONDS + 0.1
        assert unsettled_of(here) == [(0,)]


async def test_the_next_coordinator_goes_on(autojump_clock: MockClock) -> None:
    """It finds in the metadata what is not settled, though it has ended nothing itself."""
    async with transacting() as here:
        here.leaders.unsettled.add((ORDERS, 0))
        await here.end(await here.opened(), partitions=[0])
        await trio.sleep(5)
        await here.give(ELSEWHERE, ID)
        await trio.sleep(5)
        here.leaders.unsettled.clear()
        asked = len(here.leaders.asked)
        await trio.sleep(60)
        assert len(here.leaders.asked) == asked
        await here.give(2, ID)
        await trio.sleep(5)
        assert unsettled_of(here) == []


async def test_who_waits_when_the_slot_is_lost(autojump_clock: MockClock) -> None:
    """Committed, and not known to be settled: not its coordinator any more."""
    async with transacting() as here:
        here.leaders.unsettled.add((ORDERS, 0))
        asked = here.begin(end_of(await here.opened(), partitions=[0], wait_settled=True))
        began_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asked.answer)
            await settle()
            await here.give(ELSEWHERE, ID)
        assert trio.current_time() - began_at < 1.0
        assert (asked.body.is_committed, asked.body.is_settled) == (True, False)


async def test_many_rows_are_read_in_slices(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot that is taken over; what changes meanwhile is seen with the next change."""
    monkeypatch.setattr(settling, "SLICE", 1)
    names = [ID, "a", "b", "c", "d"]
    async with transacting(*names) as here:
        here.leaders.unsettled.add((ORDERS, 0))
        for name in names:
            await here.end(await here.opened(name), name=name, partitions=[0])
        for name in names:
            await here.give(ELSEWHERE, name)
        await trio.sleep(1)
        for name in names:
            await here.give(2, name)
        here.leaders.unsettled.clear()
        await trio.sleep(10)
        assert [unsettled_of(here, name) for name in names] == [[]] * len(names)


async def test_a_snapshot_of_the_quorum(autojump_clock: MockClock) -> None:
    """The metadata do not say what has changed: every row is read again."""
    async with transacting() as here:
        opened = await here.opened()
        await trio.sleep(1)
        await here.end(opened, partitions=[0])
        here.quorum.install_snapshot()
        await trio.sleep(10)
        assert unsettled_of(here) == []


async def test_what_the_metadata_do_not_show_yet(autojump_clock: MockClock) -> None:
    """The answer of the quorum is here before the decision: nothing is settled by that."""
    async with transacting() as here:
        here.leaders.unsettled.add((ORDERS, 0))
        opened = await here.opened()
        here.cluster.follow_seconds = 1.0
        reply = await here.end(opened, partitions=[0], wait_settled=True, timeout_ms=500)
        assert (reply.is_committed, reply.is_settled) == (True, False)
