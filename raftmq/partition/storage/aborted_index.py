"""Aborted transactions of a log: what is open in it, which were aborted, and building their index.

Owns the lookup of aborted transactions across segments, for readers of committed records, and how
the entries of a segment follow from its batches (Kafka: TransactionIndex). The files are those of
`entries.AbortedFile`. A file that is missing, cut short or damaged never reads as "nothing was
aborted": it is built again first, from the batches, in a worker thread.

Invariants: an entry stands for each abort of something, in the file of the segment with the marker;
a transaction that is still open behind an entry began at its `stable_from` or later.
"""

from __future__ import annotations

import heapq
import logging
from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import CorruptRecord
from raftmq.partition.storage.entries import CLOSING, AbortedEntry, DamagedEntries, read_waiting
from raftmq.partition.storage.segment import BatchStart, walk
from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.records import RecordBatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from raftmq.disk.files import File
    from raftmq.partition.storage.entries import ReadBytes
    from raftmq.partition.storage.segment import FoundBatch, Segment
    from raftmq.wire.batch.header import BatchHeader


logger = logging.getLogger("raftmq.partition")


# Entries that one lookup returns at most: as many as transactions may be open in a partition at
# once, so that those of a single batch always fit; about 120 KB of a reply.
ABORTED_MAX = 5_000
# Bytes of a control batch. Today's have less than 100; the records of a larger one are not read.
_MARKER_BYTES_MAX = 1024


# -- What is open ---------------------------------------------------------------------------------


class OpenSince(NamedTuple):
    """An open transaction: its first batch, and the epoch of its producer."""

    first_offset: int
    producer_epoch: int


