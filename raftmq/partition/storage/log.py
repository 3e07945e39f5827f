"""The log of one partition: append, roll, truncate, trim and reads.

Owns the segments in order, the leader epochs and the offsets that bound the log (Kafka:
UnifiedLog). Single-threaded, and never waits: what must wait for the disk is returned as an object
(`work.py`) that `directory` performs in a worker thread. Opened by `recovery.open_log`.

Invariants:
1. log_start_offset <= durable_end_offset, held_end_offset <= log_end_offset.
2. Segments follow each other without a gap; only the last one is written.
3. Bytes are never acknowledged after a failed write or sync: the log is offline from then on.
4. A damaged log serves what is before the damage and refuses appends. A log with rot serves all
   offsets except the rotten ones, and takes appends (decision 0027).
5. `producers` is the state after the batches up to the log's end, except while the log is cut.
6. Likewise `aborted`, or it knows of nothing, and reads the batches before it says something.
7. Likewise `schedule`, or it says that part of the log could not be read.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from raftmq.disk.files import FileSlice
from raftmq.errors import (
    CorruptRecord,
    FencedLeaderEpoch,
    OffsetOutOfRange,
    RaftmqError,
    StorageError,
)
from raftmq.model import (
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    Durability,
    TimestampType,
)
from raftmq.partition.admission import Admission, no_transactions
from raftmq.partition.storage.aborted_index import (
    ABORTED_MAX,
    AbortedPlan,
    IndexLost,
    KnownAborted,
    learn,
)
from raftmq.partition.storage.durability import DurableEnd
from raftmq.partition.storage.entries import read_waiting
from raftmq.partition.storage.incoming import (
    Placement,
    check_named_format,
    place_fence,
    place_markers,
    place_produced,
    place_replicated,
    place_settling,
)
from raftmq.partition.storage.retention import SegmentAge, retained_start_offset
from raftmq.partition.storage.rot import ROT_MARK, ROTTEN_MAX
from raftmq.partition.storage.segment import Segment, log_path
from raftmq.partition.storage.work import DAMAGE_MARK, Flush, LogStartOver, LogTrim, Truncation
from raftmq.wire.batch.header import TRANSACTIONAL_BIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from raftmq.disk.files import Files
    from raftmq.partition.scheduling.columns import ScheduledEntry
    from raftmq.partition.scheduling.schedule import Schedule
    from raftmq.partition.sequences import ProducerState
    from raftmq.partition.storage.aborted_index import Aborted
    from raftmq.partition.storage.entries import ReadBytes
    from raftmq.partition.storage.rot import Rot
    from raftmq.partition.storage.segment import BatchStart
    from raftmq.partition.storage.work import FoundLog
    from raftmq.partition.tail import LogTail
    from raftmq.partition.transactions import (
        MarkerWanted,
        OutcomeOf,
        Transactions,
    )
    from raftmq.topic_config import TopicConfig
    from raftmq.wire.batch.header import Buffer


logger = logging.getLogger("raftmq.partition")


SEGMENT_OFFSETS_MAX = (1 << 31) - 1  # index entries hold offsets relative to the segment's


class Appended(NamedTuple):
    """The appended batches have the offsets [base_offset, end_offset).

    `base_offsets`: if there were duplicates among them, the offset of each batch, old or new. Then
    `base_offset` is that of the first batch, and all of them end at `end_offset` or before.
    `append_time_ms`: of all records, in a topic with LogAppendTime, if there were no duplicates.
    """

    base_offset: int
    end_offset: int
    base_offsets: tuple[int, ...] = ()
    append_time_ms: int = NO_TIMESTAMP


class Fenced(NamedTuple):
    """The state of a named producer after its fence, which stands right before `end_offset`."""

    producer: ProducerState
    end_offset: int


class PartitionLog:
    """`name` is `<topic folder>/Partition-<n>`."""

    def __init__(
        self, files: Files, folder: Path, name: str, config: TopicConfig, found: FoundLog
    ) -> None:
        self.files, self.folder, self.name, self.config = files, folder, name, config
        self.segments, self.epochs = found.segments, found.epochs
        self.log_start_offset = found.log_start_offset
        self.damage, self.report = found.damage, found.report
        self.rotten: tuple[Rot, ...] = ()  # known rot, by offset
        self.offline_reason = ""
        self.is_half_cut = False  # went offline while it was cut
        self.on_dirty: Callable[[PartitionLog], None] | None = None
        self.on_held: Callable[[], None] | None = None  # after a flush, a cut, or going offline
        # Retention deletes only below it. None: nothing at all, as the log has no replica object
        # yet that knows what is committed.
        self.retirable_end: Callable[[], int] | None = None
        self.on_trimmed: Callable[[], None] | None = None  # the log start has risen
        self.on_doubt: Callable[[int], None] | None = None  # bytes at that offset may have rotted
        self._epoch_file, self.producers = found.epoch_file, found.producers
        self.scheduled = found.scheduled
        # Where retention would have the log begin, but for scheduled records that are pending.
        self.wanted_start = found.log_start_offset
        self._end = DurableEnd(found.segments[-1].end_offset, found.durable_end_offset)
        self._unsynced_sealed: list[Segment] = []
        self._names_are_unsynced = True  # recovery may have created files
        self._epochs_are_unsynced = False
        self.is_being_cut = False  # nothing may be appended
        # Of what its leader has appended, while it has followers; kept by the replica.
        self.tail: LogTail | None = None
        self.aborted = KnownAborted()
        # Counts cuts and trims: a worker thread's result is void if this has changed meanwhile.
        self.changes = 0
        self.transactions.on_log_start(self.log_start_offset)

    # -- bounds ----------------------------------------------------------------------------

    @property
    def log_end_offset(self) -> int:
        return self._end.log_end_offset

    @property
    def durable_end_offset(self) -> int:
        """Everything before it survives a power cut."""
        return self._end.durable_end_offset

    @property
    def held_end_offset(self) -> int:
        """Everything before it counts as held by this replica, as the topic's durability says."""
        # The topic accepts losing these records in a power cut (decision 0002).
        if self.config.durability is Durability.PAGE_CACHE:
            return self._end.log_end_offset
        return self._end.durable_end_offset

    @property
    def is_dirty(self) -> bool:
        return self._end.is_dirty or self._epochs_are_unsynced

    @property
    def is_sound(self) -> bool:
        return not self.damage and not self.offline_reason

    @property
    def is_whole(self) -> bool:
        """Sound, and nothing in it is known to be rotten."""
        return self.is_sound and not self.rotten

    @property
    def whole_end_offset(self) -> int:
        """Everything before it is readable, as far as is known."""
        return self.rotten[0].offset if self.rotten else self.log_end_offset

    def rot_at(self, offset: int) -> Rot | None:
        """The rot that covers the offset, or else the next one behind it."""
        return next((rot for rot in self.rotten if rot.end_offset > offset), None)

    def is_rotten_at(self, offset: int) -> bool:
        rot = self.rot_at(offset)
        return rot is not None and rot.offset <= offset

    def note_rot(self, rot: Rot) -> None:
        """Refuse these offsets from now on. The log was not cut since the rot was found."""
        others = [each for each in self.rotten if each.offset != rot.offset]
        if len(others) < ROTTEN_MAX:  # beyond the limit readers still notice it by the CRC
            self.rotten = tuple(sorted([*others, rot]))
            self.segment_of(rot.offset).note_rot(rot.begin, rot.end)

    def forget_rot(self, rot: Rot) -> None:
        """It was repaired: serve these offsets again."""
        self.rotten = tuple(each for each in self.rotten if each != rot)
        self.segment_of(rot.offset).forget_rot(rot.begin)

    @property
    def cuts(self) -> int:
        """How often the log was truncated: a waiter compares it before and after its wait."""
        return self._end.generation

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def stamps_time(self) -> bool:
        """The leader's clock gives the records their timestamps (LogAppendTime)."""
        return self.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME

    @property
    def size(self) -> int:
        """Bytes of all segments, indexes not counted."""
        return sum(segment.size for segment in self.segments)

    def oldest_pending_age(self, now: float) -> float:
        """Seconds since the oldest append that is not durable yet; 0.0 if all are."""
        return self._end.oldest_pending_age(now)

    def segment_of(self, offset: int) -> Segment:
        index = bisect_right(self.segments, offset, key=_base_offset) - 1

        return self.segments[max(index, 0)]

    @property
    def transactions(self) -> Transactions:
        """Those in the log up to its end."""
        return self.producers.now.transactions

    @property
    def schedule(self) -> Schedule:
        """The scheduled records of the log, and what has become of them."""
        return self.scheduled.now

    def slice_of(self, entry: ScheduledEntry) -> FileSlice:
        """The bytes of a scheduled batch; its CRC is not checked."""
        segment = self.segment_of(entry.base_offset)
        return FileSlice(segment.file, entry.position, entry.length)

    # -- appending -------------------------------------------------------------------------

    def assign_epoch(self, leader_epoch: int) -> None:
        """A new leader epoch begins at the log's end. Noted before its first append, so that a
        follower that diverges is found even if this leader never appends.

        Raises:
            FencedLeaderEpoch: a later epoch is known.
        """
        self._check_writable()
        self._check_epoch(leader_epoch)
        self._note_epoch(leader_epoch, self.log_end_offset)
        if self._epochs_are_unsynced:  # an epoch without an append must be synced, too
            self._notify_dirty()

    def append(
        self,
        buffer: Buffer,
        *,
        leader_epoch: int,
        now_ms: int,
        now: float,
        outcome_of: OutcomeOf = no_transactions,
        has_acks_all: bool = True,
        check_scheduled: Callable[[], None] = lambda: None,
    ) -> Appended:
        """Append a producer's batches as their leader, in one write: either all except duplicates,
        or none.

        Args:
            now_ms: the broker's wall clock; `now` its monotonic clock in seconds.
            outcome_of, has_acks_all: see `Admission`.
            check_scheduled: see `place_produced`.

        Raises:
            CorruptRecord, InvalidRecord, InvalidTimestamp, MessageTooLarge: nothing was appended.
            FencedLeaderEpoch: a later epoch is known; nothing was appended.
            RaftmqError, EarlierTransactionDecided: see `Admission.original_offset`; nothing was
                appended.
            StorageError: unknown what was written; the log is offline.
        """
        self._check_writable()
        self._check_epoch(leader_epoch)
        placement = place_produced(
            buffer,
            offset=self.log_end_offset,
            position=self.active.size,
            leader_epoch=leader_epoch,
            config=self.config,
            now_ms=now_ms,
            admission=Admission(
                self.producers.now, now, outcome_of=outcome_of, has_acks_all=has_acks_all
            ),
            check_scheduled=check_scheduled,
        )
        if not placement.duplicates:  # the usual case
            appended = self._append(placement, now)
            return appended._replace(append_time_ms=now_ms) if self.stamps_time else appended
        if placement.batches:  # else all of them are duplicates: a request that was sent again
            self._append(placement, now)
        base_offsets = placement.base_offsets()
        return Appended(base_offsets[0], placement.highest_end_offset(), tuple(base_offsets))

    def append_fence(
        self,
        producer_id: int,
        generation: int,
        *,
        partition_count: int = 0,
        leader_epoch: int,
        now_ms: int,
        now: float,
    ) -> Fenced:
        """Append a fence: earlier processes under this producer name can append nothing after it.

        Args:
            partition_count: of the topic, for a generation that begins; 0: not known.

        Raises:
            InvalidRecord: the topic's record format has no place for generation and digest.
            ProducerFenced, TooManyProducers: see `Admission.fence`; nothing was appended.
            FencedLeaderEpoch, StorageError: as in `append`.
        """
        self._check_writable()
        self._check_epoch(leader_epoch)
        check_named_format(self.config)
        following = Admission(self.producers.now, now).fence(
            producer_id, generation, partition_count=partition_count
        )
        placement = place_fence(
            following,
            producer_id=producer_id,
            place=self.active.end,
            leader_epoch=leader_epoch,
            now_ms=now_ms,
        )
        return Fenced(following, self._append(placement, now).end_offset)

    def append_markers(
        self, wanted: Sequence[MarkerWanted], *, leader_epoch: int, now_ms: int, now: float
    ) -> Appended:
        """Append markers, at least one, as their leader; errors as in `append_fence`."""
        self._check_writable()
        self._check_epoch(leader_epoch)
        place = self.active.end
        placement = place_markers(
            wanted, place=place, leader_epoch=leader_epoch, now_ms=now_ms, config=self.config
        )
        return self._append(placement, now)

    def append_settling(
        self, made: Sequence[bytearray], *, leader_epoch: int, now_ms: int, now: float
    ) -> Appended:
        """Append deliveries, copies or cancels, at least one, as their leader; errors as in
        `append_fence`. What they settle is pending: the caller has asked in this turn."""
        self._check_writable()
        self._check_epoch(leader_epoch)
        placement = place_settling(
            made,
            place=self.active.end,
            leader_epoch=leader_epoch,
            now_ms=now_ms,
            config=self.config,
        )
        return self._append(placement, now)

    def append_replicated(self, buffer: Buffer, *, leader_epoch: int, now: float) -> Appended:
        """Append a leader's bytes as they are; errors as in `append`."""
        self._check_writable()
        placement = place_replicated(
            buffer,
            offset=self.log_end_offset,
            position=self.active.size,
            epoch=self.epochs.latest,
            leader_epoch=leader_epoch,
        )
        return self._append(placement, now)

    def _append(self, placement: Placement, now: float) -> Appended:
        base_offset = self._end.log_end_offset
        if self._must_roll(placement):
            self.roll()
            placement = placement.moved_to(0)  # byte positions count from the segment's start
        active = self.segments[-1]
        try:
            active.append(placement.buffers, placement.batches)
        except StorageError as error:
            raise self.go_offline(error) from error  # any prefix may have been written
        self._note_epochs(placement)
        self._note_producers(placement, now)
        end_offset = active.end_offset
        self._end.on_append(end_offset, now)
        if self.tail is not None:
            self.tail.append(base_offset, end_offset, placement.buffers, placement.length)
        self._notify_dirty()
        return Appended(base_offset, end_offset)

    def _note_epochs(self, placement: Placement) -> None:
        # Epochs never fall within the batches: if the last one is known, all are (the usual case).
        if placement.batches[-1].header.leader_epoch != self.epochs.latest:
            for _, header in placement.batches:
                self._note_epoch(header.leader_epoch, header.base_offset)

    def _note_producers(self, placement: Placement, now: float) -> None:
        accounts = placement.accounts
        for _, header in placement.batches:
            # Most batches have no producer id: one comparison.
            if header.producer_id != NO_PRODUCER_ID:
                self.producers.now.note(header, now, accounts.get(header.base_offset))
                if header.attributes & TRANSACTIONAL_BIT:
                    kind = placement.markers.get(header.base_offset)
                    self.aborted.note(self.active, header, kind)
        for event in placement.events:
            self.scheduled.note(event)

    def doubt(self, error: RaftmqError) -> None:
        """A read failed with `error`: have the batch checked on the disk (decision 0027)."""
        offset = error.offset if isinstance(error, CorruptRecord) else None
        if offset is not None and self.on_doubt is not None:  # else there is no place to check
            self.on_doubt(offset)

    def doubt_unread(self) -> None:
        """The same for what the producers could not be read back from, at an opening or a cut."""
        for error in (*self.producers.take_unread(), *self.scheduled.take_unread()):
            self.doubt(error)

    def _notify_dirty(self) -> None:
        if self.on_dirty is not None:
            self.on_dirty(self)

    def _check_online(self) -> None:
        assert not self.is_being_cut, "nothing else while the log is being cut"
        if self.offline_reason:
            raise StorageError(f"{self.name} is offline: {self.offline_reason}")

    def _check_writable(self) -> None:
        self._check_online()
        if self.damage:
            raise StorageError(f"{self.name} is {self.damage}; truncate before it to go on")

    def _check_epoch(self, leader_epoch: int) -> None:
        if leader_epoch < self.epochs.latest:  # this replica has records of a later leader
            raise FencedLeaderEpoch(
                f"leader epoch {leader_epoch} of {self.name} ended, {self.epochs.latest} is known"
            )

    def _note_epoch(self, leader_epoch: int, start_offset: int) -> None:
        if self.epochs.assign(leader_epoch, start_offset):  # else this epoch is known already
            self._epoch_file.append(leader_epoch, start_offset)
            self._epochs_are_unsynced = True

    def go_offline(self, error: RaftmqError) -> StorageError:
        """Acknowledge nothing from now on: only a new opening shows what the disk really has."""
        if not self.offline_reason:  # the first error is the cause, later ones follow from it
            self.offline_reason, self.is_half_cut = str(error), self.is_being_cut
            logger.error("log goes offline: log=%s reason=%s", self.name, error)
            self._notify_dirty()  # the flusher wakes those who wait, with this error
        return StorageError(f"{self.name} is offline: {self.offline_reason}")

    def close(self) -> None:
        """Refuse appends and waits from now on. Slices that are being sent keep their files open;
        the log does not, however long there are references to it.
        """
        self.offline_reason = self.offline_reason or "closed"
        self.changes += 1
        for segment in self.segments:
            segment.release()
        self._epoch_file.release()

    # -- rolling ---------------------------------------------------------------------------

    def _must_roll(self, placement: Placement) -> bool:
        active = self.active
        if not active.size:
            return False  # an empty segment takes any batch, be it over `segment.bytes`
        if active.size + placement.length > self.config.segment_bytes:
            return True
        # The u32 of an index entry, and Kafka's i32, could not hold it.
        if placement.end_offset - active.base_offset > SEGMENT_OFFSETS_MAX:
            return True
        return self._is_old(placement.batches[-1].header.max_timestamp)

    def _is_old(self, now_ms: int) -> bool:
        """Whether the first batch of the active segment is `segment.ms` old."""
        try:
            return now_ms - self.active.first_timestamp() >= self.config.segment_ms
        except CorruptRecord as error:  # the first batch has rotted; appends must go on
            self.doubt(error)
            return True  # its age is unknown: roll, and the next segment has a first batch again

    def roll(self) -> None:
        """Seal the active segment and begin the next one.

        Raises:
            StorageError: the log is offline.
        """
        try:
            self.active.seal()
            self.aborted.close(self.active)
            following = Segment.create(
                self.files,
                self.folder,
                self.log_end_offset,
                index_interval_bytes=self.config.index_interval_bytes,
            )
        except StorageError as error:  # files may exist half: only an opening sorts them out
            raise self.go_offline(error) from error
        if self.aborted.open_at is None:  # what is appended will not be noted
            following.aborted.void()
        self._unsynced_sealed.append(self.active)
        self.segments.append(following)
        self._names_are_unsynced = True
        self.scheduled.on_roll(self.log_end_offset)
        self.producers.take(self.log_end_offset)

    def roll_if_old(self, now_ms: int) -> None:
        """Seal an active segment whose first batch is `segment.ms` old, so that it can expire."""
        if self.active.size and self._is_old(now_ms):
            self.roll()

    # -- becoming durable ------------------------------------------------------------------

    def begin_flush(self, now: float) -> Flush:
        """What a flush round must sync for everything appended so far; then `complete_flush`."""
        # Oldest first: a segment is durable before its successor can be (decision 0002).
        files = [file for segment in self._unsynced_sealed for file in segment.data_files()]
        files.append(self.active.file)
        if self._epochs_are_unsynced:  # durable with the first batch of the epoch (decision 0007)
            self._epoch_file.write_pending()
            files.append(self._epoch_file.file)
        names = self.folder if self._names_are_unsynced else None
        flush = Flush(self._end.begin(now), files, names)
        self._unsynced_sealed, self._names_are_unsynced = [], False
        self._epochs_are_unsynced = False
        return flush

    def complete_flush(self, flush: Flush) -> None:
        self._end.complete(flush.mark)
        self.release_small()

    # -- cutting ---------------------------------------------------------------------------

    def begin_truncate(self, offset: int) -> Truncation:
        """Remove everything from `offset` on; durable once the work is performed.

        A cut inside a batch removes the whole batch, one inside rot all of the rot. Until
        `end_truncate` nothing may be appended.

        Raises:
            OffsetOutOfRange: below the log start, or beyond the log end.
            CorruptRecord: the batch at `offset` cannot be found; nothing was cut.
            StorageError: the log is offline.
        """
        self._check_online()
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(f"cannot truncate {self.name} to {offset}")
        keep = bisect_right(self.segments, offset, key=_base_offset)
        rot = self.rot_at(offset)
        is_inside = rot is not None and rot.offset < offset  # headers in rot cannot be walked
        end = rot.begin if rot and is_inside else self.segments[keep - 1].start_of(offset)
        self.is_being_cut = True
        try:
            return self._cut(keep, end)
        except (StorageError, CorruptRecord) as error:
            # Segments and end may not agree any more; a new opening sorts it out.
            self.is_being_cut = False
            raise self.go_offline(error) from error

    def _cut(self, keep: int, end: BatchStart) -> Truncation:
        self.changes += 1
        self.tail = None
        removed, self.segments = self.segments[keep:], self.segments[:keep]
        self.active.renote(self.active.resume(end.offset), end)
        self.active.index.write_pending()
        self.aborted.forget(self.active)
        self._end.on_truncate(end.offset)
        self._unsynced_sealed = [s for s in self._unsynced_sealed if s in self.segments[:-1]]
        self._cut_epochs(end.offset)
        self.scheduled.cut(end.offset, self.active.base_offset)
        if self.damage:  # a log never ends behind its damage, so every cut removes it
            removed, self.damage = removed + list(self.damage.behind), None
        self.rotten = tuple(rot for rot in self.rotten if rot.offset < end.offset)
        marks = [self.folder / DAMAGE_MARK]
        if not self.rotten:  # no rot is left below the cut: the mark goes, too
            marks.append(self.folder / ROT_MARK)
        return Truncation(
            self.folder,
            removed,
            self.active,
            end.position,
            self._epoch_file,
            self.producers.begin_cut(
                self.segments, end.offset, rereads_schedule=self.schedule.is_unread
            ),
            marks,
            self._lowered_start(end.offset),
            self.rotten,
            partial(self.learn_aborted, was_closed=False),
        )

    def _lowered_start(self, end_offset: int) -> int | None:
        """The new log start if the cut removed the log's first batch, inside of which it started:
        a log cannot start behind its end."""
        if end_offset >= self.log_start_offset:
            return None
        self.log_start_offset = end_offset
        return end_offset

    def begin_start_over(self, offset: int) -> LogStartOver:
        """Remove everything and begin at `offset`; then as with `begin_truncate`.

        Raises:
            StorageError: the log is offline.
        """
        self._check_online()
        self.is_being_cut = True
        self.changes += 1
        self.tail = None
        removed = [*self.segments, *(self.damage.behind if self.damage else ())]
        first = Segment(
            self.files,
            log_path(self.folder, offset),
            index_interval_bytes=self.config.index_interval_bytes,
        )
        self.segments, self._unsynced_sealed = [first], []
        self.damage, self.rotten = None, ()
        self.log_start_offset = offset
        self.aborted.start_over()
        self._end.on_start_over(offset)
        self.epochs.entries.clear()
        self.producers.start_over()
        self.scheduled.start_over(offset)
        self._epochs_are_unsynced = self._names_are_unsynced = False
        marks = [self.folder / DAMAGE_MARK, self.folder / ROT_MARK]
        return LogStartOver(self.folder, removed, first, self._epoch_file, marks)

    def end_truncate(self) -> None:
        reread = self.producers.end_cut()
        if reread is not None:
            self.scheduled.replace(reread)
        self.transactions.on_log_start(self.log_start_offset)
        self.is_being_cut = False
        self.doubt_unread()

    def _cut_epochs(self, end_offset: int) -> None:
        self.epochs.truncate(end_offset)
        self._epoch_file.append(self.epochs.latest, end_offset)
        self._epochs_are_unsynced = False  # the truncation writes and syncs the file

    def plan_trim(self, log_start_offset: int) -> LogTrim | None:
        """How to delete everything before `log_start_offset`; None if the log starts there already.

        Nothing changes until `apply_trim`. Only whole segments are removed, never the active one.

        Raises:
            OffsetOutOfRange: beyond what is durable; a crash would leave a log without a start.
            StorageError: the log is offline or damaged.
        """
        self._check_writable()
        # A crash would leave a log that starts behind its end.
        if log_start_offset > self.durable_end_offset:
            raise OffsetOutOfRange(
                f"cannot trim {self.name} to {log_start_offset}, "
                f"it is durable to {self.durable_end_offset}"
            )
        if log_start_offset <= self.log_start_offset:  # retention or another request was faster
            return None
        count = sum(segment.end_offset <= log_start_offset for segment in self.segments[:-1])
        first_offset = self.segments[count].base_offset
        return LogTrim(self.folder, log_start_offset, self.segments[:count], first_offset)

    def apply_trim(self, trim: LogTrim) -> None:
        """The new log start is durable: readers see it from now on."""
        self.log_start_offset = trim.log_start_offset
        self.epochs.trim(trim.log_start_offset)
        self.producers.on_trimmed(trim.first_offset)
        self.scheduled.trim(trim.first_offset)
        self.transactions.on_log_start(self.log_start_offset)
        self.segments = [segment for segment in self.segments if segment not in trim.removed]
        self.rotten = tuple(rot for rot in self.rotten if rot.end_offset > self.log_start_offset)
        self._unsynced_sealed = [s for s in self._unsynced_sealed if s not in trim.removed]
        self.changes += 1
        if self.on_trimmed is not None:
            self.on_trimmed()

    def plan_retention(self, now_ms: int | None) -> LogTrim | None:
        """The trim that the topic's retention demands now; see `retained_start_offset`."""
        if self.retirable_end is None:
            return None
        start = retained_start_offset(
            ages_of(self),
            # What waits to be delivered does not count.
            self.size - self.schedule.pending_bytes,
            self.config,
            now_ms=now_ms,
            log_start_offset=self.log_start_offset,
        )
        self.wanted_start = start
        return self.plan_trim(min(start, self.durable_end_offset, self.retirable_end()))

    # -- upkeep ----------------------------------------------------------------------------

    def write_indexes(self) -> None:
        """Write buffered index entries; a failure takes the log offline, and raises nothing."""
        try:
            self.active.write_pending()
        except StorageError as error:  # this log's disk failed: the checkpoint of others goes on
            self.go_offline(error)

    def release_idle(self, now: float) -> None:
        """Close files of segments that were not read lately, and forget idle producers."""
        self.producers.now.forget_idle(now)
        for segment in self.segments[:-1]:
            segment.release_idle()
        self.release_small()

    def release_small(self) -> None:
        """Close files that are rarely written: of the five of a log only one stays open, so that
        thousands of logs fit the limit of descriptors.
        """
        self.active.index.release()
        self.active.aborted.release()
        if not self._epochs_are_unsynced:  # the next flush needs it
            self._epoch_file.release()

    def rebuild_damaged_indexes(self) -> None:
        """In a worker thread, while nothing cuts the log: touches sealed segments only."""
        for segment in self.segments[:-1]:
            if segment.index.is_damaged:
                segment.rebuild_index()

    # -- aborted transactions --------------------------------------------------------------

    def close_aborted(self) -> None:
        """The log is closed here. Raises StorageError: the next opening reads its batches."""
        self.aborted.close(self.active)

    def learn_aborted(self, *, was_closed: bool) -> None:
        """See `KnownAborted.learn`."""
        self.aborted.learn(self.segments, self.name, was_closed=was_closed)

    def aborted_in(
        self, first_offset: int, end_offset: int, limit: int = ABORTED_MAX
    ) -> list[Aborted]:
        """The aborted transactions that have batches in [first_offset, end_offset), as far as the
        markers tell: those that begin below the end, and whose marker stands behind the first
        offset; in the order of their begin. `end_offset` is at most the last stable offset.

        More than `limit`: there are more, and the reader must stop before the first offset of the
        last one returned. Waits for the disk; `LogDirectory.aborted_in` does not.

        Raises:
            OffsetOutOfRange: the segment of the first offset was deleted.
            CorruptRecord: the index is lost, and rot hides the markers.
            StorageError: the disk refused.
        """
        while True:  # again once the lost index is built
            try:
                return plan_aborted(self, first_offset, end_offset, limit).find()
            except IndexLost as lost:
                self.aborted.adopt(learn(self.segments, lost.base_offset, self.active.end))


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def plan_aborted(
    log: PartitionLog, first_offset: int, end_offset: int, limit: int = ABORTED_MAX
) -> AbortedPlan:
    """See `PartitionLog.aborted_in`."""
    # Trimmed since the records were found: what was aborted there went with its segment.
    if first_offset < (start := log.segments[0].base_offset):
        raise OffsetOutOfRange(f"{log.name} begins at {start} by now, not at {first_offset}")
    index = max(bisect_right(log.segments, first_offset, key=_base_offset) - 1, 0)
    return AbortedPlan(log.segments[index:], first_offset, end_offset, limit)


