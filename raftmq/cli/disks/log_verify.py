"""`raftmq log verify`: check every byte of the partition folders below a path, and print a report.

Owns what the report looks like and the progress bar, which is drawn on a terminal only. What is an
error and what a warning is for `raftmq.partition.verify` to say.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from raftmq.cli.disks.folders import find_partitions
from raftmq.cli.terminal.exits import ExitCode
from raftmq.cli.terminal.output import Row, write_json, write_notes, write_table
from raftmq.disk.files import OsFiles
from raftmq.errors import StorageError
from raftmq.partition.storage.inspect import data_directory_of, list_segments
from raftmq.partition.verify.findings import Finding, Severity
from raftmq.partition.verify.partition import PartitionReport, verify_partition
from raftmq.partition.verify.side_files import verify_checkpoints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from raftmq.disk.files import Files

PROGRESS_STEP_BYTES = 4 << 20  # of reading between two drawings of the bar
PARTITION_TITLES = ("folder", "segments", "batches", "records", "bytes", "start", "end", "verdict")
FINDING_TITLES = ("severity", "file", "byte", "offset", "what")


def verify_logs(path: Path, *, as_json: bool) -> int:
    """Verify, print the report, and return the exit code."""
    files = OsFiles(read_only=True)
    folders = find_partitions(files, path)
    roots = {root for folder in folders if (root := data_directory_of(folder))}
    reports = [_checkpoint_report(files, root) for root in sorted(roots)]
    with _progress(files, folders) as on_bytes:
        reports += [verify_partition(files, folder, on_bytes) for folder in folders]
    if as_json:
        write_json(_objects(reports, len(folders)))
    else:
        _write_tables(path, reports, len(folders))
    return ExitCode.UNHEALTHY if _count(reports, Severity.ERROR) else ExitCode.OK


def _checkpoint_report(files: Files, root: Path) -> PartitionReport:
    return PartitionReport(root, findings=verify_checkpoints(files, root))


def _count(reports: list[PartitionReport], severity: Severity) -> int:
    return sum(found.severity is severity for report in reports for found in report.findings)


# -- progress ----------------------------------------------------------------------------------


@contextmanager
def _progress(files: Files, folders: list[Path]) -> Iterator[Callable[[int], None] | None]:
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = ("verify", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    total = sum(_size(files, folder) for folder in folders)
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("verify", total=total)
        yield _in_steps(lambda length: progress.advance(task, length))


def _size(files: Files, folder: Path) -> int:
    try:
        return sum(segment.size for segment in list_segments(files, folder))
    # A folder that cannot be listed: its verification says so, the bar only lacks it in its total.
    except (StorageError, OSError):
        return 0


def _in_steps(advance: Callable[[int], None]) -> Callable[[int], None]:
    """Report progress in steps: drawing the bar costs more than reading a batch."""
    waiting = 0

    def on_bytes(length: int) -> None:
        nonlocal waiting
        waiting += length
        if waiting >= PROGRESS_STEP_BYTES:
            advance(waiting)
            waiting = 0

    return on_bytes


# -- the report --------------------------------------------------------------------------------


def _objects(reports: list[PartitionReport], partitions: int) -> Iterator[Row]:
    for report in reports:
        for finding in report.findings:
            yield _finding_object(report.folder, finding)
    for report in reports[-partitions:]:
        yield _partition_object(report)
    yield {
        "type": "summary",
        "partitions": partitions,
        "batches": sum(report.batches for report in reports),
        "records": sum(report.records for report in reports),
        "bytes": sum(report.bytes for report in reports),
        "errors": _count(reports, Severity.ERROR),
        "warnings": _count(reports, Severity.WARNING),
    }


def _finding_object(folder: Path, finding: Finding) -> Row:
    return {
        "type": "finding",
        "severity": finding.severity.value,
        "folder": str(folder),
        "file": _name_in(folder, finding.file),
        "position": finding.position,
        "offset": finding.offset,
        "what": finding.what,
    }


def _partition_object(report: PartitionReport) -> Row:
    return {
        "type": "partition",
        "folder": str(report.folder),
        "segments": report.segments,
        "batches": report.batches,
        "records": report.records,
        "bytes": report.bytes,
        "log_start_offset": report.log_start_offset,
        "log_end_offset": report.log_end_offset,
        "errors": _count([report], Severity.ERROR),
        "warnings": _count([report], Severity.WARNING),
    }


def _write_tables(path: Path, reports: list[PartitionReport], partitions: int) -> None:
    write_table(PARTITION_TITLES, map(_partition_row, reports[-partitions:]))
    rows = [_finding_row(path, found) for severity in Severity for found in _of(reports, severity)]
    if rows:
        sys.stdout.write("\n")
        write_notes(FINDING_TITLES, rows)
    sys.stdout.write(f"\n{_verdict(reports)}\n")
    sys.stdout.flush()


def _of(reports: list[PartitionReport], severity: Severity) -> Iterator[Finding]:
    for report in reports:
        for finding in report.findings:
            if finding.severity is severity:
                yield finding


def _partition_row(report: PartitionReport) -> tuple[object, ...]:
    return (
        report.folder,
        report.segments,
        report.batches,
        report.records,
        report.bytes,
        report.log_start_offset,
        report.log_end_offset,
        _verdict([report]),
    )


def _verdict(reports: list[PartitionReport]) -> str:
    errors, warnings = _count(reports, Severity.ERROR), _count(reports, Severity.WARNING)
    counted = [
        f"{count} {word}" + ("" if count == 1 else "s")
        for count, word in ((errors, "error"), (warnings, "warning"))
        if count
    ]
    return ", ".join(counted) or "ok"


def _finding_row(path: Path, finding: Finding) -> tuple[object, ...]:
    file = _name_in(path, finding.file)
    return (finding.severity.value, file, finding.position, finding.offset, finding.what)


def _name_in(folder: Path, file: Path) -> str:
    """Relative to the path that the user gave."""
    return str(file.relative_to(folder)) if file.is_relative_to(folder) else str(file)
