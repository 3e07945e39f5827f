"""Verification of the small files of a log: log start, damage mark, checkpoints, orphans.

Owns what each of them may say about the log, and which data should exist because of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.disk.checkpoint import read_file
from raftmq.partition.storage.inspect import (
    CHECKPOINTS,
    CHECKPOINTS_FOLDER,
    list_indexes,
    read_small_file,
)
from raftmq.partition.storage.segment import log_path
from raftmq.partition.storage.work import DAMAGE_MARK, LOG_START_FILE, LOG_START_KEY
from raftmq.partition.verify.findings import Finding, Findings
from raftmq.partition.verify.indexes import READ_ERRORS

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq.disk.files import Files
    from raftmq.partition.storage.inspect import SegmentFile


def verify_checkpoints(files: Files, root: Path) -> list[Finding]:
    """The checkpoints of the data directory `root`; without them recovery only takes longer."""
    findings = Findings()
    for name in CHECKPOINTS:
        path = root / CHECKPOINTS_FOLDER / name
        _read(files, path, findings, "recovery will check every log from its start")
    return findings.all()


def _read(files: Files, path: Path, findings: Findings, consequence: str) -> dict[str, int] | None:
    """The file's values, none if it is missing; None and a finding if it is damaged."""
    try:
        if not files.exists(path):
            return {}
        values = read_small_file(files, path)
    except READ_ERRORS as error:
        findings.warning(path, f"cannot be read: {error}; {consequence}")
        return None
    if values is None:
        findings.warning(path, f"damaged; {consequence}")
    return values


def check_damage_mark(files: Files, folder: Path, findings: Findings) -> None:
    path = folder / DAMAGE_MARK
    try:
        data = read_file(files, path)
    except READ_ERRORS as error:
        findings.error(path, f"cannot be read: {error}")
        return
    if data is not None:
        said = " ".join(data.decode(errors="backslashreplace").split())
        findings.error(path, f"recovery has found the log {said}")


def check_log_start(
    files: Files, folder: Path, segments: list[SegmentFile], findings: Findings
) -> int:
    """The log start offset; everything from there on must be in the segments."""
    path = folder / LOG_START_FILE
    values = _read(files, path, findings, "the log begins with its first segment instead")
    recorded = (values or {}).get(LOG_START_KEY, 0)
    if not segments:
        findings.error(folder, "holds no segment")
        return recorded
    first = segments[0].base_offset
    # A trim raises the start before it removes segments.
    if values is not None and recorded < first:
        what = f"offsets {recorded} to {first} are missing, and were never trimmed"
        findings.error(segments[0].path, what, offset=recorded)
    return max(first, recorded)


def drop_trimmed(
    segments: list[SegmentFile], log_start_offset: int, findings: Findings
) -> list[SegmentFile]:
    """Without segments that end before the log starts: a crash has interrupted their deletion."""
    count = sum(segment.base_offset <= log_start_offset for segment in segments[1:])
    for segment in segments[:count]:
        what = f"ends before the log starts at {log_start_offset}; the next opening removes it"
        findings.warning(segment.path, what, offset=segment.base_offset)
    return segments[count:]


def check_orphans(
    files: Files,
    folder: Path,
    findings: Findings,
    log_end_offset: int,
    recovery_point: int | None,
) -> None:
    """Indexes without their segment: harmless left-overs of a deletion, or of a lost segment."""
    for path in list_indexes(files, folder):
        base_offset = int(path.stem)
        if files.exists(log_path(folder, base_offset)):  # it has its segment
            continue
        is_harmless = base_offset < log_end_offset or (
            recovery_point is not None and recovery_point <= log_end_offset
        )
        report = findings.warning if is_harmless else findings.error
        report(path, f"its segment {base_offset:020d}.log is missing", offset=base_offset)