class OpenBeginnings:
    """The open transactions at one place of a log, by producer id, in the order of their begin."""

    def __init__(self) -> None:
        self.open: dict[int, OpenSince] = {}

    def note(self, header: BatchHeader, kind: ControlType | int | None) -> AbortedEntry | None:
        """A transactional batch follows; returns the entry that its marker makes.

        Args:
            kind: the type of a control batch, None of another one.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        if kind is None:
            known = self.open.get(producer_id)
            # A higher epoch without a marker: that one stood in what could not be read.
            if known is not None and known.producer_epoch < epoch:
                del self.open[producer_id]
            self.open.setdefault(producer_id, OpenSince(header.base_offset, epoch))
            return None
        if kind not in (ControlType.ABORT, ControlType.COMMIT):  # of a later version: ends nothing
            return None
        ended = self.open.pop(producer_id, None)
        if ended is None or kind == ControlType.COMMIT:
            return None
        stable_from = self.stable_from(header.end_offset)
        return AbortedEntry(producer_id, ended.first_offset, header.base_offset, stable_from)

    def stable_from(self, end_offset: int) -> int:
        """The first offset of what is open; `end_offset` if nothing is."""
        # The one that was entered first began first.
        first = next(iter(self.open.values()), None)
        return end_offset if first is None else first.first_offset


# -- Looking up -----------------------------------------------------------------------------------


class Aborted(NamedTuple):
    """An aborted transaction as readers need it: they drop this producer's batches in
    [first_offset, marker_offset)."""

    producer_id: int
    first_offset: int
    marker_offset: int


class IndexLost(Exception):
    """The index of the segment at `base_offset` cannot be believed: build it again."""

    def __init__(self, base_offset: int) -> None:
        super().__init__(f"aborted transactions of segment {base_offset}")
        self.base_offset = base_offset


class AbortedPlan(NamedTuple):
    """A lookup that may run in a worker thread: holds all that it needs of the log's state.

    Attributes:
        segments: from the one that holds `first_offset` to the log's last.
    """

    segments: Sequence[Segment]
    first_offset: int
    end_offset: int
    limit: int

    def find(self, read: ReadBytes = read_waiting) -> list[Aborted]:
        """See `PartitionLog.aborted_in`.

        Raises:
            IndexLost: nothing can be said before the index is built again.
        """
        found = _Lowest(self.end_offset, self.limit)
        for segment in self.segments:
            try:
                if self._look_in(segment, found, read):
                    break
            except DamagedEntries:
                segment.aborted.distrust()
                raise IndexLost(segment.base_offset) from None
        return found.sorted()

    def _look_in(self, segment: Segment, found: _Lowest, read: ReadBytes) -> bool:
        """Whether nothing that begins below the end is aborted behind this segment."""
        closing = None
        if segment is not self.segments[-1]:  # else it is written, and has no closing entry yet
            closing = segment.aborted.closing(segment.end_offset, read)
        entries = segment.aborted.behind(self.first_offset, read)
        # Now: the loop may forget the index, as of a log that is cut, while this is in a thread.
        if not segment.aborted.is_believed(closing):
            raise IndexLost(segment.base_offset)
        for entry in entries:
            found.add(entry)
            if entry.stable_from >= found.end_offset:
                return True
        return closing is not None and closing.stable_from >= found.end_offset


class _Lowest:
    """Those of the entries that begin first, one more than `limit` at the most."""

    def __init__(self, end_offset: int, limit: int) -> None:
        self.end_offset, self._limit = end_offset, limit
        self._kept: list[tuple[int, AbortedEntry]] = []  # a heap, the last to begin on top

    def add(self, entry: AbortedEntry) -> None:
        if entry.first_offset >= self.end_offset:
            return
        heapq.heappush(self._kept, (-entry.first_offset, entry))
        if len(self._kept) > self._limit + 1:
            heapq.heappop(self._kept)
        if len(self._kept) > self._limit:  # the reader will not get further than the last of them
            self.end_offset = self._kept[0][1].first_offset + 1

    def sorted(self) -> list[Aborted]:
        return [Aborted(*entry[:3]) for _, entry in sorted(self._kept, reverse=True)]


# -- Building -------------------------------------------------------------------------------------


class Learned(NamedTuple):
    """What was read from the batches of a log, up to `end` of its active segment.

    Attributes:
        entry_count: of the file of the active segment.
    """

    active: Segment
    end: BatchStart
    open: OpenBeginnings
    entry_count: int


def learn(segments: Sequence[Segment], since: int, end: BatchStart) -> Learned | None:
    """Build the indexes from offset `since` on that are lost; that of the last segment up to `end`,
    where it is told what is open. None: the last one is whole. Waits for the disk; nothing may cut
    or trim meanwhile.

    Raises:
        CorruptRecord: a header on the way has rotted; what is built already stays.
        StorageError: the disk refused.
    """
    open_at, known_at = OpenBeginnings(), -1
    last = len(segments) - 1
    for number, segment in enumerate(segments):
        if number < last and (segment.end_offset <= since or _is_closed(segment)):
            continue
        if segment.aborted.is_whole and number == last:
            return None
        if known_at != number:  # the one before was not built just now
            open_at = _open_before(segments, number)
        count = _build(segment, open_at, end=end if number == last else None)
        known_at = number + 1
    return Learned(segments[-1], end, open_at, count)


def _learn_closed(segments: Sequence[Segment]) -> Learned | None:
    """The same for a log that was closed in order, by its closing entry; None: it has none."""
    active = segments[-1]
    closing = active.aborted.closing(active.end_offset)
    if closing is None:
        return None
    open_at = _open_since(segments, closing.stable_from)
    return Learned(active, active.end, open_at, closing.first_offset)


def _is_closed(segment: Segment) -> bool:
    return segment.aborted.closing(segment.end_offset) is not None


def _open_before(segments: Sequence[Segment], number: int) -> OpenBeginnings:
    """What is open where that segment begins."""
    before = number - 1
    while before >= 0 and not _is_closed(segments[before]):
        before -= 1
    open_at = OpenBeginnings()
    if before >= 0:
        closing = segments[before].aborted.closing(segments[before].end_offset)
        assert closing is not None, "it was there a moment ago"
        open_at = _open_since(segments[: before + 1], closing.stable_from)
    for segment in segments[before + 1 : number]:
        _build(segment, open_at)
    return open_at


def _open_since(segments: Sequence[Segment], offset: int) -> OpenBeginnings:
    """What is open at the end of `segments`, if it began at `offset` or later."""
    open_at = OpenBeginnings()
    for segment in segments:
        if segment.end_offset > offset:  # else all that it has was ended, or trimmed
            start = segment.start_of(max(offset, segment.base_offset))
            for _ in _entries_from(segment, start, segment.end, open_at):
                pass  # of markers of transactions that are open no more
    return open_at


def _build(segment: Segment, open_at: OpenBeginnings, *, end: BatchStart | None = None) -> int:
    """Build the file of a segment, and move `open_at` to its end. `end`: of an active one."""
    logger.info("aborted transactions are read from the log: segment=%s", segment.path)
    begin = BatchStart(segment.base_offset, 0)

    def entries() -> Iterator[AbortedEntry]:
        count = 0
        for entry in _entries_from(segment, begin, end or segment.end, open_at):
            count += 1
            yield entry
        if end is None:  # sealed: closed, or it would not be believed
            stable_from = open_at.stable_from(segment.end_offset)
            yield AbortedEntry(CLOSING, count, segment.end_offset, stable_from)

    return segment.aborted.build(entries())


def _entries_from(
    segment: Segment, start: BatchStart, end: BatchStart, open_at: OpenBeginnings
) -> Iterator[AbortedEntry]:
    file = segment.file
    for found in walk(file, start, end.position):
        if found.header.is_transactional:
            entry = open_at.note(found.header, kind_in_file(file, found))
            if entry is not None:
                yield entry


def kind_in_file(file: File, found: FoundBatch) -> ControlType | int | None:
    """The type of a control batch, None of another one.

    Raises:
        CorruptRecord: it does not decode; with its offset.
    """
    position, header = found
    if not (header.is_control and header.is_transactional):
        return None
    if header.size > _MARKER_BYTES_MAX:
        what = f"a marker of {header.size} bytes, at most {_MARKER_BYTES_MAX} are read"
        where = str(file.path)
        raise CorruptRecord(what, position=position, where=where, offset=header.base_offset)
    try:
        return RecordBatch.decode(file.read(position, header.size)).control.type
    except CorruptRecord as error:  # again, with the offset of the batch to check for rot
        error.offset = header.base_offset
        raise


# -- Of one log -----------------------------------------------------------------------------------


class KnownAborted:
    """What one log knows at its end.

    Attributes:
        open_at: what is open there; None: to be read from the batches, and nothing is noted until
            then, as it is not known what a marker ends.
    """

    def __init__(self) -> None:
        self.open_at: OpenBeginnings | None = None

    def note(self, active: Segment, header: BatchHeader, kind: ControlType | None) -> None:
        """A transactional batch was appended.

        Args:
            kind: of a marker; None: of records, or a control batch that this version does not know.
        """
        if self.open_at is None or (kind is None and header.is_control):
            return
        entry = self.open_at.note(header, kind)
        # A marker that aborts something; an index that is damaged is built again, with it.
        if entry is not None and active.aborted.is_whole:
            active.aborted.append(entry)

    def close(self, active: Segment) -> None:
        """The active segment, or the log, ends here: whoever opens it need not read its batches.

        Raises:
            StorageError: the disk refused.
        """
        if self.open_at is not None and active.size:
            end_offset = active.end_offset
            active.aborted.close(end_offset, self.open_at.stable_from(end_offset))

    def forget(self, active: Segment) -> None:
        self.open_at = None
        active.aborted.void()

    def start_over(self) -> None:
        """The log is empty: nothing is open."""
        self.open_at = OpenBeginnings()

    def learn(self, segments: Sequence[Segment], name: str, *, was_closed: bool) -> None:
        """At an opening, or behind a cut, while nothing else uses the log; what takes long is left
        to the first lookup. Waits for the disk.

        Raises:
            StorageError: the disk refused.
        """
        self.forget(segments[-1])
        try:
            learned = _learn_closed(segments) if was_closed else None
            # The segment before is closed: nothing but the last one, and little before it, is read.
            if learned is None and (len(segments) < 2 or _is_closed(segments[-2])):
                learned = learn(segments, segments[-1].base_offset, segments[-1].end)
            self.adopt(learned)
        except CorruptRecord as error:  # rot: a reader reports it, once it matters
            logger.warning("aborted transactions not known: log=%s reason=%s", name, error)
            self.forget(segments[-1])

    def adopt(self, learned: Learned | None) -> None:
        """Note it, and what was appended since to the segment, which is the active one still."""
        if learned is None:  # only segments before the last were built
            return
        active = learned.active
        active.aborted.begin(learned.entry_count)
        for entry in _entries_from(active, learned.end, active.end, learned.open):
            active.aborted.append(entry)
        self.open_at = learned.open
