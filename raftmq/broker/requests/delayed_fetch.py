"""One fetch in progress: reads partitions with new data, long-polls for `bytes_min`, answers.

Owns the limits of an answer and its deadline, for any number of partitions. It has no task: new
data and the clock make it check again (`FetchPurgatory`; Kafka: DelayedFetch in the purgatory).
`ReaderView` says what a reader may see; records are never touched, only named as file slices.

Invariants: what was found is answered once, or given back to the session. A first batch is answered
whole, even beyond the limits; no further batch makes an answer exceed them.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import trio

from raftmq.disk.files import WouldBlock
from raftmq.errors import CorruptRecord, RaftmqError, StorageError, without_frames
from raftmq.rpc.reply import PendingReply, Reply
from raftmq.wire.bodies import ABSENT, clip_message
from raftmq.wire.messages.fetch import Diverging, FetchReply, PartitionFetched

if TYPE_CHECKING:
    from raftmq.broker.replication.replicas import Replicas
    from raftmq.broker.requests.fetch_sessions import (
        AnsweredBounds,
        FetchPurgatory,
        FetchSession,
        SessionPartition,
    )
    from raftmq.disk.files import FileSlice
    from raftmq.partition.leader import Diverged
    from raftmq.partition.replica import Replica
    from raftmq.partition.replica_environment import PartitionKey
    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.partition.storage.log import LogSlice, PartitionLog

PARTITIONS_TOLD_MAX = 1000  # of one answer, which must fit into `header_bytes_max`
MESSAGE_CHARS_MAX = 300  # of an error text, a thousand of which fit into the header
ANSWER_BYTES_MAX = 48 << 20  # below `frame_bytes_max`, and others wait behind it
WAIT_SECONDS_MAX = 60.0  # of a long poll; a client that asks for more is answered empty
# A new high watermark alone waits so long for records to travel with it.
BOUNDS_LINGER_SECONDS = 0.01

logger = logging.getLogger("raftmq.broker")


class PartitionView(NamedTuple):
    """What a reader may see of a partition now; records up to `end_offset`, unless it diverged."""

    end_offset: int
    bounds: AnsweredBounds
    diverged: Diverged | None = None


class ReaderView(Protocol):
    """What one kind of reader, consumers or followers, may see.

    Attributes:
        tells_bounds: a new high watermark is worth an answer without records.
    """

    tells_bounds: bool

    def look(self, replica: Replica, partition: SessionPartition) -> PartitionView:
        """Raises RaftmqError: the answer in place of records."""


class AnswerLimits(NamedTuple):
    """Of one answer, as the reader asked."""

    max_wait_ms: int
    bytes_min: int
    bytes_max: int


class _Found(NamedTuple):
    """What one partition has to answer. `is_cut`: more records are there than fit, so waiting for
    new ones would be pointless."""

    partition: SessionPartition
    seen: PartitionView | None
    piece: FileSlice | None = None
    error: RaftmqError | None = None
    is_cut: bool = False

    @property
    def length(self) -> int:
        return self.piece.length if self.piece else 0


class DelayedFetch:
    """One request: `start` answers it, at once or later. A `WaitingFetch`."""

    def __init__(
        self,
        session: FetchSession,
        reading: ReaderView,
        hosting: Replicas,
        directory: LogDirectory,
        waiting: FetchPurgatory,
        limits: AnswerLimits,
    ) -> None:
        self._session, self._reading = session, reading
        self._hosting, self._directory, self._waiting = hosting, directory, waiting
        self._bytes_max = min(limits.bytes_max, ANSWER_BYTES_MAX)
        self._bytes_min = min(limits.bytes_min, self._bytes_max)
        wait_seconds = min(limits.max_wait_ms / 1000, WAIT_SECONDS_MAX)
        self._deadline = trio.current_time() + wait_seconds
        self._found: dict[PartitionKey, _Found] = {}
        self._bytes = 0
        self._being_read: PartitionKey | None = None  # its records are being read from disk
        self._disk_read = trio.CancelScope()
        # Urgent: answer without waiting for `bytes_min`. Full: nothing more fits.
        self._is_urgent = self._is_full = self._is_woken = False
        self.is_ended = False
        self._pending = PendingReply(self._abandon)

    def start(self) -> PendingReply:
        """Check at once; registers for the deadline if that did not answer."""
        self._session.begin(self)
        try:
            self.look()
        # The session must not keep a request that failed.
        except BaseException:
            self._abandon()
            raise
        if not self.is_ended:  # a long poll: there is not enough to answer yet
            self._waiting.wake_at(self, self._deadline)
        return self._pending

    def fail(self, error: Exception) -> None:
        self._abandon()
        self._pending.settle(error)

    def _abandon(self) -> None:
        self.is_ended = True
        self._give_back()
        self._session.end(self)

    # -- new data --------------------------------------------------------------------------

    def on_news(self, partition: SessionPartition) -> None:
        """Wake up only for what can be answered: most appends are not committed yet."""
        if self._is_woken:
            return
        try:
            seen = self._look(partition)
        # The error is the answer, for example that this broker is not the leader any more.
        except RaftmqError:
            self._wake()
            return
        # Records are worth waking for; a high watermark alone may wait a moment for some.
        if _has_records(partition, seen):
            self._wake()
        # No records, but a high watermark that the follower does not know.
        elif self._has_bounds(partition, seen):
            self._linger()

    def _wake(self) -> None:
        self._is_woken = True
        self._waiting.wake(self)

    def _linger(self) -> None:
        """Answer in a moment, even without records."""
        lingered = trio.current_time() + BOUNDS_LINGER_SECONDS
        if lingered < self._deadline:  # never later than the reader's own deadline
            self._deadline = lingered
            self._waiting.wake_at(self, lingered)

    def on_superseded(self) -> None:
        """The reader's next request is here and checks at once, so what this one has found must be
        given back to the session first.
        """
        self._give_back()
        # While it reads from disk the read has been cancelled; that task concludes.
        if not self._is_reading:
            self._conclude()

    @property
    def _is_superseded(self) -> bool:
        return self._session.turn is not self

    @property
    def _is_reading(self) -> bool:
        return self._being_read is not None

    def _is_over(self) -> bool:
        # Five reasons to stop waiting; the last two are the long poll's own (bytes, deadline).
        return (
            self._is_urgent
            or self._is_full
            or self._is_superseded
            or self._bytes >= self._bytes_min
            or trio.current_time() >= self._deadline
        )

    # -- reading ---------------------------------------------------------------------------

    def look(self) -> None:
        """Read partitions with new data, in order, until nothing more fits; answer if enough."""
        self._is_woken = False
        if self.is_ended or self._is_reading:  # a disk read under way goes on by itself
            return
        for key in list(self._session.news):
            # What is left stays new data for the next request.
            if self._is_full or self._is_superseded:
                break
            self._session.news.pop(key, None)
            partition = self._session.partitions.get(key)
            # Not in the page cache: one task reads it, and goes on with the others afterwards.
            if partition is not None and not partition.rests and not self._look_at(key, partition):
                self._being_read, self._disk_read = key, trio.CancelScope()
                self._waiting.start_soon(partial(self._read_from_disk, key, partition))
                return
        self._conclude()

    def _conclude(self) -> None:
        if self._is_over():  # otherwise the long poll goes on
            self.is_ended = True
            reply = self._reply()
            self._give_back()
            self._session.end(self)
            self._pending.settle(reply)

    def _look_at(self, key: PartitionKey, partition: SessionPartition) -> bool:
        """False if the disk must be waited for."""
        # An earlier finding of this very request is replaced by a newer one.
        before = self._found.pop(key, None)
        self._bytes -= before.length if before else 0
        try:
            found = self._find_now(partition, self._look(partition))
        except RaftmqError as error:  # such as NotLeaderOrFollower: answered in place of records
            found = _Found(partition, None, error=without_frames(error))
        # Also the signal of `read_now` that the page cache lacks it.
        except WouldBlock:
            return False
        self._judge(key, found)
        return True

    async def _read_from_disk(self, key: PartitionKey, partition: SessionPartition) -> None:
        # The request was answered before this task began.
        if self.is_ended:
            return  # its session may have ended, and would watch again
        try:
            # Cancelled by `_give_back`, when the request is superseded or abandoned.
            with self._disk_read:
                found = await self._find_slowly(partition)  # a worker thread reads the disk
            if not self.is_ended:  # the deadline or the next request may have come first
                self._being_read = None
                self._judge(key, found)
                self._conclude()  # or new data during every disk read would postpone it for ever
                self.look()
        except Exception as error:  # `fail` hands it to the server, which answers or logs it
            self.fail(error)

    async def _find_slowly(self, partition: SessionPartition) -> _Found:
        try:
            return await self._find(partition, self._look(partition))
        except RaftmqError as error:  # as in `_look_at`
            return _Found(partition, None, error=without_frames(error))

    def _judge(self, key: PartitionKey, found: _Found) -> None:
        """Six cases: 1. superseded: drop it; 2. error or divergence: answer at once; 3. records;
        4. bounds for the first time; 5. new bounds, with records or in a moment; 6. nothing.
        """
        partition, seen, piece = found[:3]
        if self._is_superseded:  # case 1
            return
        if seen is None or seen.diverged:  # case 2
            self._add(key, found, is_urgent=True)
        # The next batch does not fit: it stays new data for the next request.
        elif piece is not None and self._bytes and self._bytes + piece.length > self._bytes_max:
            self._session.news[key] = None
            self._is_full = True
        elif piece is not None:  # case 3
            self._add(key, found, is_urgent=found.is_cut)
        elif partition.told is None:  # case 4
            self._add(key, found, is_urgent=self._reading.tells_bounds)
        elif self._has_bounds(partition, seen):  # case 5; otherwise 6
            self._add(key, found)
            self._linger()

    def _look(self, partition: SessionPartition) -> PartitionView:
        wanted = partition.wanted
        try:
            replica = self._hosting.get(wanted.topic_id, wanted.partition)
        # Not on this broker: do not watch the replica it was.
        except RaftmqError:
            self._session.watch(partition, None)
            raise
        self._session.watch(partition, replica)
        return self._reading.look(replica, partition)

    def _find_now(self, partition: SessionPartition, seen: PartitionView) -> _Found:
        """Raises WouldBlock, and what reading raises."""
        if not _has_records(partition, seen):
            return _Found(partition, seen)
        log, offset, bytes_max = self._wanted(partition)
        return _found(
            partition,
            seen,
            self._directory.slice_now(log, offset, bytes_max=bytes_max, end_offset=seen.end_offset),
        )

    async def _find(self, partition: SessionPartition, seen: PartitionView) -> _Found:
        if not _has_records(partition, seen):  # it may have been truncated meanwhile
            return _Found(partition, seen)
        log, offset, bytes_max = self._wanted(partition)
        return _found(
            partition,
            seen,
            await self._directory.slice(
                log, offset, bytes_max=bytes_max, end_offset=seen.end_offset
            ),
        )

    def _wanted(self, partition: SessionPartition) -> tuple[PartitionLog, int, int]:
        replica, wanted = partition.replica, partition.wanted
        assert replica is not None, "looked at, and not watched"
        # At least 1, as the first batch is read whole in any case.
        bytes_max = max(1, min(wanted.bytes_max, self._bytes_max - self._bytes))
        return replica.log, wanted.fetch_offset, bytes_max

    def _add(self, key: PartitionKey, found: _Found, *, is_urgent: bool = False) -> None:
        self._found[key] = found
        self._bytes += found.length
        self._is_urgent |= is_urgent
        self._is_full |= self._bytes >= self._bytes_max or len(self._found) >= PARTITIONS_TOLD_MAX

    def _has_bounds(self, partition: SessionPartition, seen: PartitionView) -> bool:
        return self._reading.tells_bounds and seen.bounds != partition.told

    # -- answering -------------------------------------------------------------------------

    def _reply(self) -> Reply:
        """An empty answer if superseded: what was found belongs to the next request."""
        if self._is_superseded:
            return Reply(FetchReply(self._session.session_id))
        found, self._found = self._found, {}
        told = tuple(self._tell(key, one) for key, one in found.items())
        pieces = [one.piece for one in found.values() if one.piece is not None]
        return Reply(FetchReply(self._session.session_id, told), pieces)

    def _tell(self, key: PartitionKey, found: _Found) -> PartitionFetched:
        partition, seen, piece, error = found[:4]
        if error is not None:  # errors are per partition; the others are answered
            return self._tell_error(key, partition, error)
        assert seen is not None, "neither seen nor failed"
        partition.told = None if seen.diverged else seen.bounds  # after truncation all is new
        # Until the reader names its next offset, another answer would repeat this one.
        partition.rests = piece is not None or seen.diverged is not None
        return PartitionFetched(
            *key,
            high_watermark=seen.bounds.high_watermark,
            log_start_offset=seen.bounds.log_start_offset,
            length=found.length,
            diverging=Diverging(*seen.diverged) if seen.diverged else None,
        )

    def _tell_error(
        self, key: PartitionKey, partition: SessionPartition, error: RaftmqError
    ) -> PartitionFetched:
        """Nothing is remembered of partitions that are not here: names alone would fill memory."""
        replica, leader, leader_epoch = partition.replica, ABSENT, ABSENT
        is_known = replica is not None and replica.log.is_rotten_at(partition.wanted.fetch_offset)
        # Known rot was logged when it was found; every reader would repeat it.
        if replica is not None and isinstance(error, CorruptRecord | StorageError) and not is_known:
            logger.warning("cannot be read: log=%s reason=%s", replica.log.name, error)
        partition.rests, partition.told = True, None
        if replica is None:  # the session would grow with names that do not exist
            self._session.drop(key)
        # Errors that mean "ask the leader" name it, which saves a metadata request.
        if error.refresh_metadata:
            leader, leader_epoch = self._hosting.leader_of(*key)
        return PartitionFetched(
            *key,
            error=error.code,
            high_watermark=replica.high_watermark if replica else ABSENT,
            log_start_offset=replica.log.log_start_offset if replica else ABSENT,
            leader=leader,
            leader_epoch=leader_epoch,
            message=clip_message(str(error)[:MESSAGE_CHARS_MAX]),
        )

    def _give_back(self) -> None:
        unanswered, self._found = list(self._found), {}
        # A disk read under way is cancelled, and its partition checked again.
        if self._being_read is not None:
            unanswered.append(self._being_read)
            self._being_read = None
            self._disk_read.cancel()
        for key in unanswered:
            if key in self._session.partitions:  # the reader may have forgotten it meanwhile
                self._session.news[key] = None


def _has_records(partition: SessionPartition, seen: PartitionView) -> bool:
    return seen.diverged is None and partition.wanted.fetch_offset < seen.end_offset


def _found(partition: SessionPartition, seen: PartitionView, part: LogSlice) -> _Found:
    # No whole batch ends before `end_offset`.
    if not part.bytes.length:
        return _Found(partition, seen)
    return _Found(partition, seen, part.bytes, is_cut=part.end_offset < seen.end_offset)
