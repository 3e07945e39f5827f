"""Simulated clients of the quorum: registers, unique writes, producer ids; retries and time-outs.

They write, compare and read registers, and allocate producer ids with a command id that is retried
until the outcome is known. An error's `definite` is taken as the outcome, and everything is
recorded in the history.
"""

from __future__ import annotations

from itertools import count
from random import Random
from typing import TYPE_CHECKING

import trio

from jepsen_like.checkers.registers import Kind, Operation, Outcome, Unknown
from raftmq.errors import NotController, RaftmqError
from raftmq.metadata.commands import (
    AllocateProducerIds,
    AssignSlot,
    BrokerRegistered,
    CommandId,
    CommitOffsets,
    GroupCommits,
    OffsetsCommitted,
    PartitionId,
    ProducerIdBlock,
    RegisterBroker,
    StoredOffset,
    UnfenceBroker,
)
from raftmq.metadata.image import slot_of
from tests.simulation.raft.checks import demand
from tests.simulation.raft.client_history import NOTHING, TOPIC, Block

if TYPE_CHECKING:
    from raftmq.metadata.commands import AnyCommand, AnyResult
    from tests.simulation.raft.hosts import Voter
    from tests.simulation.raft.world import World

SLOT_EPOCH = 1
REGISTERS = (("red", 0), ("red", 1), ("blue", 0))
BURST, BURST_SHARE = 30, 0.04
RETRIES_MAX = 20
READ_SECONDS_MAX = 3.0
WITNESS_SECONDS = 2.0


