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
from typing import TYPE_CHECKING, Protocol

import msgspec
import trio

from raftmq.broker.requests.fetched_records import NO_RECORDS
from raftmq.disk.files import WouldBlock
from raftmq.errors import CorruptRecord, RaftmqError, StorageError, without_frames
from raftmq.rpc.reply import PendingReply, Reply
from raftmq.wire.bodies import ABSENT, clip_message
from raftmq.wire.messages.fetch import Diverging, FetchReply, PartitionFetched

if TYPE_CHECKING:
    from raftmq.broker.replication.replicas import Replicas
    from raftmq.broker.requests.fetch_sessions import (
        FetchPurgatory,
        FetchSession,
        PartitionView,
        SessionPartition,
    )
    from raftmq.broker.requests.fetched_records import Records
    from raftmq.broker.requests.record_readers import RecordReader
    from raftmq.partition.replica import Replica
    from raftmq.partition.replica_environment import PartitionKey

PARTITIONS_TOLD_MAX = 1000  # of one answer, which must fit into `header_bytes_max`
# Aborted transactions and ranges that were left out of one answer, 600 kB, which fit into the
# header, too; more than those of one partition.
ROWS_TOLD_MAX = 20_000
MESSAGE_CHARS_MAX = 300  # of an error text, a thousand of which fit into the header
ANSWER_BYTES_MAX = 48 << 20  # below `frame_bytes_max`, and others wait behind it
WAIT_SECONDS_MAX = 60.0  # of a long poll; a client that asks for more is answered empty
# A new high watermark alone waits so long for records to travel with it.
BOUNDS_LINGER_SECONDS = 0.01

logger = logging.getLogger("raftmq.broker")


class ReaderView(Protocol):
    """What one kind of reader, consumers or followers, may see."""

    def look(self, replica: Replica, partition: SessionPartition) -> PartitionView:
        """Raises RaftmqError: the answer in place of records."""


class AnswerLimits(Protocol):
    """Of one answer, as the reader asked: what is common to the requests that fetch."""

    @property
    def max_wait_ms(self) -> int: ...
    @property
    def bytes_min(self) -> int: ...
    @property
    def bytes_max(self) -> int: ...


class _Found(msgspec.Struct, frozen=True):
    """What one partition has to answer."""

    partition: SessionPartition
    seen: PartitionView | None
    records: Records = NO_RECORDS
    error: RaftmqError | None = None


