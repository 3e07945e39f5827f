"""Lists of what segments schedule and settle: kept in memory, written beside them, read back.

    <base offset, 20 digits>.scheduled:
        magic "RMQS" | version u16 | base offset i64 | end offset i64 | count of blocks u32 |
            CRC-32C of the bytes before u32
        each block: length u32 | CRC-32C u32 | msgpack, an array of events (`events`)

Owns these files, and how the schedule of a log is restored: from the lists, and from the heads of
the batches behind their ends. `KnownSchedule` never waits; a list is written by a worker thread. It
saves time: one that is missing or damaged is read from the batches. Which segments have anything to
list stands in the snapshots of producers, so that a log without scheduled records needs no list.

Invariants:
1. A list was made when its batches were appended, or from bytes whose CRC was right.
2. No list exists, or waits to be written, of offsets that the log does not hold.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from struct import Struct
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from crc32c import crc32c

from raftmq.disk.checkpoint import read_file, replace_file
from raftmq.errors import CorruptRecord, StorageError, without_frames
from raftmq.partition.scheduling.events import (
    HEAD_BYTES_USUAL,
    Decided,
    ScheduleEvent,
    bytes_needed,
    event_of,
    may_have_event,
    offset_of,
)
from raftmq.partition.scheduling.schedule import Schedule
from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.records import RecordBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from raftmq.disk.files import File, Files
    from raftmq.wire.batch.header import BatchHeader


logger = logging.getLogger("raftmq.partition")

LIST_SUFFIX = ".scheduled"
_NAME = re.compile(r"[0-9]{20}\.scheduled")
_MAGIC, _VERSION = b"RMQS", 1
_HEAD = Struct(">4sHqqI")
_BLOCK = Struct(">II")
_CRC = Struct(">I")
_EVENTS = msgspec.msgpack.Decoder(list[ScheduleEvent])
BLOCK_EVENTS = 1024  # of one block: so many are objects at once while a list is read
MARKER_BYTES_MAX = 1024  # of a marker; today's have less than 100


class SegmentBatches(NamedTuple):
    """A segment, as far as it is to be read.

    Attributes:
        walk: the batches from that offset on, each with its position; by their headers.
    """

    base_offset: int
    end_offset: int
    file: Callable[[], File]
    walk: Callable[[int], Iterator[tuple[int, BatchHeader]]]


# -- Events in memory ------------------------------------------------------------------------------


class EventList:
    """The events of one segment, in order: packed, but for the last ones; 30 bytes each."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._recent: list[ScheduleEvent] = []

    def __bool__(self) -> bool:
        return bool(self._blocks or self._recent)

    def append(self, event: ScheduleEvent) -> None:
        self._recent.append(event)
        if len(self._recent) >= BLOCK_EVENTS:
            self._blocks.append(msgspec.msgpack.encode(self._recent))
            self._recent = []

    def cut(self, offset: int) -> None:
        """Forget those of batches at or behind it."""
        while self._blocks and (not self._recent or offset_of(self._recent[0]) >= offset):
            self._recent = _EVENTS.decode(self._blocks.pop())
        self._recent = [each for each in self._recent if offset_of(each) < offset]

    def blocks(self) -> list[bytes]:
        last = [msgspec.msgpack.encode(self._recent)] if self._recent else []
        return [*self._blocks, *last]


# -- Files -----------------------------------------------------------------------------------------


def list_path(folder: Path, base_offset: int) -> Path:
    return folder / f"{base_offset:020d}{LIST_SUFFIX}"


def find_lists(files: Files, folder: Path) -> list[int]:
    """Base offsets of the segments that have one."""
    return [int(name[:20]) for name in files.names(folder) if _NAME.fullmatch(name)]


class SavedList(NamedTuple):
    end_offset: int
    blocks: list[bytes]

    def events(self) -> Iterator[ScheduleEvent]:
        for block in self.blocks:
            yield from _EVENTS.decode(block)


def pack_list(base_offset: int, end_offset: int, blocks: Sequence[bytes]) -> bytes:
    head = _HEAD.pack(_MAGIC, _VERSION, base_offset, end_offset, len(blocks))
    pieces = [head, _CRC.pack(crc32c(head))]
    for block in blocks:
        pieces += [_BLOCK.pack(len(block), crc32c(block)), block]
    return b"".join(pieces)


def read_list(data: bytes, base_offset: int) -> SavedList:
    """
    Raises:
        CorruptRecord: damaged, cut short, or of another segment.
    """
    at = _HEAD.size + _CRC.size
    if len(data) < at or _CRC.unpack_from(data, _HEAD.size) != (crc32c(data[: _HEAD.size]),):
        raise CorruptRecord("the list of a segment's scheduled records fails its CRC")
    magic, version, base, end_offset, count = _HEAD.unpack_from(data)
    if (magic, version, base) != (_MAGIC, _VERSION, base_offset):
        raise CorruptRecord(f"magic {magic!r}, version {version}, offset {base} in a list")
    blocks = []
    for _ in range(count):
        if len(data) < at + _BLOCK.size:
            raise CorruptRecord("a list is cut short", position=at)
        length, crc = _BLOCK.unpack_from(data, at)
        block = data[at + _BLOCK.size : at + _BLOCK.size + length]
        if len(block) != length or crc32c(block) != crc:
            raise CorruptRecord("a block of a list fails its CRC", position=at)
        blocks.append(block)
        at += _BLOCK.size + length
    if at != len(data):
        raise CorruptRecord("bytes behind a list", position=at)
    return SavedList(end_offset, blocks)


