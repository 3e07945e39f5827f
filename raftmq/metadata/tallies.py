"""In how many partitions a broker has which part: counts that would cost a look at all of them.

Owns `Tally` and the counting. Tallies follow from the partitions: they are kept up to date with
each change of one, built anew where an image is decoded, and stand in no snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.metadata.commands import NO_BROKER

if TYPE_CHECKING:
    from immutables import Map

    from raftmq.metadata.image import PartitionState


class Tally(NamedTuple):
    """Of one broker. The eligible of `unsynced` are of topics that trusted a page cache."""

    led: int = 0
    in_sync: int = 0
    eligible: int = 0
    unsynced: int = 0
    last_led: int = 0


NO_TALLY = Tally()


class Tallying:
    """What partitions add to the tallies of brokers, and what they take away."""

    def __init__(self) -> None:
        self._counts: dict[int, list[int]] = {}

    def add(self, partition: PartitionState, *, trusts_page_cache: bool, times: int = 1) -> None:
        """`times` is -1 for a partition that is gone, or not so any more."""
        if partition.leader != NO_BROKER:
            self._of(partition.leader)[0] += times
        for broker_id in partition.isr:
            self._of(broker_id)[1] += times
        for broker_id in partition.eligible:
            counts = self._of(broker_id)
            counts[2] += times
            counts[3] += times * trusts_page_cache
        for broker_id in partition.last_known_eligible:
            self._of(broker_id)[4] += times

    def _of(self, broker_id: int) -> list[int]:
        counts = self._counts.get(broker_id)
        if counts is None:
            counts = self._counts[broker_id] = [0, 0, 0, 0, 0]
        return counts

    def added_to(self, tallies: Map[int, Tally]) -> Map[int, Tally]:
        """The next tallies; of a broker that has no part in anything there is none."""
        for broker_id, counts in self._counts.items():
            before = tallies.get(broker_id, NO_TALLY)
            after = Tally(*[old + new for old, new in zip(before, counts, strict=True)])
            assert min(after) >= 0, f"broker {broker_id} has less than nothing: {after}"
            if after != NO_TALLY:
                tallies = tallies.set(broker_id, after)
            elif broker_id in tallies:
                tallies = tallies.delete(broker_id)
        return tallies
