"""A producer with a name: what it has sent before is skipped, under numbers that go on. Pure.

Owns what brokers have told of the name when it was fenced, partition by partition; which records
stand there already; and the end of the producer. Partitions count the records of one generation,
so the first ones that a program hands in are those that are there, if it sends the same ones again.

Invariants: nothing has a number before all partitions of its topic are fenced; nothing is sent of
a partition whose records are others than the first time; once anything was given up nothing new
follows it, as the next run would take what follows for what is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.client.producer.batch import SEQUENCE_COUNT, Number
from raftmq.client.producer.digest import RunningDigest
from raftmq.errors import (
    Closed,
    InvalidRecord,
    ProducerFenced,
    ReplayMismatch,
    UnknownProducerId,
    Unreachable,
)
from raftmq.wire.batch.header import Account

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from raftmq.client.producer.batch import ProducerBatch
    from raftmq.errors import RaftmqError
    from raftmq.model import Compression


# -- Named ----------------------------------------------------------------------------------------


# -- Named ----------------------------------------------------------------------------------------


RECORDS_MAX = SEQUENCE_COUNT - 1  # of one generation in a partition
WAY_OUT = (
    "send the same records in the same order to a topic with as many partitions as before, or "
    "take a higher generation, under which all of them are new"
)
GROWN_WAY_OUT = (
    "it cannot be finished as it was begun: look what stands there of it, and send the rest under "
    "a higher generation"
)


class Named:
    """One name and generation, for all topics.

    Attributes:
        error: why nothing new is sent any more; None as long as all is well.
        on_end: called when there is one.
    """

    def __init__(self, name: str, generation: int) -> None:
        self.name, self.generation = name, generation
        self.error: RaftmqError | None = None
        self.on_end: Callable[[], None] = lambda: None

    def __str__(self) -> str:
        return f"producer {self.name!r}, generation {self.generation}"

    def told(self, error: RaftmqError) -> RaftmqError:
        """What a broker says, with the name: brokers have only a number for it."""
        if not isinstance(error, (ProducerFenced, UnknownProducerId)):
            return error
        copy = error.copied()
        copy.args = (f"{self}: {error.args[0]}",)
        return copy

    def end(self, error: RaftmqError) -> None:
        """Something was given up. Whoever comes later is told the first reason."""
        if self.error is not None:
            return
        self.error = error
        if not isinstance(error, (ProducerFenced, ReplayMismatch)):
            self.error = Closed(
                f"{self}: nothing follows what was given up before ({error}); open another one "
                "with the same name and generation and send all of it again: what has arrived is "
                "skipped"
            )
            self.error.__cause__ = error
        self.on_end()


class Fence(NamedTuple):
    """What a partition knows of the generation: so many records, all of them committed, and how
    many partitions the topic had when it began; 0 where it does not know that.
    """

    producer_id: int
    producer_epoch: int
    next_sequence: int
    digest: int
    partition_count: int = 0


class TopicFences:
    """Of one topic.

    Attributes:
        count: of its partitions; 0 as long as nobody knows.
        problem: why some are missing still.
    """

    def __init__(self, named: Named) -> None:
        self.named, self.count = named, 0
        self.problem: RaftmqError | None = None
        self._found: dict[int, Fence] = {}

    @property
    def is_complete(self) -> bool:
        return 0 < self.count == len(self._found)

    @property
    def missing(self) -> list[int]:
        return [partition for partition in range(self.count) if partition not in self._found]

    def of(self, partition: int) -> Fence:
        return self._found[partition]

    def on_fence(self, partition: int, fence: Fence) -> None:
        """A later one stands for the earlier, whose answer was lost.

        Raises:
            ReplayMismatch: the generation began when there were more or fewer partitions.
        """
        if fence.partition_count not in (0, self.count):
            raise ReplayMismatch(
                f"{self.named}: the topic had {fence.partition_count} partitions when this "
                f"generation began, and has {self.count} now, so its records belong elsewhere; "
                f"{GROWN_WAY_OUT}"
            )
        self._found[partition] = fence

    def check_replayed(self, topic: str, sent: Mapping[int, int]) -> None:
        """At the end: nothing was left out.

        Args:
            sent: how many records each partition was sent, with those that were skipped.

        Raises:
            ReplayMismatch: fewer than stand there.
        """
        for partition, fence in sorted(self._found.items()):
            count = sent.get(partition, 0)
            if count < fence.next_sequence:
                error = ReplayMismatch(
                    f"{self.named}: {fence.next_sequence} records of it stand in partition "
                    f"{partition} of topic {topic!r}, and only {count} were sent again; {WAY_OUT}"
                )
                raise error.at(topic, partition)


class NamedNumbering:
    """Of one partition; what `Numbering` is for producers without a name.

    Attributes:
        position: how many records were sent or skipped so far.
    """

    def __init__(self, fences: TopicFences, partition: int) -> None:
        self._fences, self._partition = fences, partition
        self._named = fences.named
        self._digest = RunningDigest()

    @property
    def position(self) -> int:
        return self._digest.count

    @property
    def lacks_id(self) -> bool:
        """Nothing leaves before all partitions are fenced."""
        return not self._fences.is_complete

    def may_begin(self) -> bool:
        """Whether something new may leave now."""
        return self._fences.is_complete

    def why_not(self) -> RaftmqError:
        """Only where it may not."""
        problem = self._fences.problem
        reason = f": {problem}" if problem is not None else ""
        return Unreachable(f"not all partitions know of {self._named} yet{reason}")

    def encode(self, batch: ProducerBatch, compression: Compression) -> bytearray | None:
        """Its bytes without records that stand in the partition already; None if all of them do.

        Raises:
            ReplayMismatch: others than these stand there.
            RaftmqError: it cannot be encoded, or something before it was given up.
        """
        if batch.number is not None:
            account = None if batch.is_encoded else self._account_of(batch)
            return batch.encode(compression, batch.number, account=account)
        if self._named.error is not None:
            raise self._named.error.copied()
        fence = self._fences.of(self._partition)
        known = min(max(fence.next_sequence - self.position, 0), len(batch))
        if known:
            self._skip(batch, known, fence)
        return self._encode(batch, compression, fence) if batch.unskipped_count else None

    def end_epoch(self) -> None:
        """What was given up has ended the producer, and a name begins no epoch by itself."""

    def _skip(self, batch: ProducerBatch, count: int, fence: Fence) -> None:
        keys, values = batch.keys_and_values()
        self._digest.add(keys[:count], values[:count])
        if self.position == fence.next_sequence and self._digest.value != fence.digest:
            raise ReplayMismatch(
                f"{self._named}: the first {fence.next_sequence} records for partition "
                f"{self._partition} of topic {batch.topic!r} are not those that stand there; "
                f"{WAY_OUT}"
            )
        batch.skip(count)

    def _encode(self, batch: ProducerBatch, compression: Compression, fence: Fence) -> bytearray:
        base_sequence = self.position
        assert base_sequence >= fence.next_sequence, "a number that belongs to another record"
        if base_sequence + batch.unskipped_count > RECORDS_MAX:
            raise InvalidRecord(
                f"{self._named}: partition {self._partition} of topic {batch.topic!r} has "
                f"{base_sequence} records of it, of {RECORDS_MAX} that it can have; go on with "
                "a higher generation"
            )
        batch.digest = self._digest
        self._digest = self._digest.followed_by(*batch.keys_and_values())
        number = Number(fence.producer_id, fence.producer_epoch, base_sequence)
        account = Account(self._named.generation, self._digest.value)
        return batch.encode(compression, number, account=account)

    def _account_of(self, batch: ProducerBatch) -> Account:
        """Of one that was split off, or is left of one that was."""
        assert batch.digest is not None, "it had no number before it was split"
        digest = batch.digest.followed_by(*batch.keys_and_values())
        return Account(self._named.generation, digest.value)
