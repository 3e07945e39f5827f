"""Rules for one partition: ISR changes (AlterPartition), log start, reassignment, leader election.

Owns the checks of what a leader proposes (Kafka: AlterPartition, DeleteRecords) and reassignment. A
partition that is being reassigned has more replicas for a while: the target ones (in their order),
then those that will be dropped. When all target replicas are in sync, the others are dropped in one
change.

Invariant: no step of a reassignment drops the last replicas that hold what is committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.apply.assignments import REPLICAS_MAX
from raftmq.metadata.apply.brokers import registered
from raftmq.metadata.apply.reviews import loss_of, rules_of
from raftmq.metadata.commands import (
    NO_BROKER,
    NO_EPOCH,
    NO_VERSION,
    Done,
    ElectionKind,
    FeatureLevel,
    Loss,
    PartitionAltered,
    PartitionId,
    RecoveryState,
    Refused,
)
from raftmq.metadata.election import NOBODY, concluded, elect, led, with_isr
from raftmq.wire.bodies import NUMBER_MAX

if TYPE_CHECKING:
    from collections.abc import Collection

    from raftmq.metadata.apply.draft import Draft
    from raftmq.metadata.commands import (
        AlterPartition,
        AnyResult,
        ElectLeader,
        RaiseLogStart,
        ReassignPartition,
    )
    from raftmq.metadata.election import Rules
    from raftmq.metadata.image import PartitionState, PlannedMove


def found(draft: Draft, key: PartitionId) -> PartitionState | Refused:
    partition = draft.partition(key)
    if partition is not None:
        return partition
    topic = draft.topic(key.topic_id)
    if topic is None:
        return Refused(
            ErrorCode.UNKNOWN_TOPIC_ID, f"topic {key.topic_id.hex()} does not exist: look it up"
        )
    return Refused(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"topic {topic.name} has partitions 0 to {topic.partition_count - 1}, not {key.partition}",
    )


def _asked_about(draft: Draft, command: AlterPartition | RaiseLogStart) -> PartitionState | Refused:
    """The partition that a leader's command names, if its sender is the registered process."""
    broker = registered(draft, command.broker_id, command.broker_epoch)
    if isinstance(broker, Refused):
        return broker
    return found(draft, PartitionId(command.topic_id, command.partition))


# The ISR


def alter_partition(draft: Draft, command: AlterPartition) -> AnyResult:
    """Commit the ISR that a leader proposes; a reassignment that it completes may end its role."""
    before = _asked_about(draft, command)
    if isinstance(before, Refused):
        return before
    key = PartitionId(command.topic_id, command.partition)
    problem = (
        _epoch_problem(before, command)
        or _isr_problem(before, command)
        or _member_problem(draft, command)
    )
    if problem is not None:
        return problem
    rules = rules_of(draft, command.topic_id)
    members = {member.broker_id for member in command.isr}
    proposed = with_isr(before, members, rules)
    proposed = replace(proposed, recovery_state=command.recovery_state)
    return _altered(_put(draft, key, _moved(proposed, rules), rules))


def _epoch_problem(partition: PartitionState, command: AlterPartition) -> Refused | None:
    """1. The sender has seen a newer state than this one. 2. It was deposed. 3. It does not lead.
    4. It has not seen the last change of the partition.
    """
    epochs = f"epochs {command.leader_epoch}.{command.partition_epoch} against"
    epochs += f" {partition.leader_epoch}.{partition.partition_epoch}"
    if (
        command.leader_epoch > partition.leader_epoch
        or command.partition_epoch > partition.partition_epoch
    ):
        return Refused(ErrorCode.NOT_CONTROLLER, f"{epochs}: this node is behind, ask another")
    if command.leader_epoch < partition.leader_epoch:
        return Refused(ErrorCode.FENCED_LEADER_EPOCH, f"{epochs}: there was an election since")
    if command.broker_id != partition.leader:
        return Refused(
            ErrorCode.INVALID_REQUEST,
            f"broker {command.broker_id} proposes, {partition.leader} leads: wait for metadata",
        )
    if command.partition_epoch < partition.partition_epoch:
        return Refused(ErrorCode.INVALID_UPDATE_VERSION, f"{epochs}: wait for newer metadata")
    return None


