"""Leader election of partitions: ISR, eligible leader replicas, unclean election, leader epochs.

Owns every change of a partition's ISR, eligible replicas, leader and epochs (KIP-966 with strict
min ISR; Kafka: PartitionChangeBuilder). Knows no image: facts about the cluster come as `Rules`.

Invariants:
  1. While fewer than min ISR replicas are in sync nothing is committed. So a replica that leaves
     the ISR then holds all that is committed: it is eligible, and electing it is clean. This holds
     only because leaders count the ISR committed here, never one that they have only proposed,
     and because min ISR changes only together with the partition epoch. Where it falls, nobody is
     eligible any more who left before. Where it rises, nobody becomes so who left before: a leader
     that counts by the old number needs each member that leaves after, and cannot drop it itself.
  2. Only `concluded` and `disabled` raise epochs: partition_epoch at each change, leader_epoch at
     each change of leader, each drop of a replica, and wherever a replica becomes unusable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from raftmq.metadata.commands import NO_BROKER, FeatureLevel, Loss, RecoveryState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from raftmq.metadata.image import PartitionState


class Rules(NamedTuple):
    """What an election depends on besides the state of the partition.

    An active broker is unfenced and not shutting down. `min_isr` is the configured number, `level`
    the feature level.
    """

    is_active: Callable[[int], bool]
    is_unfenced: Callable[[int], bool]
    min_isr: int
    level: int
    is_unclean_allowed: bool = False


def without_leadership(rules: Rules, broker_id: int) -> Rules:
    """The same rules, but this broker leads nothing."""
    return rules._replace(
        is_active=lambda other: other != broker_id and rules.is_active(other),
        is_unfenced=lambda other: other != broker_id and rules.is_unfenced(other),
    )


class Elected(NamedTuple):
    """`broker_id` is NO_BROKER if no replica can lead; unclean: it may lack committed records."""

    broker_id: int
    is_clean: bool


NOBODY = Elected(NO_BROKER, is_clean=True)


def min_isr_of(partition: PartitionState, configured: int, level: int) -> int:
    """The effective min ISR: no more than there are replicas (decision 0005). Of one that moves, no
    more than before: those that are added may copy for hours. And no less, even if it is to have
    fewer: the move may be taken back.
    """
    replicas = partition.original if level >= FeatureLevel.MOVES else partition.replicas
    return max(1, min(configured, len(replicas)))


def elect(partition: PartitionState, rules: Rules) -> Elected:
    """The replica that should lead now; the present leader, if it may continue.

    1. A member of the ISR. 2. An eligible replica. 3. The last leader, if ISR and eligible
    replicas are empty. 4. Any unfenced replica, where unclean election is allowed; those that a
    move adds come last, as they may have copied nothing yet.
    In 1 and 2 an active broker is preferred to one that is shutting down. An ISR of fenced or
    stopping brokers does not block 2: an eligible replica lacks nothing committed.
    """
    for may_lead in (rules.is_active, rules.is_unfenced):
        for candidates in (partition.isr, partition.eligible):
            broker_id = _first(partition, candidates, may_lead)
            if broker_id != NO_BROKER:
                return Elected(broker_id, is_clean=True)
    # While a member of the ISR or an eligible replica is only fenced, the partition waits for it.
    # With none left, the last leader is the replica with most of the committed records.
    is_forsaken = not partition.isr and not partition.eligible
    last_known = partition.last_known_eligible
    # An unclean election that needs no permission: no other replica can have more (KIP-966).
    if is_forsaken and len(last_known) == 1 and rules.is_unfenced(last_known[0]):
        return Elected(last_known[0], is_clean=False)
    # The topic allows to lose committed records rather than to stay without a leader.
    if rules.is_unclean_allowed:
        knows_moves = rules.level >= FeatureLevel.MOVES
        groups = (partition.original, partition.adding) if knows_moves else (partition.replicas,)
        for candidates in groups:
            for may_lead in (rules.is_active, rules.is_unfenced):
                broker_id = _first(partition, candidates, may_lead)
                if broker_id != NO_BROKER:
                    return Elected(broker_id, is_clean=False)
    return NOBODY


def _first(
    partition: PartitionState, candidates: Collection[int], may_lead: Callable[[int], bool]
) -> int:
    """The present leader if it is a candidate, else the first in the order of replicas."""
    for broker_id in (partition.leader, *partition.replicas):
        # The present leader first: no needless change.
        if broker_id in candidates and may_lead(broker_id):
            return broker_id
    return NO_BROKER


def review(
    partition: PartitionState, broker_id: int, rules: Rules, *, loss: Loss = Loss.NOTHING
) -> PartitionState:
    """The partition after a change of `broker_id`; the same object, if nothing follows from it."""
    revoked = _revoked(partition, broker_id, loss)
    isr = revoked.isr
    # A revoked one has left already.
    if broker_id in isr and _must_leave(revoked, broker_id, rules):
        isr = _without(isr, broker_id)
    return concluded(partition, led(with_isr(revoked, isr, rules), rules))


def disabled(
    partition: PartitionState, broker_id: int, rules: Rules, *, loss: Loss
) -> PartitionState:
    """The log of `broker_id` cannot be used: another replica leads if one can, and the leader epoch
    rises in any case, because
    1. a leader's log may lack records that it appended in this epoch;
    2. what the leader knows of this follower, and proposes, is from before the failure.
    Where no other can lead, a leader that lost no records leads again once its log is repaired.
    """
    # A follower that lost nothing stays in the ISR while there is no leader, or one that is about
    # to stop: it may be the only replica that can lead next.
    is_needed = partition.leader != broker_id and not rules.is_active(partition.leader)
    if is_needed and loss == Loss.NOTHING:
        return partition
    after = review(partition, broker_id, without_leadership(rules, broker_id), loss=loss)
    # No other replica can lead: keep the leader, in the next epoch, until its log is repaired.
    if partition.leader == broker_id and after.leader == NO_BROKER and loss < Loss.RECORDS:
        after = review(partition, broker_id, rules, loss=loss)
    return replace(
        after,
        leader_epoch=partition.leader_epoch + 1,
        partition_epoch=partition.partition_epoch + 1,
    )


def _revoked(partition: PartitionState, broker_id: int, loss: Loss) -> PartitionState:
    """The partition without trust in a replica that lost something.

    One that lost its unsynced tail stays the last known leader: if no replica is trusted any more,
    it has more than any other. One that lost synced records does not.
    """
    if loss == Loss.NOTHING:  # trusted as before: leaving the ISR is decided by `_must_leave`
        return partition
    last_known = _last_known(partition)
    if loss == Loss.RECORDS:  # even as the last leader it has lost what others may hold
        last_known = _without(last_known, broker_id)
    return replace(
        partition,
        leader=NO_BROKER if partition.leader == broker_id else partition.leader,
        isr=_without(partition.isr, broker_id),
        eligible=_without(partition.eligible, broker_id),
        last_known_eligible=last_known if partition.leader in (broker_id, NO_BROKER) else (),
    )


def _must_leave(partition: PartitionState, broker_id: int, rules: Rules) -> bool:
    """Whether an inactive broker must leave the ISR."""
    if rules.is_active(broker_id):  # neither fenced nor shutting down
        return False
    others = _without(partition.isr, broker_id)
    # Fenced: at once. Shutting down: only if another member of the ISR can take over.
    return not rules.is_unfenced(broker_id) or any(map(rules.is_active, others))


def with_isr(partition: PartitionState, isr: Collection[int], rules: Rules) -> PartitionState:
    """The partition with the ISR `isr`, in the order of replicas, and its eligible replicas."""
    in_sync = tuple(broker_id for broker_id in partition.replicas if broker_id in isr)
    eligible: tuple[int, ...] = ()
    # Invariant 1: below min ISR nothing is committed, so who leaves now lacks nothing committed.
    if len(in_sync) < min_isr_of(partition, rules.min_isr, rules.level):
        held = (*partition.isr, *partition.eligible)
        eligible = tuple(b for b in partition.replicas if b in held and b not in in_sync)
    return replace(partition, isr=in_sync, eligible=eligible)


def led(partition: PartitionState, rules: Rules) -> PartitionState:
    """The partition with the leader that `elect` chooses.

    Cases: 1. from the ISR, or none; 2. an eligible replica, which becomes the ISR alone; 3. an
    unclean election.
    """
    elected = elect(partition, rules)
    # Cases 1, 2 and 3 in this order.
    if elected.is_clean and elected.broker_id in (*partition.isr, NO_BROKER):
        after = replace(partition, leader=elected.broker_id)
    elif elected.is_clean:
        alone = with_isr(partition, (elected.broker_id,), rules)
        after = replace(alone, leader=elected.broker_id)
    else:
        after = _led_uncleanly(partition, elected.broker_id)
    last_known = () if after.leader != NO_BROKER else _last_known(partition)
    return replace(after, last_known_eligible=last_known)


def _led_uncleanly(partition: PartitionState, broker_id: int) -> PartitionState:
    """Its log counts from now on, whatever it lacks, so no other replica is in sync or eligible."""
    return replace(
        partition,
        leader=broker_id,
        isr=(broker_id,),
        eligible=(),
        recovery_state=RecoveryState.RECOVERING,
    )


def _last_known(partition: PartitionState) -> tuple[int, ...]:
    """The leader, or the last one if there is none; empty, if its replica was dropped."""
    if partition.leader == NO_BROKER:
        return partition.last_known_eligible
    return (partition.leader,) if partition.leader in partition.replicas else ()


def with_min_isr(partition: PartitionState, rules: Rules) -> PartitionState:
    """The partition under another min ISR, in the next partition epoch even if it stays the same.

    leader:      counts with min ISR 1           shrinks to itself    commits alone
    controller:                    raises to 2   eligible: the replica that left
    With the old epoch the replica that left would be eligible although it lacks records. With the
    new one the leader's proposal is refused until it has seen the change. If the ISR now suffices
    to commit, eligible replicas may fall behind and lose eligibility.
    """
    after = with_isr(partition, partition.isr, rules)
    return replace(after, partition_epoch=partition.partition_epoch + 1)


def concluded(before: PartitionState, after: PartitionState) -> PartitionState:
    """`after` with its epochs, or `before` if they are equal."""
    assert (before.leader_epoch, before.partition_epoch) == (
        after.leader_epoch,
        after.partition_epoch,
    ), "epochs are moved once, here"
    if after == before:  # epochs rise only for real changes
        return before
    # Adding a replica is no new leadership. Dropping one is: the dropped follower must not go on
    # fetching as a replica, and its old leader epoch makes the leader refuse it.
    is_new_leadership = after.leader != before.leader or not set(before.replicas) <= set(
        after.replicas
    )
    return replace(
        after,
        leader_epoch=before.leader_epoch + is_new_leadership,
        partition_epoch=before.partition_epoch + 1,
    )


def _without(brokers: tuple[int, ...], broker_id: int) -> tuple[int, ...]:
    return tuple(member for member in brokers if member != broker_id)
