"""ISR changes: proposals of partition leaders (AlterPartition) on their way to the controller.

Owns what each answer means for the leader. A proposal whose outcome is unknown is repeated under
the same command id until it is settled: an earlier attempt that is applied late, after a refusal,
would put a replica into the ISR that the leader does not count. What was refused may be proposed
again under another id. (Kafka: AlterPartitionManager)
"""

from __future__ import annotations

import logging
from itertools import count
from typing import TYPE_CHECKING, NoReturn

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
from raftmq.rpc.network import LogThrottle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from raftmq.broker.controller_link import ControllerLink
    from raftmq.metadata.commands import AnyResult
    from raftmq.partition.leader import ProposeIsr
    from raftmq.partition.replica import Replica
    from raftmq.partition.replica_environment import PartitionKey

PROPOSE_SECONDS = 5.0  # for one attempt; an election of the quorum takes up to two
PAUSE_SECONDS = 0.5  # before the next attempt, +-50 %, so that partitions do not retry at once

# Nothing was changed and this proposal never will be applied; the committed ISR holds. After any
# other refusal the leader waits for metadata that it has not seen yet.
HOPELESS = frozenset({ErrorCode.INELIGIBLE_REPLICA})

logger = logging.getLogger("raftmq.broker")


class IsrProposals:
    """At most one proposal per partition is in flight: the rules of the leader see to it."""

    def __init__(
        self,
        broker_id: int,
        link: ControllerLink,
        *,
        broker_epoch: Callable[[], int],
        random: Random,
        sequences: Iterator[int] | None = None,
    ) -> None:
        """`sequences`: of all command ids of this broker, where others draw from them too."""
        self._broker_id, self._link, self._random = broker_id, link, random
        self._broker_epoch = broker_epoch
        self._sequences = sequences or count(1)
        self._unsettled: dict[PartitionKey, tuple[ProposeIsr, CommandId]] = {}
        self._nursery: trio.Nursery | None = None
        self._early: list[tuple[Replica, ProposeIsr]] = []
        self._of_unanswered = LogThrottle()

    def propose(self, replica: Replica, proposal: ProposeIsr) -> None:
        # Replicas take up their roles before `run` begins.
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
                await trio.sleep_forever()  # proposals run in this nursery
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
        # Indefinite or not: the leader decides whether to propose it again.
        except RaftmqError as error:
            if self._of_unanswered.is_due():  # without a controller, all partitions repeat theirs
                waiting, name = len(self._unsettled), replica.log.name
                told = "isr proposals unanswered: partitions=%d log=%s reason=%s"
                logger.info(told, waiting, name, error)
            await self._pause()  # the quorum may be electing: do not propose again at once
            # It keeps wanting it: then the id is needed for the repetition.
            if not replica.on_isr_unknown(proposal):
                self._forget(replica.key, proposal, command_id)
            return
        self._forget(replica.key, proposal, command_id)
        # Refused proposals wait a moment before the next.
        await self._settle(replica, proposal, result)

    def _forget(self, key: PartitionKey, proposal: ProposeIsr, command_id: CommandId) -> None:
        """Settled, or not wanted any more; a proposal of a later epoch stays."""
        if self._unsettled.get(key) == (proposal, command_id):
            del self._unsettled[key]

    def _id_of(self, key: PartitionKey, proposal: ProposeIsr) -> CommandId:
        """The id of its earlier attempts, if any were made under this registration."""
        epoch = self._broker_epoch()
        known, command_id = self._unsettled.get(key, (None, None))
        # A new registration voids the ids of the one before.
        if command_id is None or known != proposal or command_id.epoch != epoch:
            command_id = CommandId(self._broker_id, epoch, next(self._sequences))
        self._unsettled[key] = (proposal, command_id)
        return command_id

    async def _settle(self, replica: Replica, proposal: ProposeIsr, result: AnyResult) -> None:
        match result:  # applied, not heard of yet there, or refused
            case PartitionAltered():
                # Waits for a truncation under way.
                await self._take_up(replica, result)
            case Refused(ErrorCode.NOT_CONTROLLER):  # that node's metadata is behind ours
                await self._pause()  # metadata on its way makes the next attempt succeed
                replica.on_isr_unknown(proposal)
            case Refused(code, message):
                logger.info("isr refused: log=%s reason=%s", replica.log.name, message)
                # Other refusals mean stale epochs: newer metadata is on its way and settles it.
                if code in HOPELESS:
                    await self._pause()  # the leader proposes again at its next tick: not in a loop
                    replica.on_isr_refused(proposal)
            case unexpected:
                raise AssertionError(f"{unexpected} to an AlterPartition")

    async def _take_up(self, replica: Replica, altered: PartitionAltered) -> None:
        """Apply the answer at once: it may arrive before the image that shows it."""
        known = replica.assignment
        # Another leader epoch has begun: the image decides.
        if known is None or known.leader_epoch != altered.leader_epoch:
            return
        # Waits for a truncation under way; then the leader counts by the new ISR.
        await replica.take_up(
            known.altered(
                altered.partition_epoch,
                altered.isr,
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
        # Until a new image or a new leader may have come.
        await trio.sleep(PAUSE_SECONDS * self._random.uniform(0.5, 1.5))
