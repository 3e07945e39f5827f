"""The log of one partition: where it starts and ends, appends, cuts, and what it is made of.

Owns the segments in order, the leader epochs and the offsets that bound the log. Single-threaded
and never waits: whatever must wait for the disk is handed out as work (`work.py`) and performed
elsewhere. Opened by `recovery.open_log`.

Invariants:
1. log_start_offset <= durable_end_offset, held_end_offset <= log_end_offset.
2. Segments follow each other without a gap; only the last one is written.
3. Bytes are never acknowledged after a failed write or sync: the log is offline from then on.
4. A damaged log serves what is before the damage and takes nothing new. One with rot serves and
   takes everything but the offsets that are rotten.
5. `producers` knows what the batches up to the log's end say, but while the log is being cut.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from raftmq.disk.files import FileSlice
from raftmq.errors import (
    CorruptRecord,
    FencedLeaderEpoch,
    OffsetOutOfRange,
    RaftmqError,
    StorageError,
    UnsupportedCompression,
)
from raftmq.model import NO_PRODUCER_ID, NO_TIMESTAMP, Durability, TimestampOffset
from raftmq.partition.storage.durability import DurableEnd
from raftmq.partition.storage.entries import read_waiting
from raftmq.partition.storage.incoming import (
    Placement,
    check_named_format,
    place_fence,
    place_produced,
    place_replicated,
)
from raftmq.partition.storage.retention import SegmentAge, retained_start_offset
from raftmq.partition.storage.rot import ROT_MARK, ROTTEN_MAX
from raftmq.partition.storage.segment import Segment, log_path
from raftmq.partition.storage.work import DAMAGE_MARK, Flush, LogStartOver, LogTrim, Truncation
from raftmq.wire.batch.header import check_batch
from raftmq.wire.batch.records import RecordBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from raftmq.config import TopicConfig
    from raftmq.disk.files import Files
    from raftmq.partition.producers import ProducerState
    from raftmq.partition.storage.entries import ReadBytes
    from raftmq.partition.storage.rot import Rot
    from raftmq.partition.storage.segment import BatchStart, FoundBatch
    from raftmq.partition.storage.work import FoundLog
    from raftmq.wire.batch.header import BatchHeader, Buffer


logger = logging.getLogger("raftmq.partition")


SEGMENT_OFFSETS_MAX = (1 << 31) - 1  # index entries hold offsets relative to the segment's


class Appended(NamedTuple):
    """Offsets [base_offset, end_offset) were given to what was appended.

    `base_offsets`: of each batch, where some stood in the log already, and were not appended again.
    Then `base_offset` is the first of them, and all of them lie before `end_offset`.
    """

    base_offset: int
    end_offset: int
    base_offsets: tuple[int, ...] = ()


class Fenced(NamedTuple):
    """What is known of a producer name behind its fence, whose offset is the last before
    `end_offset`.
    """

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
        self.rotten: tuple[Rot, ...] = ()  # in order
        self.offline_reason = ""
        self.is_half_cut = False  # went offline while it was cut
        self.on_dirty: Callable[[PartitionLog], None] | None = None
        self.on_held: Callable[[], None] | None = None  # after a flush, a cut, or going offline
        # Retention deletes nothing beyond; None: nothing at all, as nobody answers for the log.
        self.retirable_end: Callable[[], int] | None = None
        self.on_trimmed: Callable[[], None] | None = None  # readers may be told of another start
        self.on_doubt: Callable[[int], None] | None = None  # a batch should be looked at
        self._epoch_file, self.producers = found.epoch_file, found.producers
        self._end = DurableEnd(found.segments[-1].end_offset, found.durable_end_offset)
        self._unsynced_sealed: list[Segment] = []
        self._names_are_unsynced = True
        self._epochs_are_unsynced = False
        self._is_being_cut = False
        # Cuts and trims: what a worker thread found out across one of them is worth nothing.
        self.changes = 0

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
        """Before it nothing is known to be wrong."""
        return self.rotten[0].offset if self.rotten else self.log_end_offset

    def rot_at(self, offset: int) -> Rot | None:
        """What holds the offset, or comes next behind it."""
        return next((rot for rot in self.rotten if rot.end_offset > offset), None)

    def is_rotten_at(self, offset: int) -> bool:
        rot = self.rot_at(offset)
        return rot is not None and rot.offset <= offset

    def note_rot(self, rot: Rot) -> None:
        """It was found in a segment of this log, which was not cut meanwhile."""
        others = [each for each in self.rotten if each.offset != rot.offset]
        if len(others) < ROTTEN_MAX:
            self.rotten = tuple(sorted([*others, rot]))
            self.segment_of(rot.offset).note_rot(rot.begin, rot.end)

    def forget_rot(self, rot: Rot) -> None:
        """It was put right."""
        self.rotten = tuple(each for each in self.rotten if each != rot)
        self.segment_of(rot.offset).forget_rot(rot.begin)

    @property
    def cuts(self) -> int:
        """How often the log's end was cut."""
        return self._end.generation

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def size(self) -> int:
        """Bytes of all segments, indexes not counted."""
        return sum(segment.size for segment in self.segments)

    def oldest_pending_age(self, now: float) -> float:
        """Seconds for which the oldest undurable append has been waiting."""
        return self._end.oldest_pending_age(now)

    def segment_of(self, offset: int) -> Segment:
        index = bisect_right(self.segments, offset, key=_base_offset) - 1
        return self.segments[max(index, 0)]

    # -- appending -------------------------------------------------------------------------

    def assign_epoch(self, leader_epoch: int) -> None:
        """A new leader epoch begins at the log's end, even before anything is appended.

        Raises:
            FencedLeaderEpoch: a later epoch is known.
        """
        self._check_writable()
        self._check_epoch(leader_epoch)
        self._note_epoch(leader_epoch, self.log_end_offset)
        if self._epochs_are_unsynced:
            self._tell_dirty()

    def append(self, buffer: Buffer, *, leader_epoch: int, now_ms: int, now: float) -> Appended:
        """Append a producer's batches as their leader, in one write: all, but for those that stand
        in the log already, or none.

        Args:
            now_ms: the broker's wall clock; `now` its monotonic clock in seconds.

        Raises:
            CorruptRecord, InvalidRecord, InvalidTimestamp, MessageTooLarge: nothing was appended.
            FencedLeaderEpoch: a later epoch is known; nothing was appended.
            RaftmqError: see `Admission.original_offset`; nothing was appended.
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
            admission=self.producers.admission(now),
        )
        if not placement.duplicates:
            return self._append(placement, now)
        if placement.batches:
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
        """Have whoever has written under this producer name before write no more.

        Args:
            partition_count: of the topic, for a generation that begins; 0: not known.

        Raises:
            InvalidRecord: the topic's records have no place for what named producers say.
            ProducerFenced, TooManyProducers: see `Admission.fence`; nothing was appended.
            FencedLeaderEpoch, StorageError: as in `append`.
        """
        self._check_writable()
        self._check_epoch(leader_epoch)
        check_named_format(self.config)
        following = self.producers.admission(now).fence(
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
            placement = placement.moved_to(0)
        active = self.segments[-1]
        try:
            active.append(placement.buffers, placement.batches)
        except StorageError as error:
            raise self.go_offline(error) from error
        self._note_epochs(placement)
        self._note_producers(placement, now)
        self._end.on_append(active.end_offset, now)
        self._tell_dirty()
        return Appended(base_offset, active.end_offset)

    def _note_epochs(self, placement: Placement) -> None:
        if placement.batches[-1].header.leader_epoch != self.epochs.latest:
            for _, header in placement.batches:
                self._note_epoch(header.leader_epoch, header.base_offset)

    def _note_producers(self, placement: Placement, now: float) -> None:
        accounts = placement.accounts
        for _, header in placement.batches:
            if header.producer_id != NO_PRODUCER_ID:
                self.producers.now.note(header, now, accounts.get(header.base_offset))

    def doubt(self, error: RaftmqError) -> None:
        """Reading it came to this: whoever looks after rot should have a look."""
        offset = error.offset if isinstance(error, CorruptRecord) else None
        if offset is not None and self.on_doubt is not None:
            self.on_doubt(offset)

    def _tell_dirty(self) -> None:
        if self.on_dirty is not None:
            self.on_dirty(self)

    def _check_online(self) -> None:
        assert not self._is_being_cut, "nothing else while the log is being cut"
        if self.offline_reason:
            raise StorageError(f"{self.name} is offline: {self.offline_reason}")

    def _check_writable(self) -> None:
        self._check_online()
        if self.damage:
            raise StorageError(f"{self.name} is {self.damage}; truncate before it to go on")

    def _check_epoch(self, leader_epoch: int) -> None:
        if leader_epoch < self.epochs.latest:
            raise FencedLeaderEpoch(
                f"leader epoch {leader_epoch} of {self.name} ended, {self.epochs.latest} is known"
            )

    def _note_epoch(self, leader_epoch: int, start_offset: int) -> None:
        if self.epochs.assign(leader_epoch, start_offset):
            self._epoch_file.append(leader_epoch, start_offset)
            self._epochs_are_unsynced = True

    def go_offline(self, error: RaftmqError) -> StorageError:
        """Nothing is acknowledged from now on; whoever opens it anew sees what the disk has."""
        if not self.offline_reason:
            self.offline_reason, self.is_half_cut = str(error), self._is_being_cut
            logger.error("log goes offline: log=%s reason=%s", self.name, error)
            self._tell_dirty()  # whoever waits for it learns so
        return StorageError(f"{self.name} is offline: {self.offline_reason}")

    def close(self) -> None:
        """Appends and waits are refused from now on. Slices that are out keep their files; nobody
        else does, however long the log itself is remembered.
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
            return False
        if active.size + placement.length > self.config.segment_bytes:
            return True
        if placement.end_offset - active.base_offset > SEGMENT_OFFSETS_MAX:
            return True
        return self._is_old(placement.batches[-1].header.max_timestamp)

    def _is_old(self, now_ms: int) -> bool:
        """Whether the active segment has been open for long enough."""
        try:
            return now_ms - self.active.first_timestamp() >= self.config.segment_ms
        except CorruptRecord as error:  # of our own first batch: what comes now is as good as ever
            self.doubt(error)
            return True

    def roll(self) -> None:
        """Seal the active segment and begin the next one.

        Raises:
            StorageError: the log is offline.
        """
        try:
            self.active.seal()
            following = Segment.create(
                self.files,
                self.folder,
                self.log_end_offset,
                index_interval_bytes=self.config.index_interval_bytes,
            )
        except StorageError as error:
            raise self.go_offline(error) from error
        self._unsynced_sealed.append(self.active)
        self.segments.append(following)
        self._names_are_unsynced = True
        self.producers.take(self.log_end_offset)

    def roll_if_old(self, now_ms: int) -> None:
        """Seal an active segment whose first batch is `segment.ms` old, so that it can expire."""
        if self.active.size and self._is_old(now_ms):
            self.roll()

    # -- becoming durable ------------------------------------------------------------------

    def begin_flush(self, now: float) -> Flush:
        """What a flush round must do for everything appended so far; then `complete_flush`."""
        files = [file for segment in self._unsynced_sealed for file in segment.data_files()]
        files.append(self.active.file)
        if self._epochs_are_unsynced:
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
        """Forget everything from `offset` on; durable once the work is performed.

        A cut inside a batch takes the whole batch, one inside rot all that is rotten. Until
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
        is_inside = rot is not None and rot.offset < offset  # no header there leads to it
        end = rot.begin if rot and is_inside else self.segments[keep - 1].start_of(offset)
        self._is_being_cut = True
        try:
            return self._cut(keep, end)
        except (StorageError, CorruptRecord) as error:
            self._is_being_cut = False
            raise self.go_offline(error) from error

    def _cut(self, keep: int, end: BatchStart) -> Truncation:
        self.changes += 1
        removed, self.segments = self.segments[keep:], self.segments[:keep]
        self.active.renote(self.active.resume(end.offset), end)
        self.active.index.write_pending()
        self._end.on_truncate(end.offset)
        self._unsynced_sealed = [s for s in self._unsynced_sealed if s in self.segments[:-1]]
        self._cut_epochs(end.offset)
        if self.damage:
            removed, self.damage = removed + list(self.damage.behind), None
        self.rotten = tuple(rot for rot in self.rotten if rot.offset < end.offset)
        marks = [self.folder / DAMAGE_MARK]
        if not self.rotten:
            marks.append(self.folder / ROT_MARK)
        return Truncation(
            self.folder,
            removed,
            self.active,
            end.position,
            self._epoch_file,
            self.producers.begin_cut(self.segments, end.offset),
            marks,
            self._lowered_start(end.offset),
            self.rotten,
        )

    def _lowered_start(self, end_offset: int) -> int | None:
        """The log cannot start behind its end: it does so when the cut takes its first batch."""
        if end_offset >= self.log_start_offset:
            return None
        self.log_start_offset = end_offset
        return end_offset

    def begin_start_over(self, offset: int) -> LogStartOver:
        """Forget everything and begin at `offset`; then as with `begin_truncate`.

        Raises:
            StorageError: the log is offline.
        """
        self._check_online()
        self._is_being_cut = True
        self.changes += 1
        removed = [*self.segments, *(self.damage.behind if self.damage else ())]
        first = Segment(
            self.files,
            log_path(self.folder, offset),
            index_interval_bytes=self.config.index_interval_bytes,
        )
        self.segments, self._unsynced_sealed = [first], []
        self.damage, self.rotten = None, ()
        self.log_start_offset = offset
        self._end.on_start_over(offset)
        self.epochs.entries.clear()
        self.producers.start_over()
        self._epochs_are_unsynced = self._names_are_unsynced = False
        marks = [self.folder / DAMAGE_MARK, self.folder / ROT_MARK]
        return LogStartOver(self.folder, removed, first, self._epoch_file, marks)

    def end_truncate(self) -> None:
        self.producers.end_cut()
        self._is_being_cut = False

    def _cut_epochs(self, end_offset: int) -> None:
        self.epochs.truncate(end_offset)
        self._epoch_file.append(self.epochs.latest, end_offset)
        self._epochs_are_unsynced = False  # the truncation writes and syncs the file

    def plan_trim(self, log_start_offset: int) -> LogTrim | None:
        """How to forget everything before `log_start_offset`; None if that is forgotten already.

        Nothing changes until `apply_trim`. Whole segments go, never the active one.

        Raises:
            OffsetOutOfRange: beyond what is durable; a crash would leave a log without a start.
            StorageError: the log is offline or damaged.
        """
        self._check_writable()
        if log_start_offset > self.durable_end_offset:
            raise OffsetOutOfRange(
                f"cannot trim {self.name} to {log_start_offset}, "
                f"it is durable to {self.durable_end_offset}"
            )
        if log_start_offset <= self.log_start_offset:
            return None
        count = sum(segment.end_offset <= log_start_offset for segment in self.segments[:-1])
        first_offset = self.segments[count].base_offset
        return LogTrim(self.folder, log_start_offset, self.segments[:count], first_offset)

    def apply_trim(self, trim: LogTrim) -> None:
        """The new start is durable: show it."""
        self.log_start_offset = trim.log_start_offset
        self.epochs.trim(trim.log_start_offset)
        self.producers.on_trimmed(trim.first_offset)
        self.segments = [segment for segment in self.segments if segment not in trim.removed]
        self.rotten = tuple(rot for rot in self.rotten if rot.end_offset > self.log_start_offset)
        self._unsynced_sealed = [s for s in self._unsynced_sealed if s not in trim.removed]
        self.changes += 1
        if self.on_trimmed is not None:
            self.on_trimmed()

    def plan_retention(self, now_ms: int | None) -> LogTrim | None:
        """What the topic's retention asks for now; see `retained_start_offset`."""
        if self.retirable_end is None:
            return None
        start = retained_start_offset(
            ages_of(self),
            self.size,
            self.config,
            now_ms=now_ms,
            log_start_offset=self.log_start_offset,
        )
        return self.plan_trim(min(start, self.durable_end_offset, self.retirable_end()))

    # -- reading ---------------------------------------------------------------------------

    def slice(self, offset: int, *, bytes_max: int, end_offset: int | None = None) -> LogSlice:
        """Whole batches as a slice of a file, see `reader.plan_slice`."""
        return plan_slice(self, offset, bytes_max=bytes_max, end_offset=end_offset).find()

    def batches(
        self, offset: int, *, bytes_max: int = 1 << 20, end_offset: int | None = None
    ) -> Iterator[RecordBatch]:
        """Checked batches of one slice, see `reader.read_batches`."""
        return read_batches(self, offset, bytes_max=bytes_max, end_offset=end_offset)

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record at or after `timestamp`, see `reader.find_timestamp`."""
        return find_timestamp(self, timestamp, self.segments)

    # -- upkeep ----------------------------------------------------------------------------

    def write_indexes(self) -> None:
        """Index entries leave memory; a failure takes the log offline, and raises nothing."""
        try:
            self.active.index.write_pending()
        except StorageError as error:
            self.go_offline(error)

    def release_idle(self, now: float) -> None:
        """Drop descriptors of segments that nobody has read lately, and forget idle producers."""
        self.producers.now.forget_idle(now)
        for segment in self.segments[:-1]:
            segment.release_idle()
        self.release_small()

    def release_small(self) -> None:
        """Drop descriptors of files that are rarely written: of the four that a log has, one stays
        open.
        """
        self.active.index.release()
        if not self._epochs_are_unsynced:
            self._epoch_file.release()

    def rebuild_damaged_indexes(self) -> None:
        """In a worker thread, while nothing cuts the log: touches sealed segments only."""
        for segment in self.segments[:-1]:
            if segment.index.is_damaged:
                segment.rebuild_index()


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


# -- Reader ---------------------------------------------------------------------------------------
# Reading a log: a slice of a file for `sendfile`, checked batches, an offset by its time.
#
# Owns where a read starts and ends; a slice always holds whole batches. Touches files only through
# the `read` that it is given, so that the same code runs on the loop while everything is cached and
# in a worker thread when it is not.


class LogSlice(NamedTuple):
    """Whole batches of one segment: offsets [start_offset, end_offset) in `bytes`.

    The first batch may begin below the offset that was asked for.
    """

    start_offset: int
    end_offset: int
    bytes: FileSlice


class SlicePlan(NamedTuple):
    """What to find, with all that the log's own thread must say about it."""

    segment: Segment
    offset: int
    end: BatchStart  # of what the segment held when the plan was made
    end_offset: int  # of what the reader may see
    bytes_max: int

    def find(self, read: ReadBytes = read_waiting) -> LogSlice:
        """Raises CorruptRecord: the way to the batch is damaged."""
        segment = self.segment
        if self.offset >= self.end_offset:
            return LogSlice(self.offset, self.offset, FileSlice(segment.file, 0, 0))
        start = segment.start_of(self.offset, read)
        end = self.end
        if self.end_offset < end.offset:
            end = segment.start_of(self.end_offset, read)
        if end.position - start.position > self.bytes_max:
            end = _shortened(segment, start, self.bytes_max, read)
        if end.offset > self.end_offset:  # the one batch that is always served lies beyond it
            end = start
        length = end.position - start.position
        return LogSlice(start.offset, end.offset, FileSlice(segment.file, start.position, length))


