"""Reviews: the consequences of a change of one broker, slice by slice.

Owns how far a review has come. Fencing a broker can touch 100,000 partitions: one command marks
the broker, and these follow. A review that is lost with its controller is begun again by the next
one, from `pending` in the image; a slice that is proposed twice changes nothing the second time.

Invariant: a review is finished only after each of its slices was answered.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from raftmq.metadata.commands import FinishReview, PartitionId, ReviewPartitions
from raftmq.metadata.controller.looks import Walk

if TYPE_CHECKING:
    from raftmq.metadata.controller.looks import Looks
    from raftmq.metadata.image import BrokerState, MetadataImage, PartitionState

SLICE_PARTITIONS_MAX = 500  # of one command: it blocks every node while it is applied

AnyReview: TypeAlias = ReviewPartitions | FinishReview


class Review:
    """One walk over the partitions that a broker hosts: first those that it leads.

    Attributes:
        broker: as it was when the review began.
    """

    def __init__(self, image: MetadataImage, broker: BrokerState) -> None:
        self.broker = broker
        self._walk: Walk[PartitionId] = Walk(image.hosted_by(broker.broker_id))
        self._others: deque[PartitionId] = deque()  # seen already, and not as urgent
        self._command: AnyReview | None = None  # made, and not yet answered

    def is_about(self, broker: BrokerState) -> bool:
        """Whether it still answers what the image says of the broker."""
        mine = self.broker
        return (broker.broker_epoch, broker.pending_since) == (
            mine.broker_epoch,
            mine.pending_since,
        )

    def next_command(self, image: MetadataImage, looks: Looks) -> AnyReview | None:
        """What to propose now, the same until it was answered; None if that takes more looks."""
        if self._command is None:
            self._command = self._made(image, looks)
        return self._command

    def _made(self, image: MetadataImage, looks: Looks) -> AnyReview | None:
        name = (self.broker.broker_id, self.broker.broker_epoch)
        keys = self._led(image, looks)
        while self._others and len(keys) < SLICE_PARTITIONS_MAX:
            keys.append(self._others.popleft())
        if keys:
            # Sorted, as the order of a map is another one in each process.
            return ReviewPartitions(*name, tuple(sorted(keys)))
        return FinishReview(*name, self.broker.pending_since) if self._walk.is_over else None

    def _led(self, image: MetadataImage, looks: Looks) -> list[PartitionId]:
        """Some that it leads: they wait for another leader. What it has another part in waits."""
        keys: list[PartitionId] = []
        broker_id = self.broker.broker_id
        leads = image.led_count(broker_id) > 0
        for key in self._walk.go(looks):
            partition = image.partitions.get(key)
            if partition is None:
                continue
            if partition.leader == broker_id:
                keys.append(key)
            elif _trusts(partition, broker_id):
                self._others.append(key)
            if len(keys if leads else self._others) >= SLICE_PARTITIONS_MAX:
                break
        return keys

    def on_applied(self, command: AnyReview) -> None:
        """The quorum has applied what `next_command` said."""
        assert command == self._command, f"not of this review: {command}"
        self._command = None

    def is_waiting_for(self, command: AnyReview) -> bool:
        return command == self._command


class Reviews:
    """The reviews that brokers wait for (`pending` in the image)."""

    def __init__(self) -> None:
        self._reviews: dict[int, Review] = {}

    def of(self, image: MetadataImage, broker: BrokerState, looks: Looks) -> AnyReview | None:
        """The next step of what is pending, from the beginning if that has grown."""
        review = self._reviews.get(broker.broker_id)
        if review is None or not review.is_about(broker):
            review = self._reviews[broker.broker_id] = Review(image, broker)
        return review.next_command(image, looks)

    def on_result(self, command: AnyReview, *, succeeded: bool) -> None:
        """The quorum has applied it, or refused: then the image has changed, and tells anew."""
        review = self._reviews.get(command.broker_id)
        if review is None or not review.is_waiting_for(command):
            return
        if succeeded:
            review.on_applied(command)
        if isinstance(command, FinishReview) or not succeeded:
            del self._reviews[command.broker_id]


def _trusts(partition: PartitionState, broker_id: int) -> bool:
    return (
        broker_id in partition.isr
        or broker_id in partition.eligible
        or broker_id in partition.last_known_eligible
    )
