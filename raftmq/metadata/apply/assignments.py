"""Validates replica assignments of new partitions, and sets their first ISR and leader.

Owns the limits of an assignment. It checks which brokers are registered and active; racks and
balance are the business of the proposer (`metadata.placement`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import ErrorCode
from raftmq.metadata.commands import PartitionId, Refused
from raftmq.metadata.image import PartitionState

if TYPE_CHECKING:
    from raftmq.metadata.apply.draft import Draft

REPLICAS_MAX = 16  # of one partition; each of them copies every record
PARTITIONS_MAX = 10_000  # of one topic: deleting it is one command, applied in one step
NEW_PARTITIONS_MAX = 1_000  # of one command: it blocks the event loop of every node

Assignments = tuple[tuple[int, ...], ...]


def assignments_refusal(draft: Draft, assignments: Assignments, *, first: int) -> Refused | None:
    """Why these cannot be the replicas of partitions `first` and up; None if they can."""
    if not assignments:
        return Refused(ErrorCode.INVALID_PARTITIONS, "no partitions: at least 1 is needed")
    count = first + len(assignments)
    if count > PARTITIONS_MAX:
        message = f"{count} partitions: at most {PARTITIONS_MAX}, use more topics"
        return Refused(ErrorCode.INVALID_PARTITIONS, message)
    if len(assignments) > NEW_PARTITIONS_MAX:
        message = f"{len(assignments)} new partitions at once: at most {NEW_PARTITIONS_MAX}"
        return Refused(ErrorCode.INVALID_PARTITIONS, f"{message}, add the others afterwards")
    for number, replicas in enumerate(assignments, first):
        if (refusal := _replicas_refusal(draft, replicas, number)) is not None:
            return refusal
    return None


def put_partitions(
    draft: Draft, topic_id: bytes, assignments: Assignments, *, first: int = 0
) -> None:
    """Create partitions `first` and up: active replicas are in sync, the first of them leads."""
    for number, replicas in enumerate(assignments, first):
        isr = tuple(broker_id for broker_id in replicas if draft.is_active(broker_id))
        state = PartitionState(replicas=replicas, isr=isr, leader=isr[0])
        draft.put_partition(PartitionId(topic_id, number), state)


def _replicas_refusal(draft: Draft, replicas: tuple[int, ...], number: int) -> Refused | None:
    place = f"partition {number}"
    if len(replicas) > REPLICAS_MAX:
        message = f"{place}: {len(replicas)} replicas, at most {REPLICAS_MAX}"
        return Refused(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    problem = _problem(draft, replicas)
    if problem is None:
        return None
    return Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{place}: {problem}")


def _problem(draft: Draft, replicas: tuple[int, ...]) -> str | None:
    if not replicas:
        return "no replicas: at least 1 broker is needed"
    if len(set(replicas)) < len(replicas):
        return f"replicas {replicas} name a broker twice"
    for broker_id in replicas:
        if draft.broker(broker_id) is None:
            return f"broker {broker_id} is not registered: start it, or choose another"
    # A partition without an active replica would have no leader from its first moment on.
    if not any(map(draft.is_active, replicas)):
        return f"none of the brokers {replicas} is active: wait for one, or choose others"
    return None