def _load(files: Files, folder: Path, segment: SegmentBatches) -> SavedList | None:
    """The list of that segment, if there is a sound one that knows no more than it holds."""
    path = list_path(folder, segment.base_offset)
    try:
        data = read_file(files, path)
        if data is None:
            return None
        saved = read_list(data, segment.base_offset)
    except (CorruptRecord, StorageError) as error:  # the batches say the same
        logger.warning("list of scheduled records useless: path=%s reason=%s", path, error)
        return None
    return saved if saved.end_offset <= segment.end_offset else None


def remove_void_lists(files: Files, folder: Path, ends: Mapping[int, int]) -> None:
    """Those that know more than their segments hold, or of segments that are gone, before the log
    grows beyond their ends (invariant 2). `ends`: end offsets by base offset."""
    for base_offset in find_lists(files, folder):
        path = list_path(folder, base_offset)
        with suppress(CorruptRecord, StorageError):
            data = read_file(files, path) or b""
            if read_list(data, base_offset).end_offset <= ends.get(base_offset, -1):
                continue
        files.remove(path)
        files.sync_directory(folder)


# -- Reading batches -------------------------------------------------------------------------------


def event_in(
    file: File, position: int, header: BatchHeader, schedule: Schedule
) -> ScheduleEvent | None:
    """What the batch at `position` of the file says.

    Raises:
        CorruptRecord: it contradicts itself, or cannot be read; with its offset.
    """
    try:
        if header.is_marker:
            return _decision_in(file, position, header, schedule)
        if not may_have_event(header):
            return None
        beginning = file.read(position, min(header.size, HEAD_BYTES_USUAL))
        length = bytes_needed(beginning, header)
        if length > len(beginning):
            beginning = file.read(position, length)
        return event_of(beginning, 0, header, position) if length else None
    except CorruptRecord as error:
        error.offset = header.base_offset  # of the batch to check for rot
        raise


def _decision_in(
    file: File, position: int, header: BatchHeader, schedule: Schedule
) -> Decided | None:
    if not schedule.is_undecided(header.producer_id) or header.size > MARKER_BYTES_MAX:
        return None
    kind = RecordBatch.decode(file.read(position, header.size)).control.type
    return decision(header, kind)


def decision(header: BatchHeader, kind: ControlType | int) -> Decided | None:
    """That of a marker; None: it is none that ends anything."""
    if kind not in (ControlType.COMMIT, ControlType.ABORT):
        return None
    return Decided(header.base_offset, header.producer_id, kind == ControlType.COMMIT)


class FoundSchedule(NamedTuple):
    """Attributes:
    listed: of the last segment; None: not all of it could be read.
    unread: what does not decode, with its offset: it may have rotted.
    unread_bases: base offsets of the segments that could not be read whole.
    missing: lists of earlier segments, whose batches were read: end offset and blocks, by base
        offset. Written, or every opening would read these batches.
    """

    schedule: Schedule
    listed: EventList | None
    unread: tuple[CorruptRecord, ...] = ()
    unread_bases: tuple[int, ...] = ()
    missing: Mapping[int, tuple[int, list[bytes]]] = MappingProxyType({})


def nothing_scheduled(active_base: int) -> FoundSchedule:
    """Of a log whose last segment begins there."""
    return FoundSchedule(Schedule(active_base), EventList())


def find_schedule(
    files: Files,
    folder: Path,
    segments: Sequence[SegmentBatches],
    event_segments: Collection[int],
    since: int,
) -> FoundSchedule:
    """The schedule at the end of the segments. Waits for the disk.

    Args:
        event_segments: base offsets of the segments that have events before offset `since`;
            behind it any may.

    Raises:
        StorageError: the disk refused to show the log.
    """
    schedule = Schedule(segments[0].base_offset)
    unread: list[CorruptRecord] = []
    unread_bases: list[int] = []
    missing: dict[int, tuple[int, list[bytes]]] = {}
    listed = EventList()
    for segment in segments:
        schedule.on_roll(segment.base_offset)
        listed, start = EventList(), segment.base_offset
        saved = _load(files, folder, segment)
        if saved is not None:
            _note_all(schedule, listed, saved.events())
            start = saved.end_offset
        if segment.base_offset not in event_segments:
            start = max(start, since)
        errors = (
            _walk(folder, schedule, listed, segment, start) if start < segment.end_offset else []
        )
        if errors:
            unread += errors
            unread_bases.append(segment.base_offset)
        elif listed and start < segment.end_offset and segment is not segments[-1]:
            missing[segment.base_offset] = segment.end_offset, listed.blocks()
    is_whole = segments[-1].base_offset not in unread_bases
    known = listed if is_whole else None  # a list must not claim what was not read
    return FoundSchedule(schedule, known, tuple(unread), tuple(unread_bases), missing)


