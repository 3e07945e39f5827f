"""One partition as it is read: how far, what is there to hand out, what keeps it from being asked.

Pure. Positions count what was handed out; fetching runs ahead. Invariants: what is undelivered
reaches from the position to where fetching goes on; whatever changes where fetching goes on
changes `version`, and answers to questions of an older version are dropped.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from raftmq.client.consumer.batch import ConsumedBatch, PartitionOwnership
from raftmq.client.consumer.completed_fetches import CompletedFetches
from raftmq.client.routing.attempts import PAUSES
from raftmq.errors import InvalidConfig, OffsetOutOfRange
from raftmq.rpc.backoff import Backoff
from raftmq.wire.bodies import ABSENT, NUMBER_MAX
from raftmq.wire.messages.offsets import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from raftmq.client.consumer.completed_fetches import CompletedFetch
    from raftmq.client.routing.routes import LeaderPlace
    from raftmq.errors import RaftmqError


# -- Starts ---------------------------------------------------------------------------------------
# Where reading begins: an end of the log, an offset, or a point in time. Pure.
#
# Owns what programs may say for it. Which offset an end or a time is, only a leader can tell.


GivenStart: TypeAlias = str | int | datetime  # as programs say it

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StartKind(Enum):
    OFFSET = auto()
    TIMESTAMP = auto()  # milliseconds; EARLIEST and LATEST are such ones, too


class Start(NamedTuple):
    kind: StartKind
    number: int

    @property
    def offset(self) -> int | None:
        """Where it is known without asking."""
        return self.number if self.kind is StartKind.OFFSET else None


FROM_EARLIEST = Start(StartKind.TIMESTAMP, EARLIEST)
FROM_LATEST = Start(StartKind.TIMESTAMP, LATEST)
_NAMED = {"earliest": FROM_EARLIEST, "latest": FROM_LATEST}


def start_of(given: object) -> Start:
    """What `start=` says.

    Raises:
        InvalidConfig: it is none of "earliest", "latest", an offset and a datetime with a zone.
    """
    if isinstance(given, str) and given in _NAMED:
        return _NAMED[given]
    if isinstance(given, datetime):
        return Start(StartKind.TIMESTAMP, _milliseconds(given, name="start"))
    if _is_natural(given):
        return Start(StartKind.OFFSET, given)  # type: ignore[arg-type]
    raise InvalidConfig(
        [f'start = {given!r}: expected "earliest", "latest", an offset from 0, or a datetime']
    )


def seek_start(*, offset: object, timestamp: object) -> Start:
    """What the arguments of a `seek` say, of which one is None.

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
    """For a partition that is added while others are read.

    All of it is new. So whoever wants new records wants it from its beginning; an offset was meant
    for the partitions that there were.
    """
    if start == FROM_LATEST or start.kind is StartKind.OFFSET:
        return FROM_EARLIEST
    return start


