"""Which brokers get the replicas of new partitions: what may be asked for, and where it starts.

Owns the bounds of an assignment. It looks at registered brokers and at who is active now; racks
and balance are for whoever proposes the assignment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import ErrorCode
from raftmq.metadata.commands import PartitionId, Refused
from raftmq.metadata.image import PartitionState

if TYPE_CHECKING:
    from raftmq.metadata.apply.draft import Draft

REPLICAS_MAX = 16
PARTITIONS_MAX = 10_000  # of one topic
NEW_PARTITIONS_MAX = 1_000  # of one command: it blocks every node while it is applied

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
    """Make partitions `first` and up. Only active brokers are in sync; the first of them leads."""
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
    if not any(map(draft.is_active, replicas)):
        return f"none of the brokers {replicas} is active: wait for one, or choose others"
    return None