# -- Reader ---------------------------------------------------------------------------------------
# Reading a log: a slice of a file for `sendfile`.
#
# Owns where a read starts and ends; a slice always holds whole batches. Reads files only through
# the `read` that it is given, so that the same code runs on the loop while everything is in the
# page cache, and in a worker thread otherwise.


class LogSlice(NamedTuple):
    """Whole batches of one segment: offsets [start_offset, end_offset) in `bytes`.

    The first batch may begin below the requested offset: batches are never split.
    """

    start_offset: int
    end_offset: int
    bytes: FileSlice


class SlicePlan(NamedTuple):
    """A read that may run in a worker thread: holds all that it needs of the log's state."""

    segment: Segment
    offset: int
    end: BatchStart  # of what the segment held when the plan was made
    end_offset: int  # of what the reader may see
    bytes_max: int
    start: BatchStart | None = None  # of the batch that holds `offset`, if that is known

    def find(self, read: ReadBytes = read_waiting) -> LogSlice:
        """
        Raises:
            CorruptRecord: a header on the way to the batch is damaged.
        """
        segment = self.segment
        if self.offset >= self.end_offset:  # nothing new for this reader: an empty slice
            return LogSlice(self.offset, self.offset, FileSlice(segment.file, 0, 0))
        start = self.start or segment.start_of(self.offset, read)
        end = self.end
        if self.end_offset < end.offset:  # the reader may not see all of the segment
            end = segment.start_of(self.end_offset, read)
        # `bytes_max` is a limit for all but the first batch.
        if end.position - start.position > self.bytes_max:
            end = _shortened(segment, start, self.bytes_max, read)
        if end.offset > self.end_offset:
            end = start  # the one batch that is always served ends above the high watermark
        length = end.position - start.position
        return LogSlice(start.offset, end.offset, FileSlice(segment.file, start.position, length))


