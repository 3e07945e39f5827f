"""`raftmq quorum verify`: check the journal and snapshots of one voter (or observer) on disk.

Owns what the report looks like, and which findings would keep the voter from starting (errors) or
are repaired by its next start (warnings). The bytes are judged by `verify_journal` and
`verify_snapshot`, which starting voters use, too.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.cli.terminal.output import Row, write_json, write_notes, write_table
from raftmq.disk.checkpoint import read_file
from raftmq.disk.files import OsFiles
from raftmq.metadata.raft.background import JOURNAL_FOLDER, REFUSED_NAME
from raftmq.metadata.raft.journal.journal import JournalReport, verify_journal
from raftmq.metadata.raft.snapshot.store import (
    INCOMING_SUFFIX,
    PART_SUFFIX,
    SnapshotReport,
    verify_snapshot,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from raftmq.disk.files import Files
    from raftmq.metadata.raft.journal.journal import JournalSummary

SNAPSHOT_SUFFIX, SEGMENT_SUFFIX = ".snapshot", ".journal"
LOCK_NAME = ".lock"
SHAPE = "a quorum directory holds journal/*.journal and, later, snapshot-*.snapshot"
ERROR, WARNING = "error", "warning"
PART_TITLES = ("part", "node", "cluster", "from", "to", "term", "files", "bytes")
FINDING_TITLES = ("severity", "file", "what")


class JournalFinding(NamedTuple):
    severity: str
    file: str
    what: str


class VoterFiles(NamedTuple):
    """Snapshots are in the order of their indexes; the last one is what a start begins with.

    Attributes:
        refused: why another voter has rejected this directory, so that it may never start again.
    """

    journal: JournalReport
    snapshots: list[SnapshotReport]
    leftovers: list[str]
    refused: str | None

    @property
    def has_journal(self) -> bool:
        return self.journal.summary is not None or self.journal.damage is not None


def verify_quorum(folder: Path, *, is_observer: bool, as_json: bool) -> int:
    """Verify, print the report, and return the exit code."""
    found = _read(OsFiles(read_only=True), folder, is_observer=is_observer)
    findings = sorted(
        _findings(found, is_observer=is_observer), key=lambda finding: finding.severity
    )
    if as_json:
        write_json(_objects(found, findings))
    else:
        _write_tables(found, findings)
    return ExitCode.FAILED if _count(findings, ERROR) else ExitCode.OK


def _read(files: Files, folder: Path, *, is_observer: bool) -> VoterFiles:
    if not files.exists(folder):
        raise CommandError(f"{folder} does not exist; {SHAPE}", ExitCode.NOT_FOUND)
    if not folder.is_dir():
        what = f"{folder} is a file; give the directory that it lies in: {folder.parent}"
        raise CommandError(what, ExitCode.USAGE)
    names = files.names(folder)
    # One level too deep, a common slip: the snapshots beside the journal would look missing.
    if folder.name == JOURNAL_FOLDER and any(name.endswith(SEGMENT_SUFFIX) for name in names):
        what = f"{folder} is the journal alone; give the voter's directory: {folder.parent}"
        raise CommandError(what, ExitCode.USAGE)
    snapshots = [name for name in names if name.endswith(SNAPSHOT_SUFFIX)]
    found = VoterFiles(
        verify_journal(files, folder / JOURNAL_FOLDER),
        [verify_snapshot(files, folder / name) for name in snapshots],
        [name for name in names if name.endswith((PART_SUFFIX, INCOMING_SUFFIX))],
        _refused(files, folder) if REFUSED_NAME in names else None,
    )
    is_new_observer = is_observer and LOCK_NAME in names  # it has fetched nothing yet
    if not (found.has_journal or found.snapshots or found.refused or is_new_observer):
        what = f"{folder} holds neither a journal nor a snapshot; {SHAPE}"
        raise CommandError(what, ExitCode.NOT_FOUND)
    return found


def _refused(files: Files, folder: Path) -> str:
    reason = read_file(files, folder / REFUSED_NAME) or b""
    return " ".join(reason.decode(errors="replace").split())


# -- findings ----------------------------------------------------------------------------------


def _findings(found: VoterFiles, *, is_observer: bool) -> Iterator[JournalFinding]:
    if found.refused is not None:
        yield JournalFinding(ERROR, REFUSED_NAME, f"another voter refused it: {found.refused}")
    yield from _journal_findings(found, is_observer=is_observer)
    for report in found.snapshots:
        is_newest = report is found.snapshots[-1]
        # A start reads the newest snapshot only: an older one does no harm.
        if report.problem:
            yield JournalFinding(ERROR if is_newest else WARNING, report.path.name, report.problem)
        if not is_newest:
            yield JournalFinding(WARNING, report.path.name, "replaced: the next start removes it")
    for name in found.leftovers:
        yield JournalFinding(WARNING, name, "was never finished: the next start removes it")


def _journal_findings(found: VoterFiles, *, is_observer: bool) -> Iterator[JournalFinding]:
    summary = found.journal.summary
    if is_observer and found.has_journal:
        what = "an observer keeps none: this is a voter's directory, leave --observer away"
        yield JournalFinding(ERROR, JOURNAL_FOLDER, what)
    # A voter without its journal has forgotten its votes, and must not start.
    if found.snapshots and not (found.has_journal or is_observer):
        what = "there is a snapshot, but the journal beside it is gone; only observers have none"
        yield JournalFinding(ERROR, JOURNAL_FOLDER, what)
    if found.journal.damage:
        yield JournalFinding(ERROR, JOURNAL_FOLDER, found.journal.damage)
    if summary and summary.torn_bytes:
        what = f"a torn write of {summary.torn_bytes} bytes at its end, which the next start cuts"
        yield JournalFinding(WARNING, JOURNAL_FOLDER, what)
    if summary:
        yield from _pair_findings(summary, found)


def _pair_findings(summary: JournalSummary, found: VoterFiles) -> Iterator[JournalFinding]:
    """Whether journal and snapshot belong together, as a starting voter checks."""
    newest = found.snapshots[-1] if found.snapshots else None
    if newest and newest.problem:  # reported as an error already; its key may be wrong
        return
    # Without a snapshot the journal must begin with entry 1, the one that every log begins with.
    end = newest.key.index if newest else 1
    if summary.first_index > end:
        what = f"begins behind entry {summary.first_index}, the snapshot ends with entry {end}"
        yield JournalFinding(
            ERROR, JOURNAL_FOLDER, f"{what}: the snapshot that belongs to it is gone"
        )
    if newest and newest.cluster_id != summary.identity.cluster_id:
        mine = summary.identity.cluster_id
        what = f"is of cluster {newest.cluster_id!r}, the journal of {mine!r}"
        yield JournalFinding(ERROR, newest.path.name, what)


def _count(findings: list[JournalFinding], severity: str) -> int:
    return sum(finding.severity == severity for finding in findings)


# -- the report --------------------------------------------------------------------------------


def _objects(found: VoterFiles, findings: list[JournalFinding]) -> Iterator[Row]:
    for finding in findings:
        yield {"type": "finding", **finding._asdict()}
    if found.journal.summary:
        yield _journal_object(found.journal.summary)
    for report in found.snapshots:
        yield {
            "type": "snapshot",
            "file": report.path.name,
            "cluster_id": report.cluster_id,
            "index": report.key.index,
            "term": report.key.term,
            "slices": report.slice_count,
            "bytes": report.size_bytes,
        }
    errors, warnings = _count(findings, ERROR), _count(findings, WARNING)
    yield {"type": "summary", "errors": errors, "warnings": warnings}


def _journal_object(summary: JournalSummary) -> Row:
    identity = summary.identity
    return {
        "type": "journal",
        "cluster_id": identity.cluster_id,
        "node_id": identity.node_id,
        "standing": identity.standing.name.lower(),
        "start_count": identity.start_count,
        "term": summary.term,
        "voted_for": summary.voted_for,
        "commit_index": summary.commit_index,
        "first_index": summary.first_index,
        "last_index": summary.last_index,
        "entries": summary.entry_count,
        "segments": summary.segment_count,
        "batches": summary.batch_count,
        "bytes": summary.size_bytes,
        "torn_bytes": summary.torn_bytes,
    }


def _write_tables(found: VoterFiles, findings: list[JournalFinding]) -> None:
    write_table(PART_TITLES, _part_rows(found))
    if findings:
        sys.stdout.write("\n")
        write_notes(FINDING_TITLES, findings)
    counted = [
        f"{count} {word}" + ("" if count == 1 else "s")
        for word in (ERROR, WARNING)
        if (count := _count(findings, word))
    ]
    sys.stdout.write(f"\n{', '.join(counted) or 'ok'}\n")
    sys.stdout.flush()


def _part_rows(found: VoterFiles) -> Iterator[tuple[object, ...]]:
    summary = found.journal.summary
    if found.journal.damage:
        yield "journal", *(None,) * (len(PART_TITLES) - 1)
    if summary:
        node, cluster = summary.identity.node_id, summary.identity.cluster_id
        first = summary.first_index + 1 if summary.entry_count else None
        extent = (first, summary.last_index if summary.entry_count else None)
        size = (summary.segment_count, summary.size_bytes)
        yield "journal", node, cluster, *extent, summary.term, *size
    for report in found.snapshots:
        extent = (1, report.key.index)
        yield "snapshot", None, report.cluster_id, *extent, report.key.term, 1, report.size_bytes
