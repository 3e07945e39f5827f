"""CancelScheduled and ListScheduled: what the leader of a partition knows of scheduled records.

A cancel is appended at once, and answered once it is committed; so is a refusal: the delivery that
it speaks of may be cut, and the record be delivered again, or cancelled (decision 0041). A list is
read in pages, from memory and, for what stands in the batches, from the disk.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import trio

from raftmq.broker.requests.levels import check_level
from raftmq.broker.requests.produce import PendingAcknowledgements
from raftmq.errors import CorruptRecord, ErrorCode, RaftmqError, StorageError
from raftmq.metadata.commands import FeatureLevel
from raftmq.partition.scheduling.columns import RowState
from raftmq.partition.scheduling.schedule import CancelRefusal
from raftmq.rpc.reply import Reply
from raftmq.wire.batch.header import HEADER_SIZE, read_header
from raftmq.wire.bodies import ABSENT, ACKS_ALL, clip_message
from raftmq.wire.messages.scheduled import (
    PAGE_BYTES_MAX,
    CancelScheduled,
    CancelScheduledReply,
    ListScheduled,
    ListScheduledReply,
    RecordCancelled,
    ScheduledRow,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from raftmq.broker.replication.replicas import Replicas
    from raftmq.partition.replica import Replica
    from raftmq.partition.scheduling.columns import ScheduledEntry
    from raftmq.partition.scheduling.schedule import CancelCheck
    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.reply import PendingReply
    from raftmq.rpc.server import Handlers
    from raftmq.wire.batch.header import Buffer

LOOK_AT_ONCE = 250  # scheduled batches, settled ones included: about a millisecond of the loop
LOOKED_MAX = 10_000  # of one page, which may be empty therefore
# Deltas of cancelled records in one page: 500 KB of the header of the answer.
LEFT_OUT_MAX = 100_000

# What a program can act on is said in a word, too.
_REASONS = {
    CancelRefusal.UNKNOWN: "unknown",
    CancelRefusal.DELIVERED: "delivered",
    CancelRefusal.CANCELLED: "cancelled",
    CancelRefusal.ABORTED: "aborted",
}


class _Checked(NamedTuple):
    """Cancels in the log, possibly not committed yet."""

    replica: Replica
    leader_epoch: int  # under which they were appended
    end_offset: int


class ScheduledRequests:
    """`voters`: of the quorum."""

    def __init__(
        self, replicas: Replicas, directory: LogDirectory, *, voters: Collection[int] = ()
    ) -> None:
        self._replicas, self._directory, self._voters = replicas, directory, voters

    def handlers(self) -> Handlers:
        return {CancelScheduled: self.cancel, ListScheduled: self.tell}

    def _leading(self, request: CancelScheduled | ListScheduled) -> tuple[Replica, int]:
        """The replica that leads, and in which epoch."""
        check_level(
            self._replicas.image(),
            FeatureLevel.SCHEDULED,
            voters=self._voters,
            what="scheduling records",
        )
        replica = self._replicas.get(request.topic_id, request.partition)
        return replica, replica.leading(request.leader_epoch).leader_epoch

    # -- cancels ---------------------------------------------------------------------------

    def cancel(
        self, _context: RequestContext, request: CancelScheduled, _payload: Buffer
    ) -> Reply | PendingReply:
        """Appended before it returns, so in the order of the requests."""
        try:
            replica, leader_epoch = self._leading(request)
            outcome = replica.cancel_scheduled(request.offsets, leader_epoch=leader_epoch)
        except RaftmqError as error:
            return Reply(self._not_cancelled(request, error))
        awaited = _Checked(replica, leader_epoch, outcome.end_offset)
        return PendingAcknowledgements(
            [(0, awaited)],
            partial(self._answer, request, outcome.checks),
            acks=ACKS_ALL,
            deadline=trio.current_time() + request.timeout_ms / 1000,
        ).pending

    def _answer(
        self,
        request: CancelScheduled,
        checks: Sequence[CancelCheck],
        errors: dict[int, RaftmqError],
    ) -> Reply:
        if errors:  # it may be committed later, or not at all
            return Reply(self._not_cancelled(request, errors[0]))
        return Reply(CancelScheduledReply(records=tuple(map(_told, checks))))

    def _not_cancelled(self, request: CancelScheduled, error: RaftmqError) -> CancelScheduledReply:
        leader, leader_epoch = self._replicas.leader_of(request.topic_id, request.partition)
        return CancelScheduledReply(
            error.code, clip_message(str(error)), leader=leader, leader_epoch=leader_epoch
        )

    # -- lists -----------------------------------------------------------------------------

    async def tell(
        self, _context: RequestContext, request: ListScheduled, _payload: Buffer
    ) -> Reply:
        try:
            return await self._page(request)
        except RaftmqError as error:
            leader, leader_epoch = self._replicas.leader_of(request.topic_id, request.partition)
            told = ListScheduledReply(
                error.code, clip_message(str(error)), leader=leader, leader_epoch=leader_epoch
            )
            return Reply(told)

    async def _page(self, request: ListScheduled) -> Reply:
        replica, leader_epoch = self._leading(request)
        entries, next_offset = await self._look(replica, request)
        rows: list[ScheduledRow] = []
        batches: list[bytes] = []
        length = 0
        for entry in entries:
            if rows and length + entry.length > PAGE_BYTES_MAX:
                next_offset = entry.base_offset
                break
            data = await self._read(replica, entry)
            rows.append(_row(entry, len(data)))
            batches.append(data)
            length += len(data)
        # What was read under another leadership may not be what stands there now.
        replica.leading(leader_epoch)
        schedule = replica.log.schedule
        next_due = schedule.next_due()
        return Reply(
            ListScheduledReply(
                pending_count=schedule.pending_count,
                pending_bytes=schedule.pending_bytes,
                next_due_ms=ABSENT if next_due is None else next_due,
                next_offset=next_offset,
                entries=tuple(rows),
            ),
            batches,
        )

    async def _look(
        self, replica: Replica, request: ListScheduled
    ) -> tuple[list[ScheduledEntry], int]:
        """What is committed and not settled, and where the next page begins; ABSENT: nowhere."""
        found: list[ScheduledEntry] = []
        offset, looked, left_out = request.start_offset, 0, 0
        while request.limit:
            seen = replica.log.schedule.entries(offset, replica.high_watermark)
            slice_ = list(islice(seen, LOOK_AT_ONCE))
            for entry in slice_:
                if entry.settled_by:
                    continue
                if len(found) == request.limit or left_out > LEFT_OUT_MAX:
                    return found, entry.base_offset
                found.append(entry)
                left_out += len(entry.left_out)
            if len(slice_) < LOOK_AT_ONCE:
                break
            offset = slice_[-1].base_offset + 1
            looked += len(slice_)
            if looked >= LOOKED_MAX:
                return found, offset
            await trio.lowlevel.checkpoint()
        return found, ABSENT

    async def _read(self, replica: Replica, entry: ScheduledEntry) -> bytes:
        """Empty: it cannot be read now, as where it rots."""
        try:
            data = await self._directory.read(replica.log.slice_of(entry))
        except (CorruptRecord, StorageError):
            return b""
        is_whole = len(data) == entry.length > HEADER_SIZE
        # Another one, where the segment was deleted since: `slice_of` has looked in its successor.
        is_its = is_whole and read_header(data).base_offset == entry.base_offset
        return data if is_its else b""


def _told(check: CancelCheck) -> RecordCancelled:
    refusal = check.refusal
    if refusal is None:
        return RecordCancelled()
    # Nothing is decided: another replica, or the repaired log, may say.
    if refusal is CancelRefusal.UNREAD:
        return RecordCancelled(ErrorCode.CORRUPT_MESSAGE, refusal.value)
    return RecordCancelled(ErrorCode.CANNOT_CANCEL, refusal.value, _REASONS[refusal])


def _row(entry: ScheduledEntry, length: int) -> ScheduledRow:
    return ScheduledRow(
        entry.base_offset,
        entry.first_offset,
        entry.record_count,
        entry.due_ms,
        length,
        entry.left_out,
        is_undecided=entry.state is RowState.UNDECIDED,
    )
