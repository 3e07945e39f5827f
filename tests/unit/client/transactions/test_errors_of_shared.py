"""What goes wrong with shared transactions: answers that are lost, brokers that move or are old,
arguments that make no sense (A11.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import raftmq
from raftmq.client.transactions.members import Receipt, VersionId, bits_of
from raftmq.errors import (
    ErrorCode,
    InvalidConfig,
    InvalidRequest,
    InvalidTransaction,
    OutcomeUnknown,
    UnknownTransaction,
    UnsupportedVersion,
)
from raftmq.rpc.reply import Reply
from raftmq.wire.messages.transactions import (
    MEMBERS_MAX,
    TRANSACTION_PARTITIONS_MAX,
    EndTxn,
    EndTxnReply,
    JoinTransaction,
)
from tests.unit.client.producer.shell import open_stage
from tests.unit.client.transactions.coordinator import (
    Coordinator,
    committed_in,
    open_transactions,
)
from tests.unit.client.transactions.test_shared import ID, version_of, written
from tests.unit.client.world import World, done_and_lost, done_and_refused, lost, refused, silent

if TYPE_CHECKING:
    from trio.testing import MockClock

VERSION = VersionId(ID, "checkpoint 1", 17)


async def test_answers_that_are_lost(autojump_clock: MockClock) -> None:
    """Joins and commits are asked again: a number more does no harm, and a version is committed
    once."""
    async with open_transactions() as (coordinator, (world, _, client)):
        version = version_of(client)
        coordinator.joins += [done_and_lost, lost, refused(ErrorCode.CONCURRENT_TRANSACTIONS)]
        receipt = await written(version, "a")
        assert receipt.number == 1
        coordinator.ends += [
            done_and_lost,
            silent,
            lost,
            refused(ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ]
        assert await version.commit([receipt]) == raftmq.CommittedVersion(True, 1)
        assert committed_in(coordinator, world) == ["a"]


async def test_a_coordinator_that_moves(autojump_clock: MockClock) -> None:
    async with open_transactions() as (coordinator, (world, _, client)):
        version = version_of(client)
        receipt = await written(version, "a")
        coordinator.broker_id = 2
        await version.commit([receipt, await written(version, "b")])
        assert committed_in(coordinator, world) == ["a", "b"]


async def test_no_answer_at_all(autojump_clock: MockClock) -> None:
    """The same commit may be asked later, by any process."""
    async with open_transactions() as (coordinator, (_, _, client)):
        version = version_of(client)
        receipt = await written(version, "a")
        coordinator.ends += [done_and_lost, *[silent] * 20]
        with pytest.raises(OutcomeUnknown, match=r"version 17 of transaction 'etl-7'.*ask again"):
            await version.commit([receipt])
        coordinator.ends.clear()
        assert await version.commit([receipt]) == raftmq.CommittedVersion(True, 1)


async def test_an_id_that_is_forgotten_meanwhile(autojump_clock: MockClock) -> None:
    """Nobody knows what was committed before: no reason to write it again."""
    async with open_transactions() as (coordinator, (_, _, client)):
        version = version_of(client)
        receipt = await written(version, "a")
        coordinator.shared.clear()
        with pytest.raises(UnknownTransaction, match="never heard of it"):
            await version.commit([receipt])
        coordinator.ends += [done_and_refused(ErrorCode.REQUEST_TIMED_OUT)]
        with pytest.raises(OutcomeUnknown, match="never heard of it"):
            await version.commit([receipt])


async def test_a_cluster_that_is_too_old(autojump_clock: MockClock) -> None:
    """Of a lower feature level, or of brokers that do not know the request at all."""
    words = "no shared transactions yet; let all of its brokers run"
    async with open_transactions() as (coordinator, (_, _, client)):
        version = version_of(client)
        coordinator.joins += [refused(ErrorCode.UNSUPPORTED_VERSION)]
        with pytest.raises(UnsupportedVersion, match=words):
            await written(version, "a")
        coordinator.ends += [refused(ErrorCode.UNSUPPORTED_VERSION)]
        with pytest.raises(UnsupportedVersion, match=words):
            await version.commit([])
    world, coordinator = World(1), Coordinator()
    coordinator.install(world)
    del world.brokers[1].handlers[JoinTransaction]
    async with open_stage(world) as (_, _, client):
        with pytest.raises(UnsupportedVersion, match=words):
            await written(version_of(client), "a")


async def test_too_many_members(autojump_clock: MockClock) -> None:
    async with open_transactions() as (coordinator, (_, _, client)):
        version = version_of(client)
        await written(version, "a")
        coordinator.shared[ID].joined = MEMBERS_MAX - 1
        last = await written(version, "b")
        assert last.number == MEMBERS_MAX - 1
        with pytest.raises(raftmq.InvalidRequest, match="as many members as may be"):
            await written(version, "c")
        await version.commit([last])
        assert coordinator.shared[ID].counts == {17: 1}


def receipt_of(number: int, *partitions: int, **others: Any) -> Receipt:
    places = tuple((b"t" * 16, partition) for partition in partitions)
    named = {"transaction_id": ID, "lineage": "checkpoint 1", "version": 17, "block": MEMBERS_MAX}
    return Receipt(**{**named, "number": number, "partitions": places, "count": 1, **others})


def test_what_a_commit_asks() -> None:
    """Each member by one bit, each partition once, also where a receipt comes twice."""
    receipts = [receipt_of(0, 1), receipt_of(9, 1, 2), receipt_of(9, 1, 2), receipt_of(7)]
    asked = VERSION.commit_of([*receipts, VERSION.receipt(0)], None)
    assert (asked.producer_id, asked.producer_epoch, asked.is_commit) == (MEMBERS_MAX, 0, True)
    assert (asked.transaction_version, asked.lineage, asked.count) == (17, "checkpoint 1", 3)
    assert asked.numbers == bits_of([0, 7, 9]) == b"\x81\x02"
    assert [one.partition for one in asked.partitions] == [1, 2]
    assert bits_of([]) == b""
    assert len(bits_of([MEMBERS_MAX - 1])) == 1024
    assert VERSION.commit_of(receipts, 5).count == 5


def test_too_many_partitions() -> None:
    """In all, of members each of which has few enough."""
    half = TRANSACTION_PARTITIONS_MAX // 2
    receipts = [receipt_of(0, *range(half)), receipt_of(1, *range(half, 2 * half))]
    assert len(VERSION.commit_of(receipts, None).partitions) == TRANSACTION_PARTITIONS_MAX
    with pytest.raises(InvalidRequest, match="records in 2001 partitions, at most 2000"):
        VERSION.commit_of([*receipts, receipt_of(2, 2 * half)], None)


async def test_arguments_that_make_no_sense(autojump_clock: MockClock) -> None:
    """All that is wrong, at once, and before anything is asked."""
    async with open_transactions() as (coordinator, (_, _, client)):
        with pytest.raises(InvalidConfig) as caught:
            client.shared_transaction(
                "",
                lineage="a" * 256,
                transaction_timeout_ms=1,
                is_ephemeral=1,  # type: ignore[arg-type]
            )
        assert [one.partition(" = ")[0] for one in caught.value.problems] == [
            "lineage",
            "is_ephemeral",
            "transaction_id",
            "transaction_timeout_ms",
        ]
        with pytest.raises(InvalidConfig, match="can be printed"):
            client.shared_transaction(ID, lineage="a\n")
        with pytest.raises(InvalidConfig, match="transaction_id = None"):
            client.shared_transaction(None, lineage="")  # type: ignore[arg-type]
        shared = client.shared_transaction(ID, lineage="")
        for number in (-1, 1 << 63, "a", True):
            with pytest.raises(InvalidTransaction, match=r"version = .*: expected a whole number"):
                shared.version(number)  # type: ignore[arg-type]
        version = shared.version(0)
        with pytest.raises(InvalidTransaction, match="count = -1: expected a whole number"):
            await version.commit([], count=-1)
        with pytest.raises(TypeError, match="no option 'acks'"):
            version.join(acks=1)  # type: ignore[call-overload]
        with pytest.raises(InvalidConfig, match="linger_ms"):
            version.join(linger_ms=-1)
        member = version.join()
        with pytest.raises(InvalidTransaction, match="enter its block first"):
            await member.send("t", "a")
        assert coordinator.asked == []
        async with member:
            pass
        with pytest.raises(InvalidTransaction, match="joins once"):
            async with member:
                pass


async def test_a_decision_that_is_refused_otherwise(autojump_clock: MockClock) -> None:
    """As the coordinator says it."""
    async with open_transactions() as (coordinator, (_, _, client)):
        coordinator.ends += [
            lambda _: Reply(EndTxnReply(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "too many ids")),
            refused(ErrorCode.PRODUCER_FENCED),
        ]
        with pytest.raises(raftmq.ProducerFenced):
            await version_of(client).commit([])
        assert sum(isinstance(one, EndTxn) for one in coordinator.asked) == 2
