"""Planted bugs of the client SDK: order of retries, outcomes, positions of the consumer.

Each is a function that patches the SDK through a `Patch`. A bug takes away one rule, or one step;
never a check. Only worlds with programs that use the SDK can find them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from raftmq.client.consumer.consumer import Consumer
from raftmq.client.consumer.fetch_collector import FetchCollector
from raftmq.client.consumer.fetch_plan import PartitionRequest
from raftmq.client.producer.partition_queue import PartitionQueue
from raftmq.client.producer.sender import ProducerSender
from raftmq.errors import DeliveryTimedOut

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jepsen_like.planted.patch import Patch
    from raftmq.client.consumer.record import ConsumerRecord
    from raftmq.client.producer.batch import ProducerBatch
    from raftmq.errors import RaftmqError


# -- what is sent ------------------------------------------------------------------------------


def a_failed_batch_goes_to_the_back(patch: Patch) -> None:
    """What has to be sent again waits behind what came later."""

    def put_back(self: PartitionQueue, batches: Sequence[ProducerBatch]) -> None:
        self._batches.extend(batches)
        self.queued_bytes += sum(batch.byte_count for batch in batches)

    patch.setattr(PartitionQueue, "put_back", put_back)


def send_before_the_answer(patch: Patch) -> None:
    """A partition's next request leaves while the one before may still fail."""
    patch.setattr(PartitionQueue, "may_send", property(lambda self: bool(self._batches)))


def deny_what_may_have_happened(patch: Patch) -> None:
    """A send that gives up reports that nothing was appended, though that is unknown."""

    def give_up(self: ProducerSender, batch: ProducerBatch, error: RaftmqError) -> None:
        self._on_settled(batch, DeliveryTimedOut(str(error)).at(batch.topic, batch.partition))

    patch.setattr(ProducerSender, "_give_up", give_up)


# -- what is read ------------------------------------------------------------------------------


def a_cancelled_wait_takes_a_batch_along(patch: Patch) -> None:
    """A batch counts as handed out, and is lost when the wait that follows is cancelled."""
    next_one = Consumer._next

    async def next_and_wait(self: Consumer, *given: Any) -> Any:
        found = await next_one(self, *given)
        await anyio.sleep(0.002)
        return found

    patch.setattr(Consumer, "_next", next_and_wait)


def the_rest_of_a_batch_is_dropped(patch: Patch) -> None:
    """A batch that was begun counts as handed out when the program goes on otherwise."""

    def close(self: FetchCollector, last: ConsumerRecord | None) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            self._hand_out(opened.state, opened.batch.end_offset, last=opened.last_offset)

    patch.setattr(FetchCollector, "close", close)


def a_late_answer_counts(patch: Patch) -> None:
    """A response to a fetch from before a seek is taken for records of the new position."""
    is_current: Any = vars(PartitionRequest)["is_current"].fget

    def is_good_enough(self: PartitionRequest) -> bool:
        return self.state.position is not None or is_current(self)

    patch.setattr(PartitionRequest, "is_current", property(is_good_enough))
