"""Members of shared transactions at their coordinator: joined in batches, committed and settled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from raftmq.broker.transactions.joins import JoinBatch, JoinEntry
from raftmq.errors import ErrorCode
from raftmq.metadata.apply.transaction_checks import JOINS_MAX
from raftmq.metadata.commands import (
    ForgetSettled,
    JoinOutcome,
    JoinTransactions,
    TransactionJoin,
    TransactionsJoined,
)
from raftmq.metadata.image import MEMBERS_MAX
from raftmq.wire.bodies import TopicPartition
from raftmq.wire.messages.transactions import (
    DescribeTransactions,
    EndTxn,
    JoinTransaction,
    JoinTransactionReply,
)
from tests.unit.broker.asking import ORDERS
from tests.unit.broker.transactions.transacting import ID, Transacting, transacting

if TYPE_CHECKING:
    from trio.testing import MockClock


def join_of(version: int = 0, **more: Any) -> JoinTransaction:
    return JoinTransaction(ID, more.pop("lineage", ""), version, **more)


def commit_of(block: int, version: int = 0, *, numbers: bytes = b"\1", **more: Any) -> EndTxn:
    more.setdefault("partitions", (TopicPartition(ORDERS, 0), TopicPartition(ORDERS, 1)))
    return EndTxn(
        ID, block, 0, True, transaction_version=version, lineage="", numbers=numbers, **more
    )


async def joined(here: Transacting, version: int = 0, **more: Any) -> JoinTransactionReply:
    reply: JoinTransactionReply = await here.ask(join_of(version, **more))
    assert not reply.error, reply.message
    return reply


async def test_members_join_and_one_commit_decides(autojump_clock: MockClock) -> None:
    """A14.3"""
    async with transacting() as here:
        first, second = await joined(here), await joined(here)
        assert (first.block, first.number, second.number) == (second.block, 0, 1)
        assert first.transaction_timeout_ms == 60_000
        reply = await here.ask(commit_of(first.block, count=7, wait_settled=True))
        assert (reply.error, reply.is_committed, reply.is_repeated) == (0, True, False)
        assert reply.is_settled
        again = await here.ask(commit_of(first.block, numbers=b"\3"))
        assert (again.is_committed, again.is_repeated, again.count) == (True, True, 7)
        late = await joined(here)
        assert (late.is_done, late.count, late.number) == (True, 7, -1)


async def test_leaders_are_asked_about_the_whole_block(autojump_clock: MockClock) -> None:
    async with transacting() as here:
        member = await joined(here)
        await here.ask(commit_of(member.block))
        await trio.sleep(5.0)
        (one,) = here.leaders.asked[0][2].partitions[0].transactions
        assert (one.producer_id, one.producer_epoch) == (member.block, 0)
        assert one.producer_ids == MEMBERS_MAX
        row = here.row()
        assert row is not None
        assert row.settling == (), "settled, and forgotten"


async def test_an_unsettled_version_is_kept(autojump_clock: MockClock) -> None:
    async with transacting() as here:
        here.leaders.unsettled = {(ORDERS, 1)}
        member = await joined(here)
        reply = await here.ask(commit_of(member.block, wait_settled=True, timeout_ms=1_000))
        assert (reply.is_committed, reply.is_settled) == (True, False)
        row = here.row()
        assert row is not None
        assert [one.producer_id for one in row.settling] == [member.block]


async def test_a_commit_that_comes_twice_at_once(autojump_clock: MockClock) -> None:
    """One command has both, and the second waits for the records of the first."""
    async with transacting() as here:
        here.leaders.unsettled.add((ORDERS, 1))
        here.cluster.follow_seconds = 0.05
        member = await joined(here)
        await trio.sleep(1)  # the coordinator knows all that is not settled: nothing
        asked = [here.begin(commit_of(member.block, wait_settled=True)) for _ in range(2)]
        async with trio.open_nursery() as nursery:
            for each in asked:
                nursery.start_soon(each.answer)
            await trio.sleep(0.2)
            assert [each.is_answered for each in asked] == [False, False]
            here.leaders.unsettled.clear()
        assert [each.body.is_repeated for each in asked] == [False, True]
        assert all(each.body.is_settled for each in asked)


async def test_an_empty_commit_that_comes_twice_at_once(autojump_clock: MockClock) -> None:
    """It changes nothing that wakes anybody."""
    async with transacting() as here:
        here.cluster.follow_seconds = 0.05
        await joined(here)
        await trio.sleep(1)
        empty = commit_of(-1, 1, numbers=b"", partitions=(), wait_settled=True)
        asked, began_at = [here.begin(empty) for _ in range(2)], trio.current_time()
        async with trio.open_nursery() as nursery:
            for each in asked:
                nursery.start_soon(each.answer)
        assert [each.body.is_repeated for each in asked] == [False, True]
        assert trio.current_time() - began_at < 1


async def test_a_version_at_rest_is_forgotten_once(autojump_clock: MockClock) -> None:
    """Its block is nobody's then: the coordinator knows whose it was."""
    async with transacting() as here:
        member = await joined(here)
        await here.ask(commit_of(member.block))
        await trio.sleep(60.0)
        assert len(here.log(ForgetSettled)) == 1


