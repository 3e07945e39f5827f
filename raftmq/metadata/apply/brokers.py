"""Rules for broker commands: register, fence, unfence, controlled shutdown, unregister.

Owns the life cycle of a registration (Kafka: ClusterControlManager). A command marks the broker
only, and notes in `pending` what must follow for the partitions that it hosts; `reviews` does that
slice by slice (decision 0013). Until then the broker stays as marked: fenced, or shutting down.

Invariants: a broker with something pending is not active, so no ISR takes it back meanwhile; while
a broker is unfenced no other data directory can register under its id.
"""

from __future__ import annotations

from itertools import starmap
from typing import TYPE_CHECKING

from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.apply.limits import TEXT_CHARS_MAX, registration_limits
from raftmq.metadata.commands import NO_EPOCH, BrokerRegistered, Done, PartitionId, Refused
from raftmq.metadata.image import BrokerState, Pending

if TYPE_CHECKING:
    from raftmq.metadata.apply.draft import Draft
    from raftmq.metadata.commands import (
        AnyResult,
        BeginControlledShutdown,
        FenceBroker,
        RegisterBroker,
        UnfenceBroker,
        UnregisterBroker,
    )


# -- Senders --------------------------------------------------------------------------------------
# Broker epoch check: is the broker that sent a command, or that it names, still the same process?
#
# A process that was replaced by a newer one of the same id must change nothing.


def sender_refusal(
    broker: BrokerState | None, *, broker_id: int, broker_epoch: int
) -> Refused | None:
    """`broker` is what is registered under `broker_id`; None if its epoch is the given one."""
    if broker is None:
        message = f"broker {broker_id} is not registered: register it first"
        return Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, message)
    if broker.broker_epoch != broker_epoch:
        message = (
            f"broker {broker_id} has epoch {broker.broker_epoch}, not {broker_epoch}: register it"
            " again"
        )
        return Refused(ErrorCode.STALE_BROKER_EPOCH, message)
    return None


# -- Brokers --------------------------------------------------------------------------------------


# Damaged partitions stored for one broker: they stand in the image and in every snapshot. A broker
# that lost more is trusted with none of its replicas (decision 0013).
DAMAGED_MAX = 10_000

Names = tuple[tuple[bytes, int], ...]


def registered(draft: Draft, broker_id: int, broker_epoch: int) -> BrokerState | Refused:
    """The registration of a broker if it has this epoch, else the refusal."""
    broker = draft.broker(broker_id)
    refusal = sender_refusal(broker, broker_id=broker_id, broker_epoch=broker_epoch)
    if refusal is not None:
        return refusal
    assert broker is not None, "who is not registered was refused"
    return broker


# Registration


def register_broker(draft: Draft, command: RegisterBroker) -> AnyResult:
    known = draft.broker(command.broker_id)
    problem = registration_limits(command)
    if problem is not None:
        return problem
    if known is not None and known.incarnation == command.incarnation:  # a retry, same process
        return _registered_again(draft, known, command)
    problem = _level_problem(draft, command) or _successor_problem(known, command)
    if problem is not None:
        return problem
    broker = _new_broker(draft.version, command)
    hosted = draft.base.hosted_by(command.broker_id)
    # Its partitions stand as its former process left them: they need a review. A broker that hosts
    # none can be unfenced at once.
    if known is not None and hosted:
        pending = known.pending | Pending.MOVE_LEADERS | _revocation(known, command)
        broker = replace(broker, pending=pending, disk_epoch=known.disk_epoch)
        broker = _damaged(draft, broker, known.damaged, command.damaged)
    draft.put_broker(broker)
    draft.release_slots(command.broker_id)  # the new process knows no group of the former one
    return BrokerRegistered(draft.version)


def _registered_again(draft: Draft, known: BrokerState, command: RegisterBroker) -> AnyResult:
    """A retry of a registration. It may report more damage until the process is unfenced for the
    first time; later it can only be a late copy, whose damage was reviewed long ago.
    """
    # Never unfenced under this epoch yet, and something to review: damage may be added.
    if known.disk_epoch != known.broker_epoch and draft.base.hosted_by(known.broker_id):
        after = _damaged(draft, known, known.damaged, command.damaged)
        if after != known:  # a repetition of known damage changes nothing
            pending = after.pending | Pending.MOVE_LEADERS
            draft.put_broker(replace(after, pending=pending, pending_since=draft.version))
    return BrokerRegistered(known.broker_epoch)


def _damaged(draft: Draft, broker: BrokerState, before: Names, reported: Names) -> BrokerState:
    """The broker with all reported damage of partitions that it still hosts."""
    hosted = draft.base.hosted_by(broker.broker_id)
    damaged: set[PartitionId] = set()
    if len(reported) <= DAMAGED_MAX:
        damaged.update(key for key in starmap(PartitionId, (*before, *reported)) if key in hosted)
    # Too many to store one by one: trust no replica of this broker.
    if len(reported) > DAMAGED_MAX or len(damaged) > DAMAGED_MAX:
        return replace(broker, pending=broker.pending | Pending.REVOKE_ALL, damaged=())
    return replace(broker, damaged=tuple(sorted(damaged)))


def _level_problem(draft: Draft, command: RegisterBroker) -> Refused | None:
    level = draft.feature_level
    # It understands all that may be in the log.
    if command.feature_level_min <= level <= command.feature_level_max:
        return None
    return Refused(
        ErrorCode.UNSUPPORTED_VERSION,
        f"broker {command.broker_id} knows feature levels {command.feature_level_min} to"
        f" {command.feature_level_max}, the cluster is at {level}: run a version that knows it",
    )


