"""Verification of a partition folder: reads every byte and decodes every record of its log.

Owns the difference between an error, which readers would meet, and a warning, which the log
repairs or does without; the line is where recovery draws it (docs/decisions/0006). Never writes,
and never raises for what it finds in a file: that becomes a finding.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raftmq.errors import CorruptRecord, UnsupportedCompression
from raftmq.model import Compression
from raftmq.partition.epochs import UNDEFINED_EPOCH
from raftmq.partition.storage.inspect import (
    BadBytes,
    inspect_batches,
    list_segments,
    read_recovery_point,
)
from raftmq.partition.storage.known_producers import account_in
from raftmq.partition.storage.segment import BatchStart, find_sound_batch
from raftmq.partition.verify.aborted import AbortedCheck
from raftmq.partition.verify.findings import Finding, Findings, Severity
from raftmq.partition.verify.indexes import READ_ERRORS, EpochCheck, IndexCheck
from raftmq.partition.verify.lists import check_lists
from raftmq.partition.verify.producers import ProducerCheck
from raftmq.partition.verify.side_files import (
    check_damage_mark,
    check_log_start,
    check_orphans,
    drop_trimmed,
)
from raftmq.wire.batch.header import COMPRESSION_BITS
from raftmq.wire.batch.records import RecordBatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from raftmq.disk.files import File, Files
    from raftmq.partition.storage.inspect import SegmentFile
    from raftmq.partition.storage.segment import FoundBatch

KNOWN_CODECS = frozenset(Compression)  # of another one (snappy) only a Kafka client can decode


@dataclass(slots=True)
class PartitionReport:
    """Counts of what was read, and what is wrong with it. Offsets are None if there is no log."""

    folder: Path
    # All 0: a folder may have nothing that is readable.
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    findings: list[Finding] = field(default_factory=list)


def verify_partition(
    files: Files, folder: Path, on_bytes: Callable[[int], None] | None = None
) -> PartitionReport:
    """Check everything in `folder`; `on_bytes` gets the bytes of each batch, for progress."""
    verification = _Verification(files, folder, on_bytes)
    try:
        verification.run()
    except READ_ERRORS as error:  # the folder itself, or a file that is listed and not readable
        verification.findings.error(folder, f"cannot be read: {error}")
    verification.report.findings = verification.findings.all()
    return verification.report


class _Verification:
    """One pass over one folder."""

    def __init__(self, files: Files, folder: Path, on_bytes: Callable[[int], None] | None) -> None:
        self.files, self.folder, self.on_bytes = files, folder, on_bytes
        self.findings = Findings()
        self.report = PartitionReport(folder)
        self.recovery_point: int | None = None
        self.segments: list[SegmentFile] = []
        self.leader_epoch = UNDEFINED_EPOCH
        self.end_offset = 0  # of the batch before
        self.is_end_known = True  # False right behind damage: anything may follow

    def run(self) -> None:
        self._read_recovery_point()
        self.segments = list_segments(self.files, self.folder)
        check_damage_mark(self.files, self.folder, self.findings)
        log_start = check_log_start(self.files, self.folder, self.segments, self.findings)
        self.segments = drop_trimmed(self.segments, log_start, self.findings)
        self.report.segments = len(self.segments)
        if self.segments:
            self._check_log(log_start)
        check_lists(self.files, self.folder, self.findings)
        check_orphans(self.files, self.folder, self.findings, self.end_offset, self.recovery_point)

    def _read_recovery_point(self) -> None:
        try:
            self.recovery_point = read_recovery_point(self.files, self.folder)
        except READ_ERRORS:
            self.recovery_point = None  # `verify_checkpoints` reports it

    def _check_log(self, log_start_offset: int) -> None:
        self.end_offset = self.segments[0].base_offset
        self.epochs = EpochCheck(self.files, self.folder, self.findings, log_start_offset)
        self.producers = ProducerCheck(self.files, self.folder, self.findings, self.end_offset)
        self.aborted = AbortedCheck(self.files, self.findings, self.end_offset)
        for number in range(len(self.segments)):
            if not (self._check_joint(number) and self._check_segment(number)):
                break
        self._check_end(log_start_offset)
        self.epochs.finish(self.end_offset, self.recovery_point)
        self.producers.finish(self.end_offset)
        self.report.log_start_offset = log_start_offset
        self.report.log_end_offset = self.end_offset

    # -- segments --------------------------------------------------------------------------

    def _check_joint(self, number: int) -> bool:
        """Between a segment and the one before; False if recovery would end the log here."""
        base_offset, path = self.segments[number].base_offset, self.segments[number].path
        # Right behind damage the next offset is not known.
        if not self.is_end_known or base_offset == self.end_offset:
            return True
        if base_offset < self.end_offset:
            what = f"begins at offset {base_offset}, the segment before ends at {self.end_offset}"
        else:
            what = f"offsets {self.end_offset} to {base_offset} are missing before it"
        self._on_gap()
        # Recovery would call it damage, and not cut.
        if self._is_sound_from(number, min(base_offset, self.end_offset)):
            self.findings.error(path, what, offset=self.end_offset)
            return True
        self._report_tail(path, f"{what}, and nothing sound follows", None)
        return False

    def _check_segment(self, number: int) -> bool:
        """False if recovery would end the log in this segment."""
        segment = self.segments[number]
        try:
            # Indexes before the size: a broker may append meanwhile, and an index must not have
            # entries of batches that are not read.
            indexes = IndexCheck(self.files, segment, self.findings)
            self.aborted.begin(segment)
            size = self.files.size(segment.path)
            return self._check_batches(number, self.files.open(segment.path), size, indexes)
        except READ_ERRORS as error:
            self._report_unreadable(segment.path, error)
            return True

    def _check_batches(self, number: int, file: File, size: int, indexes: IndexCheck) -> bool:
        start = BatchStart(self.segments[number].base_offset, 0)
        is_whole = True
        self.is_end_known = True
        for each in inspect_batches(file, start, size, self.leader_epoch):
            if isinstance(each, BadBytes):
                is_whole = False
                if not self._on_bad_bytes(each, number):
                    return False
            else:
                self._on_batch(file, each)
                indexes.note(each)
        if is_whole:  # else entries of batches in the bad bytes would be called wrong
            is_sealed = number < len(self.segments) - 1
            indexes.finish(is_sealed=is_sealed)
            self.aborted.finish(self.end_offset, is_sealed=is_sealed)
        return True

    def _report_unreadable(self, path: Path, error: Exception) -> None:
        self.is_end_known = False
        self._on_gap()
        if self.files.exists(path):
            self.findings.error(path, f"cannot be read: {error}")
        else:
            self.findings.warning(path, "was removed while the log was read: verify again")

    # -- batches ---------------------------------------------------------------------------

    def _on_batch(self, file: File, found: FoundBatch) -> None:
        header = found.header
        self.end_offset, self.is_end_known = header.end_offset, True
        self.leader_epoch = header.leader_epoch
        self.report.batches += 1
        self.report.records += header.record_count
        self.report.bytes += header.size
        self.epochs.note(header)
        self._note_producer(file, found)
        self._check_records(file, found)
        if self.on_bytes is not None:
            self.on_bytes(header.size)

    def _note_producer(self, file: File, found: FoundBatch) -> None:
        try:
            self.producers.note(found.header, account_in(file, found))
        except CorruptRecord:  # a fence that does not decode; `_check_records` reports it
            self.producers.on_gap()
        self.aborted.note(file, found)

    def _check_records(self, file: File, found: FoundBatch) -> None:
        """Decode every record, as a reader would."""
        position, header = found.position, found.header
        try:
            batch = RecordBatch.decode(file.read(position, header.size))
            if batch.is_control:  # decodes the marker, which `records` does not
                _ = batch.control
            deque(batch.records(), maxlen=0)
        except CorruptRecord as error:
            what = f"sound by its CRC, but does not decode: {error.what}"
            self.findings.error(file.path, what, position=position, offset=header.base_offset)
        except UnsupportedCompression as error:
            known = header.attributes & COMPRESSION_BITS in KNOWN_CODECS
            severity = Severity.WARNING if known else Severity.ERROR
            what = f"a batch was not decoded: {error}"
            self.findings.repeated(Finding(severity, file.path, what, position, header.base_offset))

    def _on_bad_bytes(self, bad: BadBytes, number: int) -> bool:
        """Three cases; False in the last one, where recovery would end the log.

        1. A batch is sound in itself, but not in its place.
        2. A sound batch follows, here or in a later segment: damage, which is never cut.
        3. None follows: a torn tail.
        """
        path, length = self.segments[number].path, bad.end - bad.position
        self._on_gap()
        if bad.sound_follows and not length:  # case 1
            what = f"a batch is out of place: {bad.what}"
        else:
            what = f"{length} bytes are no batch: {bad.what}"
            self.is_end_known = False
            if not bad.sound_follows and not self._is_sound_from(number + 1, bad.offset):  # case 3
                self.end_offset = bad.offset
                self._report_tail(path, what, bad.position)
                return False
        self.findings.error(path, what, position=bad.position, offset=bad.offset)
        return True

    def _on_gap(self) -> None:
        self.producers.on_gap()
        self.aborted.on_gap()

    def _is_sound_from(self, number: int, offset: int) -> bool:
        return any(self._has_sound_batch(each, offset) for each in self.segments[number:])

    def _has_sound_batch(self, segment: SegmentFile, offset: int) -> bool:
        try:
            file = self.files.open(segment.path)
            return find_sound_batch(file, 0, segment.size, offset) is not None
        except READ_ERRORS:  # reported where that segment is checked
            return False

    # -- the end ---------------------------------------------------------------------------

    def _report_tail(self, path: Path, what: str, position: int | None) -> None:
        """Nothing sound follows: an error below the recovery point, as it was durable once."""
        place = {"offset": self.end_offset} | ({} if position is None else {"position": position})
        if self.recovery_point is not None and self.end_offset < self.recovery_point:
            what = f"{what}; it was durable up to offset {self.recovery_point}"
            self.findings.error(path, what, **place)
        else:
            self.findings.warning(path, f"torn tail, recovery cuts it: {what}", **place)
        self.is_end_known = False

    def _check_end(self, log_start_offset: int) -> None:
        path = self.segments[-1].path
        if not self.is_end_known:
            return
        if log_start_offset > self.end_offset:
            what = f"the log ends at {self.end_offset}, before its start {log_start_offset}"
            self.findings.error(path, what, offset=self.end_offset)
        elif self.recovery_point is not None and self.end_offset < self.recovery_point:
            what = f"offsets {self.end_offset} to {self.recovery_point} were durable, and are gone"
            self.findings.error(path, what, offset=self.end_offset)
