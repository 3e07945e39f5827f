"""Planted bugs of filters by tags: what is left out, what is known of segments, what is read on.

Each is a function that patches the code through a `Patch`. A bug takes away one rule, or one step;
never a check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.broker.requests.fetch import ConsumerView
from raftmq.broker.requests.fetch_sessions import PartitionView
from raftmq.client.consumer.partition_state import ConsumedPartition
from raftmq.partition.filtered_read import Verdicts
from raftmq.partition.storage.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jepsen_like.planted.patch import Patch
    from raftmq.broker.requests.fetch_sessions import SessionPartition
    from raftmq.client.consumer.completed_fetches import Fetched
    from raftmq.partition.replica import Replica
    from raftmq.partition.storage.segment import SeenTags
    from raftmq.wire.batch.directory import Tags


def untagged_records_never_pass(patch: Patch) -> None:
    """Who filters by tags is taken to want none without."""
    passes = Verdicts.passes

    def passes_with_tags(self: Verdicts, tags: Tags | None) -> bool:
        return tags != () and passes(self, tags)

    patch.setattr(Verdicts, "passes", passes_with_tags)


def pass_over_what_is_not_committed(patch: Patch) -> None:
    """What a filter leaves out need not be committed, as nobody reads it."""
    look = ConsumerView.look

    def look_further(
        self: ConsumerView, replica: Replica, partition: SessionPartition
    ) -> PartitionView:
        seen = look(self, replica, partition)
        if not self._is_filtered or seen.diverged is not None:
            return seen
        end = replica.log.log_end_offset
        stable = end if seen.hides_aborted else seen.last_stable_offset
        return PartitionView(end, end, seen.log_start_offset, last_stable_offset=stable)

    patch.setattr(ConsumerView, "look", look_further)


def segments_are_known_up_to_any_batch(patch: Patch) -> None:
    """The tags of some batches of a sealed segment count as those of all."""

    def note_tags(self: Segment, seen: SeenTags) -> None:
        self._seen_tags = seen._replace(end_offset=self.end_offset)

    patch.setattr(Segment, "note_tags", note_tags)


def positions_stay_where_nothing_passes(patch: Patch) -> None:
    """An answer without records does not move the position."""
    add = ConsumedPartition.add

    def add_records(self: ConsumedPartition, pieces: Sequence[Fetched]) -> None:
        if not all(piece.is_passed_over for piece in pieces):
            add(self, pieces)

    patch.setattr(ConsumedPartition, "add", add_records)