def _successor_problem(known: BrokerState | None, command: RegisterBroker) -> Refused | None:
    """Why this process may not replace the registered one; None if it may."""
    who, epoch = f"broker {command.broker_id}", NO_EPOCH if known is None else known.broker_epoch
    # It read the registration before another process registered.
    if command.expected_broker_epoch not in (None, epoch):
        return Refused(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{who} is registered under epoch {epoch}, expected was"
            f" {command.expected_broker_epoch}: read it again",
        )
    # A process on the same directory is a restart: the lock of the directory shows that the former
    # one has ended. On another directory two live brokers would share an id.
    if known is None or known.fenced or known.directory_id == command.directory_id:
        return None
    at = "".join(f", {one.listener} {one.host}:{one.port}" for one in known.endpoints)
    return Refused(
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        f"another process is {who} in service (directory {known.directory_id.hex()}{at}), this one"
        f" has directory {command.directory_id.hex()}: give this one another node.id, or stop the"
        " other, which is waited for",
    )


def _revocation(known: BrokerState, command: RegisterBroker) -> Pending:
    """Which replicas of the disk lose trust, judged against the previous registration.

    1. Another directory, or an older copy of this one: its replicas lack records. Any broker epoch
       since it was last unfenced is as good as the newest, which a process killed at its start may
       not have written: it acknowledged nothing under the epochs in between.
    2. The kernel restarted under a running broker: unsynced records are gone. Only a clean-shutdown
       mark of the registered process shows that it had stopped before.
    """
    is_same_directory = command.directory_id == known.directory_id
    is_whole = known.disk_epoch <= command.previous_broker_epoch <= known.broker_epoch
    if not (is_same_directory and is_whole):  # case 1
        return Pending.REVOKE_ALL
    is_same_boot = command.boot_id == known.boot_id != ""  # empty: the broker could not read it
    if not (is_same_boot or command.clean_shutdown_epoch == known.broker_epoch):
        return Pending.REVOKE_PAGE_CACHE
    return Pending.NOTHING


def _new_broker(version: int, command: RegisterBroker) -> BrokerState:
    return BrokerState(
        broker_id=command.broker_id,
        broker_epoch=version,
        incarnation=command.incarnation,
        directory_id=command.directory_id,
        endpoints=command.endpoints,
        rack=command.rack,
        feature_level_min=command.feature_level_min,
        feature_level_max=command.feature_level_max,
        boot_id=command.boot_id,
        pending_since=version,
        # Cut rather than refused: nodes of earlier versions, which ignore it, refuse nothing.
        software_version=command.software_version[:TEXT_CHARS_MAX],
        logs_max=command.logs_max,
    )


def unregister_broker(draft: Draft, command: UnregisterBroker) -> AnyResult:
    broker = registered(draft, command.broker_id, command.broker_epoch)
    if isinstance(broker, Refused):
        return broker
    hosted = draft.base.hosted_by(command.broker_id)
    # A broker that is gone for good still counts as a replica of these.
    if hosted:
        return Refused(
            ErrorCode.INVALID_REQUEST,
            f"broker {command.broker_id} hosts {len(hosted)} partitions: reassign them first",
        )
    planned = sum(command.broker_id in plan.replicas for plan in draft.base.moves.values())
    # Refused rather than forgotten: whoever planned them has not been told that they end.
    if planned:
        return Refused(
            ErrorCode.INVALID_REQUEST,
            f"{planned} moves to broker {command.broker_id} are planned: cancel them first, or plan"
            " others in their place",
        )
    draft.remove_broker(command.broker_id)
    draft.release_slots(command.broker_id)
    return Done()


# Fencing and shutting down


def fence_broker(draft: Draft, command: FenceBroker) -> AnyResult:
    broker = registered(draft, command.broker_id, command.broker_epoch)
    if isinstance(broker, Refused):
        return broker
    if not broker.fenced:  # a retry: already fenced
        draft.put_broker(_moving(draft, replace(broker, fenced=True)))
    return Done()


def begin_controlled_shutdown(draft: Draft, command: BeginControlledShutdown) -> AnyResult:
    broker = registered(draft, command.broker_id, command.broker_epoch)
    if isinstance(broker, Refused):
        return broker
    if not broker.in_controlled_shutdown:  # a retry
        draft.put_broker(_moving(draft, replace(broker, in_controlled_shutdown=True)))
    return Done()


def _moving(draft: Draft, broker: BrokerState) -> BrokerState:
    """The broker with a review pending for its partitions, if it hosts any."""
    if not draft.base.hosted_by(broker.broker_id):  # nothing to review: it may be unfenced at once
        return broker
    pending = broker.pending | Pending.MOVE_LEADERS
    return replace(broker, pending=pending, pending_since=draft.version)


def unfence_broker(draft: Draft, command: UnfenceBroker) -> AnyResult:
    broker = registered(draft, command.broker_id, command.broker_epoch)
    if isinstance(broker, Refused):
        return broker
    if not broker.fenced:  # a retry
        return Done()
    # Unfenced now, it could be counted in an ISR that its review is about to take it from.
    if broker.pending != Pending.NOTHING:
        return Refused(
            ErrorCode.INVALID_REQUEST,
            f"partitions of broker {command.broker_id} wait for a review since version"
            f" {broker.pending_since}: finish it first",
        )
    draft.put_broker(replace(broker, fenced=False, disk_epoch=broker.broker_epoch))
    return Done()
