"""One partition as it is read: how far, what is there to hand out, what keeps it from being asked.

Pure. Positions count what was handed out; fetching runs ahead. Invariants: what is undelivered
reaches from the position to where fetching goes on; whatever changes where fetching goes on
changes `version`, and answers to questions of an older version are dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from raftmq.client.consumer.batch import ConsumedBatch
from raftmq.client.consumer.undelivered import Undelivered
from raftmq.client.routing.attempts import PAUSES
from raftmq.errors import OffsetOutOfRange
from raftmq.rpc.backoff import Backoff
from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from raftmq.client.consumer.starts import Start
    from raftmq.client.consumer.undelivered import Piece
    from raftmq.client.routing.routes import Place
    from raftmq.errors import RaftmqError

Key: TypeAlias = tuple[str, int]  # topic and number


class PartitionState:
    """
    Args:
        reset: where to go on if an offset is not there; None: that is an error.

    Attributes:
    start: where to begin, as long as only a leader knows which offset that is.
    position: offset of the next record to hand out; None: not known yet.
    position_epoch: of the leader that has appended the record before; -1: not known.
    fetch_offset, fetch_epoch: the same for the next record to fetch.
    topic_id: of the topic that is read, None before the first question.
    high_watermark: the highest that was told of this topic; None: never, or the log was cut.
    error: why nothing more comes; told once everything before it was handed out.
    failures: attempts in a row.
    failed_since: when the first of them failed.
    is_damaged: one of them brought damage.
    """

    def __init__(
        self, key: Key, start: Start, random: Random, *, reset: Start | None = None
    ) -> None:
        self.key, self._reset = key, reset
        self.topic, self.partition = key
        self.version = 0
        self.is_paused = False
        self.undelivered = Undelivered()
        self.high_watermark: int | None = None
        self._told_of = b""  # the topic whose high watermark that is
        self._backoff = Backoff(random, PAUSES)
        self._begin(start)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def _begin(self, start: Start) -> None:
        self.start = start
        self.position = start.offset
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

    def found(self, offset: int) -> None:
        """Which offset the start is."""
        self.version += 1
        self.position = self.fetch_offset = offset
        self.on_success()

    # -- asking ----------------------------------------------------------------------------

    def is_wanted(self, place: Place, *, buffer_bytes: int, now: float) -> bool:
        """Whether to ask who leads at `place` about it."""
        return (
            not self.is_paused
            and self.error is None
            and place.leader != ABSENT
            and self.undelivered.byte_count < buffer_bytes
            and (now >= self.not_before or place != self.failed_at)
        )

    def on_success(self) -> None:
        self.failures, self.is_damaged = 0, False
        self.failed_since = self.not_before = float("-inf")
        self.failed_at: Place | None = None
        self._backoff.reset()

    def on_failure(self, place: Place | None, *, now: float) -> None:
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

    def add(self, pieces: Sequence[Piece]) -> None:
        """Batches that begin where fetching goes on."""
        assert self.position is not None, "fetched from nowhere"
        if not pieces:
            return
        self.version += 1
        self.fetch_offset = pieces[-1].header.end_offset
        self.fetch_epoch = pieces[-1].header.leader_epoch
        self.undelivered.add(pieces)
        self.advance(self.position)

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
        return not self.is_paused and (bool(self.undelivered) or self.error is not None)

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
            self.advance(self.fetch_offset)
            return None
        return ConsumedBatch(*self.key, parts, high_watermark=self.high_watermark)

    def advance(self, position: int) -> None:
        """Everything before `position` was handed out."""
        self.position, epoch = self.undelivered.drop_before(position)
        if epoch is not None:
            self.position_epoch = epoch

    def take_back(self, position: int, *, epoch: int) -> None:
        """What was handed out from `position` on comes again; `epoch`: of the record before."""
        self.version += 1
        self.undelivered.clear()
        self.position = self.fetch_offset = position
        self.position_epoch = self.fetch_epoch = epoch
        self.error = None
        self.on_success()
