"""Elections on demand, and partitions that start empty on other brokers as their own are lost.

Owns the request: preferred leaders; with `is_unclean` any replica that is active; with
`starts_empty` brokers that have no replica at all, where no broker with one is active. Each
partition stands for itself. Which replica may lead, the metadata's rules say: a partition starts
empty by a reassignment, which loses nothing, and an unclean election after it, which is refused
where a replica in sync has come back meanwhile.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from raftmq.broker.metadata_changes import ChangeStep, plan_each
from raftmq.errors import ElectionNotNeeded, InvalidReplicationFactor, InvalidRequest
from raftmq.metadata.commands import ElectionKind, ElectLeader, PartitionId, ReassignPartition
from raftmq.metadata.placement import check_room, hosting_also, hosts_of, place
from raftmq.rpc.reply import Reply
from raftmq.wire.bodies import PartitionOutcome
from raftmq.wire.messages.topics import ElectLeaders, ElectLeadersReply

if TYPE_CHECKING:
    from random import Random

    from raftmq.broker.metadata_changes import Change, MetadataChanges
    from raftmq.metadata.image import MetadataImage, PartitionState
    from raftmq.metadata.placement import BrokerUsage
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.server import Handlers
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.messages.topics import WantedElection


class ElectionRequests:
    """`chance` places the replicas of partitions that start empty."""

    def __init__(self, changes: MetadataChanges, chance: Random) -> None:
        self._changes, self._chance = changes, chance

    def handlers(self) -> Handlers:
        return {ElectLeaders: self.elect}

    async def elect(
        self, _context: RequestContext, request: ElectLeaders, _payload: Buffer
    ) -> Reply:
        image = self._changes.image
        starts = EmptyStarts(image, self._chance)

        def plan(wanted: WantedElection) -> Change:
            if request.starts_empty:
                return starts.plan(wanted)
            if request.is_unclean:
                return _unclean(image, wanted)
            return (_election(image, wanted, ElectionKind.PREFERRED),)

        planned = plan_each(request.partitions, plan, key=lambda it: (it.topic_id, it.partition))
        outcomes = await self._changes.make(planned, timeout_ms=request.timeout_ms)
        told = [
            PartitionOutcome(wanted.topic_id, wanted.partition, outcome.code, outcome.message)
            for wanted, outcome in zip(request.partitions, outcomes, strict=True)
        ]
        return Reply(ElectLeadersReply(tuple(told)))


def _election(before: MetadataImage, wanted: WantedElection, kind: ElectionKind) -> ChangeStep:
    """Every election raises the leader epoch; that it was this one cannot be proved."""
    key = PartitionId(wanted.topic_id, wanted.partition)
    known = before.partitions.get(key)

    def is_shown(image: MetadataImage) -> bool:
        state = image.partitions.get(key)
        if state is None:  # unknown before and now: wait for it to appear
            return known is not None  # deleted meanwhile
        return known is None or state.leader_epoch > known.leader_epoch

    return ChangeStep(ElectLeader(*key, kind, wanted.leader_epoch), is_shown)


def _unclean(image: MetadataImage, wanted: WantedElection) -> Change:
    """An empty start that was interrupted has left new replicas, which come before all others in an
    election. They are taken back where a replica has come back that may have records.
    """
    key = PartitionId(wanted.topic_id, wanted.partition)
    known, election = image.partitions.get(key), _election(image, wanted, ElectionKind.UNCLEAN)
    if known is None or not _active_holders(image, known):
        return (election,)
    trusted = {*known.isr, *known.eligible, *known.last_known_eligible}
    if not known.adding or not trusted.isdisjoint(known.adding):
        return (election,)
    back = ReassignPartition(*key, known.partition_epoch, None)
    return ChangeStep(back, lambda _image: True), election


# -- Starting empty -------------------------------------------------------------------------------


class EmptyStarts:
    """The plans of one request, which spread their replicas over the brokers."""

    def __init__(self, image: MetadataImage, chance: Random) -> None:
        self._image, self._chance = image, chance
        self._hosts: list[BrokerUsage] | None = None
        self._placed = Counter[int]()  # replicas, by broker

    def plan(self, wanted: WantedElection) -> Change:
        """
        Raises:
            ElectionNotNeeded: it has a leader.
            InvalidRequest: a broker that has a replica is active.
            InvalidReplicationFactor: no broker is active.
            InvalidPartitions: a broker has no room for it.
        """
        image, key = self._image, PartitionId(wanted.topic_id, wanted.partition)
        known = image.partitions.get(key)
        election = _election(image, wanted, ElectionKind.UNCLEAN)
        if known is None:  # the election is refused, with the reason
            return (election,)
        _check_lost(image, known)
        # An earlier attempt got as far as the reassignment.
        if any(map(image.is_unfenced, known.adding)):
            return (election,)
        replicas = self._place(len(known.replicas) - len(known.removing))

        def is_moving(now: MetadataImage) -> bool:
            state = now.partitions.get(key)
            return state is None or set(replicas) <= set(state.replicas)

        move = ReassignPartition(*key, known.partition_epoch, replicas)
        return ChangeStep(move, is_moving), election

    def _place(self, wanted_factor: int) -> tuple[int, ...]:
        # Counted once: it takes a look at every partition of the cluster.
        hosts = hosts_of(self._image) if self._hosts is None else self._hosts
        factor = min(wanted_factor, len(hosts))
        if not factor:
            raise InvalidReplicationFactor("no broker is active: start one")
        assignments = place(
            hosts, partition_count=1, replication_factor=factor, chance=self._chance
        )
        placed = self._placed + Counter(assignments[0])
        check_room(self._image, placed)
        self._hosts, self._placed = hosting_also(hosts, assignments), placed
        return assignments[0]


def _check_lost(image: MetadataImage, state: PartitionState) -> None:
    # As for any election: what was asked for twice must not look as if it had failed.
    if image.is_unfenced(state.leader):
        raise ElectionNotNeeded(f"broker {state.leader} leads")
    holders = _active_holders(image, state)
    if holders:
        raise InvalidRequest(
            f"of replicas {list(state.replicas)} broker {holders[0]} is active: only what no active"
            " broker has may start empty; `raftmq cluster leaders --unclean TOPIC PARTITION` elects"
            " that replica as it is"
        )


def _active_holders(image: MetadataImage, state: PartitionState) -> list[int]:
    """A replica that an empty start has added has nothing."""
    return [one for one in state.replicas if one not in state.adding and image.is_unfenced(one)]
