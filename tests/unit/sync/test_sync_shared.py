"""Shared transactions of `raftmq.sync`: what was handed in is in the receipt, all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

import raftmq
from raftmq.errors import (
    ErrorCode,
    InvalidTransaction,
    ReplayMismatch,
    TransactionAborted,
)
from raftmq.sync.shared import SharedTransaction
from tests.unit.client.producer.shell import in_log
from tests.unit.client.transactions.coordinator import committed_in, open_transactions
from tests.unit.client.world import refused
from tests.unit.sync.loop_here import LoopHere

if TYPE_CHECKING:
    from trio.testing import MockClock

MANY = [b"a%d" % number + 400 * b" " for number in range(300)]  # more than the buffer holds


async def test_members_and_a_commit(autojump_clock: MockClock) -> None:
    """Records wait to be taken over when the block ends: they are in its receipt. Who comes again
    drops and counts."""
    async with open_transactions() as (coordinator, stage), trio.open_nursery() as nursery:
        loop = LoopHere(nursery)
        inner = stage.client.shared_transaction("etl-7", lineage="")

        def program() -> None:
            version = SharedTransaction(loop, inner).version(1)
            small = {"buffer_memory": 128 << 10, "batch_size": 8 << 10, "max_request_size": 16384}
            with version.join(**small) as first, version.join(value_serializer=str) as second:
                for value in MANY:
                    first.enqueue("t", value)
                second.send("t", 1)
                second.send_many("t", iter([2]))
                second.enqueue_columns("t", values=[3])
                second.flush()
                assert second.statistics.records == 3
            receipts = [first.receipt, second.receipt]
            assert version.commit(iter(receipts)) == raftmq.CommittedVersion(False, 303)
            with version.join() as again:
                assert again.is_done
                for value in MANY:
                    again.enqueue("t", value)
                again.send_many("t", iter([b"1", b"2"]))
                again.send_columns("t", values=[b"3"])
            assert version.commit([again.receipt]).is_repeated
            with pytest.raises(ReplayMismatch):
                version.commit([])

        await loop.run(program)
        expected = [*[value.decode() for value in MANY], "1", "2", "3"]
        assert sorted(committed_in(coordinator, stage.world)) == sorted(expected)


async def test_errors_leave_no_receipt(autojump_clock: MockClock) -> None:
    """Of the program, and of a record that was given up; sends outside are refused at once."""
    async with open_transactions() as (_, stage), trio.open_nursery() as nursery:
        loop = LoopHere(nursery)
        inner = stage.client.shared_transaction("etl-7", lineage="")

        def program() -> None:
            version = SharedTransaction(loop, inner).version(1)
            with pytest.raises(KeyError), version.join() as failed:
                raise KeyError
            stage.world.brokers[1].produces += [refused(ErrorCode.MESSAGE_TOO_LARGE)]
            with pytest.raises(TransactionAborted), version.join() as refusing:
                refusing.enqueue("t", b"a")
            for one in (failed, refusing):
                with pytest.raises(InvalidTransaction, match="no receipt"):
                    _ = one.receipt
                with pytest.raises(InvalidTransaction, match="block has ended"):
                    one.send_nowait("t", b"late")
            version.abort()
            assert "etl-7" in repr(version)

        await loop.run(program)
        assert in_log(stage.world) == []