async def test_what_is_in_line_together_is_one_command(autojump_clock: MockClock) -> None:
    """200 tasks that join at once are few commands: the first goes alone."""
    async with transacting() as here:
        version = here.cluster.leader.image.version
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(joined, here)
        row = here.row()
        assert row is not None
        assert row.shared is not None
        assert row.shared.joined == 50
        assert here.cluster.leader.image.version - version <= 3


async def test_a_shared_id_is_described(autojump_clock: MockClock) -> None:
    async with transacting() as here:
        member = await joined(here, 3, lineage="checkpoint 1")
        await joined(here, 3, lineage="checkpoint 1")
        (row,) = (await here.ask(DescribeTransactions((ID,)))).transactions
        assert (row.lineage, row.open_version, row.joined) == ("checkpoint 1", 3, 2)
        assert (row.producer_id, row.producer_epoch) == (member.block, 0)
        await here.ask(EndTxn(ID, row.producer_id, 0, is_commit=False, reason=4))  # an operator
        (row,) = (await here.ask(DescribeTransactions((ID,)))).transactions
        assert (row.open_version, row.producer_id, row.producer_epoch) == (-1, -1, -1)
        assert (row.last_is_committed, row.last_reason) == (False, 4)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (join_of(transaction_timeout_ms=1), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (join_of(transaction_timeout_ms=900_001), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (join_of(lineage="another"), ErrorCode.INVALID_TXN_STATE),
        (join_of(0), ErrorCode.PRODUCER_FENCED),
    ],
)
async def test_joins_that_are_refused(
    autojump_clock: MockClock, request_: JoinTransaction, code: ErrorCode
) -> None:
    async with transacting() as here:
        await joined(here, 1)
        reply = await here.ask(request_)
        assert reply.error == code, reply.message


async def test_a_cluster_of_an_earlier_level_says_so(autojump_clock: MockClock) -> None:
    async with transacting(level=2) as here:
        reply = await here.ask(join_of())
        assert reply.error == ErrorCode.UNSUPPORTED_VERSION
        assert "upgrade" in reply.message


def test_a_batch_takes_as_many_joins_as_a_command() -> None:
    batch, entries = JoinBatch(), []
    for number in range(JOINS_MAX):
        entries.append(JoinEntry(TransactionJoin(ID, "", number, 1_000), number, lambda _: None))
        assert batch.maybe_add(entries[-1])
    assert not batch.maybe_add(JoinEntry(TransactionJoin(ID, "", -1, 1_000), 1, lambda _: None))
    command = batch.command(slot=3, slot_epoch=4)
    assert command == JoinTransactions(
        3, 4, tuple(entry.join for entry in entries), changed_at_ms=JOINS_MAX - 1
    )
    result = TransactionsJoined(tuple(JoinOutcome(number=each) for each in range(JOINS_MAX)))
    assert batch.part_of(result, entries[5]) == TransactionsJoined((JoinOutcome(number=5),))


def test_members_of_one_version_are_one_join() -> None:
    """Each gets a number of its own; what the quorum remembers of the command stays small."""
    batch = JoinBatch()
    of_one, of_other = TransactionJoin(ID, "", 1, 1_000), TransactionJoin(ID, "", 2, 1_000)
    entries = [JoinEntry(join, 0, lambda _: None) for join in (of_one, of_other, of_one, of_one)]
    assert all(batch.maybe_add(entry) for entry in entries)
    joins = batch.command(slot=3, slot_epoch=4).joins
    assert [(join.version, join.count) for join in joins] == [(1, 3), (2, 1)]
    refused = JoinOutcome(ErrorCode.PRODUCER_FENCED)
    result = TransactionsJoined((JoinOutcome(block=8_192, number=7), refused))
    parts = [batch.part_of(result, entry).outcomes[0] for entry in entries]
    assert [part.number for part in parts] == [7, -1, 8, 9]
    assert parts[1] == refused