def plan_slice(
    log: PartitionLog, offset: int, *, bytes_max: int, end_offset: int | None = None
) -> SlicePlan:
    """Batches from the one that holds `offset`, about `bytes_max` bytes, at least one batch.

    Args:
        end_offset: up to where the reader may read (a high watermark); default the log end. At or
            beyond it the slice is empty.

    Raises:
        OffsetOutOfRange: below the log start or beyond the log end.
        CorruptRecord: beyond damage that recovery found, or in rot.
    """
    check_range(log, offset)
    end_offset = log.log_end_offset if end_offset is None else min(end_offset, log.log_end_offset)
    rot = log.rot_at(offset)
    if rot is not None:
        if rot.offset <= offset < end_offset:  # the reader asks for an offset in it
            raise CorruptRecord(str(rot), offset=offset)
        end_offset = min(end_offset, rot.offset)  # the sound batches before it are served
    segment = log.segment_of(offset)
    return SlicePlan(segment, offset, segment.end, end_offset, bytes_max)


def check_range(log: PartitionLog, offset: int) -> None:
    if log.log_start_offset <= offset <= log.log_end_offset:
        return
    if log.damage and offset >= log.damage.offset:
        # These offsets existed: out of range would make a consumer reset, and skip them.
        raise CorruptRecord(str(log.damage), offset=offset)
    raise OffsetOutOfRange(
        f"offset {offset} of {log.name}; it holds {log.log_start_offset} to {log.log_end_offset}"
    )


def _shortened(segment: Segment, start: BatchStart, bytes_max: int, read: ReadBytes) -> BatchStart:
    """The last indexed batch start within `bytes_max`; behind the first batch at the least."""
    end = segment.start_before(start.position + bytes_max, read)
    if end.position > start.position:  # the index leads to another batch within the limit
        return end
    # One batch over the limit: without it a reader with a small limit would never get further.
    return segment.start_of(segment.locate(start.offset, read).header.end_offset, read)


def ages_of(log: PartitionLog) -> Iterator[SegmentAge]:
    """Of the sealed segments, for `retention.retained_start_offset`."""
    for index, segment in enumerate(log.segments[:-1]):
        yield SegmentAge(segment.end_offset, segment.size, _youngest_from(log, index))


def _youngest_from(log: PartitionLog, index: int) -> int | None:
    """The largest timestamp of that segment; if rot hides it, of the next readable one, which keeps
    the records longer rather than shorter."""
    for segment in log.segments[index:-1]:
        try:
            return segment.largest_timestamp()
        except CorruptRecord as error:  # rot hides it: report, and take the next
            log.doubt(error)
    timestamp = log.active.max_timestamp
    return None if timestamp == NO_TIMESTAMP else timestamp