def _isr_problem(partition: PartitionState, command: AlterPartition) -> Refused | None:
    isr = [member.broker_id for member in command.isr]
    is_recovering = command.recovery_state == RecoveryState.RECOVERING
    problem = ""
    # While RECOVERING (elected uncleanly) the leader's log may still lose records that a follower
    # copied: no other replica is in sync until it reports RECOVERED (KIP-704).
    if len(set(isr)) != len(isr) or not set(isr) <= set(partition.replicas):
        problem = f"must be distinct members of replicas {list(partition.replicas)}"
    elif command.broker_id not in isr:
        problem = f"lacks the leader {command.broker_id}"
    elif is_recovering and len(isr) > 1:
        problem = "must be the leader alone until it reports RECOVERED"
    elif is_recovering and partition.recovery_state == RecoveryState.RECOVERED:
        problem = "cannot be RECOVERING: the partition is RECOVERED"
    return Refused(ErrorCode.INVALID_REQUEST, f"ISR {isr} {problem}") if problem else None


def _member_problem(draft: Draft, command: AlterPartition) -> Refused | None:
    """Every member must be registered under the epoch that the leader saw, and active.

    The leader itself may be shutting down: then it is the last in sync, and the follower that it
    proposes now is the one that can take over. A fenced leader changes nothing.
    """
    for member in command.isr:
        broker = registered(draft, member.broker_id, member.broker_epoch)
        if isinstance(broker, Refused):
            return Refused(ErrorCode.INELIGIBLE_REPLICA, broker.message)
        is_leader = member.broker_id == command.broker_id
        # Not active: fenced, or shutting down while it is not the leader itself.
        if not (draft.is_active(member.broker_id) or (is_leader and not broker.fenced)):
            what = "fenced" if broker.fenced else "shutting down"
            return Refused(
                ErrorCode.INELIGIBLE_REPLICA,
                f"broker {member.broker_id} is {what}: propose an ISR without it",
            )
    return None


def _altered(partition: PartitionState) -> PartitionAltered:
    return PartitionAltered(
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=partition.isr,
        recovery_state=partition.recovery_state,
    )


def _put(draft: Draft, key: PartitionId, after: PartitionState, rules: Rules) -> PartitionState:
    """Write `after` with an elected leader and raised epochs, if anything has changed."""
    before = draft.partition(key)
    assert before is not None, f"{key} is not there"
    state = concluded(before, led(after, rules))
    if state is not before:  # equal states keep their epochs
        draft.put_partition(key, state)
    return state


# Log start


def raise_log_start(draft: Draft, command: RaiseLogStart) -> AnyResult:
    """The leader epoch is the compare-and-set: within it, all that the leader knows to be committed
    is on every replica that may be elected cleanly (decision 0024).
    """
    before = _asked_about(draft, command)
    if isinstance(before, Refused):
        return before
    key = PartitionId(command.topic_id, command.partition)
    problem = _start_problem(draft, before, command)
    if problem is not None:
        return problem
    if command.start_offset > before.log_start_offset:  # a lower one is deleted already
        after = replace(before, log_start_offset=command.start_offset)
        draft.put_partition(key, concluded(before, after))
    return Done()


def _start_problem(
    draft: Draft, partition: PartitionState, command: RaiseLogStart
) -> Refused | None:
    if draft.feature_level < FeatureLevel.LOG_STARTS:
        message = f"feature level {draft.feature_level} knows no starts of logs: upgrade all nodes"
        return Refused(ErrorCode.UNSUPPORTED_VERSION, message)
    if not 0 <= command.start_offset <= NUMBER_MAX:
        message = f"start {command.start_offset}: offsets are 0 to {NUMBER_MAX}"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    if command.leader_epoch > partition.leader_epoch:  # the sender has seen a newer state
        message = f"leader epoch {command.leader_epoch} against {partition.leader_epoch}: this"
        return Refused(ErrorCode.NOT_CONTROLLER, f"{message} node is behind, ask another")
    is_led = command.broker_id == partition.leader and draft.is_unfenced(command.broker_id)
    # Deposed: what it knows to be committed may be missing in the log of its successor.
    if command.leader_epoch < partition.leader_epoch or not is_led:
        message = f"broker {command.broker_id} leads no more in epoch {command.leader_epoch}"
        return Refused(ErrorCode.FENCED_LEADER_EPOCH, f"{message}: ask its successor")
    return None