class DelayedFetch:
    """One request: `start` answers it, at once or later. A `WaitingFetch`.

    Attributes:
        deadline: when it is answered at the latest.
    """

    def __init__(
        self,
        session: FetchSession,
        reading: ReaderView,
        reader: RecordReader,
        hosting: Replicas,
        waiting: FetchPurgatory,
        limits: AnswerLimits,
        now: float,
    ) -> None:
        self._session, self._reading, self._reader = session, reading, reader
        self._hosting, self._waiting = hosting, waiting
        self._bytes_max = min(limits.bytes_max, ANSWER_BYTES_MAX)
        self._bytes_min = min(limits.bytes_min, self._bytes_max)
        self.deadline = now + min(limits.max_wait_ms / 1000, WAIT_SECONDS_MAX)
        self._found: dict[PartitionKey, _Found] = {}
        self._bytes = self._rows = 0  # of what was found
        # Its records are being read from disk, until the scope is cancelled.
        self._being_read: tuple[SessionPartition, trio.CancelScope] | None = None
        # Urgent: answer without waiting for `bytes_min`. Full: nothing more fits.
        self._is_urgent = self._is_full = False
        self.is_ended = False
        self._pending = PendingReply(self._abandon)

    def start(self, now: float) -> PendingReply:
        """Check at once."""
        self._session.begin(self)
        if self._session.bounds:
            self._linger(now)
        try:
            self.look(now)
        # The session must not keep a request that failed.
        except BaseException:
            self._abandon()
            raise
        return self._pending

    def fail(self, error: Exception) -> None:
        self._abandon()
        self._pending.settle(error)

    def _abandon(self) -> None:
        self._give_back()
        self._end(trio.current_time())

    def _end(self, now: float) -> None:
        self.is_ended = True
        self._session.end(self, now)

    # -- new data --------------------------------------------------------------------------

    def wake(self) -> None:
        self._waiting.wake(self)

    def linger(self) -> None:
        self._linger(trio.current_time())
        self._waiting.set_alarm(self._session, self.deadline)

    def _linger(self, now: float) -> None:
        """Answer in a moment, even without records; not later than the reader's own deadline."""
        self.deadline = min(self.deadline, now + BOUNDS_LINGER_SECONDS)

    def on_superseded(self) -> None:
        """The reader's next request is here and checks at once, so what this one has found must be
        given back to the session first. An empty answer: it could only be late.
        """
        self._abandon()
        self._pending.settle(Reply(FetchReply(self._session.session_id)))

    # -- reading ---------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Read partitions with new data, in order, until nothing more fits; answer if enough."""
        if self.is_ended or self._being_read is not None:  # a disk read goes on by itself
            return
        session = self._session
        # Bounds that wait travel with anything else that is answered.
        if session.bounds and (session.news or now >= self.deadline):
            session.take_bounds()
        news = session.news
        self._reader.begin()
        for key, partition in list(news.items()):
            # What is left stays new data for the next request.
            if self._is_full:
                break
            del news[key]
            # Not in the page cache: one task reads it, and goes on with the others afterwards.
            if not partition.rests and not self._look_at(partition, now):
                self._being_read = partition, trio.CancelScope()
                self._waiting.start_soon(partial(self._read_from_disk, *self._being_read))
                return
        self._conclude(now)

    def _conclude(self, now: float) -> None:
        # Four reasons to stop waiting; the last two are the long poll's own (bytes, deadline).
        if (
            self._is_urgent
            or self._is_full
            or self._bytes >= self._bytes_min
            or now >= self.deadline
        ):
            reply = self._reply()
            self._end(now)
            self._pending.settle(reply)
        else:
            self._waiting.set_alarm(self._session, self.deadline)

    def _look_at(self, partition: SessionPartition, now: float) -> bool:
        """False if the disk must be waited for."""
        # An earlier finding of this very request is replaced by a newer one.
        if partition.key in self._found:
            before = self._found.pop(partition.key).records
            self._bytes -= before.length
            self._rows -= before.row_count
        try:
            seen, part = self._see(partition), None
            if _has_records(partition, seen):
                part = self._reader.read_now(partition, seen, self._bytes_left)
        except RaftmqError as error:  # such as NotLeaderOrFollower: answered in place of records
            self._judge(partition, None, None, without_frames(error), now)
        # Also the signal of `read_now` that the page cache lacks it.
        except WouldBlock:
            return False
        else:
            self._judge(partition, seen, part, None, now)
        return True

    async def _read_from_disk(self, partition: SessionPartition, scope: trio.CancelScope) -> None:
        # The request was answered before this task began.
        if self.is_ended:
            return  # its session may have ended, and would watch again
        try:
            # Cancelled by `_give_back`, when the request is superseded or abandoned.
            with scope:
                found = await self._find(partition)  # a worker thread reads the disk
            if not self.is_ended:  # the deadline or the next request may have come first
                now = trio.current_time()
                self._being_read = None
                self._judge(partition, *found, now)
                self._conclude(now)  # or new data during every disk read would postpone it for ever
                self.look(now)
        except Exception as error:  # `fail` hands it to the server, which answers or logs it
            self.fail(error)

    async def _find(
        self, partition: SessionPartition
    ) -> tuple[PartitionView | None, Records | None, RaftmqError | None]:
        """What `_look_at` would have found."""
        try:
            seen, part = self._see(partition), None
            if _has_records(partition, seen):  # it may have been truncated meanwhile
                # As long as the disk takes.
                part = await self._reader.read(partition, seen, self._bytes_left)
        except RaftmqError as error:
            return None, None, without_frames(error)
        return seen, part, None

    def _see(self, partition: SessionPartition) -> PartitionView:
        """Raises RaftmqError: the answer in place of records."""
        replica = self._session.replica_of(partition, self._hosting.get)
        return self._reading.look(replica, partition)

    @property
    def _bytes_left(self) -> int:
        return self._bytes_max - self._bytes

    def _judge(
        self,
        partition: SessionPartition,
        seen: PartitionView | None,
        part: Records | None,
        error: RaftmqError | None,
        now: float,
    ) -> None:
        """Five cases: 1. error or divergence: answer at once; 2. records; 3. bounds for the first
        time; 4. new bounds, with records or in a moment; 5. nothing.
        """
        is_anything = part is not None and bool(part.length or part.left_out)
        if seen is None or seen.diverged is not None:  # case 1
            self._add(_Found(partition, seen, error=error), is_urgent=True)
        elif part is not None and is_anything:  # case 2; else no batch ends before `end_offset`
            # The next batch does not fit: it stays new data for the next request.
            if not self._has_room(part):
                self._session.news[partition.key] = partition
                self._is_full = True
            else:  # if more is there than fits, waiting for new records would be pointless
                self._add(_Found(partition, seen, part), is_urgent=part.is_cut)
        elif partition.told is None:  # case 3: consumers have no use for bounds without records
            self._add(_Found(partition, seen), is_urgent=self._session.is_follower)
        elif self._session.is_follower and partition.has_new_bounds(
            seen.high_watermark, seen.log_start_offset
        ):  # case 4; else 5
            self._add(_Found(partition, seen))
            self._linger(now)

    def _has_room(self, part: Records) -> bool:
        """What comes first is answered in any case."""
        is_short = not self._bytes or self._bytes + part.length <= self._bytes_max
        return is_short and (not self._rows or self._rows + part.row_count <= ROWS_TOLD_MAX)

    def _add(self, found: _Found, *, is_urgent: bool = False) -> None:
        self._found[found.partition.key] = found
        self._bytes += found.records.length
        self._rows += found.records.row_count
        self._is_urgent |= is_urgent
        self._is_full |= self._bytes >= self._bytes_max or len(self._found) >= PARTITIONS_TOLD_MAX

    # -- answering -------------------------------------------------------------------------

    def _reply(self) -> Reply:
        found, self._found = list(self._found.values()), {}
        told = tuple([self._tell(one) for one in found])
        pieces = [piece for one in found for piece in one.records.pieces]
        return Reply(FetchReply(self._session.session_id, told), pieces)

    def _tell(self, found: _Found) -> PartitionFetched:
        partition, seen, error = found.partition, found.seen, found.error
        if error is not None:  # errors are per partition; the others are answered
            return self._tell_error(partition, error)
        assert seen is not None, "neither seen nor failed"
        diverged = seen.diverged
        partition.told = seen if diverged is None else None  # after truncation all is new
        # Until the reader names its next offset, another answer would repeat this one.
        records = found.records
        partition.rests = bool(records.length or records.left_out or diverged is not None)
        if partition.rests:  # the reader has it now
            partition.looked = None
        return PartitionFetched(
            *partition.key,
            high_watermark=seen.high_watermark,
            log_start_offset=seen.log_start_offset,
            length=records.length,
            diverging=None if diverged is None else Diverging(*diverged),
            last_stable_offset=seen.last_stable_offset,
            aborted=records.aborted,
            left_out=records.left_out,
        )

    def _tell_error(self, partition: SessionPartition, error: RaftmqError) -> PartitionFetched:
        """Nothing is remembered of partitions that are not here: names alone would fill memory."""
        key, replica, leader, leader_epoch = partition.key, partition.replica, ABSENT, ABSENT
        is_known = replica is not None and replica.log.is_rotten_at(partition.wanted.fetch_offset)
        # Known rot was logged when it was found; every reader would repeat it.
        if replica is not None and isinstance(error, CorruptRecord | StorageError) and not is_known:
            logger.warning("cannot be read: log=%s reason=%s", replica.log.name, error)
        partition.rests, partition.told, partition.looked = True, None, None
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
        unanswered, self._found = [one.partition for one in self._found.values()], {}
        # A disk read under way is cancelled, and its partition checked again.
        if self._being_read is not None:
            partition, scope = self._being_read
            unanswered.append(partition)
            # A thread cannot be cancelled: what it finds must not meet what the next request does.
            self._being_read = partition.looked = None
            scope.cancel()
        for partition in unanswered:
            # The reader may have forgotten it meanwhile, and even named it anew.
            if self._session.partitions.get(partition.key) is partition:
                self._session.news[partition.key] = partition


def _has_records(partition: SessionPartition, seen: PartitionView) -> bool:
    return seen.diverged is None and partition.wanted.fetch_offset < seen.end_offset
