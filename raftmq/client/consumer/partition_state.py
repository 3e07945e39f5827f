"""One partition as a consumer reads it: position, fetch offset, undelivered batches, errors.

Kafka: SubscriptionState.TopicPartitionState. The position counts records that were handed out;
fetching runs ahead. Invariants: the undelivered batches reach from the position to the fetch
offset; each change of the fetch offset changes `version`, and answers to requests of an older
version are dropped. Pure but for the events that tasks of a group wait for.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum, auto
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import anyio

from raftmq.client.consumer.batch import ConsumedBatch
from raftmq.client.consumer.completed_fetches import CompletedFetches
from raftmq.client.consumer.record import PartitionOwner, PartitionOwnership
from raftmq.client.moments import EPOCH, MILLISECOND
from raftmq.client.options import likely
from raftmq.client.routing.attempts import PAUSES
from raftmq.errors import InvalidConfig, OffsetOutOfRange
from raftmq.model import IsolationLevel
from raftmq.rpc.backoff import Backoff
from raftmq.wire.bodies import ABSENT, NUMBER_MAX
from raftmq.wire.messages.offsets import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from raftmq.client.consumer.completed_fetches import Fetched
    from raftmq.client.consumer.record import Deserializers
    from raftmq.client.routing.routes import LeaderPlace
    from raftmq.errors import RaftmqError


# -- Starts ---------------------------------------------------------------------------------------
# Where reading begins: an end of the log, an offset, or a timestamp. Pure.
#
# Owns what programs may pass. Only a leader knows which offset an end or a timestamp is.


GivenStart: TypeAlias = Literal["earliest", "latest"] | int | datetime  # as programs pass it


class StartKind(Enum):
    OFFSET = auto()
    TIMESTAMP = auto()  # milliseconds; EARLIEST and LATEST are negative ones


class Start(NamedTuple):
    kind: StartKind
    number: int

    @property
    def offset(self) -> int | None:
        """The offset, where no leader has to be asked."""
        return self.number if self.kind is StartKind.OFFSET else None


FROM_EARLIEST = Start(StartKind.TIMESTAMP, EARLIEST)
FROM_LATEST = Start(StartKind.TIMESTAMP, LATEST)
_NAMED = {"earliest": FROM_EARLIEST, "latest": FROM_LATEST}


def start_of(given: object) -> Start:
    """The start that a program passed.

    Raises:
        InvalidConfig: it is none of "earliest", "latest", an offset and a datetime with a zone.
    """
    if isinstance(given, str) and given in _NAMED:
        return _NAMED[given]
    if isinstance(given, datetime):
        return Start(StartKind.TIMESTAMP, _milliseconds(given, name="start"))
    if _is_natural(given):
        return Start(StartKind.OFFSET, given)  # type: ignore[arg-type]
    expected = 'expected "earliest", "latest", an offset from 0, or a datetime'
    raise InvalidConfig([f"start = {given!r}: {expected}{likely(given, list(_NAMED))}"])


def seek_start(*, offset: object, timestamp: object) -> Start:
    """The start that the arguments of `seek` name, one of which is None.

    Raises:
        InvalidConfig: both or none, or not a place in a log.
    """
    if (offset is None) == (timestamp is None):
        raise InvalidConfig(["seek: expected either offset=... or timestamp=..."])
    if timestamp is None:
        if not _is_natural(offset):
            raise InvalidConfig([f"offset = {offset!r}: expected a whole number from 0"])
        return Start(StartKind.OFFSET, offset)  # type: ignore[arg-type]
    if isinstance(timestamp, datetime):
        return Start(StartKind.TIMESTAMP, _milliseconds(timestamp, name="timestamp"))
    if not _is_natural(timestamp):
        raise InvalidConfig(
            [f"timestamp = {timestamp!r}: expected a datetime, or milliseconds since 1970 UTC"]
        )
    return Start(StartKind.TIMESTAMP, timestamp)  # type: ignore[arg-type]


def start_of_added(start: Start) -> Start:
    """The start in a partition that is added while others are read.

    All its records are new: a program that wants new records wants it from its beginning. An offset
    was meant for the partitions that existed.
    """
    # A timestamp means the same in a new partition.
    if start == FROM_LATEST or start.kind is StartKind.OFFSET:
        return FROM_EARLIEST
    return start


def _is_natural(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= NUMBER_MAX


def _milliseconds(moment: datetime, *, name: str) -> int:
    # Guessing the zone would read from a wrong place, silently.
    if moment.utcoffset() is None:
        raise InvalidConfig(
            [
                f"{name} = {moment!r}: a datetime without a time zone, which could mean any; add "
                "one, as in datetime.now(timezone.utc) or moment.astimezone()"
            ]
        )
    return max(0, -((EPOCH - moment) // MILLISECOND))


# -- Partition state ------------------------------------------------------------------------------


Key: TypeAlias = tuple[str, int]  # topic and number


class DamageMet(NamedTuple):
    """The damage that fetches of a partition have met.

    Attributes:
        place: the leader that sent it last.
        since: when that leader sent it first.
        first: when any leader did.
    """

    place: LeaderPlace
    since: float
    first: float


class ReadingEvents:
    """What tasks of a group member wait for. Each event is set once, and then replaced.

    Attributes:
        begun: a leader has told the offset at which another partition begins.
        passed: reading has skipped offsets without records.
        finished: the program has finished something, or it was skipped.
    """

    def __init__(self) -> None:
        self.begun, self.passed, self.finished = anyio.Event(), anyio.Event(), anyio.Event()

    def on_begun(self) -> None:
        begun, self.begun = self.begun, anyio.Event()
        begun.set()

    def on_passed(self) -> None:
        passed, self.passed = self.passed, anyio.Event()
        passed.set()
        self.on_finished()

    def on_finished(self) -> None:
        finished, self.finished = self.finished, anyio.Event()
        finished.set()


class ConsumedPartition:
    """The state of one partition.

    Args:
        reset: where to go on if an offset is not in the log; None: that is an error.
        isolation: whether records of open and aborted transactions are read, too.
        owner: the member of a group that reads it; None without a group.
        deserializers: what is handed out has keys and values as these make them.

    Attributes:
        start: where to begin, as long as only a leader knows which offset that is.
        found_at: which offset that was, if a later request may find another one.
        last_consumed: offset of the record that was handed out last; None: none was.
        position: offset of the next record to hand out; None: not known yet.
        position_epoch: leader epoch of the record before the position; -1: not known.
        fetch_offset, fetch_epoch: the same for the next record to fetch.
        topic_id: of the topic that is read, None before the first request.
        ownership: the mark of ownership that a group member's records bear; another one for another
            topic.
        high_watermark: the highest of this topic in any answer; None: no answer yet, or truncated.
        end_offset: likewise of the end for this reader, see `end_told`.
        error: why nothing more comes; raised once everything before it was handed out.
        failures: failed attempts in a row.
        failed_since: when the first of them failed.
        damage: set if some of them brought damaged batches.
        vouched_at: the leader that has found its disk intact.
        is_held_back: nothing of it is handed out for now, as another member may get it soon.
        is_released: it is not read any more.
    """

    def __init__(
        self,
        key: Key,
        start: Start,
        random: Random,
        events: ReadingEvents,
        *,
        reset: Start | None = None,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
        owner: PartitionOwner | None = None,
        deserializers: Deserializers | None = None,
    ) -> None:
        self.key, self._events, self._reset = key, events, reset
        self._deserializers, self.isolation = deserializers, isolation
        self.topic, self.partition = key
        self.version = 0
        self.is_paused = self.is_held_back = self.is_released = False
        self.undelivered = CompletedFetches()
        self.high_watermark: int | None = None
        self.end_offset: int | None = None
        self._told_of = b""  # the topic that both are of
        self.last_consumed: int | None = None
        self._consumed_before: int | None = None  # before the last batch
        self._first_consumed: int | None = None  # the position before the first batch
        self._backoff = Backoff(random, PAUSES)
        self._owner = owner
        self.ownership = None if owner is None else PartitionOwnership(owner=owner)
        self._begin(start)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def _begin(self, start: Start) -> None:
        self.start = start
        self.found_at: int | None = None
        self.position = start.offset
        # From there to the position there is nothing to hand out
        self._read_end = start.offset or 0
        self.position_epoch = self.fetch_epoch = ABSENT
        self.fetch_offset = self.position or 0
        self.topic_id: bytes | None = None
        self.error: RaftmqError | None = None
        self.undelivered.clear()
        self.on_success()

    def seek(self, start: Start) -> None:
        """Drop everything that was fetched, and errors; go on at `start`."""
        self.version += 1
        self._begin(start)

    def begin_at(self, topic_id: bytes, offset: int, leader_epoch: int) -> None:
        """Go on at a group's committed offset; `leader_epoch` is that of the record before."""
        self.version += 1
        self._begin(Start(StartKind.OFFSET, offset))
        self.read_topic(topic_id)
        self.position_epoch = self.fetch_epoch = leader_epoch

    def read_topic(self, topic_id: bytes) -> None:
        """Of the topics that had the name, read the one with this id."""
        self.topic_id = topic_id
        # Not in a group, or nothing has changed.
        if self.ownership is None or self.ownership.topic_id == topic_id:
            return
        if self.ownership.topic_id is None:  # the first topic: the ownership goes on
            self.ownership.topic_id = topic_id
        else:
            self.ownership = PartitionOwnership(topic_id, self._owner)

    def release(self) -> None:
        """Another member reads it now: hand out nothing more of it."""
        self.version += 1
        self.is_released = True
        self.undelivered.clear()

    def found(self, offset: int) -> None:
        """A leader has told the offset of the start."""
        self.version += 1
        self.position = self.fetch_offset = self._read_end = offset
        # "earliest" may be looked up again; "latest" and timestamps could move, so a group commits
        # them.
        self.found_at = None if self.start == FROM_EARLIEST else offset
        self.on_success()
        self._events.on_begun()

    # -- asking ----------------------------------------------------------------------------

    def is_wanted(self, place: LeaderPlace, *, buffer_bytes: int, now: float) -> bool:
        """Whether to fetch it from the leader at `place` now."""
        return (
            not self.is_paused
            and self.error is None
            and place.leader != ABSENT
            and self.undelivered.byte_count < buffer_bytes
            and (now >= self.not_before or place != self.failed_at)
        )

    def on_success(self) -> None:
        self.failures = 0
        self.damage: DamageMet | None = None
        self.vouched_at: LeaderPlace | None = None
        self.failed_since = self.not_before = float("-inf")
        self.failed_at: LeaderPlace | None = None
        self._backoff.reset()

    def on_failure(self, place: LeaderPlace | None, *, now: float) -> None:
        """An attempt there failed; the next is due after a pause, or at once at another leader."""
        if not self.failures:  # the first one in a row
            self.failed_since = now
        self.failures += 1
        self.failed_at = place
        self.not_before = now + self._backoff.next_seconds()

    def fail(self, error: RaftmqError) -> None:
        """An error that another attempt cannot resolve."""
        self.version += 1  # an answer that is still on its way must not bring records after it
        self.error = error.at(*self.key)

    def take_error(self) -> RaftmqError | None:
        """The error to raise; then everything is tried again, and fails again if the cause lasts.

        None if there is no error, or if `auto_offset_reset` says where to go on.
        """
        error, self.error = self.error, None
        if type(error) is OffsetOutOfRange and self._reset is not None:  # not its subclasses
            self.seek(self._reset)
            return None
        self.on_success()
        return error

    # -- records ---------------------------------------------------------------------------

    def on_told(self, topic_id: bytes, high_watermark: int, end_offset: int) -> None:
        """Take the high watermark, and the end for this reader, of an answer. A new leader may know
        lower ones than the last leader did: committed records stay committed.
        """
        if topic_id != self._told_of:
            self.on_cut()
        self.high_watermark = max(high_watermark, self.high_watermark or 0)
        self.end_offset = max(end_offset, self.end_offset or 0)
        self._told_of = topic_id

    def on_cut(self) -> None:
        """The log was truncated, or is another one: the known ends do not hold."""
        self.high_watermark = self.end_offset = None

    def add(self, pieces: Sequence[Fetched]) -> None:
        """Add batches, and what was left out of them, that begin at the fetch offset."""
        assert self.position is not None, "fetched from nowhere"
        if not pieces:
            return
        self.version += 1
        self.fetch_offset = pieces[-1].end_offset
        self.fetch_epoch = pieces[-1].leader_epoch
        self.undelivered.add(pieces)
        self._pass_over(self.position)

    def drop_fetched(self) -> None:
        """Hand out nothing that was fetched, or asked for, before."""
        self.version += 1
        self.forget_undelivered()

    def forget_undelivered(self) -> None:
        """Drop undelivered batches; fetching goes back to the position."""
        if self.undelivered:
            assert self.position is not None, "fetched from nowhere"
            self.version += 1
            self.undelivered.clear()
            self.fetch_offset, self.fetch_epoch = self.position, self.position_epoch

    @property
    def is_deliverable(self) -> bool:
        """Whether there are records to hand out, or an error to raise."""
        is_read = not (self.is_paused or self.is_held_back or self.is_released)
        return is_read and (bool(self.undelivered) or self.error is not None)

    def peek(self, records_max: int) -> ConsumedBatch | None:
        """The next records; they stay undelivered until `advance`.

        Raises:
            RaftmqError: they cannot be decoded.
        """
        if not self.undelivered:
            return None
        assert self.position is not None, "fetched from nowhere"
        assert self.high_watermark is not None, "fetched, and not told"
        parts = self.undelivered.peek(self.position, records_max=records_max)
        if not parts:  # the position is in a gap at the end of a batch
            self._pass_over(self.fetch_offset)
            return None
        return ConsumedBatch(
            *self.key,
            parts,
            high_watermark=self.high_watermark,
            ownership=self.ownership,
            deserializers=self._deserializers,
        )

    @property
    def began_at(self) -> int | None:
        """The position before anything was handed out; None: not known yet."""
        return self.position if self._first_consumed is None else self._first_consumed

    def advance(self, position: int, *, last: int) -> None:
        """Everything before `position` was handed out, the record at offset `last` as the last."""
        if self._first_consumed is None:
            self._first_consumed = self.position
        self._consumed_before, self.last_consumed = self.last_consumed, last
        self._read_end = position
        self._pass_over(position)

    def behind(self, end_offset: int) -> tuple[int, int | None]:
        """Where reading goes on after records that end at `end_offset`: behind batches that are
        passed over.

        Returns:
            That offset, and the leader epoch of what is before it; None: not known.
        """
        # Nothing to hand out lies between: the current position says the same.
        if self.position is not None and self._read_end <= end_offset <= self.position:
            return self.position, self.position_epoch
        return self.undelivered.pass_over(end_offset)

    def _pass_over(self, position: int) -> None:
        self.position, epoch = self.undelivered.drop_before(position)
        if epoch is not None:  # else that record is in a batch handed out before
            self.position_epoch = epoch
        if self.position != position:  # batches were passed over
            self._events.on_passed()

    def take_back(self, position: int, *, epoch: int) -> None:
        """Records from `position` on are handed out again; `epoch`: of the record before."""
        self.version += 1
        self.undelivered.clear()
        self.last_consumed = self._consumed_before
        self.position = self.fetch_offset = self._read_end = position
        self.position_epoch = self.fetch_epoch = epoch
        self.error = None
        self.on_success()
