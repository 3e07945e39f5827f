"""Random drivers and tasks of shared transactions, whose requests and answers are lost (A11.3)."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from raftmq.client.transactions.members import MemberMachine
from raftmq.errors import ErrorCode, OutcomeUnknown, TransactionAborted
from raftmq.model import AbortReason
from tests.unit.client.transactions.coordinator import committed_in, open_transactions
from tests.unit.client.transactions.test_shared import ID, version_of
from tests.unit.client.world import done_and_lost, done_and_refused, lost, refused, silent

if TYPE_CHECKING:
    from trio.testing import MockClock

    import raftmq
    from tests.unit.client.transactions.coordinator import Coordinator
    from tests.unit.client.world import Step, World

VERSIONS, TASKS, LIVES_MAX = 4, 3, 30
SEEDS = 10


def passed_over(*_: object) -> None:
    """A program that does not look what became of its records."""


class Walk:
    """Drivers of one job, one after the other, each of which runs all tasks of a version."""

    def __init__(self, seed: int, coordinator: Coordinator, world: World) -> None:
        self._random, self._coordinator, self._world = Random(seed), coordinator, world
        self._written = 0

    def _trouble(self) -> list[Step]:
        steps = [
            lost,
            done_and_lost,
            silent,
            refused(ErrorCode.CONCURRENT_TRANSACTIONS),
            done_and_refused(ErrorCode.REQUEST_TIMED_OUT),
        ]
        return self._random.choices(steps, k=self._random.choice((0, 0, 0, 1, 2)))

    async def _attempt(self, version: raftmq.SharedVersion, task: int, life: int) -> raftmq.Receipt:
        """The receipt of the last of some attempts."""
        for _ in range(self._random.choice((1, 1, 2))):
            self._coordinator.joins += self._trouble()
            if self._random.random() < 0.2:
                kinds = lost, done_and_lost, refused(ErrorCode.MESSAGE_TOO_LARGE)
                self._world.brokers[1].produces += [self._random.choice(kinds)]
            self._written += 1
            value = f"version {version.number} task {task} life {life} write {self._written}"
            async with version.join() as member:
                member.send_nowait("t", value, on_delivery=passed_over)
        return member.receipt

    async def _live(self, version: raftmq.SharedVersion, life: int) -> bool:
        """One driver: whether it knows in the end that the version is committed."""
        receipts = [await self._attempt(version, task, life) for task in range(TASKS)]
        chance = self._random.random()
        if chance < 0.15:  # it dies
            return False
        if chance < 0.25:
            await version.abort()
        elif chance < 0.35 and self._coordinator.shared[ID].version == version.number:
            self._coordinator.abort_version(self._coordinator.shared[ID], AbortReason.TIMEOUT)
        self._coordinator.ends += self._trouble()
        if self._random.random() < 0.1:  # no answer in time
            self._coordinator.ends += [silent] * 10
        try:
            outcome = await version.commit(receipts)
        except (TransactionAborted, OutcomeUnknown):
            return False
        finally:
            self._coordinator.ends.clear()
        assert outcome.count == TASKS
        return True

    async def run(self, version: raftmq.SharedVersion) -> None:
        for life in range(LIVES_MAX):
            try:
                if await self._live(version, life):
                    return
            except TransactionAborted:  # a record was given up
                pass
        raise AssertionError("never committed")


async def walk_once(seed: int) -> None:
    async with open_transactions() as (coordinator, (world, _, client)):
        walk = Walk(seed, coordinator, world)
        for number in range(VERSIONS):
            await walk.run(version_of(client, number))
        words = [value.split() for value in committed_in(coordinator, world)]
        found = [(int(version), int(task)) for _, version, _, task, *_ in words]
        assert sorted(found) == [(one, task) for one in range(VERSIONS) for task in range(TASKS)]
        assert len({(version, life) for _, version, _, _, _, life, *_ in words}) == VERSIONS


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_each_task_counts_once(seed: int, autojump_clock: MockClock) -> None:
    """However often drivers die, and whatever is asked again: of each version that is committed
    readers get one record of each task, all of them of one driver's life."""
    await walk_once(seed)


async def test_a_planted_bug_is_found(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that is given up leaves a receipt all the same."""
    monkeypatch.setattr(MemberMachine, "end", lambda *_: None)
    found = 0
    for seed in range(SEEDS):
        try:
            await walk_once(seed)
        except ExceptionGroup as errors:  # of the world's nursery
            found += errors.subgroup(AssertionError) is not None
    assert found >= 3
