"""A cluster as the sending rules of a producer meet it: logs in lists, answers drawn by a seed.

Leaders move, requests are lost before or after they are carried out, time jumps. Checks on the way
that each record is told of once, and where it stands.
"""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING, Any

from raftmq.client.producer.accumulator import Accumulator
from raftmq.client.producer.batch import BatchMetadata, ProducerBatch
from raftmq.client.producer.options import ProducerOptions
from raftmq.client.producer.record import RECORD_OVERHEAD_BYTES
from raftmq.client.producer.sender import ProducerSender, SenderStep
from raftmq.client.routing.routes import Routes
from raftmq.errors import (
    Disconnected,
    ErrorCode,
    InvalidTimestamp,
    LeaderElsewhere,
    MessageTooLarge,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    RaftmqError,
    Unreachable,
)
from raftmq.wire.batch.header import read_header
from raftmq.wire.batch.records import RecordBatch
from raftmq.wire.messages import metadata as wire
from tests.unit.client.sequences import place_of

if TYPE_CHECKING:
    from raftmq.client.producer.batch import Outcome
    from raftmq.client.producer.partition_queue import Answered, ProduceRequest, RequestPart
    from raftmq.wire.batch.header import BatchHeader

TOPIC_ID = b"t" * 16
REFUSALS = (NotEnoughReplicas, LeaderElsewhere, Unreachable)  # certainly not appended
DOUBTS = (Disconnected, NotEnoughReplicasAfterAppend)  # perhaps


