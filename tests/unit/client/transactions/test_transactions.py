"""Transactions of a producer against brokers over the simulated network (A11.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from raftmq.errors import (
    Closed,
    ErrorCode,
    InvalidTransaction,
    OutcomeUnknown,
    ProducerFenced,
    TransactionAborted,
    UnsupportedVersion,
)
from raftmq.model import AbortReason
from raftmq.rpc.reply import Reply
from raftmq.wire.batch.header import read_header
from raftmq.wire.messages.producers import InitProducerIdReply
from raftmq.wire.messages.transactions import EndTxn
from tests.unit.client.producer.shell import in_log
from tests.unit.client.transactions.coordinator import committed_in, open_transactions
from tests.unit.client.world import done_and_lost, lost, refused, silent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock


ID: dict[str, Any] = {"transaction_id": "billing-1"}


class ProgramError(Exception):
    """Of the program under test."""


async def test_commit(autojump_clock: MockClock) -> None:
    """Several records, one decision that names the partition; each batch says whose it is."""
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**ID) as producer:
            for round_ in range(3):
                async with producer.transaction() as tx:
                    assert tx.state == "open"
                    found = await tx.send("t", f"a{round_}")
                    await tx.enqueue("t", f"b{round_}")
                    assert tx.outcome is None
                assert (tx.outcome, tx.state) == ("committed", "committed")
                assert found.offset >= 0
        assert committed_in(coordinator, world) == ["a0", "b0", "a1", "b1", "a2", "b2"]
        assert [one.partitions[0].partition for one in coordinator.commits] == [0, 0, 0]
        headers = [read_header(data) for _, _, data in world.topics["t"].partitions[0].batches]
        assert all(header.is_transactional for header in headers)
        assert [header.producer_epoch for header in headers] == [0, 0, 1, 1, 2, 2]
        assert [header.base_sequence for header in headers] == [0, 1] * 3


async def test_bulk(autojump_clock: MockClock) -> None:
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**ID) as producer, producer.transaction() as tx:
            await tx.send_many("t", ["a", "b"])
            await tx.send_columns("t", values=["c", "d"])
            tx.send_nowait("t", "e")
            await tx.enqueue_columns("t", values=["f", "g"])
        assert committed_in(coordinator, world) == list("abcdefg")


async def test_an_error_of_the_program_aborts(autojump_clock: MockClock) -> None:
    """It goes on, nothing counts, and the producer is as good as before."""
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**ID) as producer:
            with pytest.raises(ProgramError):  # noqa: PT012  # the block
                async with producer.transaction() as tx:
                    await tx.send("t", "a")
                    raise ProgramError
            assert tx.outcome == "aborted"
            async with producer.transaction() as tx:
                await tx.send("t", "b")
        assert (in_log(world), committed_in(coordinator, world)) == (["a", "b"], ["b"])


async def test_records_that_were_not_sent_yet_leave_no_more(autojump_clock: MockClock) -> None:
    """An abort empties the queues: nothing of it leaves under the number of the next one."""
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**ID, linger_ms=1000) as producer:
            async with producer.transaction() as tx:
                delivery = await tx.enqueue("t", "a")
                await tx.abort()
                with pytest.raises(InvalidTransaction):
                    await tx.send("t", "b")
            with pytest.raises(TransactionAborted):
                await delivery
            async with producer.transaction() as tx:
                await tx.send("t", "c")
        assert in_log(world) == ["c"]
        assert committed_in(coordinator, world) == ["c"]


async def test_nothing_to_decide_costs_no_request(autojump_clock: MockClock) -> None:
    async with open_transactions() as (coordinator, (_, _, client)):
        async with client.producer(**ID) as producer:
            async with producer.transaction() as tx:
                pass
            assert tx.outcome == "committed"
            async with producer.transaction() as tx:
                await tx.abort()
            assert tx.outcome == "aborted"
        assert not [one for one in coordinator.asked if isinstance(one, EndTxn)]


async def test_a_send_that_is_given_up_aborts(autojump_clock: MockClock) -> None:
    """It cannot be committed any more; what was refused is the cause, and it is definite."""
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**ID) as producer:
            world.brokers[1].produces += [refused(ErrorCode.MESSAGE_TOO_LARGE)]
            with pytest.raises(TransactionAborted, match="record was given up") as caught:
                async with producer.transaction() as tx:
                    await tx.enqueue("t", "a")
            assert (caught.value.reason, caught.value.definite) == ("failed send", True)
            assert tx.outcome == "aborted"
            async with producer.transaction() as tx:
                await tx.send("t", "b")
        assert committed_in(coordinator, world) == ["b"]
        assert not next(one for one in coordinator.asked if isinstance(one, EndTxn)).is_commit


async def test_a_caught_failure_does_not_commit(autojump_clock: MockClock) -> None:
    """The program swallows the error of a send: its transaction is aborted nevertheless."""
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**ID) as producer:
            world.brokers[1].produces += [refused(ErrorCode.MESSAGE_TOO_LARGE)]
            with pytest.raises(TransactionAborted):  # noqa: PT012  # the block
                async with producer.transaction() as tx:
                    with pytest.raises(TransactionAborted):
                        await tx.send("t", "a")
                    with pytest.raises(TransactionAborted):
                        await tx.send("t", "b")
        assert committed_in(coordinator, world) == []


async def test_an_answer_that_is_lost(autojump_clock: MockClock) -> None:
    """A produce request and an end are carried out, and their answers lost: both are repeated."""
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**ID) as producer:
            world.brokers[1].produces += [done_and_lost]
            coordinator.ends += [done_and_lost]
            async with producer.transaction() as tx:
                await tx.send("t", "a")
            assert tx.outcome == "committed"
        assert committed_in(coordinator, world) == ["a"]
        assert len(coordinator.commits) == 2


async def test_another_owner(autojump_clock: MockClock) -> None:
    """The first producer can do nothing any more, for good."""
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**ID) as first:
            with pytest.raises(ProducerFenced):  # noqa: PT012  # the block
                async with first.transaction() as tx:
                    await tx.send("t", "a")
                    async with client.producer(**ID) as second, second.transaction() as other:
                        await other.send("t", "b")
            assert (tx.outcome, tx.state) == ("aborted", "aborted")
            for _ in range(2):
                with pytest.raises(ProducerFenced):
                    async with first.transaction():
                        pass
        assert committed_in(coordinator, world) == ["b"]


@pytest.mark.parametrize(
    ("reason", "word"), [(AbortReason.TIMEOUT, "timeout"), (AbortReason.OPERATOR, "operator")]
)
async def test_ended_by_others(autojump_clock: MockClock, reason: AbortReason, word: str) -> None:
    """By time, or by an operator: the program is told which, and goes on."""
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**ID) as producer:
            with pytest.raises(TransactionAborted) as caught:  # noqa: PT012  # the block
                async with producer.transaction() as tx:
                    await tx.send("t", "a")
                    coordinator.abort("billing-1", reason)
            assert caught.value.reason == word
            async with producer.transaction() as tx:
                await tx.send("t", "b")
        assert committed_in(coordinator, world) == ["b"]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (AbortReason.TIMEOUT, "'billing-1': its time of 60 s is over"),
        (AbortReason.OPERATOR, "'billing-1' was aborted by an operator"),
    ],
)
async def test_a_record_of_what_was_ended_by_others(
    autojump_clock: MockClock, reason: AbortReason, words: str
) -> None:
    """The broker that refuses the record does not know why; the end of the block says it."""
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**ID) as producer:
            for is_awaited in (True, False):
                with pytest.raises(TransactionAborted, match=words) as caught:  # noqa: PT012
                    async with producer.transaction() as tx:
                        await tx.send("t", "a")
                        coordinator.abort("billing-1", reason)
                        world.brokers[1].produces += [refused(ErrorCode.TRANSACTION_ABORTABLE)]
                        await (tx.send if is_awaited else tx.enqueue)("t", "b")
                assert (caught.value.reason, tx.outcome) == (reason.name.lower(), "aborted")
        assert committed_in(coordinator, world) == []


async def test_its_time_is_over(autojump_clock: MockClock) -> None:
    """A second before, nothing is committed any more: it is aborted."""
    async with open_transactions() as (coordinator, (world, _, client)):
        options = {**ID, "transaction_timeout_ms": 5000}
        async with client.producer(**options) as producer:
            with pytest.raises(TransactionAborted) as caught:  # noqa: PT012  # the block
                async with producer.transaction() as tx:
                    await tx.send("t", "a")
                    await trio.sleep(4.1)
            assert caught.value.reason == "timeout"
            async with producer.transaction() as tx:
                await tx.send("t", "b")
                await trio.sleep(3.9)
        assert committed_in(coordinator, world) == ["b"]


async def test_its_time_is_over_before_the_block_ends(autojump_clock: MockClock) -> None:
    """The program learns it with the next record, and nothing leaves any more; where nothing has
    left yet, no time is counted."""
    async with open_transactions() as (coordinator, (world, _, client)):
        options = {**ID, "transaction_timeout_ms": 5000}
        async with client.producer(**options) as producer:
            with pytest.raises(TransactionAborted):  # noqa: PT012  # the block
                async with producer.transaction() as tx:
                    await trio.sleep(20)
                    await tx.send("t", "a")
                    await trio.sleep(3.9)
                    await tx.send("t", "b")
                    assert tx.state == "open"
                    await trio.sleep(0.2)
                    assert tx.state == "must abort"
                    with pytest.raises(TransactionAborted) as caught:
                        await tx.send("t", "c")
                    assert caught.value.reason == "timeout"
            assert (tx.outcome, in_log(world)) == ("aborted", ["a", "b"])
        assert not coordinator.commits


async def test_rows_that_come_late(autojump_clock: MockClock) -> None:
    """A task sends slow rows, and the transaction ends before the last: they do not join the next
    one."""
    async with open_transactions() as (coordinator, (world, tasks, client)):
        async with client.producer(**ID) as producer:
            told: list[InvalidTransaction] = []

            async def rows() -> AsyncIterator[str]:
                yield "a"
                await trio.sleep(0.5)  # the end of a portion
                yield "b"
                await trio.sleep(5)
                yield "x"

            async def send(tx: Any) -> None:
                try:
                    await tx.send_many("t", rows())
                except InvalidTransaction as error:
                    told.append(error)

            async with producer.transaction() as tx:
                tasks.start_soon(send, tx)
                await trio.sleep(1)
            async with producer.transaction() as tx:
                await trio.sleep(10)
                await tx.send("t", "c")
        assert len(told) == 1
        assert committed_in(coordinator, world) == ["a", "b", "c"]


async def test_a_short_time(autojump_clock: MockClock) -> None:
    """Of the shortest one that may be asked for, most is left to send and to commit in."""
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**ID, transaction_timeout_ms=1000) as producer:
            async with producer.transaction() as tx:
                await tx.send("t", "a")
                await trio.sleep(0.7)
            with pytest.raises(TransactionAborted):  # noqa: PT012  # the block
                async with producer.transaction() as tx:
                    await tx.send("t", "b")
                    await trio.sleep(0.8)
        assert committed_in(coordinator, world) == ["a"]


async def test_no_answer_to_a_commit(autojump_clock: MockClock) -> None:
    """OutcomeUnknown; asking again tells, and the next transaction asks first."""
    async with open_transactions() as (coordinator, (world, _, client)):
        options = {**ID, "transaction_timeout_ms": 5000, "request_timeout_ms": 1000}
        async with client.producer(**options) as producer:
            for is_resolved in (True, False):
                coordinator.ends += [done_and_lost, *[silent] * 8]
                with pytest.raises(OutcomeUnknown):
                    async with producer.transaction() as tx:
                        await tx.send("t", "a")
                assert (tx.outcome, tx.state) == (None, "unknown")
                coordinator.ends.clear()
                if is_resolved:
                    assert await tx.resolve() == "committed"
                async with producer.transaction() as following:
                    await following.send("t", "b")
                assert tx.outcome == "committed"
        assert committed_in(coordinator, world) == ["a", "b", "a", "b"]


async def test_no_answer_and_not_carried_out(autojump_clock: MockClock) -> None:
    """Once its time is over, asking again does not commit: it is aborted then."""
    async with open_transactions() as (coordinator, (world, _, client)):
        options = {**ID, "transaction_timeout_ms": 5000, "request_timeout_ms": 1000}
        async with client.producer(**options) as producer:
            coordinator.ends += [lost] * 40
            with pytest.raises(OutcomeUnknown):
                async with producer.transaction() as tx:
                    await tx.send("t", "a")
            coordinator.ends.clear()
            await trio.sleep(10)
            assert await tx.resolve() == "aborted"
        assert committed_in(coordinator, world) == []


async def test_cancelled_in_the_middle(autojump_clock: MockClock) -> None:
    """It is aborted at once, not when its time is over."""
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**ID) as producer:
            with trio.move_on_after(1):
                async with producer.transaction() as tx:
                    await tx.send("t", "a")
                    await trio.sleep_forever()
            assert tx.outcome == "aborted"
        assert list(coordinator.decided.values()) == [False]
        assert in_log(world) == ["a"]


async def test_cancelled_while_it_is_committed(autojump_clock: MockClock) -> None:
    """The commit had left: the next transaction learns first what became of it."""
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**ID) as producer:
            coordinator.ends += [silent]
            with trio.move_on_after(1):
                async with producer.transaction() as tx:
                    await tx.send("t", "a")
            assert tx.state == "unknown"
            async with producer.transaction() as following:
                await following.send("t", "b")
            assert tx.outcome == "committed"
        assert committed_in(coordinator, world) == ["a", "b"]


async def test_a_version_is_committed_once(autojump_clock: MockClock) -> None:
    """The second attempt, by another producer, drops what is sent, and says so."""
    async with open_transactions() as (coordinator, (world, _, client)):
        for is_done in (False, True):
            async with client.producer(**ID) as producer:
                async with producer.transaction(version=17) as tx:
                    assert tx.is_done == is_done
                    sent = await tx.send("t", "a")
                    assert (sent.offset == -1) == is_done
                    delivery = tx.send_nowait("t", "b")
                    assert ((await delivery).offset == -1) == is_done
                    await tx.send_many("t", ["c"])
                assert tx.outcome == "committed"
                async with producer.transaction(version=18 + is_done) as tx:
                    assert not tx.is_done
        assert committed_in(coordinator, world) == ["a", "b", "c"]
        assert coordinator.rows["billing-1"].last_version == 19
        assert [one.count for one in coordinator.commits] == [3, 0, 0]


async def test_offsets(autojump_clock: MockClock) -> None:
    """Given by numbers: they are decided with the records, or not at all."""
    async with open_transactions() as (coordinator, (_, _, client)):
        async with client.producer(**ID) as producer:
            async with producer.transaction() as tx:
                tx.commit_offsets({("t", 0): 42}, group="billing")
            with pytest.raises(ProgramError):  # noqa: PT012  # the block
                async with producer.transaction() as tx:
                    tx.commit_offsets({("t", 0): 43}, group="billing")
                    raise ProgramError
        assert coordinator.offsets == {"billing": {0: 42}}


async def test_a_group_refuses_what_had_no_answer(autojump_clock: MockClock) -> None:
    """The next transaction asks again; it says so while there is no answer, and where the group
    refuses now, the one before is aborted first."""
    async with open_transactions() as (coordinator, (world, _, client)):
        options = {**ID, "request_timeout_ms": 1000, "delivery_timeout_ms": 3000}
        async with client.producer(**options) as producer:
            coordinator.ends += [lost] * 40
            with pytest.raises(OutcomeUnknown):  # noqa: PT012  # the block
                async with producer.transaction() as tx:
                    await tx.send("t", "a")
                    tx.commit_offsets({("t", 0): 42}, group="billing")
            with pytest.raises(OutcomeUnknown):
                async with producer.transaction():
                    pass
            coordinator.ends[:] = [refused(ErrorCode.ILLEGAL_GENERATION)]
            async with producer.transaction() as following:
                await following.send("t", "b")
            assert (tx.outcome, following.outcome) == ("aborted", "committed")
        assert (coordinator.offsets, committed_in(coordinator, world)) == ({}, ["b"])


async def test_a_group_refuses(autojump_clock: MockClock) -> None:
    """Asked once more, then aborted with that reason."""
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**ID) as producer:
            coordinator.ends += [refused(ErrorCode.ILLEGAL_GENERATION)] * 2
            with pytest.raises(TransactionAborted) as caught:  # noqa: PT012  # the block
                async with producer.transaction() as tx:
                    await tx.send("t", "a")
                    tx.commit_offsets({("t", 0): 42}, group="billing")
            assert caught.value.reason == "group"
            assert len(coordinator.commits) == 2
            coordinator.ends += [refused(ErrorCode.FENCED_INSTANCE_ID)]
            with pytest.raises(ProducerFenced):
                async with producer.transaction() as tx:
                    tx.commit_offsets({("t", 0): 42}, group="billing")
            assert tx.outcome == "aborted"
            with pytest.raises(ProducerFenced):
                async with producer.transaction():
                    pass
        assert (coordinator.offsets, committed_in(coordinator, world)) == ({}, [])


async def test_the_coordinator_moves(autojump_clock: MockClock) -> None:
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**ID) as producer:
            coordinator.broker_id = 2
            async with producer.transaction() as tx:
                await tx.send("t", "a")
        assert committed_in(coordinator, world) == ["a"]


async def test_the_id_was_forgotten(autojump_clock: MockClock) -> None:
    """The producer has slept for longer than ids are kept: it opens anew by itself."""
    async with open_transactions() as (coordinator, (world, _, client)):
        async with client.producer(**ID) as producer:
            async with producer.transaction() as tx:
                await tx.send("t", "a")
            coordinator.rows.clear()
            with pytest.raises(TransactionAborted):
                async with producer.transaction() as tx:
                    await tx.send("t", "b")
            async with producer.transaction() as tx:
                await tx.send("t", "c")
        assert committed_in(coordinator, world) == ["a", "c"]


async def test_an_id_of_its_own(autojump_clock: MockClock) -> None:
    """`transactions=True`: no other producer has the id, and it is soon forgotten."""
    async with open_transactions() as (coordinator, (world, _, client)):
        for value in "ab":
            async with client.producer(transactions=True) as producer, producer.transaction() as tx:
                await tx.send("t", value)
        assert len(coordinator.rows) == 2
        assert all(one.is_ephemeral for one in coordinator.asked if not isinstance(one, EndTxn))
        assert committed_in(coordinator, world) == ["a", "b"]


async def test_the_id_cannot_be_opened(autojump_clock: MockClock) -> None:
    """Entering the producer's block raises, and leaves nothing behind."""
    async with open_transactions() as (coordinator, (_, _, client)):
        coordinator.opens += [refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT)]
        producer = client.producer(**ID)
        with pytest.raises(Exception, match="INVALID_TRANSACTION_TIMEOUT"):
            async with producer:
                pass
        with pytest.raises(Closed):
            await producer.send("t", "a")


