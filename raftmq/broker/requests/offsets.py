"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: offsets that only the leader knows; logs.

Nothing at or beyond the high watermark is answered, with READ_COMMITTED the last stable offset.
Until the high watermark of a new leader has reached its epoch, the end of what is committed is
unknown: then the latest offset is refused (KIP-207), so that it never goes back.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import trio

from raftmq.broker.metadata_changes import ChangeStep, plan_each
from raftmq.broker.requests.levels import check_level
from raftmq.errors import (
    OffsetNotAvailable,
    OffsetOutOfRange,
    RaftmqError,
    RequestTimedOut,
)
from raftmq.metadata.commands import FeatureLevel, PartitionId, RaiseLogStart
from raftmq.model import IsolationLevel
from raftmq.partition.replica_environment import PartitionKey
from raftmq.rpc.reply import Reply
from raftmq.wire.bodies import ABSENT, clip_message
from raftmq.wire.messages.offsets import (
    EARLIEST,
    LATEST,
    FoundEpoch,
    FoundOffset,
    ListOffsets,
    ListOffsetsReply,
    OffsetForLeaderEpoch,
    OffsetForLeaderEpochReply,
)
from raftmq.wire.messages.topics import (
    DeleteRecords,
    DeleteRecordsReply,
    DescribeLogs,
    DescribeLogsReply,
    LogCursor,
    LogRow,
    RecordsDeleted,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from raftmq.broker.metadata_changes import Change, ChangeOutcome, MetadataChanges
    from raftmq.broker.replication.replicas import Replicas
    from raftmq.metadata.image import MetadataImage
    from raftmq.model import TimestampOffset
    from raftmq.partition.leader import Leader
    from raftmq.partition.replica import Replica
    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.server import Handlers
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.messages.offsets import WantedEpoch, WantedOffset
    from raftmq.wire.messages.topics import RecordsToDelete


class ListOffsetsRequests:
    def __init__(self, replicas: Replicas, directory: LogDirectory) -> None:
        self._replicas, self._directory = replicas, directory

    def handlers(self) -> Handlers:
        return {
            ListOffsets: self.list_offsets,
            OffsetForLeaderEpoch: self.find_epochs,
        }

    def list_offsets(
        self, _context: RequestContext, request: ListOffsets, _payload: Buffer
    ) -> Reply | Awaitable[Reply]:
        """Only a search by time needs the disk, and so a task."""
        if any(wanted.timestamp >= 0 for wanted in request.partitions):
            return self._search(request)
        level = request.isolation_level
        found = [self._found_at_end(wanted, level) for wanted in request.partitions]
        return Reply(ListOffsetsReply(tuple(found)))

    def find_epochs(
        self, _context: RequestContext, request: OffsetForLeaderEpoch, _payload: Buffer
    ) -> Reply:
        found = [self._found_epoch(wanted) for wanted in request.partitions]
        return Reply(OffsetForLeaderEpochReply(tuple(found)))

    async def _search(self, request: ListOffsets) -> Reply:
        found = [
            # One after the other: a request with many partitions should not flood the disk.
            await self._found_by_time(wanted, request.isolation_level)
            if wanted.timestamp >= 0
            else self._found_at_end(wanted, request.isolation_level)
            for wanted in request.partitions
        ]
        return Reply(ListOffsetsReply(tuple(found)))

    def _found_at_end(self, wanted: WantedOffset, level: int) -> FoundOffset:
        try:
            replica = self._replicas.get(wanted.topic_id, wanted.partition)
            leader = replica.leading(wanted.leader_epoch)
            if wanted.timestamp == EARLIEST:  # known without the high watermark
                return _found(wanted, replica, offset=replica.log.log_start_offset)
            assert wanted.timestamp == LATEST, f"{wanted} is to be searched for"
            _check_established(replica, leader)
            return _found(wanted, replica, offset=_end_for(replica, level))
        except RaftmqError as error:  # each partition has its own error
            return _not_found(wanted, error)

    async def _found_by_time(self, wanted: WantedOffset, level: int) -> FoundOffset:
        try:
            replica = self._replicas.get(wanted.topic_id, wanted.partition)
            leader = replica.leading(wanted.leader_epoch)
            # Binary search in time indexes, which may read from disk.
            answer = await self._directory.offset_for_timestamp(replica.log, wanted.timestamp)
            # Another epoch may have another log: what was found there is void.
            replica.leading(leader.leader_epoch)
            return _committed(wanted, replica, leader, answer, end_offset=_end_for(replica, level))
        except RaftmqError as error:  # each partition has its own error
            return _not_found(wanted, error)

    def _found_epoch(self, wanted: WantedEpoch) -> FoundEpoch:
        try:
            replica = self._replicas.get(wanted.topic_id, wanted.partition)
            replica.leading(wanted.current_leader_epoch)
        except RaftmqError as error:  # each partition has its own error
            return FoundEpoch(wanted.topic_id, wanted.partition, error.code)
        log = replica.log
        end = log.epochs.end_of(wanted.leader_epoch, log.log_end_offset)
        # An epoch that this log does not know.
        if end is None:
            return FoundEpoch(wanted.topic_id, wanted.partition)
        return FoundEpoch(
            wanted.topic_id,
            wanted.partition,
            leader_epoch=end.leader_epoch,
            end_offset=end.end_offset,
        )


def _end_for(replica: Replica, level: int) -> int:
    is_committed = level == IsolationLevel.READ_COMMITTED
    return replica.last_stable_offset if is_committed else replica.high_watermark


def _committed(
    wanted: WantedOffset,
    replica: Replica,
    leader: Leader,
    answer: TimestampOffset | None,
    *,
    end_offset: int,
) -> FoundOffset:
    """Three cases: 1. a record that the reader may see, before `end_offset`; 2. there may be one,
    not known yet; 3. there is none."""
    if answer is not None and answer.offset < end_offset:
        return _found(wanted, replica, offset=answer.offset, timestamp=answer.timestamp)
    _check_established(replica, leader)
    return FoundOffset(wanted.topic_id, wanted.partition)


def _check_established(replica: Replica, leader: Leader) -> None:
    # Followers may hold more than this new leader knows to be committed.
    if not leader.is_established:
        raise OffsetNotAvailable(
            f"{replica.log.name}: the leader of epoch {leader.leader_epoch} does not know yet what"
            " is committed: ask again"
        )


def _found(
    wanted: WantedOffset, replica: Replica, *, offset: int, timestamp: int = -1
) -> FoundOffset:
    return FoundOffset(
        wanted.topic_id,
        wanted.partition,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=replica.log.epochs.epoch_at(offset),
    )


def _not_found(wanted: WantedOffset, error: RaftmqError) -> FoundOffset:
    return FoundOffset(wanted.topic_id, wanted.partition, error.code)


# -- Record deletion ------------------------------------------------------------------------------
# DeleteRecords: raise the log start of a partition, for every later leader.
#
# Owns the request. Only committed records are deleted: an uncommitted one may never have existed.
# The new start is committed in the quorum first (decision 0024), which accepts it from the leader
# of this epoch only; then this log is trimmed; then it is answered. A later leader trims its log
# before it answers any reader. What is scheduled before the start is carried forward first.


class RecordDeletion:
    """`broker_epoch`: of this process; -1 while not registered. `voters`: of the quorum."""

    def __init__(
        self,
        broker_id: int,
        replicas: Replicas,
        directory: LogDirectory,
        changes: MetadataChanges,
        *,
        broker_epoch: Callable[[], int],
        voters: Collection[int] = (),
    ) -> None:
        self._broker_id, self._broker_epoch, self._voters = broker_id, broker_epoch, voters
        self._replicas, self._directory, self._changes = replicas, directory, changes

    def handlers(self) -> Handlers:
        return {DeleteRecords: self.delete}

    async def delete(
        self, _context: RequestContext, request: DeleteRecords, _payload: Buffer
    ) -> Reply:
        """In the quorum several at a time; on disk one by one, a few file operations each."""
        deadline = trio.current_time() + request.timeout_ms / 1000
        # Until what is scheduled there is carried forward.
        wishes = [await self._settled(wanted, deadline) for wanted in request.partitions]
        planned = plan_each(wishes, self._plan, key=lambda it: (it.topic_id, it.partition))
        # Committed in the quorum first.
        outcomes = await self._changes.make(planned, timeout_ms=request.timeout_ms)
        told = [
            # On disk one by one: each waits for a flush and a few file operations.
            await self._told(wanted, change, outcome, deadline)
            for wanted, change, outcome in zip(wishes, planned, outcomes, strict=True)
        ]
        return Reply(DeleteRecordsReply(tuple(told)))

    async def _settled(self, wanted: RecordsToDelete, deadline: float) -> RecordsToDelete:
        """Carry forward what is scheduled there; `_plan` says what is wrong otherwise. Returns the
        same with the offset that it means now: copies stand behind that."""
        with suppress(RaftmqError), trio.move_on_at(deadline):
            replica = self._replicas.get(wanted.topic_id, wanted.partition)
            offset = _offset_of(wanted, replica)
            wanted = msgspec.structs.replace(wanted, before_offset=offset)
            _check_deletable(replica, offset)
            await self._replicas.scheduled.settle_before(replica, offset)
        return wanted

    def _plan(self, wanted: RecordsToDelete) -> Change:
        """At least the present log start: what retention has deleted must not come back either."""
        # Older nodes would not keep the start across an election (decision 0024).
        check_level(
            self._changes.image, FeatureLevel.LOG_STARTS, voters=self._voters, what="deleting"
        )
        replica = self._replicas.get(wanted.topic_id, wanted.partition)
        leader_epoch = replica.leading().leader_epoch
        offset = _offset_of(wanted, replica)
        _check_deletable(replica, offset)
        _check_settled(replica, offset)
        start, key = max(offset, replica.log.log_start_offset), PartitionId(*replica.key)

        def stands(image: MetadataImage) -> bool:
            state = image.partitions.get(key)
            return state is not None and state.log_start_offset >= start

        command = RaiseLogStart(self._broker_id, self._broker_epoch(), *key, leader_epoch, start)
        # No wait for the image: one that lets this broker lead in another epoch is newer anyway.
        return (ChangeStep(command, lambda _image: True, proves=stands),)

    async def _told(
        self,
        wanted: RecordsToDelete,
        change: Change | RaftmqError,
        outcome: ChangeOutcome,
        deadline: float,
    ) -> RecordsDeleted:
        error = outcome.error
        if error is None:  # committed in the quorum; now this log
            assert not isinstance(change, RaftmqError), "an error is its own outcome"
            command = change[0].command
            assert isinstance(command, RaiseLogStart), f"{command} for {wanted}"
            try:
                await self._trim(command, deadline)
                start = command.start_offset
                return RecordsDeleted(wanted.topic_id, wanted.partition, log_start_offset=start)
            except RaftmqError as problem:  # committed, and not deleted here yet
                error = problem
        message = clip_message(str(error))
        return RecordsDeleted(wanted.topic_id, wanted.partition, error.code, message)

    async def _trim(self, command: RaiseLogStart, deadline: float) -> None:
        """A deletion that has begun goes on, however long the disk takes. A leader of a later
        epoch has trimmed its log already.

        Raises:
            RequestTimedOut: committed, but this log may still show what is before the start.
        """
        try:
            replica = self._replicas.get(command.topic_id, command.partition)
            replica.leading(command.leader_epoch)
        except RaftmqError:  # another leader by now, which trims by itself
            return  # not the leader of that epoch any more: the next one trims its log
        reason = "the disk took too long"
        try:
            # Gives up the wait only; the operation on the files is not interrupted.
            with trio.move_on_at(deadline):
                # After the records before it are durable, as the new start is.
                await self._directory.delete_records(replica.log, command.start_offset)
                return
        except RaftmqError as error:  # the start stands in the quorum, so this is not a refusal
            reason = str(error)
        raise RequestTimedOut(f"{replica.log.name}: deleted, and not yet here: {reason}; ask again")


def _offset_of(wanted: RecordsToDelete, replica: Replica) -> int:
    # ABSENT: everything that is committed, and of no transaction that is known to be open.
    is_all = wanted.before_offset == ABSENT
    return _deletable_end(replica) if is_all else wanted.before_offset


def _check_settled(replica: Replica, offset: int) -> None:
    schedule = replica.log.schedule
    if not schedule.is_empty and not schedule.is_settled_before(offset, replica.settled_bound):
        raise OffsetNotAvailable(
            f"{replica.log.name}: scheduled records before offset {offset} are not carried forward "
            "yet, as followers lag, their transaction is open, or they cannot be read: ask again"
        )


def _deletable_end(replica: Replica) -> int:
    if not replica.leading().is_established:
        raise _not_known(replica)
    return replica.deletable_end


def _check_deletable(replica: Replica, offset: int) -> None:
    """Beyond its high watermark a new leader does not know what is committed."""
    leader = replica.leading()
    if offset <= replica.deletable_end:
        return
    # In the log and perhaps committed: ask again, rather than an error for good.
    if offset <= replica.log.log_end_offset and not leader.is_established:
        raise _not_known(replica)
    if offset <= replica.high_watermark:  # a transaction would lose its beginning
        raise OffsetOutOfRange(
            f"{replica.log.name}: a transaction is open from offset {replica.deletable_end}"
            f" on, delete up to it, not up to {offset}; or wait for the transaction's end"
        )
    raise OffsetOutOfRange(
        f"{replica.log.name}: records are committed up to {replica.high_watermark},"
        f" not up to {offset}"
    )


def _not_known(replica: Replica) -> OffsetNotAvailable:
    name = replica.log.name
    return OffsetNotAvailable(f"{name}: its leader does not know yet what is committed: ask again")


# -- Log descriptions -----------------------------------------------------------------------------
# DescribeLogs: bytes, start and end of the logs on this broker, leaders and followers alike.
#
# Answers from memory and reads no file: a list of topics may be asked for often. A topic that has
# no replica here has no row and is no error, as each broker is asked for the same topics.


class LogDescriptions:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def handlers(self) -> Handlers:
        return {DescribeLogs: self.describe}

    def describe(self, _context: RequestContext, request: DescribeLogs, _payload: Buffer) -> Reply:
        topics = None if request.topics is None else frozenset(request.topics)
        cursor = request.first
        first = None if cursor is None else PartitionKey(cursor.topic_id, cursor.partition)
        found = {
            replica.key: replica
            for replica in self._replicas.all()
            if (topics is None or replica.key.topic_id in topics)
            and (first is None or replica.key >= first)
        }
        keys = sorted(found)
        page, rest = keys[: request.logs_max], keys[request.logs_max :]
        following = LogCursor(*rest[0]) if rest else None
        return Reply(DescribeLogsReply(tuple(_row(found[key]) for key in page), following))


def _row(replica: Replica) -> LogRow:
    log = replica.log
    return LogRow(*replica.key, log.size, log.log_start_offset, log.log_end_offset)
