"""Verification of the files of aborted transactions against the batches of the log.

Owns the comparison: the entries are made again from the batches. A file that is missing, damaged or
not closed is a warning, as the log builds it again before it is used; one that the log believes and
that is wrong is an error: readers would be handed what was aborted, or miss what was committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import CorruptRecord
from raftmq.partition.storage.aborted_index import OpenBeginnings, kind_in_file
from raftmq.partition.storage.entries import (
    ABORTED_SIZE,
    ABORTED_SUFFIX,
    CLOSING,
    AbortedEntry,
    read_aborted,
)
from raftmq.partition.verify.indexes import READ_ERRORS

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq.disk.files import File, Files
    from raftmq.partition.storage.inspect import SegmentFile
    from raftmq.partition.storage.segment import FoundBatch
    from raftmq.partition.verify.findings import Findings

WAY_OUT = "remove the file while no broker uses it, and it is built again"


class AbortedCheck:
    """For each segment `begin`, before its size is taken; `note` every batch; then `finish`."""

    def __init__(self, files: Files, findings: Findings, first_offset: int) -> None:
        self._files, self._findings, self._first_offset = files, findings, first_offset
        self._open_at, self._is_whole = OpenBeginnings(), True
        self._path: Path
        self._entries: list[AbortedEntry | None] = []
        self._expected: dict[int, AbortedEntry] = {}

    def on_gap(self) -> None:
        """Something could not be read: nothing can be compared any more."""
        self._is_whole = False

    def begin(self, segment: SegmentFile) -> None:
        self._path = segment.path.with_suffix(ABORTED_SUFFIX)
        self._entries, self._expected = self._read(), {}

    def _read(self) -> list[AbortedEntry | None]:
        if not self._files.exists(self._path):
            return []
        try:
            file = self._files.open(self._path)
            data = file.read(0, file.size())
        except READ_ERRORS as error:
            self._findings.warning(self._path, f"cannot be read: {error}")
            return []
        return [
            read_aborted(data[at : at + ABORTED_SIZE]) for at in range(0, len(data), ABORTED_SIZE)
        ]

    def note(self, file: File, found: FoundBatch) -> None:
        if not found.header.is_transactional:
            return
        try:
            entry = self._open_at.note(found.header, kind_in_file(file, found))
        except CorruptRecord:  # a marker that does not decode is reported with the records
            self.on_gap()
            return
        if entry is not None:
            self._expected[entry.marker_offset] = entry

    def finish(self, end_offset: int, *, is_sealed: bool) -> None:
        """To be called only if every batch of the segment was noted."""
        if not self._is_whole:
            return
        entries = list(self._entries)
        is_closed = self._take_closing(entries, end_offset)
        # An active segment has a closing entry only while no broker uses it.
        if is_sealed and not is_closed:
            what = "missing, damaged or not closed; the log builds it again before it is used"
            self._findings.warning(self._path, what)
            return
        report = self._findings.error if is_closed else self._findings.warning
        for number, entry in enumerate(entries):
            if entry is None or not self._is_right(entry):
                report(self._path, f"entry {number} is wrong; {WAY_OUT}")
        said = {entry.marker_offset for entry in entries if entry is not None}
        # Entries of an active segment may wait in the broker's memory.
        for marker_offset in self._expected.keys() - said if is_closed else ():
            what = f"lacks the abort whose marker stands at {marker_offset}; {WAY_OUT}"
            self._findings.error(self._path, what, offset=marker_offset)

    def _take_closing(self, entries: list[AbortedEntry | None], end_offset: int) -> bool:
        """Remove the closing entry; False if there is none that the log would believe."""
        last = entries[-1] if entries else None
        if last is None or last.producer_id != CLOSING:
            return False
        entries.pop()
        return last[1:3] == (len(entries), end_offset)

    def _is_right(self, entry: AbortedEntry) -> bool:
        expected = self._expected.get(entry.marker_offset)
        if expected is None:  # all of its batches may be trimmed
            return entry.first_offset < self._first_offset
        return (
            entry.producer_id == expected.producer_id
            and self._agree(entry.first_offset, expected.first_offset)
            and self._agree(entry.stable_from, expected.stable_from)
        )

    def _agree(self, said: int, expected: int) -> bool:
        """The beginning of a transaction may be trimmed: then its first batch is another one."""
        return said == expected or (said < self._first_offset and said < expected)
