"""What a program meets for each thing that may go wrong: retried inside, run again, ended, or not
known (docs/SDK.md, Transactions)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from raftmq.errors import (
    DeliveryTimedOut,
    ErrorCode,
    InvalidTransaction,
    InvalidTransactionTimeout,
    MessageTooLarge,
    NotEnoughReplicas,
    OutcomeUnknown,
    ProducerFenced,
    RaftmqError,
    TransactionAborted,
    UnknownTopicOrPartition,
)
from raftmq.model import AbortReason
from raftmq.wire.messages.metadata import Metadata
from tests.unit.client.producer.shell import requests
from tests.unit.client.transactions.coordinator import committed_in, open_transactions
from tests.unit.client.world import lost, refused, silent

if TYPE_CHECKING:
    from trio.testing import MockClock

ID: dict[str, Any] = {"transaction_id": "billing-1"}
QUICK: dict[str, Any] = {**ID, "delivery_timeout_ms": 3000, "request_timeout_ms": 1000}


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.REQUEST_TIMED_OUT,
    ],
)
async def test_the_program_sees_nothing(autojump_clock: MockClock, error: ErrorCode) -> None:
    """Of the coordinator while it moves, at opening and at the end."""
    async with open_transactions() as (coordinator, (world, _, client)):
        coordinator.opens += [refused(error)] * 3
        async with client.producer(**ID) as producer:
            coordinator.ends += [refused(error)] * 3
            async with producer.transaction() as tx:
                await tx.send("t", "a")
                tx.commit_offsets({("t", 0): 1}, group="g")
            assert tx.outcome == "committed"
        assert (committed_in(coordinator, world), coordinator.offsets) == (["a"], {"g": {0: 1}})


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ],
)
async def test_a_leader_that_takes_it_later(autojump_clock: MockClock, error: ErrorCode) -> None:
    """Within the same transaction; records have their order."""
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**ID) as producer:
            world.brokers[1].produces += [refused(error)] * 3
            async with producer.transaction() as tx:
                for value in "abc":
                    await tx.enqueue("t", value)
        assert committed_in(coordinator, world) == ["a", "b", "c"]
        assert len(coordinator.decided) == 1


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, (NotEnoughReplicas, DeliveryTimedOut)),
        (ErrorCode.THROTTLING_QUOTA_EXCEEDED, (RaftmqError,)),
        (ErrorCode.MESSAGE_TOO_LARGE, (MessageTooLarge,)),
        (None, (OutcomeUnknown, DeliveryTimedOut)),
    ],
)
async def test_a_record_that_is_given_up(
    autojump_clock: MockClock, error: ErrorCode | None, cause: tuple[type[RaftmqError], ...]
) -> None:
    """Definite, with its cause, from the send and from the block; the block run again counts."""
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**QUICK) as producer:
            world.brokers[1].produces += [silent if error is None else refused(error)] * 40
            with pytest.raises(TransactionAborted) as caught:  # noqa: PT012  # the block
                async with producer.transaction() as tx:
                    with pytest.raises(TransactionAborted) as of_send:
                        await tx.send("t", "a")
                    assert isinstance(of_send.value.__cause__, cause)
            for each in (caught.value, of_send.value):
                assert (each.reason, each.definite) == ("failed send", True)
            assert isinstance(caught.value.__cause__, cause)
            assert tx.outcome == "aborted"
            world.brokers[1].produces.clear()
            async with producer.transaction() as tx:
                await tx.send("t", "b")
        assert committed_in(coordinator, world) == ["b"]


async def test_a_topic_that_is_not_there(autojump_clock: MockClock) -> None:
    """As a record that was given up; not a commit without it."""
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**ID) as producer:
            with pytest.raises(TransactionAborted) as caught:  # noqa: PT012  # the block
                async with producer.transaction() as tx:
                    await tx.send("t", "a")
                    await tx.enqueue("nowhere", "a")
            assert isinstance(caught.value.__cause__, UnknownTopicOrPartition)
            with pytest.raises(TransactionAborted) as caught:  # noqa: PT012  # the block
                async with producer.transaction() as tx:
                    await tx.send("t", "b")
                    tx.commit_offsets({("nowhere", 0): 1}, group="g")
            async with producer.transaction() as tx:
                await tx.send("t", "c")
        assert (committed_in(coordinator, world), coordinator.offsets) == (["c"], {})


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    ],
)
async def test_a_group_that_has_rebalanced(autojump_clock: MockClock, error: ErrorCode) -> None:
    """Nothing counts, and the reason says that it was the group."""
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**QUICK) as producer:
            coordinator.ends += [refused(error)] * 2
            with pytest.raises(TransactionAborted) as caught:  # noqa: PT012  # the block
                async with producer.transaction() as tx:
                    await tx.send("t", "a")
                    tx.commit_offsets({("t", 0): 1}, group="g")
            assert (caught.value.reason, caught.value.definite) == ("group", True)
            assert [*coordinator.decided.values()] == [False]
        assert (committed_in(coordinator, world), coordinator.offsets) == ([], {})


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (AbortReason.TIMEOUT, "timeout"),
        (AbortReason.OPERATOR, "operator"),
        (AbortReason.PROGRAM, "program"),
    ],
)
async def test_a_send_after_others_have_ended_it(
    autojump_clock: MockClock, reason: AbortReason, word: str
) -> None:
    """The leader refuses the record, and the coordinator says why."""
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**ID) as producer:
            with pytest.raises(TransactionAborted):  # noqa: PT012  # the block
                async with producer.transaction() as tx:
                    await tx.send("t", "a")
                    coordinator.abort("billing-1", reason)
                    world.brokers[1].produces += [refused(ErrorCode.TRANSACTION_ABORTABLE)]
                    await tx.send("t", "b")
            assert tx.outcome == "aborted"
            async with producer.transaction() as tx:
                await tx.send("t", "c")
            with pytest.raises(TransactionAborted) as caught:  # noqa: PT012  # the block
                async with producer.transaction() as tx:
                    await tx.send("t", "d")
                    coordinator.abort("billing-1", reason)
            assert caught.value.reason == word
        assert committed_in(coordinator, world) == ["c"]


@pytest.mark.parametrize("is_sending", [False, True])
async def test_fenced(autojump_clock: MockClock, is_sending: bool) -> None:
    """For good, whether it learns it from a leader or from the coordinator; nothing counts."""
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**ID) as first:
            with pytest.raises(ProducerFenced) as caught:  # noqa: PT012  # the block
                async with first.transaction() as tx:
                    await tx.send("t", "a")
                    async with client.producer(**ID):
                        pass
                    if is_sending:
                        world.brokers[1].produces += [refused(ErrorCode.PRODUCER_FENCED)]
                        await tx.send("t", "b")
            assert caught.value.definite
            for _ in range(2):
                with pytest.raises(ProducerFenced):
                    async with first.transaction():
                        pass
            with pytest.raises((ProducerFenced, InvalidTransaction)):
                await first.send("t", "c")
        assert committed_in(coordinator, world) == []


async def test_what_a_transaction_may_not_do(autojump_clock: MockClock) -> None:
    """Definite, nothing of it was done, and the transaction that is on goes on."""
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**ID) as producer:
            with pytest.raises(InvalidTransaction, match="outside of a transaction"):
                await producer.send("t", "x")
            async with producer.transaction() as tx:
                with pytest.raises(InvalidTransaction, match="one at a time"):
                    await producer.transaction().__aenter__()
                with pytest.raises(InvalidTransaction, match="entered once"):
                    await tx.__aenter__()
                with pytest.raises(InvalidTransaction, match="has not ended"):
                    await tx.resolve()
                await tx.send("t", "a")
            for call in (tx.send("t", "x"), tx.abort(), tx.send_many("t", ["x"])):
                with pytest.raises(InvalidTransaction, match="is over"):
                    await call
            with pytest.raises(InvalidTransaction, match="is over"):
                tx.commit_offsets({("t", 0): 1}, group="g")
        async with client.producer() as plain:
            with pytest.raises(InvalidTransaction, match="transaction_id"):
                plain.transaction()
        assert committed_in(coordinator, world) == ["a"]


async def test_a_time_that_the_cluster_does_not_allow(autojump_clock: MockClock) -> None:
    """Said when the producer opens."""
    async with open_transactions() as (coordinator, (_, _, client)):
        coordinator.opens += [refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT)]
        with pytest.raises(InvalidTransactionTimeout):
            async with client.producer(**ID):
                pass


async def test_an_end_that_has_reached_nobody(autojump_clock: MockClock) -> None:
    """No attempt was carried out, as far as anybody knows: not known. The next transaction asks,
    and learns it."""
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**QUICK) as producer:
            coordinator.ends += [lost] * 80
            with pytest.raises(OutcomeUnknown) as caught:
                async with producer.transaction() as tx:
                    await tx.send("t", "a")
            assert not caught.value.definite
            assert (tx.state, tx.outcome) == ("unknown", None)
            with pytest.raises(OutcomeUnknown):
                await tx.resolve()
            await trio.sleep(1)
            coordinator.ends.clear()
            assert await tx.resolve() == "committed"
        assert committed_in(coordinator, world) == ["a"]


async def test_the_leader_has_not_heard_of_the_end_before(autojump_clock: MockClock) -> None:
    """Within the same epoch, again after milliseconds."""
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**ID) as producer:
            world.brokers[1].produces += [refused(ErrorCode.CONCURRENT_TRANSACTIONS)] * 3
            before, asked = trio.current_time(), world.brokers[1].count(Metadata)
            world.version += 1  # as any end of a transaction does
            async with producer.transaction() as tx:
                await tx.send("t", "a")
            assert trio.current_time() - before < 0.1
            assert world.brokers[1].count(Metadata) <= asked + 1  # for the topic, before the first
        assert len(requests(world)) == 4
        assert committed_in(coordinator, world) == ["a"]


async def test_offsets_of_a_topic_that_is_not_there(autojump_clock: MockClock) -> None:
    """Given by numbers: that is no matter of the group, and no consumer is to be opened anew."""
    async with open_transactions() as (coordinator, (_, _, client)):
        async with client.producer(**ID) as producer:

            async def block() -> None:
                async with producer.transaction() as tx:
                    await tx.send("t", "a")
                    tx.commit_offsets({("nowhere", 0): 7}, group="g")

            with pytest.raises(TransactionAborted, match="cannot be committed: ") as raised:
                await block()
        assert raised.value.reason == "failed send"
        assert isinstance(raised.value.__cause__, UnknownTopicOrPartition)
        assert list(coordinator.decided.values()) == [False]