def _note_all(schedule: Schedule, listed: EventList, events: Iterable[ScheduleEvent]) -> None:
    for event in events:
        if schedule.note(event):
            listed.append(event)


def _walk(
    folder: Path, schedule: Schedule, listed: EventList, segment: SegmentBatches, start: int
) -> list[CorruptRecord]:
    """Returns what cannot be read: of a batch whose header is sound the head alone, and else all
    that stands behind."""
    reached, errors = start, list[CorruptRecord]()
    try:
        file = segment.file()
        for position, header in segment.walk(start):
            reached = header.base_offset
            try:
                event = event_in(file, position, header, schedule)
            except CorruptRecord as error:
                schedule.on_unread(header.base_offset, header.end_offset)
                errors.append(without_frames(error))
            else:
                if event is not None and schedule.note(event):
                    listed.append(event)
            reached = header.end_offset
    except CorruptRecord as error:
        if error.offset is None:  # inside of the batch behind the last one
            error.offset = reached
        schedule.on_unread(reached, segment.end_offset)
        errors.append(without_frames(error))
    if errors:
        what = "scheduled records not known: folder=%s segment=%d places=%d reason=%s"
        logger.warning(what, folder, segment.base_offset, len(errors), errors[0])
    return errors


# -- Of one log ------------------------------------------------------------------------------------


class ListWrite(NamedTuple):
    """Lists of one log to write.

    Attributes:
        lists: base offset, end offset, and the blocks.
    """

    folder: Path
    lists: list[tuple[int, int, list[bytes]]]

    def perform(self, files: Files) -> None:
        """Errors of the disk are only logged: the next opening reads the batches."""
        try:
            for base_offset, end_offset, blocks in self.lists:
                data = pack_list(base_offset, end_offset, blocks)
                replace_file(files, list_path(self.folder, base_offset), data)
        except StorageError as error:
            logger.warning("lists not written down: folder=%s reason=%s", self.folder, error)


class KnownSchedule:
    """`now`: the schedule at the log's end."""

    def __init__(self, folder: Path, found: FoundSchedule) -> None:
        self._folder, self.now = folder, found.schedule
        # None: the log was cut in this segment, or it could not be read whole: its events are in
        # the batches only.
        self._listed: EventList | None = found.listed
        self._waiting = dict(found.missing)
        self._unread, self._unread_bases = found.unread, found.unread_bases

    @property
    def is_known(self) -> bool:
        """All of the log could be read."""
        return not self._unread_bases

    def event_segments(self) -> tuple[int, ...]:
        """Base offsets of the segments that have events, or may have."""
        return tuple(sorted({*self.now.bases, *self._unread_bases}))

    def take_unread(self) -> tuple[CorruptRecord, ...]:
        """What did not decode when the batches were last read, each with its offset; once."""
        unread, self._unread = self._unread, ()
        return unread

    def note(self, event: ScheduleEvent) -> None:
        """A batch was appended that says so."""
        if self.now.note(event) and self._listed is not None:
            self._listed.append(event)

    def on_roll(self, end_offset: int) -> None:
        """The active segment ends there, and the next one begins."""
        self.take_last(end_offset)
        self.now.on_roll(end_offset)
        self._listed = EventList()

    def take_last(self, end_offset: int) -> None:
        """Have the list of the active segment, which ends there, written at the next occasion."""
        if self._listed:
            self._waiting[self.now.active_base] = end_offset, self._listed.blocks()

    def begin_write(self) -> ListWrite | None:
        """The lists that are due. One at a time, and not while the log is cut."""
        if not self._waiting:
            return None
        waiting, self._waiting = self._waiting, {}
        return ListWrite(self._folder, [(base, *rest) for base, rest in waiting.items()])

    def cut(self, offset: int, active_base: int) -> None:
        """The log ends there now, in the segment that begins at `active_base`."""
        is_same = active_base == self.now.active_base
        self.now.cut(offset, active_base)
        if is_same and self._listed is not None:
            self._listed.cut(offset)
        else:
            self._listed = None
        self._waiting = {base: rest for base, rest in self._waiting.items() if base < active_base}

    def trim(self, first_offset: int) -> None:
        """The log's first segment begins there now."""
        self.now.trim(first_offset)
        self._waiting = {base: rest for base, rest in self._waiting.items() if base >= first_offset}
        self._unread_bases = tuple(base for base in self._unread_bases if base >= first_offset)

    def start_over(self, offset: int) -> None:
        self.replace(nothing_scheduled(offset))

    def replace(self, found: FoundSchedule) -> None:
        """It was read again."""
        self.now, self._listed, self._waiting = found.schedule, found.listed, dict(found.missing)
        self._unread, self._unread_bases = found.unread, found.unread_bases
