"""Clients of a quorum that live in its own process: they commit offsets whenever their node leads.

Owns the load and the telling of its outcomes. Each client waits for one outcome before it proposes
the next; outcomes of one turn of the loop are told together, right after it.
"""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING

import trio

from raftmq.errors import NotController, ProposalDiscarded, ProposalUncertain, QuorumBusy
from raftmq.metadata.commands import (
    NO_BROKER,
    AssignSlot,
    BrokerRegistered,
    CommitOffsets,
    GroupCommits,
    OffsetsCommitted,
    RegisterBroker,
    UnfenceBroker,
)
from raftmq.metadata.image import slot_of
from tests.cluster.quorum_holding import GROUP, commit_of
from tests.cluster.quorum_words import KEYS_PER_LIFE, Acknowledged, Denied, Uncertain, encode

if TYPE_CHECKING:
    from raftmq.metadata.quorum import MetadataQuorum
    from tests.cluster.quorum_words import Told

BROKER = 1
SLOT = slot_of(GROUP)


def tell(told: Told) -> None:
    """All of it, at once; the parent reads all the time, so this does not wait."""
    rest = encode(told)
    while rest:
        rest = rest[os.write(1, rest) :]


class Load:
    """`work` and `rest` switch it on and off; on at first."""

    def __init__(self, quorum: MetadataQuorum, *, life: int, clients: int) -> None:
        self._quorum, self._clients = quorum, clients
        self._keys = count(life * KEYS_PER_LIFE)
        self._preparing = trio.Lock()
        self._is_working = trio.Event()
        self._outcomes: dict[type[Acknowledged | Denied | Uncertain], list[int]] = {}
        self._has_outcomes = trio.Event()
        self.work()

    def work(self) -> None:
        self._is_working.set()

    def rest(self) -> None:
        self._is_working = trio.Event()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_outcomes)
            for _ in range(self._clients):
                nursery.start_soon(self._run_client)

    async def _run_client(self) -> None:
        while True:
            await self._wait_on_duty()
            try:
                slot_epoch = await self._prepared()
            except (NotController, ProposalDiscarded, ProposalUncertain):
                continue
            await self._commit(next(self._keys), slot_epoch)

    async def _wait_on_duty(self) -> None:
        await self._is_working.wait()
        while not (leadership := self._quorum.leadership).is_leader:
            await self._quorum.wait_leadership_changed(leadership)

    async def _commit(self, key: int, slot_epoch: int) -> None:
        command = CommitOffsets(SLOT, slot_epoch, (GroupCommits(GROUP, (commit_of(key),)),))
        try:
            result = await self._quorum.propose(command)
        except (NotController, ProposalDiscarded, QuorumBusy):
            self._note(Denied, key)
        except ProposalUncertain:
            self._note(Uncertain, key)
        else:
            assert result == OffsetsCommitted(), result
            self._note(Acknowledged, key)

    def _note(self, outcome: type[Acknowledged | Denied | Uncertain], key: int) -> None:
        self._outcomes.setdefault(outcome, []).append(key)
        self._has_outcomes.set()

    async def _tell_outcomes(self) -> None:
        while True:
            await self._has_outcomes.wait()
            self._has_outcomes, outcomes, self._outcomes = trio.Event(), self._outcomes, {}
            for outcome, keys in outcomes.items():
                tell(outcome(keys))

    async def _prepared(self) -> int:
        """The epoch of the slot, which somebody takes once in the life of the cluster."""
        slot = self._quorum.image.slots[SLOT]
        while slot.broker_id == NO_BROKER:
            async with self._preparing:
                slot = (await self._quorum.read_barrier()).slots[SLOT]
                if slot.broker_id == NO_BROKER:
                    await self._prepare()
        return slot.epoch

    async def _prepare(self) -> None:
        """Each step may have been done before, by a leader that did not live to see the answer."""
        registration = RegisterBroker(BROKER, b"i" * 16, b"d" * 16)
        registered = await self._quorum.propose(registration)
        assert isinstance(registered, BrokerRegistered), registered
        await self._quorum.propose(UnfenceBroker(BROKER, registered.broker_epoch))
        await self._quorum.propose(AssignSlot(SLOT, 0, BROKER))
