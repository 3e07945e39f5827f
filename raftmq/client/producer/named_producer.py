"""Named producers: records that an earlier run wrote are skipped, and sequences continue. Pure.

Kafka has no counterpart; transactional ids come closest (decision 0022). Owns the fences, by which
brokers report what each partition has of the name's generation; which records are skipped; and the
end of the producer. Partitions count the records of one generation, so the first ones that a
program hands in are those in the log, if it sends the same ones again.

Invariants: no record gets a number before all partitions of its topic are fenced; nothing is sent
to a partition whose records differ from those of the first run; after a batch was given up no new
one follows, as the next run would count it as the lost one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.client.producer.batch import SEQUENCE_COUNT, Number
from raftmq.client.producer.record import RunningDigest
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


# Of one generation in a partition: sequences of a name must not wrap
RECORDS_MAX = SEQUENCE_COUNT - 1
WAY_OUT = (
    "send the same records in the same order to a topic with as many partitions as before, or "
    "take a higher generation, under which all of them are new"
)
GROWN_WAY_OUT = (
    "it cannot be finished as it was begun: look what stands there of it, and send the rest under "
    "a higher generation"
)


class Named:
    """One name and generation, for all topics of a producer.

    Args:
        on_end: called when it ends.

    Attributes:
        error: why the producer has ended; None before.
    """

    def __init__(self, name: str, generation: int, on_end: Callable[[], None]) -> None:
        self.name, self.generation, self._on_end = name, generation, on_end
        self.error: RaftmqError | None = None

    def __str__(self) -> str:
        return f"producer {self.name!r}, generation {self.generation}"

    def told(self, error: RaftmqError) -> RaftmqError:
        """A broker's error with the name added: brokers know only the producer id."""
        if not isinstance(error, (ProducerFenced, UnknownProducerId)):
            return error
        copy = error.copied()
        copy.args = (f"{self}: {error.args[0]}",)
        return copy

    def end(self, error: RaftmqError) -> None:
        """A batch was given up. The first reason stays, for all later calls."""
        if self.error is not None:  # the first reason is the cause of all others
            return
        self.error = error
        # These two say themselves what to do; others need the advice to run again.
        if not isinstance(error, (ProducerFenced, ReplayMismatch)):
            self.error = Closed(
                f"{self}: nothing follows what was given up before ({error}); open another one "
                "with the same name and generation and send all of it again: what has arrived is "
                "skipped"
            )
            self.error.__cause__ = error
        self._on_end()


class Fence(NamedTuple):
    """What a partition reports of the generation when it is fenced.

    Attributes:
        next_sequence: number of its records there, all committed.
        digest: of those records, see `RunningDigest`.
        partition_count: partitions of the topic when the generation began; 0 where that is unknown.
        takes_head_crc: batches may have the CRC of their head, by which filters leave chunks out.
    """

    producer_id: int
    producer_epoch: int
    next_sequence: int
    digest: int
    partition_count: int = 0
    takes_head_crc: bool = False


class TopicFences:
    """The fences of one topic's partitions.

    Attributes:
        count: number of partitions; 0 until it is known.
        problem: the last error of a partition that is not fenced yet.
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
        """A later fence replaces an earlier one, whose answer was lost.

        Raises:
            ReplayMismatch: the topic had another number of partitions when the generation began.
        """
        if fence.partition_count not in (0, self.count):  # 0: a replica that lacks the first fence
            raise ReplayMismatch(
                f"{self.named}: the topic had {fence.partition_count} partitions when this "
                f"generation began, and has {self.count} now, so its records belong elsewhere; "
                f"{GROWN_WAY_OUT}"
            )
        self._found[partition] = fence

    def check_replayed(self, topic: str, sent: Mapping[int, int]) -> None:
        """At the end: the program has sent everything again.

        Args:
            sent: number of records handed in for each partition, including those that were skipped.

        Raises:
            ReplayMismatch: fewer than the log has.
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
    """Sequence numbers of one partition; in place of `Numbering`.

    Attributes:
        position: number of records sent or skipped so far.
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
        """No batch is numbered before all partitions are fenced."""
        return not self._fences.is_complete

    def may_begin(self) -> bool:
        """Whether a new batch may be numbered now."""
        return self._fences.is_complete

    def why_not(self) -> RaftmqError:
        """The reason; only where `may_begin` is False."""
        problem = self._fences.problem
        reason = f": {problem}" if problem is not None else ""
        return Unreachable(f"not all partitions know of {self._named} yet{reason}")

    def encode(self, batch: ProducerBatch, compression: Compression) -> bytearray | None:
        """The bytes of the records that the partition does not have; None if it has all of them.

        Raises:
            ReplayMismatch: the partition has other records than these.
            RaftmqError: it cannot be encoded, or an earlier batch was given up.
        """
        # Sent before: the same number. A piece of a split batch has one, but no bytes yet.
        if batch.number is not None:
            account = None if batch.is_encoded else self._account_of(batch)
            return self._encoded(batch, compression, batch.number, account)
        # Batches that were taken before the end must not be sent after it.
        if self._named.error is not None:
            raise self._named.error.copied()
        fence = self._fences.of(self._partition)
        known = min(max(fence.next_sequence - self.position, 0), len(batch))
        if known:  # an earlier run wrote the first ones
            self._skip(batch, known, fence)
        return self._encode(batch, compression, fence) if batch.unskipped_count else None

    def end_epoch(self) -> None:
        """Does nothing: the given-up batch has ended the producer, and a name begins no epoch by
        itself.
        """

    def _skip(self, batch: ProducerBatch, count: int, fence: Fence) -> None:
        keys, values = batch.keys_and_values()
        self._digest.add(keys[:count], values[:count])
        # Only at the position at which the partition stands are both digests of the same records.
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
        # A wrapped sequence would look like an earlier record.
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
        return self._encoded(batch, compression, number, account)

    def _encoded(
        self,
        batch: ProducerBatch,
        compression: Compression,
        number: Number,
        account: Account | None,
    ) -> bytearray:
        has_check = self._fences.of(self._partition).takes_head_crc
        return batch.encode(compression, number, account=account, has_check=has_check)

    def _account_of(self, batch: ProducerBatch) -> Account:
        """Of a piece of a split batch, which is encoded again."""
        assert batch.digest is not None, "it had no number before it was split"
        digest = batch.digest.followed_by(*batch.keys_and_values())
        return Account(self._named.generation, digest.value)
