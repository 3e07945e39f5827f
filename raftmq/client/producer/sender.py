"""Which produce request leaves next, and what its answer means: retries, deadlines, outcomes. Pure.

Kafka: Sender, without its network thread. Owns the life of a batch from
the queue to its outcome. The dispatcher sends, waits and reads the clock.

Invariants: a batch is settled once, and in time, wherever it is; a definite error settles only a
batch that no broker can have appended; with acks=0 nothing is sent twice; with sequence numbers
nothing leaves before there is a producer id, and no batch follows one that was given up in its
epoch or transaction or, where the producer has a name, at all.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from raftmq.client.producer.batch import BatchMetadata
from raftmq.client.producer.numbering import NUMBER_REFUSALS
from raftmq.client.producer.partition_queue import (
    ProduceRequest,
    RequestPart,
    Stamped,
    blamed,
    may_split,
    offsets_of,
    portions,
    ready_now,
    times_of,
)
from raftmq.client.producer.statistics import hinted, located, timed_out
from raftmq.client.routing.routes import no_topic
from raftmq.errors import (
    ConcurrentTransactions,
    LeaderNotAvailable,
    OutcomeUnknown,
    RaftmqError,
    RequestTimedOut,
    UnknownTopicOrPartition,
    error_for,
)
from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from raftmq.client.producer.accumulator import Accumulator, TopicQueues
    from raftmq.client.producer.batch import Outcome, ProducerBatch
    from raftmq.client.producer.named_producer import Fence
    from raftmq.client.producer.options import ProducerOptions
    from raftmq.client.producer.partition_queue import Answered, Offsets, PartitionQueue
    from raftmq.client.routing.routes import LeaderPlace, Routes, TopicRoutes
    from raftmq.errors import DeliveryTimedOut


# -- Sending --------------------------------------------------------------------------------------


HEADERS_SHARE_MAX = 1 / 8  # of a request's bytes: small batches have much header for few records
MISSING_SECONDS = 5.0  # a new topic may not have reached every broker's metadata yet


class Overdue(NamedTuple):
    """Batches of a partition that have waited for so many seconds, and why, if that is known."""

    topic: str
    partition: int
    seconds: float
    reason: RaftmqError | None


class SenderStep(NamedTuple):
    """What to do now, and when to take the next step at the latest.

    Attributes:
        unknown_topics: whose metadata must be refreshed.
        look_at: time of the next step, if nothing else causes one.
        is_id_wanted: a producer id must be requested; `ProducerIdentity.on_id` and `on_no_id` take
            the answer.
        unfenced_topics: whose partitions must be fenced for the producer's name; `on_fenced` takes
            their answers.
        overdue: what has waited longer than a request may take, to be logged.
    """

    requests: list[ProduceRequest]
    unknown_topics: list[str]
    look_at: float
    is_id_wanted: bool = False
    unfenced_topics: Sequence[str] = ()
    overdue: Sequence[Overdue] = ()


class ProducerSender:
    """The rules of sending for one producer.

    Args:
        on_settled: called once for each batch, when its outcome is known.
    """

    def __init__(
        self,
        options: ProducerOptions,
        accumulator: Accumulator,
        on_settled: Callable[[ProducerBatch, Outcome], None],
    ) -> None:
        self._options, self._accumulator, self._on_settled = options, accumulator, on_settled
        self._ids, self._machine = accumulator.ids, accumulator.machine
        self._ending = accumulator.ending
        # Errors after which an idempotent producer goes on in a new epoch; one with a name cannot,
        # nor can a transaction.
        self._renumbered = NUMBER_REFUSALS if self._ending is None else ()
        self._overdue: list[Overdue] = []  # for the next step to return

    def step(self, routes: Routes, now: float, *, is_hurried: bool) -> SenderStep:
        """Requests that leave now. They count as in flight until `on_answer`, which must follow
        once for each.

        Args:
            is_hurried: a task waits for delivery or for memory, so nothing lingers.
        """
        # Nothing may follow what was given up.
        if self._ending is not None and self._ending.error is not None:
            self.fail_all(self._ending.error)
        by_leader: dict[int, list[RequestPart]] = {}
        unknown: list[str] = []
        unfenced: list[str] = []
        look_at = math.inf
        for topic in list(self._accumulator.topics.values()):
            if topic.take_out_idle():
                topic.missing_since = None
                continue
            if self._ids is not None:
                # The id is requested while batches still linger or wait for metadata, to save a
                # round trip.
                self._ids.want_first()
            look_at = min(look_at, self._expire(topic, now))
            self._learn(topic, routes, now)
            ready, ready_at = ready_now(topic.busy.values(), now, is_hurried=is_hurried)
            look_at = min(look_at, ready_at)
            if (ready or topic.waiting or topic.is_unfenced) and not routes.use(topic.name):
                unknown.append(topic.name)  # the refresh wakes the next step
                continue
            if topic.is_unfenced:
                unfenced.append(topic.name)
            for queue in ready:
                if not self._may_be_numbered(queue):  # the id's arrival wakes us
                    continue
                place = self._led_place(topic, queue, routes, now)
                if place is not None:
                    batches = self._take(topic, queue, now, is_hurried=is_hurried)
                    self._encode(queue, place, batches, by_leader, now)
                look_at = min(look_at, queue.ready_at(is_hurried=is_hurried))
        is_id_wanted = self._ids is not None and self._ids.is_wanted
        overdue, self._overdue = self._overdue, []
        return SenderStep(
            self._requests(by_leader, now), unknown, look_at, is_id_wanted, unfenced, overdue
        )

    def on_answer(
        self,
        request: ProduceRequest,
        answers: Sequence[Answered],
        routes: Routes,
        now: float,
    ) -> None:
        """Apply the answer of each part to its batches."""
        for part, answer in zip(request.parts, answers, strict=True):
            part.queue.on_answer(part.batches)
            if isinstance(answer, RaftmqError):
                self._on_failure(part, answer, routes, now)
            else:
                part.queue.on_success()
                self._accumulator.topics[part.queue.topic].problem = None
                self._on_success(part, answer)

    def on_no_id(self, error: RaftmqError) -> None:
        """No broker gave a producer id. Batches that have a number already go on."""
        assert self._ids is not None, "no id was requested"
        self._ids.on_no_id(error)
        # The dispatcher asks again; batches wait, at most until their delivery timeout.
        if error.retriable:
            return
        for topic in self._accumulator.topics.values():
            for queue in topic.busy.values():
                self._fail_unnumbered(queue, error)

    def on_fenced(self, topic: TopicQueues, answers: Mapping[int, Fence | RaftmqError]) -> None:
        """Apply the answers of partitions to a fence. Partitions that refuse for now are asked
        again.
        """
        assert topic.fences is not None, "the producer has no name"
        for partition, found in answers.items():
            try:
                if isinstance(found, RaftmqError):
                    raise found
                topic.fences.on_fence(partition, found)
            except RaftmqError as problem:
                error = topic.fences.named.told(problem).at(topic.name, partition)
                topic.fences.problem = error
                if not error.retriable:
                    self._end(error)
                    self.fail_topic(topic, error)

    def fail_all(self, error: RaftmqError) -> None:
        """Fail all batches that wait; requests in flight have answers of their own."""
        for topic in list(self._accumulator.topics.values()):
            self.fail_topic(topic, error)

    def end_all(self, error: RaftmqError) -> None:
        """Fail all batches that wait, and as unknown those in flight that have no answer: the
        transaction is aborted. Or the producer has ended, where there are some only after a defect,
        which has lost their answers.
        """
        for topic in self._accumulator.topics.values():
            for queue in list(topic.busy.values()):
                for batch in queue.on_their_way():
                    batch.may_have_happened = True
                    self._give_up(batch, error)
        self.fail_all(error)

    # -- before ----------------------------------------------------------------------------

    def _learn(self, topic: TopicQueues, routes: Routes, now: float) -> None:
        """Apply what metadata say: the number of partitions, or that there is no such topic."""
        known = routes.topic(topic.name)
        if known is None:  # no answer yet
            return
        if known.topic_id is not None:
            if topic.is_uncounted_name and not routes.use(topic.name):
                return  # cached, and the topic may have grown: refresh first
            self._drop_gone(topic, known)
            if known.places and (topic.waiting or topic.count != len(known.places)):
                self._accumulator.on_count(topic, len(known.places))
            topic.missing_since = None
            return
        if not routes.use(topic.name):
            return  # an old answer; a refresh is under way
        routes.doubt(topic.name)  # it may be created at any time: ask again
        error = error_for(known.error, no_topic(topic.name))
        if topic.missing_since is None:  # the wait for a new topic starts
            topic.missing_since = now
        # A topic that was just created is unknown to some brokers for a moment.
        if not error.retriable or now >= topic.missing_since + MISSING_SECONDS:
            self.fail_topic(topic, error)

    def _drop_gone(self, topic: TopicQueues, known: TopicRoutes) -> None:
        """Fail what waits for partitions that no longer exist: the topic was deleted and made anew
        with fewer of them.
        """
        # Routes that were forgotten may come back from a broker that lags behind: it may not know
        # yet of partitions that were added.
        if known.version < topic.version:
            return
        topic.version = known.version
        for queue in topic.busy.values():
            if queue.partition not in known.places:
                gone = UnknownTopicOrPartition(
                    f"topic {topic.name!r} was deleted and made anew: there is no partition "
                    f"{queue.partition} any more, it has {len(known.places)}"
                )
                for batch in list(queue):
                    queue.drop(batch)
                    self._give_up(batch, gone)

    def fail_topic(self, topic: TopicQueues, error: RaftmqError) -> None:
        """Fail what waits; requests in flight have answers of their own."""
        topic.missing_since = None
        if topic.waiting:  # records that waited for metadata are lost to the order
            self._end(error)
        self._accumulator.fail_waiting(topic, located(error, topic.name))
        for queue in topic.busy.values():
            for batch in list(queue):
                queue.drop(batch)
                self._give_up(batch, error)

    def _fail_unnumbered(self, queue: PartitionQueue, error: RaftmqError) -> None:
        assert queue.numbering is not None, "needs no id"
        for batch in list(queue) if queue.numbering.lacks_id else ():
            # A batch that was sent has a number, and goes on.
            if not batch.may_have_happened:
                queue.drop(batch)
                self._give_up(batch, error)

    def _expire(self, topic: TopicQueues, now: float) -> float:
        """Settle batches and waiting records past their deadline. Returns the next deadline."""
        while topic.waiting and self._deadline_of(topic.waiting[0].since) <= now:
            what = f"topic {topic.name!r}: no broker has named its partitions in time"
            late = timed_out(what, topic.problem)
            self._end(late)
            topic.waiting.popleft().on_known(late.at(topic.name))
        oldest = topic.waiting[0].since if topic.waiting else math.inf
        for queue in topic.busy.values():
            opened_at = self._expire_queue(topic, queue, now)
            if (
                not queue.is_overdue
                and (now - opened_at) * 1000 >= self._options.request_timeout_ms
            ):
                self._note_overdue(topic, queue, now - opened_at)
            oldest = min(oldest, opened_at)
        return self._deadline_of(oldest)

    def _expire_queue(self, topic: TopicQueues, queue: PartitionQueue, now: float) -> float:
        """Returns when the oldest batch of those left was opened."""
        oldest = math.inf
        for batch in queue.on_their_way():
            if self._is_late(batch, now):
                # Its request is in flight: the broker may append it after this.
                batch.may_have_happened = True
                self._give_up(batch, self._timed_out(topic, queue))
            else:
                oldest = min(oldest, batch.opened_at)
        while (first := next(iter(queue), None)) is not None:
            if not self._is_late(first, now):  # nor are those behind it
                return min(oldest, first.opened_at)
            queue.drop(first)
            self._give_up(first, self._timed_out(topic, queue))
        return oldest

    def _may_be_numbered(self, queue: PartitionQueue) -> bool:
        """Whether the queue's next batch has a sequence number, or may get one."""
        if queue.numbering is None or queue.is_in_doubt or queue.numbering.may_begin():
            return True
        queue.problem = queue.numbering.why_not()
        return False

    def _led_place(
        self, topic: TopicQueues, queue: PartitionQueue, routes: Routes, now: float
    ) -> LeaderPlace | None:
        """Where the partition's leader is; None without a leader, then the queue pauses."""
        place = routes.find(queue.topic, queue.partition)
        if place is not None and place.leader != ABSENT:
            return place
        problem = "no leader" if place is not None else "there is no such partition any more"
        queue.on_failure(LeaderNotAvailable(problem), now, at_once=False)
        routes.doubt(queue.topic)
        # Its batch may stay open for long: what comes without a key must not join it.
        if queue.open is not None:
            topic.dealer.turn(queue.partition, queue.open.byte_count)
        return None

    def _take(
        self, topic: TopicQueues, queue: PartitionQueue, now: float, *, is_hurried: bool
    ) -> list[ProducerBatch]:
        opened = queue.open
        batches = queue.take(self._options.max_request_size, now, is_hurried=is_hurried)
        # The open batch leaves: the sticky partitioner goes on with another partition.
        if opened is not None and queue.open is None:
            topic.dealer.turn(queue.partition, opened.byte_count)
        return batches

    def _encode(
        self,
        queue: PartitionQueue,
        place: LeaderPlace,
        batches: list[ProducerBatch],
        by_leader: dict[int, list[RequestPart]],
        now: float,
    ) -> None:
        """Encode batches into a request part; a batch that cannot be encoded fails alone. Batches
        beyond the size limit, which headers may exceed, return to the queue for the next request.
        """
        bytes_max = queue.batch_bytes_max(place.topic_id, now)
        data: list[bytearray] = []
        size_max = (1 + HEADERS_SHARE_MAX) * self._options.max_request_size
        left, size = deque(batches), 0
        batches.clear()
        while left:
            batch = left.popleft()
            try:
                encoded = self._encoded(queue, batch)
            # A record that cannot be encoded, or a replay mismatch: no repetition helps.
            except RaftmqError as error:
                self._give_up(batch, error)
                continue
            if encoded is None:  # a named producer's earlier run wrote all of it
                self._on_skipped(batch)
            # The leader has refused such a size before (MessageTooLarge): send halves.
            elif len(encoded) > bytes_max and may_split(batch):
                left.extendleft((*batch.split([batch.unskipped_count // 2]), batch))
            elif batches and size + len(encoded) > size_max:  # a first batch always leaves
                queue.put_back([batch, *left])
                break
            else:
                batches.append(batch)
                data.append(encoded)
                size += len(encoded)
        if batches:
            if self._machine is not None:
                self._machine.on_leaving(place.topic_id, place.partition, now)
            part = RequestPart(place, queue, batches, data, size)
            by_leader.setdefault(place.leader, []).append(part)
        else:
            # Nothing is left to send: everything failed or was skipped.
            queue.on_answer(batches)

    def _encoded(self, queue: PartitionQueue, batch: ProducerBatch) -> bytearray | None:
        """None: the partition has all its records already. Raises RaftmqError: cannot be
        encoded.
        """
        if queue.numbering is None:
            return batch.encode(self._options.codec)
        return queue.numbering.encode(batch, self._options.codec)

    def _requests(
        self, by_leader: dict[int, list[RequestPart]], now: float
    ) -> list[ProduceRequest]:
        requests = []
        for leader, parts in by_leader.items():
            for together in portions(parts, self._options.max_request_size):
                deadline = self._deadline(together, now)
                requests.append(ProduceRequest(leader, deadline, together))
        return requests

    def _deadline(self, parts: list[RequestPart], now: float) -> float:
        """The request timeout, but never past the delivery timeout of its youngest batch."""
        latest = max([batch.opened_at for part in parts for batch in part.batches])
        delivered = self._deadline_of(latest)
        return min(now + self._options.request_timeout_ms / 1000, delivered)

    def _deadline_of(self, since: float) -> float:
        return since + self._options.delivery_seconds

    def _on_skipped(self, batch: ProducerBatch) -> None:
        """Settle a batch of which an earlier run wrote all records."""
        metadata = BatchMetadata(batch.topic, batch.partition, ABSENT, len(batch), is_skipped=True)
        self._on_settled(batch, metadata)

    # -- after -----------------------------------------------------------------------------

    def _on_success(self, part: RequestPart, answer: Offsets | Stamped) -> None:
        times = times_of(part.batches, answer)
        offsets = offsets_of(
            part.batches, answer.offsets if isinstance(answer, Stamped) else answer
        )
        for batch, base_offset, time in zip(part.batches, offsets, times, strict=True):
            metadata = BatchMetadata(
                batch.topic,
                batch.partition,
                base_offset,
                batch.unskipped_count,
                batch.is_repeated,
                log_append_time=time,
            )
            if batch.outcome is None:  # else it timed out before this answer came
                batch.topic_id = part.place.topic_id
                self._on_settled(batch, metadata)

    def _on_failure(
        self, part: RequestPart, error: RaftmqError, routes: Routes, now: float
    ) -> None:
        if self._ending is not None:
            error = self._ending.told(error)
        again: list[ProducerBatch] = []
        numbering = part.queue.numbering
        batches, innocent = blamed(part, error, now)
        for batch in batches:
            if batch.outcome is not None:  # it timed out before this answer came
                continue
            is_late = self._is_late(batch, now)
            # The error is about other batches of the request: no attempt is counted.
            if batch in innocent and not is_late:
                again.append(batch)
            elif self._may_repeat(batch, error, now):
                # Without sequence numbers the broker cannot find the duplicate.
                batch.is_repeated = numbering is None and batch.may_have_happened
                again.append(batch)
            else:
                may_pass = error.retriable or isinstance(error, self._renumbered)
                # A late batch fails with the timeout only if it would have been sent again in time.
                is_out_of_time = is_late and (may_pass or batch in innocent)
                self._give_up(batch, self._too_late(error) if is_out_of_time else error)
        if numbering is not None and (
            # A sent batch was given up, or the broker does not accept this epoch's numbers.
            len(again) < len(batches) or isinstance(error, self._renumbered)
        ):
            numbering.end_epoch()
        part.queue.put_back(again)
        place = routes.find(part.queue.topic, part.queue.partition)
        # No pause where the next attempt differs: another leader, or without the refused records.
        at_once = bool(innocent) or _is_elsewhere(place, part.place)
        if isinstance(error, ConcurrentTransactions):
            part.queue.on_concurrent(error, now)
        else:
            part.queue.on_failure(None if innocent else error, now, at_once=at_once)

    def _may_repeat(self, batch: ProducerBatch, error: RaftmqError, now: float) -> bool:
        """Whether a failed batch may be sent again. Notes the attempt and what it may have done."""
        # Nothing was appended and nothing is wrong with the records: not counted as an attempt.
        if isinstance(error, self._renumbered) and not batch.may_have_happened:
            return batch.number is not None and not self._is_late(batch, now)
        batch.attempts += 1
        # Its number, and its bytes, are fixed from now on.
        if not error.definite:
            batch.may_have_happened = True
        is_allowed = error.definite or self._options.acks != 0
        # With acks=0 a request that certainly reached no broker is no attempt: sending it stays
        # "once".
        is_left = batch.attempts <= self._options.repeats_max or (
            self._options.acks == 0 and error.definite
        )
        return error.retriable and is_allowed and is_left and not self._is_late(batch, now)

    def _is_late(self, batch: ProducerBatch, now: float) -> bool:
        return now >= self._deadline_of(batch.opened_at)

    def _timed_out(self, topic: TopicQueues, queue: PartitionQueue) -> DeliveryTimedOut:
        """Of a batch that waits or is in flight."""
        return self._too_late(self._reason(topic, queue))

    def _too_late(self, reason: RaftmqError | None) -> DeliveryTimedOut:
        what = f"not delivered within {self._options.delivery_seconds:g} s"
        return timed_out(what, hinted(reason, acks=self._options.acks))

    def _reason(self, topic: TopicQueues, queue: PartitionQueue) -> RaftmqError | None:
        """Why batches of a partition wait, as far as it is known."""
        # While no broker answers with metadata, nothing is sent: that reason is the later one.
        reason = topic.problem or queue.problem
        if reason is None and queue.in_flight:
            reason = RequestTimedOut("the leader has not answered what was sent to it")
        return reason

    def _note_overdue(self, topic: TopicQueues, queue: PartitionQueue, seconds: float) -> None:
        """Have it reported, once until the partition accepts something again."""
        queue.is_overdue = True
        reason = hinted(self._reason(topic, queue), acks=self._options.acks)
        self._overdue.append(Overdue(topic.name, queue.partition, seconds, reason))

    def _give_up(self, batch: ProducerBatch, error: RaftmqError) -> None:
        """Settle a batch with an error, as OutcomeUnknown if any attempt may have appended it."""
        outcome = located(error, batch.topic, batch.partition)
        self._end(outcome)
        if self._machine is not None:  # nothing counts, whatever became of the batch
            outcome = located(self._machine.aborted(outcome), batch.topic, batch.partition)
        elif batch.may_have_happened:
            count = batch.unskipped_count
            records = "record" if count == 1 else "records"
            unknown = OutcomeUnknown(f"{count} {records} may have been appended: {error}")
            unknown.__cause__ = error
            outcome = unknown.at(batch.topic, batch.partition)
        self._on_settled(batch, outcome)

    def _end(self, error: RaftmqError) -> None:
        """A named producer ends: a later batch would be counted by the next run as the lost one. So
        does a transaction: none of its records may count without the others.
        """
        if self._ending is not None:
            self._ending.end(error)


def _is_elsewhere(place: LeaderPlace | None, tried: LeaderPlace) -> bool:
    """The leader is known, and is another broker than the last time."""
    return place is not None and place.leader not in (ABSENT, tried.leader)
