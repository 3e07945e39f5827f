"""Log recovery: opens a log after a clean or unclean shutdown, cuts a torn tail, finds damage.

Owns the decision what to cut and what never to cut (`judge`), and the steps around it (Kafka:
LogLoader). After a clean shutdown only the last few batches are walked; otherwise everything from
the recovery point on is read from the disk, not from the page cache, and checked
(docs/decisions/0006). Runs in a worker thread: it waits for the disk.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from raftmq.disk.checkpoint import TEMPORARY_SUFFIX, read_checkpoint, replace_file, write_checkpoint
from raftmq.errors import CorruptRecord, without_frames
from raftmq.partition.epochs import LeaderEpochs
from raftmq.partition.storage.entries import DamagedEntries, EpochFile
from raftmq.partition.storage.inspect import CHECKPOINTS_FOLDER, RECOVERY_POINTS
from raftmq.partition.storage.known_producers import recover_producers
from raftmq.partition.storage.log import PartitionLog
from raftmq.partition.storage.mending import recall
from raftmq.partition.storage.rot import read_mark
from raftmq.partition.storage.segment import (
    LOG_SUFFIX,
    BatchStart,
    Segment,
    find_sound_batch,
    scan,
    walk,
)
from raftmq.partition.storage.work import (
    DAMAGE_MARK,
    LOG_START_FILE,
    LOG_START_KEY,
    Damage,
    FoundLog,
    RecoveryReport,
    remove_all,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from raftmq.disk.files import Files
    from raftmq.topic_config import TopicConfig
    from raftmq.wire.batch.header import BatchHeader


logger = logging.getLogger("raftmq.partition")


# -- Recovery -------------------------------------------------------------------------------------


_BASE_OFFSET_DIGITS = 20  # of a segment's name: any i64 fits, and names sort like offsets


class Past(NamedTuple):
    """How the log was left, by the files of the data directory.

    Attributes:
        recovery_point: every offset below it was durable.
        was_clean: the log was closed in order, and ended at the recovery point.
        page_cache_survived: the machine has not been restarted since.
    """

    # Without a checkpoint nothing is known to be durable: scan everything.
    recovery_point: int = 0
    # Only the mark proves it.
    was_clean: bool = False
    # The cautious verdict: cut no more than a torn last write.
    page_cache_survived: bool = True


class TailVerdict(Enum):
    CUT = "cut"
    DAMAGED = "damaged"


def judge(
    past: Past, *, offset: int, was_damaged: bool, sound_follows: Callable[[], bool]
) -> TailVerdict:
    """What to do about bytes that are wrong from `offset` on.

    1. Below the recovery point they were right once: damage.
    2. A log that was found damaged stays so until it is truncated on purpose. The same holds for
       places that are known to be rotten.
    3. After a restart of the machine, unsynced pages and files may be missing in any order, so
       that sound batches behind the gap prove nothing: cut.
    4. Otherwise the page cache kept everything in order, and only the last write can be torn: a
       sound batch behind the wrong bytes means damage, none means a torn tail.
    """
    if offset < past.recovery_point or was_damaged:  # cases 1 and 2
        return TailVerdict.DAMAGED
    if not past.page_cache_survived:  # case 3
        return TailVerdict.CUT
    return TailVerdict.DAMAGED if sound_follows() else TailVerdict.CUT


def open_log(
    files: Files, folder: Path, name: str, config: TopicConfig, past: Past | None = None
) -> PartitionLog:
    """Open or create the log in `folder`.

    Raises:
        StorageError: the disk refused; nothing was lost by trying.
    """
    files.make_directory(folder)
    return _Recovery(files, folder, name, config, past or Past()).open()


class _Recovery:
    """The state of one opening."""

    def __init__(
        self, files: Files, folder: Path, name: str, config: TopicConfig, past: Past
    ) -> None:
        self.files, self.folder, self.name, self.config = files, folder, name, config
        self.past = past
        self.epoch_file = EpochFile(files, folder)
        self.segments = self._load_segments()
        self.log_start_offset = self._read_log_start()
        self.scanned_bytes = self.cut_bytes = 0
        self.damage: Damage | None = None

    def open(self) -> PartitionLog:
        self._finish_trim()
        is_new = not self.segments
        self._check_head()
        if is_new:
            if self.log_start_offset:  # a start over was killed: the name may not be durable yet
                self.files.sync_directory(self.folder)
            self.segments.append(self._create(self.log_start_offset))
        was_clean = not is_new and self.past.was_clean and self._resume_clean()
        if is_new:
            epochs = self._no_epochs()
        elif was_clean:
            epochs = self._read_epochs()
        else:
            epochs = self._scan_tail()
        return self._assemble(epochs, was_clean or is_new)

    # -- what is there ---------------------------------------------------------------------

    def _load_segments(self) -> list[Segment]:
        names = self.files.names(self.folder)
        for name in names:
            if name.endswith(TEMPORARY_SUFFIX):  # a crash before its rename: never in use
                self.files.remove(self.folder / name)
        return [
            Segment.load(
                self.files,
                self.folder / name,
                index_interval_bytes=self.config.index_interval_bytes,
            )
            for name in names
            if _is_segment(name)
        ]

    def _create(self, base_offset: int) -> Segment:
        return Segment.create(
            self.files,
            self.folder,
            base_offset,
            index_interval_bytes=self.config.index_interval_bytes,
        )

    def _read_log_start(self) -> int:
        path = self.folder / LOG_START_FILE
        recorded = read_checkpoint(self.files, path)
        if recorded is None and self.files.exists(path):  # damaged: show too much, not too little
            logger.warning("log start unreadable, first segment counts: log=%s", self.name)
            return self.segments[0].base_offset if self.segments else 0
        return (recorded or {}).get(LOG_START_KEY, 0)

    def _finish_trim(self) -> None:
        """Remove segments before the log start: a crash may have interrupted a trim."""
        following = [segment.base_offset for segment in self.segments[1:]]
        count = sum(end_offset <= self.log_start_offset for end_offset in following)
        if count:  # else the last trim was finished, or there was none
            remove_all(self.files, self.folder, self.segments[:count])
            del self.segments[:count]

    def _check_head(self) -> None:
        """Offsets between the log start and the first segment were not trimmed: they are lost. An
        empty segment takes their place, and the scan finds the gap behind it like any other."""
        if self.segments and self.segments[0].base_offset > self.log_start_offset:
            missing = (
                f"offsets {self.log_start_offset} to {self.segments[0].base_offset} are missing"
            )
            self._leave_mark(missing)
            self.segments.insert(0, self._create(self.log_start_offset))

    def _trust_sealed(self, count: int) -> None:
        for segment, following in zip(self.segments[:count], self.segments[1:], strict=False):
            segment.trust(following.base_offset)

    # -- clean -----------------------------------------------------------------------------

    def _resume_clean(self) -> bool:
        """Walk the last batches; False if they do not end where the log was closed, which leaves
        the decision to the scan."""
        if self._has_mark():  # damage is judged by the scan
            return False
        if not all(segment.size for segment in self.segments[:-1]):
            return False  # a sealed segment always has batches: this one has lost them
        self._trust_sealed(len(self.segments) - 1)
        active = self.segments[-1]
        size = active.size
        try:
            for found in walk(active.file, active.resume(self.past.recovery_point), size):
                active.note(found)
        except CorruptRecord:  # the clean mark is wrong: the scan decides
            return False
        return active.end_offset == self.past.recovery_point

    def _read_epochs(self) -> LeaderEpochs:
        epochs = self._known_epochs(self._last_header())
        if epochs is None:  # damaged or incomplete: the batches have the epochs, too
            epochs = self._walk_epochs(self.segments)
            self.epoch_file.replace(epochs)
        self.epoch_file.compact(epochs)
        # An epoch may begin at the log's end, before its first append, but not behind it.
        epochs.truncate(self.segments[-1].end_offset + 1)
        return epochs

    def _no_epochs(self) -> LeaderEpochs:
        """Of a new log. A crash in the middle of a start over may have left the old table."""
        if self.epoch_file.exists():
            self.epoch_file.replace(LeaderEpochs())
        return LeaderEpochs()

    def _last_header(self) -> BatchHeader | None:
        with suppress(CorruptRecord):  # the next reader there reports it
            for segment in reversed(self.segments):
                if last := segment.last_batch():
                    return last.header
        return None

    def _known_epochs(self, sound: BatchHeader | None) -> LeaderEpochs | None:
        """The table on disk, if it is whole: it must have the epoch of the `sound` batch."""
        try:
            epochs = self.epoch_file.read()
        except DamagedEntries:  # rot, or an old torn write: the batches have the epochs
            return None
        # Cut short: it lacks the newest epochs.
        if sound and epochs.epoch_at(sound.base_offset) != sound.leader_epoch:
            return None
        return epochs

    def _walk_epochs(self, segments: list[Segment]) -> LeaderEpochs:
        logger.warning("leader epochs damaged, read from the log instead: log=%s", self.name)
        epochs = LeaderEpochs()
        try:
            for found in chain.from_iterable(segment.walk_all() for segment in segments):
                if found.header.leader_epoch > epochs.latest:
                    epochs.assign(found.header.leader_epoch, found.header.base_offset)
        except CorruptRecord as error:  # the scan or a reader finds the damage itself
            logger.warning("leader epochs incomplete: log=%s reason=%s", self.name, error)
        return epochs

    # -- unclean ---------------------------------------------------------------------------

    def _scan_tail(self) -> LeaderEpochs:
        """Check everything from the recovery point on."""
        first = self._segment_index_of(self.past.recovery_point)
        self._trust_sealed(first)
        sizes = [self.files.size(segment.path) for segment in self.segments]
        # The batch before the recovery point is durable, so that its header can be relied on.
        start = self.segments[first].resume(self.past.recovery_point)
        for segment in self.segments[first + 1 :]:
            segment.resume(segment.base_offset)
        self._read_from_disk(first)
        known = self._epochs_up_to(first, start)
        epochs = LeaderEpochs.replay(known.entries)
        epochs.truncate(start.offset)
        for index in range(first, len(self.segments)):
            problem = self._scan_segment(index, sizes[index], epochs)
            if problem:  # the log ends here, or goes no further than here
                self._handle(problem, index, sizes)
                break
        self._keep_last_epoch(known, epochs)
        self.epoch_file.update(epochs)
        if not self.damage:
            # Of the log as it was closed once; its end may come to lie there again.
            self.files.remove(self.segments[-1].aborted.path)
        self.files.sync_directory(self.folder)
        return epochs

    def _epochs_up_to(self, first: int, start: BatchStart) -> LeaderEpochs:
        """The epoch table before the scan, if the batch at `start` proves it whole; else read from
        the batches."""
        segment = self.segments[first]
        sound = None
        if start.offset < self.past.recovery_point:
            with suppress(CorruptRecord):  # the scan meets the same bytes, and decides
                sound = next(walk(segment.file, start, self.files.size(segment.path)), None)
        epochs = self._known_epochs(sound and sound.header)
        return epochs or self._walk_epochs(self.segments[: first + 1])

    def _keep_last_epoch(self, known: LeaderEpochs, epochs: LeaderEpochs) -> None:
        """Keep an epoch that begins at the log's end: a leader notes it before it appends, so no
        batch has it yet."""
        for leader_epoch, start_offset in known.entries:
            if start_offset == self.segments[-1].end_offset and leader_epoch > epochs.latest:
                epochs.assign(leader_epoch, start_offset)

    def _segment_index_of(self, offset: int) -> int:
        """Where the scan begins. A recovery point at the start of a segment proves the one before
        it whole."""
        for index, segment in enumerate(self.segments[:-1]):
            if not segment.size or self.segments[index + 1].base_offset > offset:
                return index  # an empty one before the last has lost its batches
        return len(self.segments) - 1

    def _read_from_disk(self, first: int) -> None:
        """Sync, then drop the page cache: after a failed fsync it shows bytes that the disk does
        not hold, and what the scan reads must be durable when it ends."""
        for file in [*(segment.file for segment in self.segments[first:]), self.epoch_file.file]:
            file.sync()
            file.evict()

    def _scan_segment(self, index: int, size: int, epochs: LeaderEpochs) -> CorruptRecord | None:
        """Note the sound batches; return the problem behind them, if any."""
        segment = self.segments[index]
        # A gap: a segment file is missing.
        if index and segment.base_offset != self.segments[index - 1].end_offset:
            end_offset = self.segments[index - 1].end_offset
            return CorruptRecord(f"offsets from {end_offset} are missing", where=str(segment.path))
        start = segment.end
        problem = self._scan_on(segment, size, epochs)
        # Known rot is stepped over, and never cut (decision 0027).
        while problem and (behind := self._behind_known_rot(index, size)):
            segment.end = behind
            problem = self._scan_on(segment, size, epochs)
        self.scanned_bytes += segment.size - start.position
        if problem is None:
            self._seal_scanned(index)
        return problem

    def _scan_on(self, segment: Segment, size: int, epochs: LeaderEpochs) -> CorruptRecord | None:
        try:
            for found in scan(segment.file, segment.end, size, epochs.latest):
                epochs.assign(found.header.leader_epoch, found.header.base_offset)
                segment.note(found)
        except CorruptRecord as error:
            return without_frames(error)
        return None

    def _behind_known_rot(self, index: int, size: int) -> BatchStart | None:
        """Where the log continues, if the bytes at the segment's end are known rot, and no others
        are wrong.
        """
        segment = self.segments[index]
        offset, position = segment.end
        end_offset = self._known_rot_end(offset)
        if end_offset is None:  # not known rot: `judge` decides
            return None
        found = find_sound_batch(segment.file, position, size, offset)
        if found is not None:  # a batch follows: is it the one that the mark names?
            is_near = offset < found.header.base_offset <= end_offset
            return BatchStart(found.header.base_offset, found.position) if is_near else None
        is_sealed = index < len(self.segments) - 1
        # Rot up to the segment's end: sound again from the next segment on.
        if is_sealed and self.segments[index + 1].base_offset == end_offset:
            return BatchStart(end_offset, size)
        return None

    def _seal_scanned(self, index: int) -> None:
        if index < len(self.segments) - 1:  # sealed before the crash: its index may be unsynced
            self.segments[index].seal()
            for file in self.segments[index].data_files():
                file.sync()

    # -- what is wrong ---------------------------------------------------------------------

    def _handle(self, problem: CorruptRecord, index: int, sizes: list[int]) -> None:
        """Cut behind the last sound batch, or leave everything as it is and mark the damage."""
        is_gap = (
            index > 0 and self.segments[index - 1].end_offset < self.segments[index].base_offset
        )
        keep = index if is_gap else index + 1  # behind a gap the whole segment is out of place
        offset = self.segments[keep - 1].end_offset
        verdict = judge(
            self.past,
            offset=offset,
            was_damaged=self._has_mark() or self._known_rot_end(offset) is not None,
            sound_follows=lambda: self._sound_follows(keep - 1, sizes, offset),
        )
        behind = tuple(self.segments[keep:])
        del self.segments[keep:]
        if verdict is TailVerdict.CUT:
            self._cut(problem, behind, sizes)
        else:
            self._mark_damaged(Damage(offset, str(problem), behind))

    def _sound_follows(self, index: int, sizes: list[int], offset: int) -> bool:
        ends = [self.segments[index].size] + [0] * (len(self.segments) - index - 1)
        return any(
            find_sound_batch(segment.file, position, size, offset)
            for segment, position, size in zip(
                self.segments[index:], ends, sizes[index:], strict=True
            )
        )

    def _cut(self, problem: CorruptRecord, behind: tuple[Segment, ...], sizes: list[int]) -> None:
        last = self.segments[-1]
        self.cut_bytes = sum(sizes[len(self.segments) - 1 :]) - last.size
        logger.warning(
            "unsynced tail cut: log=%s end_offset=%d bytes=%d reason=%s",
            self.name, last.end_offset, self.cut_bytes, problem,
        )  # fmt: skip
        remove_all(self.files, self.folder, reversed(behind))  # newest first: a crash leaves no gap
        last.file.truncate(last.size)
        last.file.sync()

    def _mark_damaged(self, damage: Damage) -> None:
        logger.error("log is damaged, nothing was cut: log=%s %s", self.name, damage)
        self.damage = damage
        self._leave_mark(str(damage))

    def _leave_mark(self, what: str) -> None:
        if not self._has_mark():  # the first finding is the one that an operator needs
            replace_file(self.files, self.folder / DAMAGE_MARK, f"{what}\n".encode())

    def _has_mark(self) -> bool:
        return self.files.exists(self.folder / DAMAGE_MARK)

    def _known_rot_end(self, offset: int) -> int | None:
        """The end of known rot at `offset`, if any. It was sound once, so it is never cut."""
        places = read_mark(self.files, self.folder)
        return next((end for begin, end in places if begin <= offset < end), None)

    # -- the log ---------------------------------------------------------------------------

    def _assemble(self, epochs: LeaderEpochs, was_clean: bool) -> PartitionLog:
        end_offset = self.segments[-1].end_offset
        lost_durable = end_offset < self.past.recovery_point
        if lost_durable and not self.damage:  # nothing is wrong in the log, but it is too short
            what = f"offsets up to {self.past.recovery_point} were durable and are missing"
            self._mark_damaged(Damage(end_offset, what))
        # An earlier opening found it, and no truncation came since.
        elif self._has_mark() and not self.damage:
            self.damage = Damage(end_offset, "recovery found it so before")
        log_start_offset = min(self.log_start_offset, end_offset)
        epochs.trim(log_start_offset)
        report = RecoveryReport(was_clean, self.scanned_bytes, self.cut_bytes, lost_durable)
        is_damaged = self.damage is not None
        known = recover_producers(self.files, self.folder, self.segments, is_damaged=is_damaged)
        found = FoundLog(
            self.segments, epochs, self.epoch_file, *known, log_start_offset, end_offset,
            self.damage, report,
        )  # fmt: skip
        log = PartitionLog(self.files, self.folder, self.name, self.config, found)
        recall(log)
        log.learn_aborted(was_closed=was_clean)
        return log


def _is_segment(name: str) -> bool:
    stem, suffix = name[:_BASE_OFFSET_DIGITS], name[_BASE_OFFSET_DIGITS:]
    return suffix == LOG_SUFFIX and stem.isdigit()


# -- Known past -----------------------------------------------------------------------------------
# Recovery points, boot ids and the clean-shutdown mark: how the logs of a data directory were left.
#
#     checkpoints/recovery-points   every offset below is durable
#     checkpoints/boots             under which boot of the machine the log was last opened
#     clean-shutdown                where each log ended that was closed in order; gone while in use
#
# Owns these three files. Its `write_*` methods wait for the disk.
#
# Invariants: a recovery point rises with what is durable and is lowered only for a truncation,
# before that is performed; memory never runs ahead of the disk, except with a lowered point, which
# no later write may raise again. A deleted log is forgotten before its folder is removed: otherwise
# it would count as damaged, like one whose folder was removed by hand.


CLEAN_MARK = "clean-shutdown"


class KnownPast:
    """Logs are named `<topic folder>/Partition-<n>`."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files, self._root = files, root
        folder = root / CHECKPOINTS_FOLDER
        self._points_path, self._boots_path = folder / RECOVERY_POINTS, folder / "boots"
        self._clean_path = root / CLEAN_MARK
        files.make_directory(folder)
        self._boot = crc32c(files.boot_id().encode())
        self.points = read_checkpoint(files, self._points_path) or {}
        self._boots = read_checkpoint(files, self._boots_path) or {}
        self._clean_ends = read_checkpoint(files, self._clean_path) or {}

    def forget_clean_mark(self) -> None:
        """Remove the mark, durably: before any log takes its first byte."""
        if self._files.exists(self._clean_path):  # absent after an unclean end
            self._files.remove(self._clean_path)
            self._files.sync_directory(self._root)

    def of(self, name: str) -> Past:
        point = self.points.get(name)
        return Past(
            recovery_point=point or 0,
            was_clean=point is not None and self._clean_ends.get(name) == point,
            # Without a recovery point only the very end may be taken for unsynced (0006).
            page_cache_survived=point is None or self._boots.get(name) == self._boot,
        )

    def write_opened(self, names: Iterable[str]) -> None:
        """These logs were checked under this boot id: the page cache has their writes in order."""
        boots = self._boots | dict.fromkeys(names, self._boot)
        if boots != self._boots:  # at most openings nothing changes: spare the sync
            write_checkpoint(self._files, self._boots_path, boots)
            self._boots = boots

    def write_points(self, risen: Mapping[str, int]) -> None:
        """Raise recovery points to what has become durable; a higher one stays."""
        points = self.points | {
            name: point for name, point in risen.items() if point >= self.points.get(name, 0)
        }
        if points != self.points:
            write_checkpoint(self._files, self._points_path, points)
            self.points = points

    def lower(self, name: str, end_offset: int) -> None:
        """A log will be cut at `end_offset`; `write_lowered` must come before the cut."""
        self.points = self.points | {name: min(self.points.get(name, 0), end_offset)}

    def forget(self, name: str) -> None:
        """A log will be deleted; `write_lowered` must come before its folder is removed.

        Its boot id says nothing without a recovery point, and is removed with the next write.
        """
        for known in (self.points, self._boots, self._clean_ends):
            known.pop(name, None)

    def forget_missing(self, folders: Iterable[tuple[str, str]]) -> None:
        """Forget logs that have none of the `folders` (topic, partition).

        A log that held something durable, and whose folder is missing, was removed by hand: its
        recovery point stays until it is repaired, or its topic is deleted.
        """
        kept = {f"{topic}/{partition}" for topic, partition in folders}
        kept |= {name for name, point in self.points.items() if point}
        self._clean_ends = _of(kept, self._clean_ends)
        points, boots = _of(kept, self.points), _of(kept, self._boots)
        if boots != self._boots:
            write_checkpoint(self._files, self._boots_path, boots)
            self._boots = boots
        if points != self.points:
            write_checkpoint(self._files, self._points_path, points)
            self.points = points

    def write_lowered(self) -> None:
        write_checkpoint(self._files, self._points_path, self.points)

    def write_clean(self, ends: Mapping[str, int], opened: Iterable[str]) -> None:
        """Logs that were not opened are still as they were when last closed."""
        untouched = {name: end for name, end in self._clean_ends.items() if name not in set(opened)}
        write_checkpoint(self._files, self._clean_path, {**untouched, **ends})


def _of(names: set[str], known: dict[str, int]) -> dict[str, int]:
    return {name: value for name, value in known.items() if name in names}