def _is_natural(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= NUMBER_MAX


def _milliseconds(moment: datetime, *, name: str) -> int:
    if moment.utcoffset() is None:
        raise InvalidConfig(
            [
                f"{name} = {moment!r}: a datetime without a time zone, which could mean any; add "
                "one, as in datetime.now(timezone.utc) or moment.astimezone()"
            ]
        )
    return max(0, -((_EPOCH - moment) // timedelta(milliseconds=1)))


# -- Partition state ------------------------------------------------------------------------------


Key: TypeAlias = tuple[str, int]  # topic and number


class DamageMet(NamedTuple):
    """Attributes:
    place: who has sent it last.
    since: when that leader sent it first.
    first: when any leader did.
    """

    place: LeaderPlace
    since: float
    first: float


class ConsumedPartition:
    """
    Args:
        reset: where to go on if an offset is not there; None: that is an error.
        is_of_group: a group reads it.
        on_found: called when it is known where to begin, which only a leader could tell.
        on_passed: called when reading has passed over what is no record.

    Attributes:
    start: where to begin, as long as only a leader knows which offset that is.
    found_at: which offset that was, if somebody else may find another one later.
    position: offset of the next record to hand out; None: not known yet.
    position_epoch: of the leader that has appended the record before; -1: not known.
    fetch_offset, fetch_epoch: the same for the next record to fetch.
    topic_id: of the topic that is read, None before the first question.
    tenure: what a group's reader is handed out is marked with; another one for another topic.
    high_watermark: the highest that was told of this topic; None: never, or the log was cut.
    error: why nothing more comes; told once everything before it was handed out.
    failures: attempts in a row.
    failed_since: when the first of them failed.
    damage: what is known of it if some of them brought damage.
    vouched_at: the leader there has said that damage is none of its disk's.
    is_held_back: nothing of it is handed out for now, as it may be somebody else's soon.
    is_released: it is not read any more.
    """

    def __init__(
        self,
        key: Key,
        start: Start,
        random: Random,
        *,
        reset: Start | None = None,
        is_of_group: bool = False,
        on_found: Callable[[], None] = lambda: None,
        on_passed: Callable[[], None] = lambda: None,
    ) -> None:
        self.key, self._reset, self._on_found, self._on_passed = key, reset, on_found, on_passed
        self.topic, self.partition = key
        self.version = 0
        self.is_paused = self.is_held_back = self.is_released = False
        self.undelivered = CompletedFetches()
        self.high_watermark: int | None = None
        self._told_of = b""  # the topic whose high watermark that is
        self._backoff = Backoff(random, PAUSES)
        self.tenure = PartitionOwnership() if is_of_group else None
        self._begin(start)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def _begin(self, start: Start) -> None:
        self.start = start
        self.found_at: int | None = None
        self.position = start.offset
        self._read_end = start.offset or 0  # from there to the position there is no record
        self.position_epoch = self.fetch_epoch = ABSENT
        self.fetch_offset = self.position or 0
        self.topic_id: bytes | None = None
        self.error: RaftmqError | None = None
        self.undelivered.clear()
        self.on_success()

    def seek(self, start: Start) -> None:
        """Forget everything that was fetched, and what went wrong."""
        self.version += 1
        self._begin(start)

    def begin_at(self, topic_id: bytes, offset: int, leader_epoch: int) -> None:
        """There a group goes on with this topic; the epoch is that of the record before."""
        self.version += 1
        self._begin(Start(StartKind.OFFSET, offset))
        self.read_topic(topic_id)
        self.position_epoch = self.fetch_epoch = leader_epoch

    def read_topic(self, topic_id: bytes) -> None:
        """This one, of those that had the name."""
        self.topic_id = topic_id
        if self.tenure is None or self.tenure.topic_id == topic_id:
            return
        if self.tenure.topic_id is None:
            self.tenure.topic_id = topic_id
        else:
            self.tenure = PartitionOwnership(topic_id)

    def release(self) -> None:
        """Somebody else reads it now: nothing of it is handed out."""
        self.version += 1
        self.is_released = True
        self.undelivered.clear()

    def found(self, offset: int) -> None:
        """Which offset the start is."""
        self.version += 1
        self.position = self.fetch_offset = self._read_end = offset
        self.found_at = None if self.start == FROM_EARLIEST else offset
        self.on_success()
        self._on_found()

    # -- asking ----------------------------------------------------------------------------

    def is_wanted(self, place: LeaderPlace, *, buffer_bytes: int, now: float) -> bool:
        """Whether to ask who leads at `place` about it."""
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
        """An attempt there came to nothing; another one is due after a pause, or elsewhere."""
        if not self.failures:
            self.failed_since = now
        self.failures += 1
        self.failed_at = place
        self.not_before = now + self._backoff.next_seconds()

    def fail(self, error: RaftmqError) -> None:
        """It takes more than another attempt."""
        self.error = error.at(*self.key)

    def take_error(self) -> RaftmqError | None:
        """To be told; then everything is tried again, and fails again if it still holds.

        None if there is none, or if reading goes on elsewhere instead.
        """
        error, self.error = self.error, None
        if type(error) is OffsetOutOfRange and self._reset is not None:
            self.seek(self._reset)
            return None
        self.on_success()
        return error

    # -- records ---------------------------------------------------------------------------

    def on_told(self, topic_id: bytes, high_watermark: int) -> None:
        """A new leader may know less than the last one did: what was committed stays so."""
        before = self.high_watermark if topic_id == self._told_of else None
        self.high_watermark = max(high_watermark, before or 0)
        self._told_of = topic_id

    def on_cut(self) -> None:
        """The log is not what it was: what was told of it does not hold."""
        self.high_watermark = None

    def add(self, pieces: Sequence[CompletedFetch]) -> None:
        """Batches that begin where fetching goes on."""
        assert self.position is not None, "fetched from nowhere"
        if not pieces:
            return
        self.version += 1
        self.fetch_offset = pieces[-1].header.end_offset
        self.fetch_epoch = pieces[-1].header.leader_epoch
        self.undelivered.add(pieces)
        self._pass_over(self.position)

    def forget_undelivered(self) -> None:
        """Fetching goes back to the position."""
        if self.undelivered:
            assert self.position is not None, "fetched from nowhere"
            self.version += 1
            self.undelivered.clear()
            self.fetch_offset, self.fetch_epoch = self.position, self.position_epoch

    @property
    def is_deliverable(self) -> bool:
        """Whether there is something to hand out, or to tell."""
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
            *self.key, parts, high_watermark=self.high_watermark, tenure=self.tenure
        )

    def advance(self, position: int) -> None:
        """Everything before `position` was handed out."""
        self._read_end = position
        self._pass_over(position)

    def behind(self, end_offset: int) -> tuple[int, int | None]:
        """Where reading goes on after what was handed out and ends there: behind control batches.

        Returns:
            And the epoch of the leader that has appended what is before; None: nothing is known.
        """
        if self.position is not None and self._read_end <= end_offset <= self.position:
            return self.position, self.position_epoch
        return self.undelivered.pass_over(end_offset)

    def _pass_over(self, position: int) -> None:
        self.position, epoch = self.undelivered.drop_before(position)
        if epoch is not None:
            self.position_epoch = epoch
        if self.position != position:
            self._on_passed()

    def take_back(self, position: int, *, epoch: int) -> None:
        """What was handed out from `position` on comes again; `epoch`: of the record before."""
        self.version += 1
        self.undelivered.clear()
        self.position = self.fetch_offset = self._read_end = position
        self.position_epoch = self.fetch_epoch = epoch
        self.error = None
        self.on_success()