def plan_slice(
    log: PartitionLog, offset: int, *, bytes_max: int, end_offset: int | None = None
) -> SlicePlan:
    """Batches from the one that holds `offset`, about `bytes_max` bytes, at least one batch.

    Args:
        end_offset: what the reader may see (a high watermark); default the log end. At or beyond
            it the slice is empty.

    Raises:
        OffsetOutOfRange: below the log start or beyond the log end.
        CorruptRecord: beyond damage that recovery found, or in rot.
    """
    check_range(log, offset)
    end_offset = log.log_end_offset if end_offset is None else min(end_offset, log.log_end_offset)
    rot = log.rot_at(offset)
    if rot is not None:
        if rot.offset <= offset < end_offset:
            raise CorruptRecord(str(rot), offset=offset)
        end_offset = min(end_offset, rot.offset)
    segment = log.segment_of(offset)
    return SlicePlan(segment, offset, segment.end, end_offset, bytes_max)


def check_range(log: PartitionLog, offset: int) -> None:
    if log.log_start_offset <= offset <= log.log_end_offset:
        return
    if log.damage and offset >= log.damage.offset:
        raise CorruptRecord(str(log.damage), offset=offset)
    raise OffsetOutOfRange(
        f"offset {offset} of {log.name}; it holds {log.log_start_offset} to {log.log_end_offset}"
    )


