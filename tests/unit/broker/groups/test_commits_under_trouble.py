"""Commits while the quorum changes its leader, loses answers and moves the slot: nothing that was
answered is lost, nothing that was refused happens, and nothing overtakes anything.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import ErrorCode, RaftmqError, error_for
from raftmq.metadata.machine import MetadataMachine
from tests.unit.broker.groups.coordinating import (
    ELSEWHERE,
    GROUP,
    HERE,
    Coordinating,
    coordinating,
    settle,
)

if TYPE_CHECKING:
    from trio.testing import MockClock

SECONDS = 40.0
PARTITIONS = 3


class Committer:
    """Commits one number after the other, each of them once.

    Attributes:
        done, refused: what was answered, and what certainly did not happen.
    """

    def __init__(self, here: Coordinating, partition: int, chance: Random) -> None:
        self._here, self._partition, self._chance = here, partition, chance
        self.done: list[int] = []
        self.refused: list[int] = []

    async def run(self) -> None:
        offset = 0
        while True:
            offset += 1
            reply = await self._here.commit(
                offset, self._partition, timeout_ms=self._chance.choice((500, 2_000, 30_000))
            )
            code = reply.error or reply.partitions[0].error
            if code == ErrorCode.NONE:
                self.done.append(offset)
                assert await self._fetched() >= offset
            elif error_for(code, "").definite:
                self.refused.append(offset)
            await trio.sleep(self._chance.uniform(0.0, 0.3))

    async def _fetched(self) -> int:
        """As soon as somebody can tell."""
        while True:
            try:
                return await self._here.fetched(self._partition)
            except AssertionError:  # an answer with an error: not the coordinator, or no quorum
                await trio.sleep(0.2)


async def make_trouble(here: Coordinating, chance: Random) -> None:
    cluster = here.cluster
    while True:
        await trio.sleep(chance.uniform(0.1, 2.0))
        match chance.randrange(7):
            case 0:
                cluster.elect(keep_pending=chance.random() < 0.5)
            case 1:
                cluster.depose(keep_pending=chance.random() < 0.5)
                await trio.sleep(chance.uniform(0.1, 4.0))
                cluster.elect()
            case 2:
                cluster.lose_answers(chance.randrange(1, 4), applied=chance.random() < 0.7)
            case 3:
                cluster.delay_seconds = chance.choice((0.0, 0.05, 1.0))
            case 4:
                cluster.follow_seconds = chance.choice((0.0, 0.05, 2.0))
            case _:
                await move(here, chance.choice((ELSEWHERE, HERE, HERE)))


async def move(here: Coordinating, broker_id: int) -> None:
    """Again and again, as the controller does."""
    while True:
        try:
            await here.give(broker_id)
            return
        except (RaftmqError, AssertionError):  # no leader, or it was moved by the attempt before
            await trio.sleep(0.1)


def applied(here: Coordinating) -> dict[int, list[int]]:
    """What each partition was set to, in the order of the log, repetitions left out."""
    machine, found = MetadataMachine(), {n: list[int]() for n in range(PARTITIONS)}
    for entry in here.cluster.log:
        machine.apply(entry.raft_index, entry.data)
        for key, offset in machine.image.offsets.get(GROUP, {}).items():
            if found[key.partition][-1:] != [offset.offset]:
                found[key.partition].append(offset.offset)
    return found


@pytest.mark.parametrize("seed", range(4))
async def test_what_was_answered_stays_and_what_was_refused_does_not_come(
    seed: int, autojump_clock: MockClock
) -> None:
    """Forty seconds of troubles, and as many of rest."""
    chance = Random(seed)
    async with coordinating() as here:
        committers = [Committer(here, n, chance) for n in range(PARTITIONS)]
        with trio.move_on_after(SECONDS):
            async with trio.open_nursery() as nursery:
                for one in committers:
                    nursery.start_soon(one.run)
                nursery.start_soon(make_trouble, here, chance)
        if here.cluster.leader_id is None:
            here.cluster.elect()
        here.cluster.delay_seconds = here.cluster.follow_seconds = 0.0
        await trio.sleep(SECONDS)
        await move(here, HERE)
        await settle(10.0)
        history = applied(here)
        for number, one in enumerate(committers):
            told = history[number]
            assert told == sorted(told), "something was overtaken"
            assert not set(told) & set(one.refused), "what was refused has happened"
            assert set(one.done) <= set(told), "what was answered has not happened"
            assert (await here.fetched(number)) >= one.done[-1]
        assert sum(len(one.done) for one in committers) > 20
