"""Proposals of two leader epochs are under way at once: each is settled for itself."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.broker.replication.isr_proposals import IsrProposals
from raftmq.errors import ErrorCode, RequestTimedOut
from raftmq.metadata.commands import AlterPartition, Refused
from raftmq.partition.leader import IsrMember, ProposeIsr
from raftmq.partition.replica import Replica
from raftmq.partition.replica_environment import PartitionKey, ReplicaEnvironment
from raftmq.partition.storage.directory import open_log_directory
from tests.simulation.deterministic import run_inline
from tests.simulation.disk import SimulatedFiles
from tests.unit.storage.batches import NOW_MS
from tests.unit.storage.directories import ROOT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from raftmq.errors import RaftmqError
    from raftmq.metadata.commands import AnyCommand, AnyResult, CommandId

DEPOSED = Refused(ErrorCode.FENCED_LEADER_EPOCH, "there was an election since")
OLD = ProposeIsr((IsrMember(1, 10),), leader_epoch=4, partition_epoch=7)
NEW = ProposeIsr((IsrMember(1, 10), IsrMember(2, 20)), leader_epoch=5, partition_epoch=8)


class HeldLink:
    """Answers when the test says so.

    Attributes:
        asked: the ids under which each leader epoch has asked.
    """

    def __init__(self) -> None:
        self.asked: dict[int, list[CommandId | None]] = {}
        self._outcomes: dict[int, AnyResult | RaftmqError] = {}
        self._answered = trio.Event()

    async def propose(
        self,
        command: AnyCommand,
        *,
        timeout: float,  # noqa: ASYNC109  # as in the protocol
        command_id: CommandId | None,
    ) -> AnyResult:
        assert isinstance(command, AlterPartition)
        epoch = command.leader_epoch
        self.asked.setdefault(epoch, []).append(command_id)
        while epoch not in self._outcomes:
            await self._answered.wait()
        outcome = self._outcomes.pop(epoch)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def answer(self, proposal: ProposeIsr, outcome: AnyResult | RaftmqError) -> None:
        self._outcomes[proposal.leader_epoch] = outcome
        self._answered.set()
        self._answered = trio.Event()
        await trio.sleep(2.0)  # longer than what is refused rests


@asynccontextmanager
async def two_under_way(link: HeldLink) -> AsyncIterator[tuple[IsrProposals, Replica]]:
    """The one of a later epoch takes the place of the other, which has no answer yet."""
    async with (
        open_log_directory(
            ROOT, files=SimulatedFiles(Random(0)), run_sync=run_inline, now_ms=lambda: NOW_MS
        ) as directory,
        trio.open_nursery() as nursery,
    ):
        log = await directory.open_log("t-1", 0)
        around = ReplicaEnvironment(1, lambda _: 10, lambda *_: None, lambda _: None)
        replica = Replica(PartitionKey(bytes(16), 0), log, directory, around, high_watermark=0)
        proposals = IsrProposals(1, link, broker_epoch=lambda: 10, random=Random(0))
        nursery.start_soon(proposals.run)
        for proposal in (OLD, NEW):
            proposals.propose(replica, proposal)
            await trio.sleep(0.1)
        yield proposals, replica
        nursery.cancel_scope.cancel()


async def test_proposals_without_an_answer_are_told_once_a_minute(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no controller: a line says how many partitions wait, not one for each of them."""
    caplog.set_level(logging.INFO)
    link = HeldLink()
    async with two_under_way(link) as (proposals, replica):
        for _ in range(20):
            await link.answer(NEW, RequestTimedOut("no controller"))
            await link.answer(OLD, RequestTimedOut("no controller"))
            for proposal in (OLD, NEW):
                proposals.propose(replica, proposal)
    lines = [it.getMessage() for it in caplog.records if "unanswered" in it.getMessage()]
    assert (
        lines
        == ["isr proposals unanswered: partitions=1 log=t-1/Partition-0 reason=no controller"] * 2
    )


@pytest.mark.parametrize("outcome", [DEPOSED, RequestTimedOut("no answer")], ids=repr)
async def test_an_older_proposal_ends_and_the_newer_one_keeps_its_id(
    outcome: AnyResult | RaftmqError, autojump_clock: MockClock
) -> None:
    """What is repeated later is still the same command, whatever became of the older one."""
    link = HeldLink()
    async with two_under_way(link) as (proposals, replica):
        await link.answer(OLD, outcome)
        proposals.propose(replica, NEW)
        await trio.sleep(0.1)
        first, again = link.asked[NEW.leader_epoch]
        assert first == again
        assert first not in link.asked[OLD.leader_epoch]


@pytest.mark.parametrize("outcome", [DEPOSED, RequestTimedOut("no answer")], ids=repr)
async def test_an_older_proposal_ends_after_the_newer_one(
    outcome: AnyResult | RaftmqError, autojump_clock: MockClock
) -> None:
    """Nothing is known of the older one any more when its answer comes, and nothing is left."""
    link = HeldLink()
    async with two_under_way(link) as (proposals, _):
        await link.answer(NEW, DEPOSED)
        await link.answer(OLD, outcome)
        assert not proposals._unsettled
