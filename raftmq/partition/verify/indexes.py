"""The two index files of one segment, held against its batches.

Owns what an index entry must be: in order, about a batch that is there, and true. Entries are
compared while the batches go by, once and in their order. Indexes are help and not truth, so that
what is wrong with one is a warning, except where a sound entry hides records from lookups by time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.model import NO_TIMESTAMP
from raftmq.partition.storage.entries import Entry
from raftmq.partition.verify.entries import about_entry, load_entries
from raftmq.partition.verify.findings import Severity

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq.disk.files import Files
    from raftmq.partition.storage.inspect import SegmentFile
    from raftmq.partition.storage.segment import FoundBatch
    from raftmq.partition.verify.findings import Findings

WAY_OUT = "delete the file while no broker runs, and lookups do without it"
_BEFORE_ALL = Entry(-(1 << 63), 0)


class Claim(NamedTuple):
    """Entry `number` says `value` about the batch with that base offset."""

    base_offset: int
    value: int
    number: int


class Claims:
    """The sound entries of one file that are in order, to be taken one after the other."""

    def __init__(self, path: Path, findings: Findings) -> None:
        self.path, self._findings = path, findings
        self._claims: list[Claim] = []
        self._taken = 0

    def fill(self, entries: list[Entry | None], first_offset: int | None) -> None:
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
                self._claims.append(Claim(entry.key, entry.value, number))
            else:
                self._claims.append(Claim(first_offset + entry.value, entry.key, number))

    def take_up_to(self, base_offset: int) -> list[Claim]:
        """Those not taken yet about batches up to `base_offset`."""
        first = self._taken
        while self._taken < len(self._claims):
            if self._claims[self._taken].base_offset > base_offset:
                break
            self._taken += 1
        return self._claims[first : self._taken]

    def rest(self) -> list[Claim]:
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
        self._unmatched: list[tuple[Claims, Claim]] = []
        self._late: list[Claim] = []
        self._offsets = Claims(segment.path.with_suffix(".index"), findings)
        self._offsets.fill(load_entries(files, self._offsets.path, findings), None)
        self._times = Claims(segment.path.with_suffix(".timeindex"), findings)
        times = load_entries(files, self._times.path, findings)
        self._times.fill(times, segment.base_offset)
        # Closes a sealed index: the log takes its timestamp for the segment's largest.
        self._closing = times[-1] if times else None
        self._last_batch = segment.base_offset
        self._base_offset = segment.base_offset

    def note(self, found: FoundBatch) -> None:
        base_offset = found.header.base_offset
        for claim in self._offsets.take_up_to(base_offset):
            if claim.base_offset < base_offset:
                self._unmatched.append((self._offsets, claim))
            elif claim.value != found.position:
                self._offsets.warn(claim.number, "points to the wrong byte")
        times = self._times.take_up_to(base_offset)
        for claim in times:
            if claim.base_offset < base_offset:
                self._unmatched.append((self._times, claim))
                self._check_time(claim)
        self._last_batch = base_offset
        self._max_timestamp = max(self._max_timestamp, found.header.max_timestamp)
        for claim in times:
            if claim.base_offset == base_offset:
                self._check_time(claim)

    def _check_time(self, claim: Claim) -> None:
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
        if is_sealed and self._times_end_early():
            what = "ends before its segment does; the log walks the segment instead"
            self._findings.warning(self._times.path, what)

    def _times_end_early(self) -> bool:
        return not self._closing or self._base_offset + self._closing.value < self._last_batch
