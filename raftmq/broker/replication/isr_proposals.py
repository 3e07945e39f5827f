"""Leaders' wishes for their in-sync sets, on their way to the controller and back.

Owns what each answer means for whoever asked. A proposal whose fate is unknown is repeated under
the same command id until it is settled: an earlier attempt that comes late, after a refusal, would
put somebody into the set who does not count for the leader. What was refused may be asked for
again under another id.
"""

from __future__ import annotations

import logging
from itertools import count
from typing import TYPE_CHECKING, NoReturn, Protocol

import trio

from raftmq.errors import ErrorCode, RaftmqError
from raftmq.metadata.commands import (
    AlterPartition,
    CommandId,
    PartitionAltered,
    RecoveryState,
    Refused,
)
from raftmq.metadata.commands import ProposedIsrMember as Member

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from raftmq.metadata.commands import AnyCommand, AnyResult
    from raftmq.partition.leader import ProposeIsr
    from raftmq.partition.replica import Replica
    from raftmq.partition.replica_environment import PartitionKey

PROPOSE_SECONDS = 5.0
PAUSE_SECONDS = 0.5  # before the same is asked again, give or take a half

# Nothing has changed and this proposal never will: what was committed holds. After any other
# refusal the leader waits for metadata that it has not seen yet.
HOPELESS = frozenset({ErrorCode.INELIGIBLE_REPLICA})

logger = logging.getLogger("raftmq.broker")


class IsrProposalLink(Protocol):
    async def propose(
        self,
        command: AnyCommand,
        *,
        timeout: float,  # noqa: ASYNC109  # part of the outcome
        command_id: CommandId | None,
    ) -> AnyResult:
        """On whichever node leads the quorum; raises RaftmqError."""


class IsrProposals:
    """At most one for each partition is under way: the rules of the leader see to it."""

    def __init__(
        self,
        broker_id: int,
        link: IsrProposalLink,
        *,
        broker_epoch: Callable[[], int],
        random: Random,
        sequences: Iterator[int] | None = None,
    ) -> None:
        """`sequences`: of the ids of all commands of this broker, if others give out such ids."""
        self._broker_id, self._link, self._random = broker_id, link, random
        self._broker_epoch = broker_epoch
        self._sequences = sequences or count(1)
        self._unsettled: dict[PartitionKey, tuple[ProposeIsr, CommandId]] = {}
        self._nursery: trio.Nursery | None = None
        self._early: list[tuple[Replica, ProposeIsr]] = []

    def propose(self, replica: Replica, proposal: ProposeIsr) -> None:
        if self._nursery is None:
            self._early.append((replica, proposal))
        else:
            self._nursery.start_soon(self._carry, replica, proposal)

    async def run(self) -> NoReturn:
        try:
            async with trio.open_nursery() as self._nursery:
                for replica, proposal in self._early:
                    self.propose(replica, proposal)
                self._early.clear()
                await trio.sleep_forever()
        finally:
            self._nursery = None
        raise AssertionError("sleeps for ever")

    async def _carry(self, replica: Replica, proposal: ProposeIsr) -> None:
        command = self._command(replica, proposal)
        command_id = self._id_of(replica.key, proposal)
        try:
            result = await self._link.propose(
                command, timeout=PROPOSE_SECONDS, command_id=command_id
            )
        except RaftmqError as error:
            logger.info("isr proposal unanswered: log=%s reason=%s", replica.log.name, error)
            await self._pause()
            if not replica.on_isr_unknown(proposal):
                self._forget(replica.key, proposal, command_id)
            return
        self._forget(replica.key, proposal, command_id)
        await self._settle(replica, proposal, result)

    def _forget(self, key: PartitionKey, proposal: ProposeIsr, command_id: CommandId) -> None:
        """Settled, or wanted no more; a later epoch's stays."""
        if self._unsettled.get(key) == (proposal, command_id):
            del self._unsettled[key]

    def _id_of(self, key: PartitionKey, proposal: ProposeIsr) -> CommandId:
        """The one of its earlier attempts, if there were any under this registration."""
        epoch = self._broker_epoch()
        known, command_id = self._unsettled.get(key, (None, None))
        if command_id is None or known != proposal or command_id.epoch != epoch:
            command_id = CommandId(self._broker_id, epoch, next(self._sequences))
        self._unsettled[key] = (proposal, command_id)
        return command_id

    async def _settle(self, replica: Replica, proposal: ProposeIsr, result: AnyResult) -> None:
        match result:
            case PartitionAltered():
                await self._take_up(replica, result)
            case Refused(ErrorCode.NOT_CONTROLLER):  # it has not heard of what we know
                await self._pause()
                replica.on_isr_unknown(proposal)
            case Refused(code, message):
                logger.info("isr refused: log=%s reason=%s", replica.log.name, message)
                if code in HOPELESS:
                    await self._pause()
                    replica.on_isr_refused(proposal)
            case unexpected:
                raise AssertionError(f"{unexpected} to an AlterPartition")

    async def _take_up(self, replica: Replica, altered: PartitionAltered) -> None:
        """The answer may be here before the image is."""
        known = replica.assignment
        if known is None or known.leader_epoch != altered.leader_epoch:
            return  # the image will say what became of it
        await replica.take_up(
            known._replace(
                leader=altered.leader,
                partition_epoch=altered.partition_epoch,
                isr=altered.isr,
                is_recovering=altered.recovery_state is RecoveryState.RECOVERING,
            )
        )

    def _command(self, replica: Replica, proposal: ProposeIsr) -> AlterPartition:
        return AlterPartition(
            self._broker_id,
            self._broker_epoch(),
            replica.key.topic_id,
            replica.key.partition,
            proposal.leader_epoch,
            proposal.partition_epoch,
            tuple(Member(member.broker_id, member.broker_epoch) for member in proposal.isr),
        )

    async def _pause(self) -> None:
        await trio.sleep(PAUSE_SECONDS * self._random.uniform(0.5, 1.5))