def _shortened(segment: Segment, start: BatchStart, bytes_max: int, read: ReadBytes) -> BatchStart:
    """The last known batch start within `bytes_max`; behind the first batch at the least."""
    end = segment.start_before(start.position + bytes_max, read)
    if end.position > start.position:
        return end
    return segment.start_of(segment.locate(start.offset, read).header.end_offset, read)


def read_batches(
    log: PartitionLog, offset: int, *, bytes_max: int, end_offset: int | None = None
) -> Iterator[RecordBatch]:
    """The batches of one slice, each checked: CRC, place, leader epoch.

    Raises:
        CorruptRecord: at the first batch that is not what was written.
    """
    piece = plan_slice(log, offset, bytes_max=bytes_max, end_offset=end_offset).find()
    data = memoryview(piece.bytes.read())
    where = f"{piece.bytes.file.path}, read from byte {piece.bytes.position}"
    expected, at = piece.start_offset, 0
    while expected < piece.end_offset:
        batch = RecordBatch.decode(data, at, where=where)
        _check_place(log, batch.header, expected, at, where)
        yield batch
        expected, at = batch.header.end_offset, at + batch.header.size


def _check_place(
    log: PartitionLog, header: BatchHeader, offset: int, position: int, where: str
) -> None:
    epoch = log.epochs.epoch_at(max(offset, log.log_start_offset))
    if (header.base_offset, header.leader_epoch) != (offset, epoch):
        raise CorruptRecord(
            f"offset {header.base_offset} of leader epoch {header.leader_epoch}, expected offset "
            f"{offset} of epoch {epoch}",
            position=position,
            where=where,
        )


