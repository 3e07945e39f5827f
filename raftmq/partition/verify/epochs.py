"""The leader epochs of a log, held against its batches.

Owns the comparison of `leader-epochs` with what the batches say. A damaged file is a warning, the
log is walked in its place; a sound one that says something else is believed, and readers refuse
what does not agree with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.partition.epochs import LeaderEpochs
from raftmq.partition.storage.entries import EPOCH_FILE, DamagedEntries, EpochFile
from raftmq.partition.verify.entries import READ_ERRORS, load_entries

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq.disk.files import Files
    from raftmq.partition.verify.findings import Findings
    from raftmq.wire.header import BatchHeader


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
        """None where the log would not believe the file either."""
        if not files.exists(self._path):
            return LeaderEpochs()  # as the log takes it; `_is_whole` says what comes of that
        if None in load_entries(files, self._path, self._findings):
            return None
        try:
            return EpochFile(files, folder).read()
        except (DamagedEntries, *READ_ERRORS):  # it was sound just now: a broker is at work
            return None

    def note(self, header: BatchHeader) -> None:
        self._last = header
        offset = max(header.base_offset, self._log_start_offset)
        if self._table is None or self._disagreement or header.end_offset <= offset:
            return
        in_file = self._table.epoch_at(offset)
        if in_file != header.leader_epoch:
            self._disagreement = Disagreement(offset, header.leader_epoch, in_file)

    def finish(self, log_end_offset: int, recovery_point: int | None) -> None:
        """Recovery reads the epochs of whatever lies behind its point from the log again."""
        if self._disagreement:
            offset, in_log, in_file = self._disagreement
            what = f"says leader epoch {in_file}, the batch is of epoch {in_log}"
            if not self._is_whole() or (recovery_point is not None and offset >= recovery_point):
                self._findings.warning(self._path, what, offset=offset)
            else:
                self._findings.error(self._path, what, offset=offset)
        if self._table and self._table.entries:
            leader_epoch, start_offset = self._table.entries[-1]
            if start_offset > log_end_offset:
                what = f"leader epoch {leader_epoch} begins beyond the log's end {log_end_offset}"
                self._findings.warning(self._path, what, offset=start_offset)

    def _is_whole(self) -> bool:
        """A table that does not know the last batch was cut; the log then reads its batches."""
        if self._table is None or self._last is None:
            return False
        return self._table.epoch_at(self._last.base_offset) == self._last.leader_epoch
