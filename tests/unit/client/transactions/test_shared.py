"""Shared transactions: members, receipts and commits against a coordinator (A11.3)."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
import trio

import raftmq
from raftmq.errors import (
    ErrorCode,
    InvalidTransaction,
    ProducerFenced,
    ReplayMismatch,
    TransactionAborted,
    UnknownTransaction,
)
from raftmq.model import AbortReason
from raftmq.wire.batch.header import read_header
from raftmq.wire.messages.transactions import MEMBERS_MAX
from tests.unit.client.producer.shell import in_log
from tests.unit.client.transactions.coordinator import committed_in, open_transactions
from tests.unit.client.world import refused, silent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from raftmq.client.client import Client

ID = "etl-7"


class ProgramError(Exception):
    """Of the program under test."""


def version_of(client: Client, number: int = 17, **options: Any) -> raftmq.SharedVersion:
    shared = client.shared_transaction(ID, **{"lineage": "checkpoint 1", **options})
    return shared.version(number)


async def written(version: raftmq.SharedVersion, *values: str) -> raftmq.Receipt:
    """By one member."""
    async with version.join() as member:
        await member.send_columns("t", values=values)
    return member.receipt


async def test_those_that_are_listed_count(autojump_clock: MockClock) -> None:
    """Three members write, two are listed; each is a producer of its own, in epoch 0."""
    async with open_transactions() as (coordinator, (world, _, client)):
        version = version_of(client)
        async with version.join() as first, version.join() as second:
            await first.send("t", "a")
            second.send_nowait("t", "b")
            await second.enqueue_columns("t", values=["c"])
            await second.flush()
            assert first.statistics.records == 1
        dropped = await written(version, "late copy")
        receipts = [pickle.loads(pickle.dumps(one.receipt)) for one in (first, second)]
        assert [one.count for one in receipts] == [1, 2]
        assert committed_in(coordinator, world) == []
        assert await version.commit(receipts) == raftmq.CommittedVersion(False, 3)
        assert committed_in(coordinator, world) == ["a", "b", "c"]
        assert dropped.number == 2
        headers = [read_header(data) for _, _, data in world.topics["t"].partitions[0].batches]
        assert {one.producer_id for one in headers} == {
            MEMBERS_MAX,
            MEMBERS_MAX + 1,
            MEMBERS_MAX + 2,
        }
        assert {one.producer_epoch for one in headers} == {0}
        assert all(one.is_transactional for one in headers)


async def test_a_version_is_committed_once(autojump_clock: MockClock) -> None:
    """Who comes later is told so, with the rows; its members drop and count what they are given."""
    async with open_transactions() as (coordinator, (world, _, client)):
        version = version_of(client)
        receipts = [await written(version, "a", "b"), await written(version, "c")]
        assert not (await version.commit(receipts)).is_repeated
        assert await version.commit(receipts) == raftmq.CommittedVersion(True, 3)
        async with version.join() as member:
            assert member.is_done
            assert (await member.send("t", "a")).offset == -1
            assert (await (await member.enqueue("t", "b"))).offset == -1
            member.send_nowait("t", "c")
            assert await member.send_columns("t", values=["d"]) == []
            await member.enqueue_columns("t", values=["e"])
            assert await member.send_many("t", ["f"]) == []
            assert await member.send_many("t", iter(["g", "h"])) == []
            assert await member.send_many("t", slowly("i")) == []
            await member.flush()
        again = member.receipt
        assert (again.is_done, again.block, again.number, again.count) == (True, -1, -1, 9)
        with pytest.raises(ReplayMismatch, match="with 3 rows, and now has 9"):
            await version.commit([again])
        assert await version.commit([again], count=3) == raftmq.CommittedVersion(True, 3)
        assert committed_in(coordinator, world) == ["a", "b", "c"] == in_log(world)
        assert await version_of(client, 18).commit([]) == raftmq.CommittedVersion(False, 0)
        assert await version.commit(receipts) == raftmq.CommittedVersion(True, None)


async def slowly(*rows: str) -> AsyncIterator[str]:
    for row in rows:
        await trio.sleep(1)
        yield row


async def test_what_was_dropped_is_never_committed_as_nothing(autojump_clock: MockClock) -> None:
    """Members were told that it is done, then the id is forgotten: a commit says so instead."""
    async with open_transactions() as (coordinator, (_, _, client)):
        version = version_of(client)
        await version.commit([await written(version, "a")])
        async with version.join() as member:
            await member.send("t", "a")
        coordinator.shared.clear()
        with pytest.raises(UnknownTransaction, match="the id was forgotten since"):
            await version.commit([member.receipt])
        assert coordinator.shared == {}
        async with version.join() as member:
            assert not member.is_done


async def test_without_records_no_member_is_listed(autojump_clock: MockClock) -> None:
    """A member that has sent nothing, no member at all: an empty version is one, too."""
    async with open_transactions() as (coordinator, (_, _, client)):
        version = version_of(client)
        async with version.join() as member:
            pass
        assert (member.receipt.block, member.receipt.number, member.receipt.count) == (-1, -1, 0)
        assert await version.commit([member.receipt]) == raftmq.CommittedVersion(False, 0)
        assert await version_of(client, 18).commit([]) == raftmq.CommittedVersion(False, 0)
        assert [one.producer_id for one in coordinator.commits] == [-1, -1]
        with pytest.raises(ReplayMismatch):
            await version_of(client, 18).commit([], count=1)


async def test_a_lower_version_gives_way(autojump_clock: MockClock) -> None:
    """The begin of a higher one aborts it; its members, and new ones, are told."""
    async with open_transactions() as (coordinator, (world, _, client)):
        version = version_of(client)
        receipt = await written(version, "a")
        higher = version_of(client, 18)
        async with higher.join() as member:
            await member.send("t", "b")
        with pytest.raises(ProducerFenced):
            await written(version, "c")
        with pytest.raises(TransactionAborted) as caught:
            await version.commit([receipt])
        assert caught.value.reason == "owner"
        await higher.commit([member.receipt])
        assert committed_in(coordinator, world) == ["b"]


async def test_receipts_of_two_openings(autojump_clock: MockClock) -> None:
    """Time has ended the version between two tasks: what the first has written is gone."""
    async with open_transactions() as (coordinator, (_, _, client)):
        version = version_of(client)
        first = await written(version, "a")
        coordinator.abort_version(coordinator.shared[ID], AbortReason.TIMEOUT)
        second = await written(version, "b")
        with pytest.raises(TransactionAborted, match="begun anew"):
            await version.commit([first, second])
        assert coordinator.commits == []
        with pytest.raises(TransactionAborted) as caught:
            await version.commit([first])
        assert caught.value.reason == "timeout"
        assert not (await version.commit([second])).is_repeated


async def test_whose_versions_these_are(autojump_clock: MockClock) -> None:
    """Numbers that begin anew are another lineage's: neither joined, nor committed, nor aborted."""
    async with open_transactions() as (_, (_, _, client)):
        version = version_of(client)
        receipt = await written(version, "a")
        other = version_of(client, lineage="checkpoint 2")
        with pytest.raises(InvalidTransaction, match="another id"):
            await written(other, "b")
        with pytest.raises(InvalidTransaction, match="another id"):
            await other.commit([])
        with pytest.raises(InvalidTransaction, match="another id"):
            await other.abort()
        with pytest.raises(InvalidTransaction, match="lineage 'checkpoint 2': a receipt is of"):
            await other.commit([receipt])
        with pytest.raises(InvalidTransaction, match=r"version 18 .* a receipt is of version 17"):
            await version_of(client, 18).commit([receipt])
        with pytest.raises(TypeError, match="a receipt is expected, and an int was given"):
            await version.commit([1])  # type: ignore[list-item]


