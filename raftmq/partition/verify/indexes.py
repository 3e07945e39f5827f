"""Verification of index, time index and leader epoch files against the batches of the log.

Owns what an index entry must be: in order, about an existing batch, and true. Entries are compared
while the batches are read, once and in their order. Indexes are hints, so an error in one is a
warning, except where a sound entry hides records from lookups by time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import StorageError
from raftmq.model import NO_TIMESTAMP
from raftmq.partition.epochs import LeaderEpochs
from raftmq.partition.storage.entries import (
    ENTRY_SIZE,
    EPOCH_FILE,
    DamagedEntries,
    EpochFile,
    IndexEntry,
)
from raftmq.partition.storage.inspect import read_entries
from raftmq.partition.verify.findings import Finding, Severity

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq.disk.files import Files
    from raftmq.partition.storage.inspect import EntriesFound, SegmentFile
    from raftmq.partition.storage.segment import FoundBatch
    from raftmq.partition.verify.findings import Findings
    from raftmq.wire.batch.header import BatchHeader


# -- Entries --------------------------------------------------------------------------------------
# Files of entries under verification: reading them, and what can be wrong with any of them.
#
# Owns the findings that do not depend on what entries mean: missing, unreadable, damaged, torn.


READ_ERRORS = (StorageError, OSError)  # OSError: the folder walk uses pathlib itself


def load_entries(files: Files, path: Path, findings: Findings) -> list[IndexEntry | None]:
    """The entries of `path`, None for damaged ones; each problem with them becomes a finding."""
    try:
        found = read_entries(files, path) if files.exists(path) else None
    except READ_ERRORS as error:
        if files.exists(path):
            findings.error(path, f"cannot be read: {error}")
            return [None]
        found = None  # a broker has removed it just now
    if found is None:
        findings.warning(path, "missing")
        return []
    _report(found, path, findings)
    return found.entries


def _report(found: EntriesFound, path: Path, findings: Findings) -> None:
    for index, entry in enumerate(found.entries):
        if entry is None:
            about_entry(findings, Severity.WARNING, path, index, "fails its CRC")
    if found.torn_bytes:
        position = len(found.entries) * ENTRY_SIZE
        what = f"ends in {found.torn_bytes} bytes that are no whole entry"
        findings.warning(path, what, position=position)


def about_entry(findings: Findings, severity: Severity, path: Path, index: int, what: str) -> None:
    """Entry number `index` has a problem that others may share."""
    findings.repeated(Finding(severity, path, f"an entry {what}", index * ENTRY_SIZE))


# -- Indexes --------------------------------------------------------------------------------------


WAY_OUT = "delete the file while no broker runs, and lookups do without it"
_BEFORE_ALL = IndexEntry(-(1 << 63), 0)  # the lowest i64: every first entry follows it


class IndexClaim(NamedTuple):
    """Entry `number` says `value` about the batch with that base offset."""

    base_offset: int
    value: int
    number: int


class IndexClaims:
    """The sound entries of one file that are in order, to be taken one after the other."""

    def __init__(self, path: Path, findings: Findings) -> None:
        self.path, self._findings = path, findings
        self._claims: list[IndexClaim] = []
        self._taken = 0

    def fill(self, entries: list[IndexEntry | None], first_offset: int | None) -> None:
        """Keys are base offsets; or values are, counted from `first_offset`, in a time index.

        A timestamp may stand twice: the entry that closes a time index repeats the largest one.
        """
        before = _BEFORE_ALL
        for number, entry in enumerate(entries):
            if entry is None:
                continue
            repeats = first_offset is None and entry.key == before.key
            if entry.key < before.key or entry.value < before.value or repeats:
                self.warn(number, "does not follow from the one before")
                continue
            before = entry
            if first_offset is None:
                self._claims.append(IndexClaim(entry.key, entry.value, number))
            else:
                self._claims.append(IndexClaim(first_offset + entry.value, entry.key, number))

    def take_up_to(self, base_offset: int) -> list[IndexClaim]:
        """The claims about batches up to `base_offset` that were not taken yet."""
        first = self._taken
        while self._taken < len(self._claims):
            if self._claims[self._taken].base_offset > base_offset:
                break
            self._taken += 1
        return self._claims[first : self._taken]

    def rest(self) -> list[IndexClaim]:
        return self._claims[self._taken :]

    def warn(self, number: int, what: str) -> None:
        about_entry(self._findings, Severity.WARNING, self.path, number, what)

    def fail(self, number: int, what: str) -> None:
        about_entry(self._findings, Severity.ERROR, self.path, number, what)


class IndexCheck:
    """Both indexes of one segment: `note` every batch, then `finish`."""

    def __init__(self, files: Files, segment: SegmentFile, findings: Findings) -> None:
        self._findings = findings
        self._max_timestamp = NO_TIMESTAMP
        self._unmatched: list[tuple[IndexClaims, IndexClaim]] = []
        self._late: list[IndexClaim] = []
        self._offsets = IndexClaims(segment.path.with_suffix(".index"), findings)
        self._offsets.fill(load_entries(files, self._offsets.path, findings), None)
        self._times = IndexClaims(segment.path.with_suffix(".timeindex"), findings)
        times = load_entries(files, self._times.path, findings)
        self._times.fill(times, segment.base_offset)
        # The last entry of a sealed index: the log takes its timestamp for the segment's largest.
        self._closing = times[-1] if times else None
        self._last_batch = segment.base_offset
        self._base_offset = segment.base_offset

    def note(self, found: FoundBatch) -> None:
        base_offset = found.header.base_offset
        for claim in self._offsets.take_up_to(base_offset):
            if claim.base_offset < base_offset:  # no batch begins at the entry's offset
                self._unmatched.append((self._offsets, claim))
            elif claim.value != found.position:
                self._offsets.warn(claim.number, "points to the wrong byte")
        times = self._times.take_up_to(base_offset)
        # Before this batch's timestamp counts: claims about earlier offsets do not cover it.
        for claim in times:
            if claim.base_offset < base_offset:
                self._unmatched.append((self._times, claim))
                self._check_time(claim)
        self._last_batch = base_offset
        self._max_timestamp = max(self._max_timestamp, found.header.max_timestamp)
        for claim in times:
            if claim.base_offset == base_offset:
                self._check_time(claim)

    def _check_time(self, claim: IndexClaim) -> None:
        if claim.value < self._max_timestamp:
            self._times.fail(claim.number, f"hides a younger record from lookups; {WAY_OUT}")
        elif claim.value > self._max_timestamp:
            self._late.append(claim)

    def finish(self, *, is_sealed: bool) -> None:
        """To be called only if every batch of the segment was noted."""
        for claims, claim in self._unmatched:
            claims.warn(claim.number, "belongs to no batch")
        for claims in (self._offsets, self._times):
            for claim in claims.rest():
                claims.warn(claim.number, "lies beyond the last batch")
        for claim in self._late:
            self._times.warn(claim.number, "is later than every batch up to its own")
        if is_sealed and self._times_end_early():  # an active segment has no closing entry yet
            what = "ends before its segment does; the log walks the segment instead"
            self._findings.warning(self._times.path, what)

    def _times_end_early(self) -> bool:
        return not self._closing or self._base_offset + self._closing.value < self._last_batch


# -- Epochs ---------------------------------------------------------------------------------------
# The leader epoch file of a log, compared with its batches.
#
# Owns the comparison of `leader-epochs` with the epochs in the batches. A damaged file is a
# warning, as the log is walked in its place; a sound one that differs is an error: the log believes
# it, and readers refuse the batches that do not agree with it.


class Disagreement(NamedTuple):
    offset: int
    in_log: int
    in_file: int


class EpochCheck:
    """`note` every batch, then `finish`."""

    def __init__(
        self, files: Files, folder: Path, findings: Findings, log_start_offset: int
    ) -> None:
        self._path, self._findings = folder / EPOCH_FILE, findings
        self._log_start_offset = log_start_offset
        self._disagreement: Disagreement | None = None
        self._table = self._read(files, folder)
        self._last: BatchHeader | None = None

    def _read(self, files: Files, folder: Path) -> LeaderEpochs | None:
        """The table; None if the log would not believe the file either."""
        if not files.exists(self._path):
            return LeaderEpochs()  # empty, as the log takes it: `_is_whole` decides then
        if None in load_entries(files, self._path, self._findings):
            return None
        try:
            return EpochFile(files, folder).read()
        except (DamagedEntries, *READ_ERRORS):  # sound a moment ago: a broker writes it
            return None

    def note(self, header: BatchHeader) -> None:
        self._last = header
        offset = max(header.base_offset, self._log_start_offset)
        # The first difference is enough; trimmed batches have no epoch.
        if self._table is None or self._disagreement or header.end_offset <= offset:
            return
        in_file = self._table.epoch_at(offset)
        if in_file != header.leader_epoch:
            self._disagreement = Disagreement(offset, header.leader_epoch, in_file)

    def finish(self, log_end_offset: int, recovery_point: int | None) -> None:
        """Behind the recovery point a difference is a warning: recovery reads these epochs from
        the batches."""
        if self._disagreement:
            offset, in_log, in_file = self._disagreement
            what = f"says leader epoch {in_file}, the batch is of epoch {in_log}"
            if not self._is_whole() or (recovery_point is not None and offset >= recovery_point):
                self._findings.warning(self._path, what, offset=offset)
            else:
                self._findings.error(self._path, what, offset=offset)
        if self._table and self._table.entries:  # else there is nothing to compare
            leader_epoch, start_offset = self._table.entries[-1]
            if start_offset > log_end_offset:  # an epoch of a leader that lost its appends
                what = f"leader epoch {leader_epoch} begins beyond the log's end {log_end_offset}"
                self._findings.warning(self._path, what, offset=start_offset)

    def _is_whole(self) -> bool:
        """A table without the epoch of the last batch was cut; the log reads its batches then."""
        if self._table is None or self._last is None:
            return False
        return self._table.epoch_at(self._last.base_offset) == self._last.leader_epoch
