"""A transaction that is cancelled at any of its steps: never committed unless the commit had left,
never open for longer than the second that its abort may take (A11.3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from raftmq.client.transactions.records import TransactionPhase
from raftmq.client.transactions.session import ABORT_SECONDS_MAX
from raftmq.wire.batch.header import read_header
from tests.simulation.deterministic import run
from tests.unit.client.cancelling import CancelAt
from tests.unit.client.transactions.coordinator import Coordinator, open_transactions
from tests.unit.client.world import World, done_and_lost, lost, silent

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.client.producer.producer import Producer
    from tests.unit.client.world import Step

STEPS_MAX = 400  # a block takes fewer


async def block(producer: Producer) -> None:
    """With every kind of wait."""
    async with producer.transaction() as tx:
        await tx.send("t", "a")
        await tx.enqueue("t", "b")
        await tx.send_many("t", ["c", "d"])
        tx.commit_offsets({("t", 0): 7}, group="g")


async def cancelled_at(steps: int, producer: Producer) -> float | None:
    """Seconds that the end of the block took; None: it was over before."""
    with trio.CancelScope() as scope:
        counter = CancelAt(steps, scope)
        trio.lowlevel.add_instrument(counter)
        try:
            await block(producer)
        finally:
            trio.lowlevel.remove_instrument(counter)
            began = trio.current_time()
    return trio.current_time() - began if scope.cancelled_caught else None


def numbers_in_log(world: World) -> set[tuple[int, int]]:
    """Of all transactions that have something in a log."""
    found = set()
    for topic in world.topics.values():
        for partition in topic.partitions:
            for _, _, data in partition.batches:
                header = read_header(data)
                if header.is_transactional:
                    found.add((header.producer_id, header.producer_epoch))
    return found


def test_at_each_step() -> None:
    """The coordinator answers. Before its commit has left, the transaction is aborted when the
    block has ended; after that it is known when the next one begins.

    A seed fixes the order of tasks: few steps lie between the decision and its answer, and in one
    order of a hundred there is none.
    """
    run("cancelled at each step", cancel_at_each_step)


async def cancel_at_each_step() -> None:
    async with open_transactions() as (coordinator, (world, _, client)):
        steps, outcomes = 0, set[object]()
        while True:
            steps += 1
            transaction_id = f"cancelled at {steps}"
            async with client.producer(transaction_id=transaction_id) as producer:
                seconds = await cancelled_at(steps, producer)
                if seconds is None:
                    break
                number = number_of(coordinator, transaction_id)
                assert seconds <= ABORT_SECONDS_MAX, steps
                if not is_commit_out(producer):
                    assert not coordinator.decided.get(number), steps
                    assert number not in numbers_in_log(world) or number in coordinator.decided
                before = coordinator.decided.get(number)
                await block(producer)
                if number in numbers_in_log(world):
                    assert number in coordinator.decided, steps
                    assert before in (None, coordinator.decided[number]), steps
                outcomes.add(before)
            assert numbers_in_log(world) <= coordinator.decided.keys(), steps
        assert outcomes == {None, True, False}  # of the cancelled ones
        assert 30 < steps < STEPS_MAX


@pytest.mark.parametrize("step", [silent, lost, done_and_lost])
async def test_at_each_step_without_answers(autojump_clock: MockClock, step: Step) -> None:
    """The coordinator does not answer at first: the block ends after the second, and the next
    transaction asks before it begins."""
    for steps in range(1, STEPS_MAX, 7):
        async with open_transactions() as (coordinator, (world, _, client)):
            options: dict[str, Any] = {"transaction_id": "a", "request_timeout_ms": 2000}
            async with client.producer(**options) as producer:
                coordinator.ends += [step] * 2
                seconds = await cancelled_at(steps, producer)
                coordinator.ends.clear()
                if seconds is None:
                    break
                assert seconds <= ABORT_SECONDS_MAX, steps
                await block(producer)
            assert numbers_in_log(world) <= coordinator.decided.keys(), steps
    assert 30 < steps < STEPS_MAX - 7


def is_commit_out(producer: Producer) -> bool:
    """It was asked, and not answered."""
    assert producer._session is not None
    return producer._session.machine.phase is TransactionPhase.UNKNOWN


def number_of(coordinator: Coordinator, transaction_id: str) -> tuple[int, int]:
    """Of its first transaction: nothing else was opened."""
    return coordinator.rows[transaction_id].producer_id, 0
