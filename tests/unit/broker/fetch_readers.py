"""Random readers for the model of fetches: two kinds, which fetch with sessions as they should.

They know what they have read, and check each answer against the list that the model keeps of the
leader's log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from raftmq.broker.requests.delayed_fetch import BOUNDS_LINGER_SECONDS
from raftmq.rpc.reply import Reply
from raftmq.wire.bodies import TopicPartition
from raftmq.wire.messages.fetch import NEW_SESSION, Fetch
from raftmq.wire.messages.replicate import PartitionProgress, ReplicaFetch, ReplicaProgress
from tests.unit.broker.copying import CLIENT, body_of, payload_of, want
from tests.unit.partition.replica_world import TOPIC_ID

if TYPE_CHECKING:
    from random import Random

    from raftmq.partition.replica import Replica
    from raftmq.partition.replica_environment import PartitionKey
    from raftmq.wire.messages.fetch import FetchPartition, PartitionFetched
    from tests.unit.broker.copying import Copier

NUMBERS = range(3)  # of partitions
A_MOMENT = 1e-9  # clocks are floats


class Batch(NamedTuple):
    base_offset: int
    end_offset: int
    leader_epoch: int
    stored: bytes


class Copy:
    """What a broker has of one partition, or what a consumer has read of it."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.held_offset = self.leader_epoch = 0
        self.agrees = False  # with the leader's, so that it may report what it holds

    @property
    def end_offset(self) -> int:
        return self.batches[-1].end_offset if self.batches else 0

    def cut(self, end_offset: int) -> None:
        self.batches = [batch for batch in self.batches if batch.end_offset <= end_offset]
        self.held_offset, self.agrees = min(self.held_offset, self.end_offset), False


class Asked:
    """A request that is not answered yet."""

    def __init__(self, wait_ms: int, bytes_min: int, bytes_max: int) -> None:
        self.bytes_min, self.bytes_max = bytes_min, bytes_max
        self.asked_at = trio.current_time()
        self.deadline = self.asked_at + wait_ms / 1000


class Rises:
    """When the high watermark of a partition rose last."""

    def __init__(self) -> None:
        self.at = 0.0

    def on_high_watermark(self, _key: PartitionKey) -> None:
        self.at = trio.current_time()

    def on_append(self, _key: PartitionKey) -> None:
        """Not counted."""

    on_news = on_append


class LedPartitions:
    """What readers and the model know of the leader.

    Attributes:
        logs: what its log has, by partition.
        risen: when the high watermarks rose.
        epochs: the latest ones.
        waiting: requests that are not answered yet.
    """

    def __init__(self, leader: Copier, random: Random) -> None:
        self.leader, self.random = leader, random
        self.waits_ms = random.choice(((500,), (50,), (0, 20, 500)))
        self.replicas: list[Replica] = []
        self.logs, self.risen = [Copy() for _ in NUMBERS], [Rises() for _ in NUMBERS]
        self.epochs = [0 for _ in NUMBERS]
        self.waiting: list[Asked] = []


