"""Judges the moves of a simulated cluster: limits, wishes that are kept, what is in sync.

Owns its own count of what is under way, made from the image alone. The limits are the controller's:
they are asked of what the one in office proposes, as commands of a deposed one may come late.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from raftmq.metadata.commands import (
    NO_EPOCH,
    NO_VERSION,
    CancelMove,
    DeleteTopic,
    PartitionId,
    PlanMove,
    ReassignPartition,
)
from raftmq.metadata.controller.moves import CLUSTER_MAX, INTO_BROKER_MAX, OUT_OF_LEADER_MAX
from tests.unit.metadata.states import seen

if TYPE_CHECKING:
    from collections.abc import Collection

    from raftmq.metadata.commands import AnyCommand
    from raftmq.metadata.image import MetadataImage, PartitionState


class MovesJudge:
    """Attributes:
    started, waited: how many planned moves have begun; how many times one waited for a limit.
    """

    def __init__(self) -> None:
        self._starting: dict[PartitionId, ReassignPartition] = {}  # by the controller in office
        self.started = self.waited = 0

    def on_office(self) -> None:
        """It does not know what its predecessor has proposed."""
        self._starting.clear()

    # Limits

    def on_proposed(self, image: MetadataImage, command: AnyCommand) -> None:
        if not isinstance(command, ReassignPartition):
            return
        key = PartitionId(command.topic_id, command.partition)
        partition, plan = image.partitions[key], image.moves[key]
        assert plan.planned_at == command.planned_at, f"{key}: {command} is not planned"
        assert plan.replicas == command.replicas, f"{key}: {command} is not planned"
        copies = self._copies(image)
        own = copies.pop(key, [])
        adding = set(plan.replicas) - set(partition.original) - set(partition.isr)
        if adding:
            assert image.is_unfenced(partition.leader), f"{key} begins, and nobody leads"
            assert all(map(image.is_active, adding)), f"{key} begins, and {adding} are not there"
            self._check_limits(image, key, adding - set(own), copies, has_place=bool(own))
        self._starting[key] = command
        self.waited += len(image.moves) > len(self._starting)

    def _copies(self, image: MetadataImage) -> dict[PartitionId, list[int]]:
        """Brokers that copy, by partition, as soon as all that is proposed has begun: they run, do
        not have everything, and somebody has it and gives it.
        """
        copies = {}
        for key, state in image.partitions.items():
            plan, start = image.moves.get(key), self._starting.get(key)
            begins = plan is not None and start is not None and plan.planned_at == start.planned_at
            after = set(plan.replicas if begins and plan is not None else state.replicas)
            brokers = {b for b in after - set(state.original) - set(state.isr) if _runs(image, b)}
            leader = image.brokers.get(state.leader)
            if brokers and leader is not None and not leader.fenced:
                copies[key] = sorted(brokers)
        return copies

    def _check_limits(
        self,
        image: MetadataImage,
        key: PartitionId,
        added: Collection[int],
        others: dict[PartitionId, list[int]],
        *,
        has_place: bool,
    ) -> None:
        into = Counter(broker_id for brokers in others.values() for broker_id in brokers)
        for broker_id in added:
            assert into[broker_id] < INTO_BROKER_MAX, f"{key}: too many into {broker_id}: {others}"
        if has_place:
            return
        leader = image.partitions[key].leader
        out_of = sum(image.partitions[other].leader == leader for other in others)
        assert out_of < OUT_OF_LEADER_MAX, f"{key}: too many out of {leader}: {others}"
        assert len(others) < CLUSTER_MAX, f"{key}: too many at once: {others}"

    def on_result(self, command: AnyCommand) -> None:
        """Whether it has succeeded, was refused, or nobody knows."""
        if isinstance(command, ReassignPartition):
            self._starting.pop(PartitionId(command.topic_id, command.partition), None)

    # Commands

    def on_commit(self, before: MetadataImage, command: AnyCommand, after: MetadataImage) -> None:
        self._check_wishes(before, command, after)
        if isinstance(command, ReassignPartition | CancelMove | PlanMove):
            key = PartitionId(command.topic_id, command.partition)
            was, now = before.partitions.get(key), after.partitions.get(key)
            if isinstance(command, PlanMove | CancelMove):
                _check_not_late(before, command, after)
            if was is not None and now is not None and was is not now:
                if isinstance(command, PlanMove):
                    is_kept = replace(now, partition_epoch=was.partition_epoch) == was
                    assert is_kept, f"{key} changes as it is planned"
                else:
                    self._check_start(before, command, after)
                _check_kept(key, was, now)
        for key in before.moving:
            if key in after.partitions and key not in after.moving:
                now = after.partitions[key]
                assert isinstance(command, ReassignPartition | CancelMove) or (
                    set(now.isr) == set(now.replicas)
                ), f"{key}: the move has ended before all were in sync: {now}"

    def _check_start(
        self, before: MetadataImage, command: ReassignPartition | CancelMove, after: MetadataImage
    ) -> None:
        if isinstance(command, ReassignPartition) and command.planned_at != NO_VERSION:
            key = PartitionId(command.topic_id, command.partition)
            plan = before.moves.get(key)
            assert plan is not None, f"{key} begins a move that was taken back: {command}"
            assert plan.replicas == command.replicas, f"{key} begins a move that was replaced"
            assert key not in after.moves, f"{key} has begun, and waits as before"
            self.started += 1

    def _check_wishes(
        self, before: MetadataImage, command: AnyCommand, after: MetadataImage
    ) -> None:
        """A plan goes because somebody wants it gone, or because it is carried out."""
        if before.moves is after.moves:
            return
        for key, plan in before.moves.items():
            if after.moves.get(key) == plan:
                continue
            match command:
                case DeleteTopic():
                    assert command.topic_id == key.topic_id, f"{key} lost its plan"
                case PlanMove() | CancelMove():
                    assert (command.topic_id, command.partition) == key, f"{key} lost its plan"
                case _:
                    assert after.partitions[key].target == plan.replicas, f"{key} lost its plan"


def _check_not_late(
    before: MetadataImage, command: PlanMove | CancelMove, after: MetadataImage
) -> None:
    """Who has seen another plan, or another state of the partition, changes nothing."""
    key = PartitionId(command.topic_id, command.partition)
    if key in before.partitions and command.epoch_seen != NO_EPOCH:
        is_late = seen(before, key) != (command.plan_seen, command.epoch_seen)
        is_same = (before.moves, before.partitions) == (after.moves, after.partitions)
        assert is_same or not is_late, f"{key}: {command} comes late"


def _runs(image: MetadataImage, broker_id: int) -> bool:
    broker = image.brokers[broker_id]
    return not broker.fenced and not broker.in_controlled_shutdown


def _check_kept(key: PartitionId, was: PartitionState, now: PartitionState) -> None:
    """Beginning, turning or ending a move drops from the ISR only replicas that are dropped; and
    one stays that holds everything, if one was there.
    """
    lost = {b for b in was.isr if b not in now.isr and b in now.replicas}
    is_led_anew = now.leader != was.leader  # then an eligible one may be the ISR alone
    assert not lost or is_led_anew, f"{key}: {lost} left the ISR by a move: {was} became {now}"
    holders = {*was.isr, *was.eligible}
    kept = holders & {*now.isr, *now.eligible}
    assert kept or not holders, f"{key}: nobody is left who holds everything: {was} became {now}"
