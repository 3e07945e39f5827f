"""Partitions, brokers and a consumer without any I/O: questions are answered when a test says so.

Owns what the logs hold. Brokers answer as real ones do, within the limits of the question.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from raftmq.client.consumer.fetch_collector import FetchCollector
from raftmq.client.consumer.fetch_plan import FetchPlan
from raftmq.client.consumer.fetch_response import FetchResponses
from raftmq.client.consumer.options import consumer_options
from raftmq.client.consumer.partition_state import ReadingEvents
from raftmq.client.consumer.subscription import Subscription
from raftmq.client.routing.routes import Routes
from raftmq.errors import ErrorCode
from raftmq.rpc.reply import Answer
from raftmq.wire.messages import metadata as wire
from raftmq.wire.messages.fetch import Fetch, FetchReply, PartitionFetched
from raftmq.wire.messages.offsets import EARLIEST, FoundOffset, ListOffsetsReply
from tests.unit.client.logs import Partition
from tests.unit.client.world import batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.consumer.fetch_plan import PlannedRequest
    from raftmq.client.consumer.partition_state import ConsumedPartition

TOPIC_ID = b"t" * 16


class PureWorld:
    """Topic "t", whose partitions these brokers lead."""

    def __init__(self, *leaders: int, **options: Any) -> None:
        self.now, self.version, self.topic_id = 100.0, 0, TOPIC_ID
        self.partitions = [Partition(leader) for leader in leaders]
        self.routes = Routes()
        self.options = consumer_options(("t",), {"start": "earliest", **options})
        self.subscription = Subscription(
            ("t",), self.options, self.routes, Random(0), ReadingEvents()
        )
        self.plan = FetchPlan(self.subscription, self.options, self.routes)
        self.intake = FetchResponses(self.subscription, self.routes, self.put_back)
        self.delivery = FetchCollector(lambda _state: None)
        self.given_up: list[ConsumedPartition] = []
        self.tell_metadata()

    def put_back(self, state: ConsumedPartition) -> None:
        self.given_up.append(state)

    def state(self, partition: int) -> ConsumedPartition:
        return self.subscription.find("t", partition)

    def append(self, partition: int, *values: str) -> None:
        self.partitions[partition].append(batch(*values))

    def lead(self, partition: int, leader: int) -> None:
        found = self.partitions[partition]
        found.leader, found.leader_epoch = leader, found.leader_epoch + 1

    def tell_metadata(self, error: ErrorCode = ErrorCode.NONE) -> list[ConsumedPartition]:
        """The consumer hears of everything."""
        self.version += 1
        partitions = tuple(
            wire.PartitionMetadata(ErrorCode.NONE, number, found.leader, found.leader_epoch)
            for number, found in enumerate(self.partitions)
        )
        topic = wire.TopicMetadata(ErrorCode.NONE, "t", self.topic_id, partitions)
        if error:
            topic = wire.TopicMetadata(error, "t")
        brokers = tuple(wire.BrokerRow(number, f"b{number}", 9000) for number in (1, 2))
        self.routes.take_in(
            wire.MetadataReply(self.version, "cluster-a", brokers=brokers, topics=(topic,))
        )
        return self.subscription.on_metadata(now=self.now)

    def ask(self, broker_id: int) -> PlannedRequest | None:
        return self.plan.ask(broker_id, now=self.now)

    def answer(self, question: PlannedRequest) -> None:
        """As the broker does that was asked."""
        self.give(question, self.answer_to(question))

    def give(self, question: PlannedRequest, answer: Answer) -> None:
        if self.plan.out.get(question.broker_id) is question:
            self.plan.end(question)
        for state in self.intake.on_answer(question, answer, now=self.now):
            self.delivery.offer(state)

    def drop(self, question: PlannedRequest) -> None:
        self.plan.end(question)

    def start(self) -> None:
        """Find out where to begin."""
        for broker_id in (1, 2):
            question = self.ask(broker_id)
            if question is not None:
                self.answer(question)

    def answer_to(self, question: PlannedRequest) -> Answer:
        body = question.body
        if isinstance(body, Fetch):
            return self._fetched(question.broker_id, body)
        found = tuple(
            FoundOffset(
                one.topic_id,
                one.partition,
                self._refusal(question.broker_id, one),
                offset=0
                if one.timestamp == EARLIEST
                else self.partition(one).end_for(body.isolation_level),
            )
            for one in body.partitions
        )
        return Answer(ListOffsetsReply(found), b"", -1, 0)

    def partition(self, wanted: Any) -> Partition:
        return self.partitions[wanted.partition]

    def _refusal(self, broker_id: int, wanted: Any) -> ErrorCode:
        partition = self.partition(wanted)
        if wanted.leader_epoch < partition.leader_epoch or partition.leader != broker_id:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.NONE

    def _fetched(self, broker_id: int, body: Fetch) -> Answer:
        told, pieces, room = [], [], body.bytes_max
        for one in body.partitions:
            partition, error, data = self.partition(one), self._refusal(broker_id, one), b""
            isolation = body.isolation_level
            if not error:
                bytes_max = min(one.bytes_max, room)
                data = partition.read(one.fetch_offset, bytes_max, isolation=isolation)
            if data and len(data) > room and pieces:
                continue
            told.append(
                PartitionFetched(
                    one.topic_id,
                    one.partition,
                    error,
                    partition.end_offset,
                    0,
                    len(data),
                    last_stable_offset=partition.end_for(isolation),
                    aborted=partition.aborted(isolation, data),
                )
            )
            pieces.append(data)
            room -= len(data)
        return fetched(told, pieces)


def fetched(told: Sequence[PartitionFetched], pieces: Sequence[bytes] = ()) -> Answer:
    return Answer(FetchReply(partitions=tuple(told)), b"".join(pieces), -1, 0)
