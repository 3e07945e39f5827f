"""What commands about brokers do: they come, stop, are fenced, and go.

Owns the life of a registration. One command marks a broker and notes in `pending` what must
follow for the partitions it hosts; the reviews of `reviews` do that. Until they are finished the
broker stays as it is marked: fenced, or shutting down.

Invariants: a broker with something pending is not active, so no ISR takes it back meanwhile; while
a process is in service no other directory takes its place.
"""

from __future__ import annotations

from itertools import starmap
from typing import TYPE_CHECKING

from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.apply.limits import registration_limits
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
# Is the broker that a command speaks of, or that sent it, still the one it was?
#
# Owns that check only: a process that was replaced by a newer one of the same id changes nothing.


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


DAMAGED_MAX = 10_000  # of one broker; of whoever lost more nothing is trusted

Names = tuple[tuple[bytes, int], ...]


def registered(draft: Draft, broker_id: int, broker_epoch: int) -> BrokerState | Refused:
    """The registration that a command speaks of, if it is the one that holds."""
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
    if known is not None and known.incarnation == command.incarnation:
        return _registered_again(draft, known, command)
    problem = _level_problem(draft, command) or _successor_problem(known, command)
    if problem is not None:
        return problem
    broker = _new_broker(draft.version, command)
    hosted = draft.base.hosted_by(command.broker_id)
    if known is not None and hosted:
        pending = known.pending | Pending.MOVE_LEADERS | _revocation(known, command)
        broker = replace(broker, pending=pending, disk_epoch=known.disk_epoch)
        broker = _damaged(draft, broker, known.damaged, command.damaged)
    draft.put_broker(broker)
    draft.release_slots(command.broker_id)
    return BrokerRegistered(draft.version)


def _registered_again(draft: Draft, known: BrokerState, command: RegisterBroker) -> AnyResult:
    """A retry. As long as nothing is trusted to this process, it may tell of more damage; later
    that would be an echo of what was reviewed long ago.
    """
    if known.disk_epoch != known.broker_epoch and draft.base.hosted_by(known.broker_id):
        after = _damaged(draft, known, known.damaged, command.damaged)
        if after != known:
            pending = after.pending | Pending.MOVE_LEADERS
            draft.put_broker(replace(after, pending=pending, pending_since=draft.version))
    return BrokerRegistered(known.broker_epoch)


def _damaged(draft: Draft, broker: BrokerState, before: Names, reported: Names) -> BrokerState:
    """With the damage of what it hosts; what is gone or elsewhere needs no review."""
    hosted = draft.base.hosted_by(broker.broker_id)
    damaged: set[PartitionId] = set()
    if len(reported) <= DAMAGED_MAX:
        damaged.update(key for key in starmap(PartitionId, (*before, *reported)) if key in hosted)
    if len(reported) > DAMAGED_MAX or len(damaged) > DAMAGED_MAX:
        return replace(broker, pending=broker.pending | Pending.REVOKE_ALL, damaged=())
    return replace(broker, damaged=tuple(sorted(damaged)))


def _level_problem(draft: Draft, command: RegisterBroker) -> Refused | None:
    level = draft.feature_level
    if command.feature_level_min <= level <= command.feature_level_max:
        return None
    return Refused(
        ErrorCode.UNSUPPORTED_VERSION,
        f"broker {command.broker_id} knows feature levels {command.feature_level_min} to"
        f" {command.feature_level_max}, the cluster is at {level}: run a version that knows it",
    )


def _successor_problem(known: BrokerState | None, command: RegisterBroker) -> Refused | None:
    """Why this process may not take the place of the one that is registered."""
    who, epoch = f"broker {command.broker_id}", NO_EPOCH if known is None else known.broker_epoch
    if command.expected_broker_epoch not in (None, epoch):
        return Refused(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{who} is registered under epoch {epoch}, expected was"
            f" {command.expected_broker_epoch}: read it again",
        )
    if known is None or known.fenced or known.directory_id == command.directory_id:
        return None
    return Refused(
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        f"{who} is in service with directory {known.directory_id.hex()}, this is"
        f" {command.directory_id.hex()}: give it another id, or wait until the other is fenced",
    )


def _revocation(known: BrokerState, command: RegisterBroker) -> Pending:
    """Which promises the disk cannot keep, judged against the registration before.

    1. Another directory, or the same as it was an incarnation ago: it is empty or restored. An
       epoch since it was last unfenced is as good as the newest, which a process that was killed
       at its start did not write down: nothing was promised in between.
    2. The kernel restarted under a running broker: what was not synced is gone. Only the mark of
       the process that is registered shows that it did not run any more.
    """
    is_same_directory = command.directory_id == known.directory_id
    is_whole = known.disk_epoch <= command.previous_broker_epoch <= known.broker_epoch
    if not (is_same_directory and is_whole):
        return Pending.REVOKE_ALL
    is_same_boot = command.boot_id == known.boot_id != ""
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
    )


def unregister_broker(draft: Draft, command: UnregisterBroker) -> AnyResult:
    broker = registered(draft, command.broker_id, command.broker_epoch)
    if isinstance(broker, Refused):
        return broker
    hosted = draft.base.hosted_by(command.broker_id)
    if hosted:
        return Refused(
            ErrorCode.INVALID_REQUEST,
            f"broker {command.broker_id} hosts {len(hosted)} partitions: reassign them first",
        )
    draft.remove_broker(command.broker_id)
    draft.release_slots(command.broker_id)
    return Done()


# Fencing and shutting down


def fence_broker(draft: Draft, command: FenceBroker) -> AnyResult:
    broker = registered(draft, command.broker_id, command.broker_epoch)
    if isinstance(broker, Refused):
        return broker
    if not broker.fenced:
        draft.put_broker(_moving(draft, replace(broker, fenced=True)))
    return Done()


def begin_controlled_shutdown(draft: Draft, command: BeginControlledShutdown) -> AnyResult:
    broker = registered(draft, command.broker_id, command.broker_epoch)
    if isinstance(broker, Refused):
        return broker
    if not broker.in_controlled_shutdown:
        draft.put_broker(_moving(draft, replace(broker, in_controlled_shutdown=True)))
    return Done()


def _moving(draft: Draft, broker: BrokerState) -> BrokerState:
    """With what follows for its partitions, if there are any."""
    if not draft.base.hosted_by(broker.broker_id):
        return broker
    pending = broker.pending | Pending.MOVE_LEADERS
    return replace(broker, pending=pending, pending_since=draft.version)


def unfence_broker(draft: Draft, command: UnfenceBroker) -> AnyResult:
    broker = registered(draft, command.broker_id, command.broker_epoch)
    if isinstance(broker, Refused):
        return broker
    if not broker.fenced:
        return Done()
    if broker.pending != Pending.NOTHING:
        return Refused(
            ErrorCode.INVALID_REQUEST,
            f"partitions of broker {command.broker_id} wait for a review since version"
            f" {broker.pending_since}: finish it first",
        )
    draft.put_broker(replace(broker, fenced=False, disk_epoch=broker.broker_epoch))
    return Done()