class ModelFollower:
    """One with a session.

    Attributes:
        named: what the session has, as it was named last.
        told: high watermark of the last answer about each.
        rests: those that have to be named again.
    """

    bytes_min_choices: tuple[int, ...] = (1,)

    def __init__(self, model: LedPartitions, broker_id: int) -> None:
        self.model, self.broker_id, self.random = model, broker_id, model.random
        self.copies = [Copy() for _ in NUMBERS]
        self.session_id = 0
        self.begin_anew()

    def begin_anew(self) -> None:
        """Its connection is lost, and with it the answer to its request."""
        self.session_epoch = NEW_SESSION
        self.named: dict[int, FetchPartition] = {}
        self.told: dict[int, int | None] = {}
        self.rests: set[int] = set()
        self.asked: Asked | None = None

    def ask(self) -> None:
        """The next request, mostly once the one before is answered."""
        is_early = self.asked is not None and self.random.random() < 0.9
        if is_early or (self.asked and self.session_epoch == 1):  # the session's id is not known
            return
        wanted = [self.want(n) for n in NUMBERS if self.random.random() < self.likelihood(n)]
        names = {one.partition for one in wanted}
        gone = [n for n in self.named if n not in names and self.random.random() < 0.05]
        for number in gone:
            del self.named[number]
        for one in wanted:
            before = self.named.get(one.partition)
            if before is None or before.leader_epoch != one.leader_epoch:
                self.told[one.partition] = None
            self.named[one.partition] = one
        self.rests -= {*names, *gone}
        forgotten = tuple([TopicPartition(TOPIC_ID, number) for number in gone])
        self.send(tuple(wanted), forgotten)

    def likelihood(self, number: int) -> float:
        """Of naming it in the next request."""
        if number in self.named.keys() - self.rests:
            return 0.05  # for no reason
        return 0.9 if self.told.get(number) is not None else 0.3  # unknown, or in trouble

    def send(self, *names: Any) -> None:
        choices = self.model.waits_ms, self.bytes_min_choices, (1, 900, 3000, 1 << 20)
        limits = [self.random.choice(each) for each in choices]
        before, self.asked = self.asked, (asked := Asked(*limits))
        self.model.waiting.append(asked)
        pending = self.call(*limits, self.session_id, self.session_epoch, *names)
        assert before not in self.model.waiting, "superseded and not answered"
        self.session_epoch += 1
        pending.attach(lambda outcome: self.on_answer(asked, outcome))

    def on_answer(self, asked: Asked, reply: Reply | Exception) -> None:
        self.model.waiting.remove(asked)
        assert isinstance(reply, Reply), f"{reply!r}"
        if asked is not self.asked:  # superseded, or lost
            return
        self.asked, self.session_id = None, body_of(reply).session_id
        data, at, count = payload_of(reply), 0, 0
        for told in body_of(reply).partitions:
            count += self.take(told, data[at : at + told.length])
            at += told.length
        assert at == len(data)
        assert at <= asked.bytes_max or count == 1, "more than it wanted"

    def take(self, told: PartitionFetched, data: bytes) -> int:
        """One partition's part of an answer; returns the number of its batches."""
        number, log = told.partition, self.model.logs[told.partition]
        assert number in self.named.keys() - self.rests, "it was not to be answered"
        copy, count, got = self.copies[number], 0, b""
        self.told[number] = None if told.error else told.high_watermark
        if told.error or told.diverging or data:
            self.rests.add(number)
        if told.diverging:
            known = [b for b in copy.batches if b.leader_epoch <= told.diverging.leader_epoch]
            copy.cut(min(known[-1].end_offset if known else 0, told.diverging.end_offset))
        elif not told.error:
            copy.agrees = True
            following = [b for b in log.batches if b.base_offset >= copy.end_offset]
            while len(got) < len(data):
                got, count = got + following[count].stored, count + 1
            copy.batches += following[:count]
        assert got == data, "not what the log has"
        return count

    # -- not of a consumer -----------------------------------------------------------------

    def want(self, number: int) -> FetchPartition:
        copy = self.copies[number]
        last = copy.batches[-1].leader_epoch if copy.batches else -1
        size = self.random.choice((1, 400, 1500, 1 << 20))
        fields = {"leader_epoch": copy.leader_epoch, "last_fetched_epoch": last, "bytes_max": size}
        return want(copy.end_offset, number, **fields)

    def call(self, *fields: Any) -> Any:
        epoch = self.model.leader.epochs[self.broker_id]
        fields = *fields, self.held() if self.random.random() < 0.7 else ()
        request = ReplicaFetch(self.broker_id, epoch, *fields)
        return self.model.leader.replicating.replica_fetch(CLIENT, request, b"")

    def held(self) -> tuple[PartitionProgress, ...]:
        return tuple(
            PartitionProgress(TOPIC_ID, number, copy.leader_epoch, copy.held_offset)
            for number, copy in enumerate(self.copies)
            if copy.agrees
        )

    def flush(self) -> None:
        for copy in self.copies:
            ends = [b.end_offset for b in copy.batches if b.end_offset > copy.held_offset]
            copy.held_offset = self.random.choice([copy.held_offset, *ends])
        leader = self.model.leader
        request = ReplicaProgress(self.broker_id, leader.epochs[self.broker_id], self.held())
        if self.random.random() < 0.6:  # else the next fetch says so
            leader.replicating.replica_progress(CLIENT, request, b"")

    def learn(self) -> None:
        """It hears of the latest elections."""
        for copy, epoch in zip(self.copies, self.model.epochs, strict=True):
            copy.leader_epoch, copy.agrees = epoch, copy.agrees and epoch == copy.leader_epoch

    def restart(self) -> None:
        self.begin_anew()
        self.session_id = 0
        self.model.leader.epochs[self.broker_id] += 100
        for copy in self.copies:
            copy.cut(copy.held_offset)

    def check(self, number: int, asked: Asked) -> None:
        """It waits, and there is nothing that it should have been told by now."""
        model, wanted, told = self.model, self.named[number], self.told[number]
        assert wanted.leader_epoch == model.epochs[number]
        assert wanted.fetch_offset == model.logs[number].end_offset
        assert told is not None, "the first answer does not wait"
        since = max(asked.asked_at, model.risen[number].at) + BOUNDS_LINGER_SECONDS
        is_new = told != model.replicas[number].high_watermark
        assert not is_new or trio.current_time() < since + A_MOMENT


class ModelConsumer(ModelFollower):
    """One that reads what is committed, and says nothing of itself."""

    bytes_min_choices = (1, 2000)

    def want(self, number: int) -> FetchPartition:
        return want(self.copies[number].end_offset, number)

    def call(self, *fields: Any) -> Any:
        return self.model.leader.fetching.fetch(CLIENT, Fetch(*fields), b"")

    def check(self, number: int, asked: Asked) -> None:
        committed = self.model.replicas[number].high_watermark
        assert self.named[number].fetch_offset >= committed or asked.bytes_min > 1
