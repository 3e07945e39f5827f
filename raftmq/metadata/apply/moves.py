"""Rules for plans of moves: what is planned, replaced, taken back (decision 0044).

Owns the plans that wait; the controller starts them by ReassignPartition, whose rule is in
`partitions`. A plan goes when a reassignment leads to its replicas, when another plan takes its
place, by a cancel, and with its topic: a wish that was acknowledged is never lost otherwise.

Invariant: the partition epoch rises whenever a plan goes and none takes its place. So what was seen
of plan and epoch never comes back, and a late copy of a command is told from a new wish.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.apply.partitions import begin_reassignment, found, target_problem
from raftmq.metadata.commands import (
    NO_EPOCH,
    NO_VERSION,
    Done,
    FeatureLevel,
    PartitionId,
    Refused,
)
from raftmq.metadata.image import MOVES_MAX, PlannedMove

if TYPE_CHECKING:
    from raftmq.metadata.apply.draft import Draft
    from raftmq.metadata.commands import AnyResult, CancelMove, PlanMove
    from raftmq.metadata.image import PartitionState


def plan_move(draft: Draft, command: PlanMove) -> AnyResult:
    key, wanted = PartitionId(command.topic_id, command.partition), command.replicas
    before = _movable(draft, key)
    if isinstance(before, Refused):
        return before
    problem = target_problem(draft, wanted)
    if problem:
        return Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"replicas {list(wanted)}: {problem}")
    plan = draft.plan(key)
    # A retry keeps its place in the line; or it has them, or is becoming so.
    if wanted == (before.target if plan is None else plan.replicas):
        return Done()
    if _is_late(draft, before, key, command):
        return _LATE
    if wanted == before.target:  # nothing is left to be done
        _withdraw(draft, key, before)
        return Done()
    if plan is None and draft.plan_count >= MOVES_MAX:
        return Refused(
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
            f"{MOVES_MAX} moves are planned already: wait until some of them have begun",
        )
    draft.put_plan(key, PlannedMove(wanted, draft.version))
    return Done()


def cancel_move(draft: Draft, command: CancelMove) -> AnyResult:
    """Whatever is planned or under way ends."""
    key = PartitionId(command.topic_id, command.partition)
    before = _movable(draft, key)
    if isinstance(before, Refused):
        return before
    if draft.plan(key) is None and not before.is_moving:
        return Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "the partition does not move")
    if _is_late(draft, before, key, command):
        return _LATE
    if not before.is_moving:  # it had not begun
        _withdraw(draft, key, before)
        return Done()
    draft.forget_plan(key)
    return begin_reassignment(draft, key, before, before.original)


_LATE = Refused(
    ErrorCode.INVALID_UPDATE_VERSION,
    "the partition or the plan for it has changed since: look at the partition again",
)


def _is_late(
    draft: Draft, before: PartitionState, key: PartitionId, command: PlanMove | CancelMove
) -> bool:
    plan = draft.plan(key)
    seen = NO_VERSION if plan is None else plan.planned_at, before.partition_epoch
    return command.epoch_seen != NO_EPOCH and seen != (command.plan_seen, command.epoch_seen)


def _withdraw(draft: Draft, key: PartitionId, before: PartitionState) -> None:
    draft.forget_plan(key)
    draft.put_partition(key, replace(before, partition_epoch=before.partition_epoch + 1))


def _movable(draft: Draft, key: PartitionId) -> PartitionState | Refused:
    if draft.feature_level < FeatureLevel.MOVES:
        message = f"feature level {draft.feature_level} knows no moves: upgrade all nodes"
        return Refused(ErrorCode.UNSUPPORTED_VERSION, message)
    return found(draft, key)