async def test_abort(autojump_clock: MockClock) -> None:
    """Nothing of it counts; the same version may be tried again. What is committed stays."""
    async with open_transactions() as (coordinator, (world, _, client)):
        version = version_of(client)
        assert await version.abort() is None  # never begun
        receipt = await written(version, "a")
        await version.abort()
        await version.abort()
        with pytest.raises(TransactionAborted) as caught:
            await version.commit([receipt])
        assert caught.value.reason == "program"
        await version.commit([await written(version, "b")])
        assert await version.abort() == raftmq.CommittedVersion(True, 1)
        assert committed_in(coordinator, world) == ["b"]


async def test_a_block_that_fails_has_no_receipt(autojump_clock: MockClock) -> None:
    """An error of the program, a record that is given up, a cancelled block: what was not sent is
    given up, and others go on."""
    async with open_transactions() as (coordinator, (world, _, client)):
        version = version_of(client)
        with pytest.raises(ProgramError):  # noqa: PT012  # the block
            async with version.join(linger_ms=1000) as failed:
                delivery = await failed.enqueue("t", "a")
                raise ProgramError
        with pytest.raises(TransactionAborted):
            await delivery
        world.brokers[1].produces += [refused(ErrorCode.MESSAGE_TOO_LARGE)]
        with pytest.raises(TransactionAborted, match="record was given up") as caught:
            async with version.join() as refusing:
                await refusing.enqueue("t", "b")
        assert caught.value.reason == "failed send"
        world.brokers[1].produces += [refused(ErrorCode.MESSAGE_TOO_LARGE)]
        with pytest.raises(TransactionAborted):  # noqa: PT012  # the block
            async with version.join() as caught_by_program:
                with pytest.raises(TransactionAborted):
                    await caught_by_program.send("t", "c")
        with trio.CancelScope() as scope:
            async with version.join(linger_ms=1000) as cancelled:
                await cancelled.enqueue("t", "d")
                scope.cancel()
        world.brokers[1].produces += [silent]
        with trio.move_on_after(1) as scope:
            async with version.join() as cancelled_at_the_end:
                await cancelled_at_the_end.enqueue("t", "e")
        assert scope.cancelled_caught
        for one in (failed, refusing, caught_by_program, cancelled, cancelled_at_the_end):
            with pytest.raises(InvalidTransaction, match="no receipt"):
                _ = one.receipt
            with pytest.raises(InvalidTransaction, match="block has ended"):
                await one.send("t", "late")
        await version.commit([await written(version, "f")])
        assert committed_in(coordinator, world) == in_log(world) == ["f"]


async def test_time_counts_from_the_first_record(autojump_clock: MockClock) -> None:
    """Of the member, and by the version's timeout, which whoever has opened it has asked for."""
    async with open_transactions() as (_, (_, _, client)):
        version = version_of(client, transaction_timeout_ms=5_000)
        async with version.join():
            pass
        with pytest.raises(TransactionAborted, match="its time of 5 s is over") as caught:  # noqa: PT012
            async with version_of(client, transaction_timeout_ms=60_000).join() as member:
                await trio.sleep(10)
                await member.send("t", "a")
                await trio.sleep(3)
                await member.send("t", "b")
                await trio.sleep(1)
        assert caught.value.reason == "timeout"
        with pytest.raises(InvalidTransaction):
            _ = member.receipt
