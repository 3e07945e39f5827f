"""Rules for plans of moves: what is planned, replaced, taken back (decision 0044).

Owns the plans that wait; the controller starts them by ReassignPartition, whose rule is in
`partitions`. A plan goes when it is carried out, replaced or cancelled, or its topic is deleted,
and in no other way: a wish that was acknowledged is never lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import ErrorCode
from raftmq.metadata.apply.partitions import begin_reassignment, found, target_problem
from raftmq.metadata.commands import Done, FeatureLevel, PartitionId, Refused
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
    if wanted == before.target:  # it has them, or is becoming so: nothing is left to be done
        draft.forget_plan(key)
        return Done()
    if plan is not None and plan.replicas == wanted:  # a retry keeps its place in the line
        return Done()
    if plan is None and draft.plan_count >= MOVES_MAX:
        return Refused(
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
            f"{MOVES_MAX} moves are planned already: wait until some of them have begun",
        )
    draft.put_plan(key, PlannedMove(wanted, draft.version))
    return Done()


def cancel_move(draft: Draft, command: CancelMove) -> AnyResult:
    """Not refused for an epoch: whatever is planned or under way is to end."""
    key = PartitionId(command.topic_id, command.partition)
    before = _movable(draft, key)
    if isinstance(before, Refused):
        return before
    if draft.plan(key) is None and not before.is_moving:
        return Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "the partition does not move")
    draft.forget_plan(key)
    if not before.is_moving:  # it had not begun
        return Done()
    return begin_reassignment(draft, key, before, before.original)


def _movable(draft: Draft, key: PartitionId) -> PartitionState | Refused:
    if draft.feature_level < FeatureLevel.MOVES:
        message = f"feature level {draft.feature_level} knows no moves: upgrade all nodes"
        return Refused(ErrorCode.UNSUPPORTED_VERSION, message)
    return found(draft, key)