class Waiter:
    """Somebody who waits for a topic."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.told: list[RaftmqError | None] = []

    def on_known(self, error: RaftmqError | None) -> None:
        self.told.append(error)


class Model:
    """A producer's rules against a cluster that answers as the seed says.

    Attributes:
        logs: by partition, what was appended.
        headers: ... of the batches there.
        outcomes: by number of the record, as it was told.
    """

    def __init__(self, seed: int, partitions: int = 3, **options: Any) -> None:
        self.random, self.now = Random(seed), 1000.0
        self.options = ProducerOptions(**options)
        self.accumulator = Accumulator(self.options, self.random, lambda *_: True, lambda: None)
        self.sending = ProducerSender(self.options, self.accumulator, self._on_settled)
        self.routes = Routes()
        self.topic = self.accumulator.topic("t")
        self.leaders = [1 + each % 3 for each in range(partitions)]
        self.error = ErrorCode.NONE
        self.version, self.topic_id = 0, TOPIC_ID
        self.logs: list[list[int]] = [[] for _ in self.leaders]
        self.headers: list[list[BatchHeader]] = [[] for _ in self.leaders]
        self.producer_id = 0
        self.outcomes: dict[int, Outcome] = {}
        self.batches: dict[int, ProducerBatch] = {}  # kept, so that no id is used twice
        self.is_repeated: set[int] = set()
        self.arrived: list[bytes] = []
        self.requests: list[ProduceRequest] = []
        self.count = self.used_bytes = 0
        self.records: dict[int, list[int]] = {}
        self.bytes_max: float = math.inf  # of a batch that leaders take
        self.guilty: set[int] = set()  # records that no leader takes
        self.timestamp_max = 0

    # What the producer does

    def hand_in(self, key: int | None) -> None:
        size = RECORD_OVERHEAD_BYTES + 8
        value = b"%08d" % self.count
        if self.bytes_max < math.inf and self.random.random() < 0.03:
            value += b" " * int(self.bytes_max)
        stamp = int(self.timestamp_max > 0 and self.random.random() < 0.1) * 2
        self.guilty |= {self.count} if len(value) > 8 or stamp else set()
        batch, index = self.accumulator.add(self.topic, value, key, stamp, size, lambda: self.now)
        self.used_bytes += size
        self.records.setdefault(id(batch), []).append(self.count)
        assert len(self.records[id(batch)]) == index + 1
        self.batches[id(batch)] = batch
        self.count += 1

    def step(self, *, is_hurried: bool = False) -> SenderStep:
        step = self.sending.step(self.routes, self.now, is_hurried=is_hurried)
        self.requests += step.requests
        if step.is_id_wanted:
            self.give_id()
        return step

    def give_id(self) -> None:
        """A broker has one at once."""
        assert self.accumulator.ids is not None
        self.producer_id += 1
        self.accumulator.ids.on_id(self.producer_id)

    def _follow(self, batch: ProducerBatch) -> None:
        """Into which batches its records were split."""
        numbers = [each for one in batch.pieces for each in self.records.get(id(one), [])]
        for piece in batch.pieces:
            self.batches[id(piece)] = piece
            self.records[id(piece)], numbers = numbers[: len(piece)], numbers[len(piece) :]

    def _on_settled(self, batch: ProducerBatch, outcome: Outcome) -> None:
        self._follow(batch)
        numbers = self.records[id(batch)]
        assert len(numbers) == len(batch)
        self.used_bytes -= batch.byte_count
        for index, number in enumerate(numbers):
            assert number not in self.outcomes, "told twice"
            if isinstance(outcome, BatchMetadata) and outcome.base_offset >= 0:
                assert self.logs[batch.partition][outcome.base_offset + index] == number
            self.outcomes[number] = outcome
            if batch.is_repeated:
                self.is_repeated.add(number)
        batch.settle(outcome)

    # What the cluster does

    def learn(self) -> None:
        """Metadata as it is now."""
        self.version += 1
        partitions = tuple(
            wire.PartitionMetadata(ErrorCode.NONE, number, leader, self.version)
            for number, leader in enumerate(self.leaders)
        )
        topic = wire.TopicMetadata(ErrorCode.NONE, "t", self.topic_id, partitions)
        if self.error:
            topic = wire.TopicMetadata(self.error, "t")
        brokers = tuple(wire.BrokerRow(number, f"b{number}", 1) for number in (1, 2, 3))
        self.routes.take_in(wire.MetadataReply(self.version, "c", brokers=brokers, topics=(topic,)))

    def answer(self, request: ProduceRequest, *answers: Answered) -> None:
        self.requests.remove(request)
        for found in answers:
            if isinstance(found, RaftmqError) and found.refresh_metadata:
                places = [self.routes.find("t", part.place.partition) for part in request.parts]
                if places == [part.place for part in request.parts]:
                    self.routes.doubt("t")  # as whoever asks does
        self.sending.on_answer(request, answers, self.routes, self.now)

    def append(self, part: RequestPart) -> Answered:
        """What is there already is not appended once more, if it has a number."""
        log, headers = self.logs[part.place.partition], self.headers[part.place.partition]
        fresh, known, offsets = log[:], headers[:], []
        for data in part.data:
            self.arrived.append(bytes(data))
            header = read_header(data)
            place = place_of(known, header)
            if isinstance(place, RaftmqError):
                return place
            if place is None and (refusal := self._refusal_of(header)):
                return refusal
            offsets.append(len(fresh) if place is None else place)
            if place is None:
                known.append(header.placed(len(fresh), 0))
                fresh += [int(value) for value in RecordBatch.decode(data).values]  # type: ignore[arg-type]
        is_new = len(known) == len(headers) + len(part.data)
        log[:], headers[:] = fresh, known
        return offsets[0] if is_new else tuple(offsets)

    def _refusal_of(self, header: BatchHeader) -> RaftmqError | None:
        """The limit that the batch breaks, told as a leader does."""
        error: MessageTooLarge | InvalidTimestamp
        if header.size > self.bytes_max:
            error = MessageTooLarge("too large")
            error.allowed = int(self.bytes_max)
        elif self.timestamp_max and header.max_timestamp > self.timestamp_max:
            error = InvalidTimestamp("ahead")
            error.allowed = self.timestamp_max
        else:
            return None
        return error

    def draw_answer(self, request: ProduceRequest, trouble: float) -> None:
        if self.options.acks == 0:
            answers = self._one_way(request, trouble)
        else:
            answers = [self.draw(part, trouble) for part in request.parts]
        self.answer(request, *answers)

    def draw(self, part: RequestPart, trouble: float) -> Answered:
        is_leader = self.leaders[part.place.partition] == part.place.leader
        if not is_leader:
            return LeaderElsewhere("not here")
        if self.random.random() >= trouble:
            return self.append(part)
        kind = self.random.choice((*REFUSALS, *DOUBTS, MessageTooLarge))
        if kind in DOUBTS and self.random.random() < 0.5:
            self.append(part)
        return kind("drawn")

    def _one_way(self, request: ProduceRequest, trouble: float) -> list[Answered]:
        if self.random.random() < trouble:
            return [Unreachable("no connection yet")] * len(request.parts)
        for part in request.parts:
            self.append(part)
        return [-1] * len(request.parts)

    def run(self, steps: int, trouble: float) -> None:
        """Anything in any order; then all calms down, and time passes."""
        self.learn()
        self.topic.waiting.append(Waiter(self.now))
        for _ in range(steps):
            self.tick(trouble)
        for _ in range(500):
            if len(self.outcomes) == self.count and not self.requests:
                return
            self.tick(0.0, handing_in=False)
        raise AssertionError("it never ends")

    def tick(self, trouble: float, *, handing_in: bool = True) -> None:
        random = self.random
        if handing_in and self.topic.count:
            for _ in range(random.randrange(4)):
                self.hand_in(random.choice((None, random.randrange(9))))
        if random.random() < trouble / 4:
            self.leaders[random.randrange(len(self.leaders))] = random.choice((-1, 1, 2, 3))
        if not handing_in:
            self.leaders = [leader if leader > 0 else 1 for leader in self.leaders]
        step = self.step(is_hurried=random.random() < 0.3)
        if step.unknown_topics and random.random() >= trouble / 2:
            self.learn()
        for request in list(self.requests):
            self._maybe_answer(request, trouble)
        wait = min(max(step.look_at - self.now, 0.0), 5.0)
        self.now += random.choice((0.0, 0.001, wait, random.random()))

    def _maybe_answer(self, request: ProduceRequest, trouble: float) -> None:
        if self.now < request.deadline:
            if self.random.random() < 0.6:
                self.draw_answer(request, trouble)
            return
        for part in request.parts:
            if self.options.acks and self.random.random() < 0.5:
                self.append(part)
        self.answer(request, *[Disconnected("silence")] * len(request.parts))
