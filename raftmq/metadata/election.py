"""Who leads a partition, who is in sync, who may come back: the rules, one partition at a time.

Owns every change of a partition's ISR, eligible replicas, leader and epochs (KIP-966, with strict
min ISR). Knows nothing of images: what it must know of the cluster comes as `Rules`.

Invariants:
  1. While fewer than min ISR replicas are in sync nothing is committed. So whoever leaves the ISR
     then holds all that is committed: it is eligible, and electing it is clean. A leader owes the
     same: it counts the ISR that is committed here, and not one that it has only proposed.
  2. `concluded` and `disabled` alone move epochs: partition_epoch at each change, leader_epoch at
     each change of leader, each drop of a replica, and wherever a replica becomes unusable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from raftmq.metadata.commands import NO_BROKER, Loss, RecoveryState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from raftmq.metadata.image import PartitionState


class Rules(NamedTuple):
    """What decides about one partition besides its own state.

    An active broker is unfenced and not shutting down. `min_isr` is the configured number.
    """

    is_active: Callable[[int], bool]
    is_unfenced: Callable[[int], bool]
    min_isr: int
    is_unclean_allowed: bool = False


def without_leadership(rules: Rules, broker_id: int) -> Rules:
    """The same rules, but this broker leads nothing."""
    return rules._replace(
        is_active=lambda other: other != broker_id and rules.is_active(other),
        is_unfenced=lambda other: other != broker_id and rules.is_unfenced(other),
    )


class Elected(NamedTuple):
    """`broker_id` is NO_BROKER where nobody can lead; unclean: it may lack committed records."""

    broker_id: int
    is_clean: bool


NOBODY = Elected(NO_BROKER, is_clean=True)


def min_isr_of(partition: PartitionState, configured: int) -> int:
    """The effective min ISR: no more than there are replicas."""
    return max(1, min(configured, len(partition.replicas)))


def elect(partition: PartitionState, rules: Rules) -> Elected:
    """Whoever should lead now; the one who leads, if it may go on.

    1. In the ISR. 2. Eligible. 3. The last leader, if nobody is in sync or eligible, not even a
    broker that is away. 4. Anybody, where that is allowed.
    Of 1 and 2 an active one; else one that shuts down. An ISR of fenced or stopping brokers does
    not hold up 2: an eligible replica lacks nothing committed.
    """
    for may_lead in (rules.is_active, rules.is_unfenced):
        for candidates in (partition.isr, partition.eligible):
            broker_id = _first(partition, candidates, may_lead)
            if broker_id != NO_BROKER:
                return Elected(broker_id, is_clean=True)
    is_forsaken = not partition.isr and not partition.eligible
    last_known = partition.last_known_eligible
    if is_forsaken and len(last_known) == 1 and rules.is_unfenced(last_known[0]):
        return Elected(last_known[0], is_clean=False)
    if rules.is_unclean_allowed:
        for may_lead in (rules.is_active, rules.is_unfenced):
            broker_id = _first(partition, partition.replicas, may_lead)
            if broker_id != NO_BROKER:
                return Elected(broker_id, is_clean=False)
    return NOBODY


def _first(
    partition: PartitionState, candidates: Collection[int], may_lead: Callable[[int], bool]
) -> int:
    """The leader, else the first in the order of replicas."""
    for broker_id in (partition.leader, *partition.replicas):
        if broker_id in candidates and may_lead(broker_id):
            return broker_id
    return NO_BROKER


def review(
    partition: PartitionState, broker_id: int, rules: Rules, *, loss: Loss = Loss.NOTHING
) -> PartitionState:
    """See the partition anew after `broker_id` changed; itself, if nothing follows from that."""
    revoked = _revoked(partition, broker_id, loss)
    isr = revoked.isr
    if broker_id in isr and _must_leave(revoked, broker_id, rules):
        isr = _without(isr, broker_id)
    return concluded(partition, led(with_isr(revoked, isr, rules.min_isr), rules))


def disabled(
    partition: PartitionState, broker_id: int, rules: Rules, *, loss: Loss
) -> PartitionState:
    """Its log cannot be used: somebody else leads, if anybody can, in another epoch in any case.

    1. A leader's log may lack what it has appended in this epoch.
    2. What a leader knows of this follower, and proposes, is from before.
    Where nobody else can lead, a leader that keeps its promises leads on once its log is repaired.
    A follower that keeps them stays while there is no leader, or one that is about to go: it may be
    the only one that can lead next.
    """
    is_needed = partition.leader != broker_id and not rules.is_active(partition.leader)
    if is_needed and loss == Loss.NOTHING:
        return partition
    after = review(partition, broker_id, without_leadership(rules, broker_id), loss=loss)
    if partition.leader == broker_id and after.leader == NO_BROKER and loss < Loss.RECORDS:
        after = review(partition, broker_id, rules, loss=loss)
    return replace(
        after,
        leader_epoch=partition.leader_epoch + 1,
        partition_epoch=partition.partition_epoch + 1,
    )


def _revoked(partition: PartitionState, broker_id: int, loss: Loss) -> PartitionState:
    """Without trust in a replica that lost something.

    One that lost its unsynced tail stays the last known leader: where no replica is trusted any
    more, it is the best there is. One that lost records is not.
    """
    if loss == Loss.NOTHING:
        return partition
    last_known = _last_known(partition)
    if loss == Loss.RECORDS:
        last_known = _without(last_known, broker_id)
    return replace(
        partition,
        leader=NO_BROKER if partition.leader == broker_id else partition.leader,
        isr=_without(partition.isr, broker_id),
        eligible=_without(partition.eligible, broker_id),
        last_known_eligible=last_known if partition.leader in (broker_id, NO_BROKER) else (),
    )


def _must_leave(partition: PartitionState, broker_id: int, rules: Rules) -> bool:
    """A broker that shuts down goes on while nobody in sync could take over."""
    if rules.is_active(broker_id):
        return False
    others = _without(partition.isr, broker_id)
    return not rules.is_unfenced(broker_id) or any(map(rules.is_active, others))


def with_isr(partition: PartitionState, isr: Collection[int], min_isr: int) -> PartitionState:
    """With the ISR `isr`, in the order of replicas, and the eligible replicas that follow."""
    in_sync = tuple(broker_id for broker_id in partition.replicas if broker_id in isr)
    eligible: tuple[int, ...] = ()
    if len(in_sync) < min_isr_of(partition, min_isr):
        held = (*partition.isr, *partition.eligible)
        eligible = tuple(b for b in partition.replicas if b in held and b not in in_sync)
    return replace(partition, isr=in_sync, eligible=eligible)


def led(partition: PartitionState, rules: Rules) -> PartitionState:
    """With the leader that `elect` gives it; a leader from outside the ISR becomes the ISR."""
    elected = elect(partition, rules)
    if elected.is_clean and elected.broker_id in (*partition.isr, NO_BROKER):
        after = replace(partition, leader=elected.broker_id)
    elif elected.is_clean:
        alone = with_isr(partition, (elected.broker_id,), rules.min_isr)
        after = replace(alone, leader=elected.broker_id)
    else:
        after = _led_uncleanly(partition, elected.broker_id)
    last_known = () if after.leader != NO_BROKER else _last_known(partition)
    return replace(after, last_known_eligible=last_known)


def _led_uncleanly(partition: PartitionState, broker_id: int) -> PartitionState:
    """Its log is the truth from now on, so nobody else's is trusted: nobody is eligible."""
    return replace(
        partition,
        leader=broker_id,
        isr=(broker_id,),
        eligible=(),
        recovery_state=RecoveryState.RECOVERING,
    )


def _last_known(partition: PartitionState) -> tuple[int, ...]:
    """Who leads, or led last while nobody does; nobody, if it was dropped."""
    if partition.leader == NO_BROKER:
        return partition.last_known_eligible
    return (partition.leader,) if partition.leader in partition.replicas else ()


def with_min_isr(partition: PartitionState, min_isr: int) -> PartitionState:
    """After a change of the configured min ISR; itself, if nothing follows from that.

    A leader that now commits with the ISR it has leaves the eligible replicas behind.
    """
    return concluded(partition, with_isr(partition, partition.isr, min_isr))


def concluded(before: PartitionState, after: PartitionState) -> PartitionState:
    """`after` with its epochs, or `before` if they are equal."""
    assert (before.leader_epoch, before.partition_epoch) == (
        after.leader_epoch,
        after.partition_epoch,
    ), "epochs are moved once, here"
    if after == before:
        return before
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
