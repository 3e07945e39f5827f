"""Planted bugs of named producers: fences, their replication, and the generations they check.

Each is a function that patches a broker. A bug takes away one rule, or one step; never a check.
Only worlds with tasks that are run again can find them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raftmq.broker.requests import producer_fencing as requests
from raftmq.broker.requests.produce import PendingAcknowledgements
from raftmq.partition import admission
from raftmq.partition.admission import Admission
from raftmq.partition.sequences import fenced as real_fenced
from raftmq.partition.storage import log

if TYPE_CHECKING:
    from raftmq.partition.sequences import ProducerState
    from raftmq.partition.storage.incoming import Placement
    from raftmq.wire.batch.header import Account, BatchHeader
    from tests.simulation.planting import Patch


def an_old_epoch_is_accepted(patch: Patch) -> None:
    """A fenced producer goes on, if its sequence number is the next one."""
    original_offset = Admission.original_offset

    def of_any_epoch(
        self: Admission, placed: BatchHeader, account: Account | None = None
    ) -> int | None:
        known = self._find(placed.producer_id)
        if account is not None and known is not None:
            placed = placed._replace(producer_epoch=known.epoch)
            account = account._replace(generation=known.generation)
        return original_offset(self, placed, account)

    patch.setattr(Admission, "original_offset", of_any_epoch)


def a_fence_begins_the_generation_anew(patch: Patch) -> None:
    """The sequence does not outlive the fence, as with Kafka's epochs."""

    def fenced(known: ProducerState | None, generation: int, **given: Any) -> ProducerState:
        following = real_fenced(known, generation, **given)
        return following._replace(next_sequence=0, digest=0)

    patch.setattr(admission, "fenced", fenced)


def a_lower_generation_may_begin(patch: Patch) -> None:
    """The producer that sends last writes, also of an older generation."""

    def fenced(known: ProducerState | None, generation: int, **given: Any) -> ProducerState:
        if known is not None and generation < known.generation:
            known = known._replace(generation=generation - 1)
        return real_fenced(known, generation, **given)

    patch.setattr(admission, "fenced", fenced)


def a_fence_is_answered_before_it_is_committed(patch: Patch) -> None:
    """What stands in the leader's log is taken for what stands there."""

    def acknowledging(*given: Any, acks: int, **named: Any) -> PendingAcknowledgements:
        return PendingAcknowledgements(*given, acks=1, **named)

    patch.setattr(requests, "PendingAcknowledgements", acknowledging)


def only_the_leader_knows_of_fences(patch: Patch) -> None:
    """Followers copy them, and note what rows say alone."""
    place_replicated = log.place_replicated

    def place(*given: Any, **named: Any) -> Placement:
        placement = place_replicated(*given, **named)
        control = {header.base_offset for _, header in placement.batches if header.is_control}
        left = {at: one for at, one in placement.accounts.items() if at not in control}
        return placement._replace(accounts=left)

    patch.setattr(log, "place_replicated", place)