def find_timestamp(
    log: PartitionLog, timestamp: int, segments: Sequence[Segment]
) -> TimestampOffset | None:
    """The first record whose timestamp is `timestamp` (ms) or later; None if there is none."""
    for segment in segments:
        if segment.end_offset <= log.log_start_offset or segment.largest_timestamp() < timestamp:
            continue
        for found in segment.batches_since(timestamp):
            answer = _in_batch(segment, found, timestamp, log.log_start_offset)
            if answer:
                return answer
    return None


def _in_batch(
    segment: Segment, found: FoundBatch, timestamp: int, log_start_offset: int
) -> TimestampOffset | None:
    data = segment.file.read(found.position, found.header.size)
    try:
        header = check_batch(data, where=f"{segment.path}, batch at byte {found.position}")
    except CorruptRecord as error:
        error.offset = found.header.base_offset
        raise
    try:
        batch = RecordBatch.decode(data)
        records = list(zip(batch.timestamps, batch.offsets, strict=True))
    except (CorruptRecord, UnsupportedCompression):  # as a producer sent it: the header must do
        records = [(header.max_timestamp, max(header.base_offset, log_start_offset))]
    for stamp, offset in records:
        if stamp >= timestamp and offset >= log_start_offset:
            return TimestampOffset(stamp, offset)
    return None


def ages_of(log: PartitionLog) -> Iterator[SegmentAge]:
    """Of the sealed segments, for `retention.retained_start_offset`."""
    for index, segment in enumerate(log.segments[:-1]):
        yield SegmentAge(segment.end_offset, segment.size, _youngest_from(log, index))


def _youngest_from(log: PartitionLog, index: int) -> int | None:
    """The largest timestamp of that segment; where rot hides it, of the next that can tell."""
    for segment in log.segments[index:-1]:
        try:
            return segment.largest_timestamp()
        except CorruptRecord as error:
            log.doubt(error)
    timestamp = log.active.max_timestamp
    return None if timestamp == NO_TIMESTAMP else timestamp
