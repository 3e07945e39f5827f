"""Which records a refusal is about, where a broker has refused them with others. Pure.

A broker takes all batches of a request for a partition or none, and names the limit that was
broken. By that this side tells who broke it: only those records fail, and the others leave again.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from raftmq.errors import InvalidTimestamp, MessageTooLarge

if TYPE_CHECKING:
    from raftmq.client.producer.batch import ProducerBatch
    from raftmq.client.producer.sending import Part
    from raftmq.errors import RaftmqError


def may_split(batch: ProducerBatch) -> bool:
    """What may have been appended stays as it is."""
    return batch.unskipped_count > 1 and not batch.may_have_happened


def blamed(
    part: Part, error: RaftmqError, now: float
) -> tuple[list[ProducerBatch], set[ProducerBatch]]:
    """All batches of the part, some perhaps split now; and those that the error is not about.

    Of those too large none is split here: that is done before they leave again.
    """
    if isinstance(error, MessageTooLarge) and error.allowed >= 0:
        return part.batches, _those_that_fit(part, error.allowed, now)
    if isinstance(error, InvalidTimestamp) and error.allowed >= 0:
        batches = [one for batch in part.batches for one in _by_time(batch, error.allowed)]
        innocent = {batch for batch in batches if not _is_ahead(batch, error.allowed)}
        # Perhaps it is about one whose time was over: nobody knows its timestamps any more.
        is_told = any(batch.outcome is not None for batch in batches)
        return batches, innocent if len(innocent) < len(batches) or is_told else set()
    return part.batches, set()


def _those_that_fit(part: Part, bytes_max: int, now: float) -> set[ProducerBatch]:
    sizes = list(map(len, part.data))
    if max(sizes) <= bytes_max:
        return set()  # whatever it is about: nothing would change
    part.queue.limit_batches(bytes_max, part.place.topic_id, now)
    return {
        batch
        for batch, size in zip(part.batches, sizes, strict=True)
        if size <= bytes_max or may_split(batch)
    }


def _is_ahead(batch: ProducerBatch, highest: int) -> bool:
    return batch.outcome is None and max(batch.timestamps()) > highest


def _by_time(batch: ProducerBatch, highest: int) -> list[ProducerBatch]:
    """Cut where records that are ahead begin and end."""
    if batch.outcome is not None or not may_split(batch):
        return [batch]
    ahead = [timestamp > highest for timestamp in batch.timestamps()]
    cuts = [at for at, (one, other) in enumerate(pairwise(ahead), 1) if one != other]
    return [batch, *batch.split(cuts)] if cuts else [batch]