async def test_the_id_opens_later_than_a_transaction_may_take(autojump_clock: MockClock) -> None:
    """Nothing is open meanwhile: it has as much time as a send. The shortest time of a transaction
    that is allowed is enough to commit one.
    """
    async with open_transactions() as (coordinator, (world, _, client)):
        began_at = trio.current_time()
        coordinator.opens += [refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)] * 8
        async with client.producer(**ID, transaction_timeout_ms=1000) as producer:
            assert trio.current_time() > began_at + 1
            async with producer.transaction() as tx:
                await tx.send("t", "a")
        assert committed_in(coordinator, world) == ["a"]


async def test_the_coordinator_is_of_an_older_version(autojump_clock: MockClock) -> None:
    """It knows no transaction ids, and takes the request for that of a plain producer."""
    async with open_transactions() as (coordinator, (_, _, client)):
        coordinator.opens += [lambda _: Reply(InitProducerIdReply(producer_id=5))]
        with pytest.raises(UnsupportedVersion, match="upgrade all nodes"):
            async with client.producer(**ID):
                pass


async def test_a_task_that_waits_for_memory(autojump_clock: MockClock) -> None:
    """Its record was not accepted when the transaction ended: it does not join the next one."""
    async with open_transactions() as (coordinator, (world, tasks, client)):
        options = {**ID, "buffer_memory": 1 << 20, "max_request_size": 1 << 20, "linger_ms": 50}
        async with client.producer(**options) as producer:
            told: list[BaseException] = []

            async def send(tx: Any) -> None:
                try:
                    await tx.enqueue("t", b"x" * (1 << 19))
                except InvalidTransaction as error:
                    told.append(error)

            async with producer.transaction() as tx:
                await tx.enqueue("t", b"y" * (1 << 19))
                tasks.start_soon(send, tx)
                await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()
            async with producer.transaction() as tx:
                await tx.send("t", "a")
        assert len(told) == 1
        assert [value[:1] for value in committed_in(coordinator, world)] == ["y", "a"]
