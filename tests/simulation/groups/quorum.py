"""The metadata for the world of groups, with the real rules: one slot, one group, one order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.client.group.planning import decode_assignment
from raftmq.metadata.apply import transactions as rules
from raftmq.metadata.apply.draft import Draft
from raftmq.metadata.commands import (
    AssignSlot,
    CommitOffsets,
    Done,
    GroupCommits,
    OffsetsCommitted,
    PartitionId,
    StoredOffset,
)
from raftmq.metadata.image import slot_of
from tests.simulation.groups.asks import GROUP
from tests.simulation.groups.checks import demand
from tests.simulation.groups.crashing import topic_id_of
from tests.unit.metadata.states import apply_next, cluster

if TYPE_CHECKING:
    from raftmq.client.group.assignors.assignor import Key
    from raftmq.metadata.commands import AnyCommand, AnyResult, SaveGroup
    from raftmq.metadata.image import GroupState, SlotState
    from tests.simulation.groups.asks import Commit
    from tests.simulation.groups.process import Process
    from tests.simulation.groups.transactions import End
    from tests.simulation.groups.world import World

SLOT = slot_of(GROUP)
TOPIC = bytes(16)


class Quorum:
    def __init__(self, world: World, broker_count: int) -> None:
        self._world, self._image = world, cluster(broker_count)

    @property
    def slot(self) -> SlotState:
        return self._image.slots[SLOT]

    @property
    def group(self) -> GroupState | None:
        return self._image.groups.get(GROUP)

    def part_of(self, process: Process) -> frozenset[Key]:
        """What the plan that stands gives to it."""
        members = self.group.members if self.group is not None else ()
        member_id = process.membership.member_id
        parts = [member.assignment for member in members if member.member_id == member_id]
        return decode_assignment(parts[0] if parts else b"").partitions

    def assign(self, broker_id: int) -> int:
        """The slot's new epoch."""
        self._commit(AssignSlot(SLOT, self.slot.epoch, broker_id))
        return self.slot.epoch

    def save(self, command: SaveGroup) -> AnyResult:
        result = self._commit(command)
        if isinstance(result, Done):
            assert self.group is not None, "it was saved"
            self._world.checks.on_saved(self.group, command.slot_epoch)
        return result

    def commit_offsets(self, commit: Commit, slot_epoch: int) -> AnyResult:
        before = self.group
        offset = StoredOffset(TOPIC, 0, 1)
        if commit.alone is not None:
            topic, number = commit.alone
            offset = StoredOffset(topic_id_of(topic), number, 0, alone_by=commit.member_id)
        offsets = GroupCommits(GROUP, (offset,))
        result = self._commit(CommitOffsets(SLOT, slot_epoch, (offsets,)))
        if isinstance(result, OffsetsCommitted):
            self._world.checks.on_commit(commit, before)
            self._world.crash_judge.on_noted(commit)
        return result

    def crashes(self, key: Key) -> int:
        """That are counted for a partition."""
        partition = PartitionId(topic_id_of(key[0]), key[1])
        there = self._image.offsets.get(GROUP, {}).get(partition)
        return there.crashes.count if there is not None and there.crashes else 0

    def end(self, end: End) -> None:
        """The offsets of a transaction, at the moment in which it is decided."""
        refusal = rules._member_refusal(Draft(self._image, 0), end.offsets)
        outcome = "committed" if refusal is None else refusal.message
        self._world.timeline.say(f"quorum: {end}: {outcome}")
        if refusal is None:
            self._world.checks.on_end(end)

    def _commit(self, command: AnyCommand) -> AnyResult:
        self._image, result = apply_next(self._image, command)
        self._world.timeline.say(f"quorum: {command}: {result}")
        demand("bug" not in getattr(result, "message", ""), f"{command}: {result}")
        return result