# Reassignment


def reassign_partition(draft: Draft, command: ReassignPartition) -> AnyResult:
    key = PartitionId(command.topic_id, command.partition)
    before = found(draft, key)
    if isinstance(before, Refused):
        return before
    target = before.original if command.replicas is None else command.replicas
    problem = target_problem(draft, target)
    if problem:
        return Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"replicas {list(target)}: {problem}")
    if command.replicas == before.target:  # a retry, or it has these replicas already
        return Done()
    if command.replicas is None and not before.is_moving:
        return Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "the partition does not move")
    if command.partition_epoch != before.partition_epoch:
        return Refused(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"partition epoch is {before.partition_epoch}, not {command.partition_epoch}:"
            " look at the partition again",
        )
    if command.planned_at != NO_VERSION and not _stands(draft.plan(key), command):
        return Refused(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"the plan of version {command.planned_at} was taken back, or another one took its"
            " place: look at the partition again",
        )
    return begin_reassignment(draft, key, before, target)


def _stands(plan: PlannedMove | None, command: ReassignPartition) -> bool:
    return plan is not None and plan.planned_at == command.planned_at


def begin_reassignment(
    draft: Draft, key: PartitionId, before: PartitionState, target: tuple[int, ...]
) -> AnyResult:
    """Begin a reassignment, or replace one in progress: what that one was adding is dropped now.

    A plan for `target` is carried out by this, and forgotten.
    """
    begun = begun_reassignment(draft, key, before, target)
    if isinstance(begun, Refused):
        return begun
    if begun is not before:  # equal states keep their epochs
        draft.put_partition(key, begun)
    plan = draft.plan(key)
    if plan is not None and plan.replicas == target:
        draft.forget_plan(key)
    return Done()


def begun_reassignment(
    draft: Draft, key: PartitionId, before: PartitionState, target: tuple[int, ...]
) -> PartitionState | Refused:
    """Refused unless a replica that holds everything committed stays, and a leader, if there is or
    could be one.
    """
    dropped = [b for b in before.adding if b not in target]
    holders = _holders(draft, key, before)
    # A reassignment never loses records, even where the topic allows unclean elections.
    rules = rules_of(draft, key.topic_id)._replace(is_unclean_allowed=False)
    after = led(_moved(_moving(before, target, rules), rules), rules)
    is_last = bool(holders) and set(holders) <= set(dropped)
    # The last holders would be dropped, or a leader would be lost.
    if is_last or (after.leader == NO_BROKER and elect(before, rules) != NOBODY):
        return Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"none of the replicas but {dropped} is in sync and unfenced: wait for others",
        )
    return concluded(before, after)


def _holders(draft: Draft, key: PartitionId, partition: PartitionState) -> list[int]:
    """The brokers whose replicas hold the most of what is committed.

    Replicas whose disk lost records do not count, even if the review that will say so is still
    pending. If all of them lost something, those that were trusted before.
    """
    trusted = (
        (partition.isr, Loss.NOTHING),
        (partition.eligible, Loss.NOTHING),
        ((partition.leader, *partition.last_known_eligible), Loss.UNSYNCED),
    )
    for members, tolerated in trusted:
        brokers = [broker for b in members if (broker := draft.broker(b)) is not None]
        holders = [b.broker_id for b in brokers if loss_of(draft, b, key) <= tolerated]
        if holders:  # of the best trusted kind that exists
            return holders
    return [*(partition.isr or partition.eligible or partition.last_known_eligible)]


def target_problem(draft: Draft, target: tuple[int, ...]) -> str:
    unknown = [broker_id for broker_id in target if draft.broker(broker_id) is None]
    if not 1 <= len(target) <= REPLICAS_MAX:  # no replica, or more than allowed
        return f"between 1 and {REPLICAS_MAX} are allowed"
    if len(set(target)) != len(target):
        return "each broker holds one replica, name it once"
    return f"brokers {unknown} are not registered: start them first" if unknown else ""


