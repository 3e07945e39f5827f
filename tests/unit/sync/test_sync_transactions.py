"""Transactions of `raftmq.sync`: what was handed in belongs to its transaction, to all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import ErrorCode, InvalidTransaction, ProducerFenced, TransactionAborted
from raftmq.model import AbortReason
from raftmq.sync.producer import Producer
from tests.unit.client.transactions.coordinator import committed_in, open_transactions
from tests.unit.client.world import refused
from tests.unit.sync.loop_here import LoopHere

if TYPE_CHECKING:
    from trio.testing import MockClock

MANY = [b"a%d" % number + 400 * b" " for number in range(300)]  # more than the buffer holds


async def test_an_end_does_not_overtake_what_was_handed_in(autojump_clock: MockClock) -> None:
    """Records wait to be taken over when the block ends: they are sent first."""
    async with open_transactions() as (coordinator, stage), trio.open_nursery() as nursery:
        loop = LoopHere(nursery)
        options = {"buffer_memory": 64 << 10, "batch_size": 8 << 10, "max_request_size": 16 << 10}
        inner = stage.client.producer(transaction_id="a", **options)

        def program() -> None:
            with Producer(loop, inner, 1 << 20) as producer:
                for _ in range(2):
                    with producer.transaction() as tx:
                        for value in MANY:
                            tx.enqueue("t", value)
                    assert tx.outcome == "committed"
                with producer.transaction(version=1) as tx:
                    tx.send_many("t", iter([b"b"]))
                    tx.send_columns("t", values=[b"c"])
                    tx.commit_offsets({("t", 0): 7}, group="billing")
                with producer.transaction(version=1) as tx:
                    assert tx.is_done
                    assert tx.send("t", b"d").offset == -1
                    assert tx.enqueue("t", b"e").result().offset == -1
                    assert tx.send_nowait("t", b"f").is_done
                    assert tx.send_many("t", [b"g"]) == []

        await loop.run(program)
        assert committed_in(coordinator, stage.world) == [
            *[value.decode() for value in MANY * 2],
            "b",
            "c",
        ]
        assert coordinator.offsets == {"billing": {0: 7}}
        assert [len(one.partitions) for one in coordinator.commits] == [1, 1, 1]


async def test_errors_abort(autojump_clock: MockClock) -> None:
    """Of the program, and of a record that was given up; sends outside are refused at once."""
    async with open_transactions() as (coordinator, stage), trio.open_nursery() as nursery:
        loop = LoopHere(nursery)
        inner = stage.client.producer(transaction_id="a")

        def program() -> None:
            with Producer(loop, inner, 1 << 20) as producer:
                with pytest.raises(InvalidTransaction):
                    producer.send_nowait("t", b"a")
                with pytest.raises(KeyError), producer.transaction() as tx:  # noqa: PT012
                    tx.send("t", b"b")
                    raise KeyError
                assert tx.resolve() == "aborted"
                stage.world.brokers[1].produces += [refused(ErrorCode.MESSAGE_TOO_LARGE)]
                with pytest.raises(TransactionAborted), producer.transaction() as tx:
                    tx.enqueue("t", b"c")
                with producer.transaction() as tx:
                    tx.send("t", b"d")
                    tx.abort()
                assert tx.state == "aborted"
                with producer.transaction() as tx:
                    tx.send("t", b"e")

        await loop.run(program)
        assert committed_in(coordinator, stage.world) == ["e"]


async def test_why_it_was_aborted(autojump_clock: MockClock) -> None:
    """A broker refuses a record and does not know why; the block is left with the reason, or with
    ProducerFenced where another producer has the id.
    """
    async with open_transactions() as (coordinator, stage), trio.open_nursery() as nursery:
        loop = LoopHere(nursery)
        inner = stage.client.producer(transaction_id="a")

        def fail(producer: Producer, reason: AbortReason) -> None:
            with producer.transaction() as tx:
                tx.send("t", b"a")
                coordinator.abort("a", reason)
                stage.world.brokers[1].produces += [refused(ErrorCode.TRANSACTION_ABORTABLE)]
                tx.send("t", b"b")

        def program() -> None:
            with Producer(loop, inner, 1 << 20) as producer:
                with pytest.raises(TransactionAborted, match="by an operator") as caught:
                    fail(producer, AbortReason.OPERATOR)
                assert caught.value.reason == "operator"
                with pytest.raises(ProducerFenced):
                    fail(producer, AbortReason.OWNER)

        await loop.run(program)
