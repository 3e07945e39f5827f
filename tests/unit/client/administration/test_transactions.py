"""`Admin`: what it makes of answers about transactions (A11.3). Real brokers: tests/cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from raftmq.errors import InvalidRequest, ServerError, UnknownTransaction
from raftmq.model import AbortReason
from raftmq.rpc.reply import Reply
from raftmq.wire.bodies import TopicPartition
from raftmq.wire.messages.transactions import (
    DescribeTransactions,
    ListTransactions,
    ListTransactionsReply,
    TransactionDescribed,
)
from tests.unit.client.administration.bureau import open_bureau

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.client.administration.bureau import Bureau


async def test_all_pages_of_a_list(autojump_clock: MockClock) -> None:
    """One request a page, each behind the one before."""
    asked: list[ListTransactions] = []
    names = ["a", "b", "c", "d", "e"]

    def answer(_context: Any, body: ListTransactions, _payload: Any) -> Reply:
        asked.append(body)
        rest = [name for name in names if name > body.after]
        told = tuple(TransactionDescribed(name, producer_id=1) for name in rest[:2])
        return Reply(ListTransactionsReply(told, rest[1] if len(rest) > 2 else ""))

    def tell_pages(bureau: Bureau) -> None:
        for broker in bureau.world.brokers.values():
            broker.handlers[ListTransactions] = answer

    async with open_bureau(tell_pages) as (_, admin):
        found = await admin.list_transactions(unsettled=True)
        assert [one.transaction_id for one in found] == names
        assert [one.after for one in asked] == ["", "b", "d"]
        assert all(one.only_unsettled for one in asked)


async def test_pages_that_lead_nowhere(autojump_clock: MockClock) -> None:
    """A faulty broker does not make it ask for ever."""
    async with open_bureau() as (bureau, admin):
        bureau.lie(ListTransactions, ListTransactionsReply((), "b"))
        with pytest.raises(ServerError, match="lead nowhere"):
            await admin.list_transactions()
        assert bureau.count(ListTransactions) == 2


async def test_what_is_told_of_an_id(autojump_clock: MockClock) -> None:
    """Topics by name, reasons as words, and None for what is not known."""
    async with open_bureau() as (bureau, admin):
        now_ms = int(time.time() * 1000)
        topic_id = bureau.world.topics["t"].topic_id
        told = TransactionDescribed(
            "billing-1",
            producer_id=7,
            producer_epoch=3,
            last_producer_id=7,
            last_epoch=2,
            last_reason=AbortReason.TIMEOUT,
            unsettled=1,
            unsettled_partitions=(TopicPartition(topic_id, 1), TopicPartition(topic_id, 0)),
            changed_at_ms=now_ms - 3_600_000,
        )
        young = TransactionDescribed("billing-2", producer_id=8, changed_at_ms=now_ms)
        bureau.lie(ListTransactions, ListTransactionsReply((told, young)))
        first, second = await admin.list_transactions()
        assert (first.last_outcome, first.last_reason) == ("aborted", "timeout")
        assert (first.last_version, first.unsettled_partitions) == (None, (("t", 0), ("t", 1)))
        assert (second.last_outcome, second.last_reason, second.last_count) == (None, None, None)
        assert await admin.list_transactions(idle_seconds=60) == (first,)


async def test_an_id_that_was_opened_again(autojump_clock: MockClock) -> None:
    """The quorum does not know whether anything was open before: it is not told as an abort, which
    an idle producer that starts again would show as."""
    async with open_bureau() as (bureau, admin):
        told = TransactionDescribed(
            "billing-1", producer_id=7, last_epoch=2, last_reason=AbortReason.OWNER
        )
        bureau.lie(ListTransactions, ListTransactionsReply((told,)))
        (found,) = await admin.list_transactions()
        assert (found.last_outcome, found.last_reason) == ("reopened", None)


async def test_ids_that_are_none(autojump_clock: MockClock) -> None:
    """One that no broker knows, after some time in which it may come to them; and what is no id."""
    async with open_bureau() as (bureau, admin):
        for call in (admin.describe_transaction, admin.abort_transaction):
            with pytest.raises(UnknownTransaction):
                await call("nope")
        assert bureau.count(DescribeTransactions) > 2
        asked = bureau.count(DescribeTransactions)
        for name in ("", "x" * 256):
            with pytest.raises(InvalidRequest, match="allowed are 1 to 255"):
                await admin.abort_transaction(name)
        with pytest.raises(InvalidRequest, match="idle_seconds"):
            await admin.list_transactions(idle_seconds=-1)
        assert bureau.count(DescribeTransactions) == asked