def _moving(partition: PartitionState, target: tuple[int, ...], rules: Rules) -> PartitionState:
    original = partition.original
    removing = _but(original, target)
    moving = replace(
        partition,
        replicas=(*target, *removing),
        adding=_but(target, original),
        removing=removing,
    )
    return _on_its_replicas(moving, rules)


def _moved(partition: PartitionState, rules: Rules) -> PartitionState:
    """The partition with its reassignment completed, if all target replicas are in sync."""
    target = partition.target
    # A replica of an inactive broker is still in the ISR until its review, and does not count.
    is_complete = all(b in partition.isr and rules.is_active(b) for b in target)
    # The usual case: no reassignment, or still copying.
    if not is_complete or not partition.is_moving:
        return partition
    settled = replace(partition, replicas=target, adding=(), removing=())
    return _on_its_replicas(settled, rules)


def _on_its_replicas(partition: PartitionState, rules: Rules) -> PartitionState:
    """Remove dropped replicas from ISR, eligible replicas and last known leader."""
    last_known = tuple(b for b in partition.last_known_eligible if b in partition.replicas)
    return with_isr(replace(partition, last_known_eligible=last_known), partition.isr, rules)


def _but(brokers: tuple[int, ...], excluded: Collection[int]) -> tuple[int, ...]:
    return tuple(broker_id for broker_id in brokers if broker_id not in excluded)


# Elections on demand


def elect_leader(draft: Draft, command: ElectLeader) -> AnyResult:
    key = PartitionId(command.topic_id, command.partition)
    before = found(draft, key)
    if isinstance(before, Refused):
        return before
    # The caller has seen an older leader.
    if command.leader_epoch not in (NO_EPOCH, before.leader_epoch):
        return Refused(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"leader epoch is {before.leader_epoch}, expected was {command.leader_epoch}:"
            " look at the partition again",
        )
    rules = rules_of(draft, command.topic_id)
    if command.election == ElectionKind.UNCLEAN:
        return _elect_anyone(draft, key, before, rules._replace(is_unclean_allowed=True))
    return _elect_preferred(draft, key, before, rules)


def _elect_preferred(
    draft: Draft, key: PartitionId, before: PartitionState, rules: Rules
) -> AnyResult:
    preferred = before.replicas[0]
    if before.leader == preferred:
        return Refused(ErrorCode.ELECTION_NOT_NEEDED, f"broker {preferred} leads already")
    if (why := _why_not_preferred(before, rules)) is not None:
        return Refused(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"broker {preferred} {why}")
    # `elect` keeps a leader that may continue, so naming it here elects it.
    _put(draft, key, replace(before, leader=preferred), rules)
    return Done()


def _why_not_preferred(before: PartitionState, rules: Rules) -> str | None:
    """Why the preferred leader cannot lead now, and the way out; None: it can."""
    preferred = before.replicas[0]
    if not rules.is_unfenced(preferred):
        return "is down: start it"
    if not rules.is_active(preferred):
        return "is stopping: start it again"
    if preferred in before.isr:
        return None
    if rules.is_unfenced(before.leader):
        return "is not in sync: wait until it is"
    # Nobody leads whom it could copy: it waits for ever if the others, or its own disk, are lost.
    return (
        "is not in sync, and nobody leads: start the brokers that have the other replicas; if their"
        " records are lost for good, `raftmq cluster leaders --unclean TOPIC PARTITION` elects a"
        " replica as it is"
    )


def _elect_anyone(
    draft: Draft, key: PartitionId, before: PartitionState, rules: Rules
) -> AnyResult:
    if rules.is_unfenced(before.leader):  # an unclean election would only lose records
        return Refused(ErrorCode.ELECTION_NOT_NEEDED, f"broker {before.leader} leads")
    if elect(before, rules) == NOBODY:  # no unfenced replica at all
        return Refused(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            f"replicas {list(before.replicas)} are all fenced: start one",
        )
    _put(draft, key, before, rules)
    return Done()