class Client:
    """One client, with one thing to do at a time (or a burst of writes)."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.history, self.number = world, world.history, number
        self._random = Random(f"{world.seed}/client/{number}")
        self._target = world.voters[number % len(world.voters)]
        self._epoch = NOTHING
        self._sequences = count()
        self._seen = dict.fromkeys(REGISTERS, NOTHING)

    async def run(self) -> None:
        """Until the world wants no more."""
        await self._register()
        actions = (self._write, self._compare, self._read, self._append, self._allocate)
        while not self.world.is_closing:
            await trio.sleep(self._random.expovariate(1 / self.world.plan.think_seconds))
            if self._random.random() < BURST_SHARE:
                await self._burst()
            else:
                await self._random.choice(actions)()

    async def burst_at(self, voter: Voter) -> None:
        """More than the others will have done by the time when this voter is back."""
        self._target = voter
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(self._burst)

    async def testify(self, watched: Voter | None, *, avoided: Voter) -> None:
        """Read at `watched` all the time; or be where another one leads, and write there, too."""
        end = trio.current_time() + WITNESS_SECONDS
        while trio.current_time() < end and not self.world.is_closing:
            voters = [voter for voter in self.world.voters if voter is not avoided]
            leaders = [voter for voter in voters if voter.leads]
            self._target = watched or self._random.choice(leaders or voters)
            await self._read()
            if watched is None and leaders and self._random.random() < 0.3:
                await self._write()
            await trio.sleep(self._random.uniform(0.002, 0.02))

    # Actions

    async def prepare(self) -> None:
        """A coordinator for every group, without which no offsets are committed."""
        await self._register()
        groups = ["probe", "log", *(group for group, _ in REGISTERS)]
        await self._insist(UnfenceBroker(100 + self.number, self._epoch))
        for slot in sorted({slot_of(group) for group in groups}):
            await self._insist(AssignSlot(slot, 0, 100 + self.number))

    async def _insist(self, command: AnyCommand) -> None:
        while await self._try(command) is None:  # noqa: ASYNC110  # it asks another node
            await trio.sleep(0.02)

    async def _register(self) -> None:
        """A retry is recognised by the incarnation."""
        incarnation = self.number.to_bytes(16, "big")
        command = RegisterBroker(100 + self.number, incarnation, incarnation)
        while not self.world.is_closing:
            result = await self._try(command)
            if isinstance(result, BrokerRegistered):
                self._epoch = result.broker_epoch
                return
            await trio.sleep(self._random.uniform(0.02, 0.1))

    async def _write(self) -> None:
        register = self._random.choice(REGISTERS)
        await self._commit_register(Kind.WRITE, register, expected=None)

    async def _compare(self) -> None:
        register = self._random.choice(REGISTERS)
        await self._commit_register(Kind.CAS, register, expected=self._seen[register])

    async def _commit_register(
        self, kind: Kind, register: tuple[str, int], *, expected: int | None
    ) -> None:
        value, invoked_at = next(self.history.values), next(self.history.clock)
        commit = StoredOffset(TOPIC, register[1], value, expected=expected)
        found: object = Unknown.VALUE
        try:
            result = await self._propose(_commits(register[0], commit))
        except RaftmqError as error:
            outcome = Outcome.FAIL if error.definite else Outcome.INFO
        else:
            assert isinstance(result, OffsetsCommitted), f"{result}"
            outcome = Outcome.FAIL if result.refused else Outcome.OK
            found = result.refused[0].offset if result.refused else Unknown.VALUE
            self._seen[register] = found if isinstance(found, int) else value
        self._note(kind, register, outcome, invoked_at, value, expected, found)

    async def _read(self) -> None:
        register, invoked_at = self._random.choice(REGISTERS), next(self.history.clock)
        quorum = self._target.quorum
        if quorum is None:
            self._choose(None)
            return
        with trio.move_on_after(READ_SECONDS_MAX) as timeout:
            try:
                image = await quorum.read_barrier()
            except NotController as error:
                self._choose(error)
                return
        if timeout.cancelled_caught:
            self._choose(None)
            return
        offset = image.offsets.get(register[0], {}).get(PartitionId(TOPIC, register[1]))
        value = NOTHING if offset is None else offset.offset
        self._seen[register] = value
        self._note(Kind.READ, register, Outcome.OK, invoked_at, value, None, Unknown.VALUE)

    async def _append(self) -> None:
        group, partition = "log", next(self.history.partitions)
        value = next(self.history.values)
        padding = "." * self.world.plan.padding_bytes
        commit = StoredOffset(TOPIC, partition, value, metadata=padding)
        result = await self._try(_commits(group, commit))
        if result is not None:
            demand(result == OffsetsCommitted(), f"{result}")
            self.history.acked[group, partition] = value

    async def _burst(self) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(BURST):
                nursery.start_soon(self._append)

    async def _allocate(self) -> None:
        """The same intention, again and again, until the answer is known."""
        sequence, size = next(self._sequences), self._random.randint(1, 5)
        command = AllocateProducerIds(100 + self.number, self._epoch, size)
        command_id = CommandId(100 + self.number, self._epoch, sequence)
        key = self.number, sequence
        self.history.blocks[key] = Block(self.number, self._epoch, sequence, size, None)
        for _ in range(RETRIES_MAX):
            result = await self._try(command, command_id)
            if isinstance(result, ProducerIdBlock):
                self.history.blocks[key] = self.history.blocks[key]._replace(first=result.first)
                if self._random.random() > 0.2 or self.world.is_closing:
                    return
                await self._ask_again(command, command_id, result)
                return
            demand(result is None, f"{command_id}: {result}")
            await trio.sleep(self._random.uniform(0.01, 0.2))

    async def _ask_again(
        self, command: AnyCommand, command_id: CommandId, answer: ProducerIdBlock
    ) -> None:
        again = await self._try(command, command_id)
        demand(again in (None, answer), f"{command_id}: {answer} the first time, then {again}")

    # How

    async def _try(
        self, command: AnyCommand, command_id: CommandId | None = None
    ) -> AnyResult | None:
        try:
            return await self._propose(command, command_id)
        except RaftmqError:
            return None

    async def _propose(self, command: AnyCommand, command_id: CommandId | None = None) -> AnyResult:
        target, quorum = self._target, self._target.quorum
        try:
            if quorum is None:
                raise NotController(f"{target.name} is down")
            timeout = self._random.choice((0.3, 1.0, 5.0))
            return await quorum.propose(command, command_id=command_id, timeout=timeout)
        except RaftmqError as error:
            self.history.refused += error.definite
            self.history.unknown += not error.definite
            self._choose(error)
            raise

    def _choose(self, error: RaftmqError | None) -> None:
        """The node to ask next: the leader, if it is known; else any node."""
        voters = self.world.voters
        leader = error.leader_id if isinstance(error, NotController) else None
        known = [voter for voter in voters if voter.node_id == leader]
        self._target = self._random.choice(known or voters)

    def _note(
        self,
        kind: Kind,
        register: tuple[str, int],
        outcome: Outcome,
        invoked_at: int,
        value: int,
        expected: int | None,
        found: object,
    ) -> None:
        operation = Operation(
            process=self.number,
            kind=kind,
            key=f"{register[0]}-{register[1]}",
            outcome=outcome,
            invoked_at=invoked_at,
            returned_at=next(self.history.clock),
            value=value,
            expected=expected,
            found=found,
        )
        self.history.operations.append(operation)
        self.world.trace(f"{operation}")


def _commits(group: str, commit: StoredOffset) -> CommitOffsets:
    return CommitOffsets(slot_of(group), SLOT_EPOCH, (GroupCommits(group, (commit,)),))


async def propose_somewhere(voters: list[Voter]) -> bool:
    """A write that the leader acknowledges."""
    for voter in voters:
        if voter.quorum is not None and voter.leads:
            try:
                await voter.quorum.propose(_commits("probe", StoredOffset(TOPIC, 0, 1)), timeout=1)
            except RaftmqError:
                return False
            return True
    return False
