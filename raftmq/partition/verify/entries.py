"""Files of entries under verification: reading them, and what can be wrong with any of them.

Owns the findings that do not depend on what entries mean: missing, unreadable, damaged, torn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import StorageError
from raftmq.partition.storage.entries import ENTRY_SIZE
from raftmq.partition.storage.inspect import read_entries
from raftmq.partition.verify.findings import Finding, Severity

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq.disk.files import Files
    from raftmq.partition.storage.entries import Entry
    from raftmq.partition.storage.inspect import EntriesFound
    from raftmq.partition.verify.findings import Findings

READ_ERRORS = (StorageError, OSError)


def load_entries(files: Files, path: Path, findings: Findings) -> list[Entry | None]:
    """The entries of `path`, None for damaged ones; a finding for whatever is wrong with them."""
    try:
        found = read_entries(files, path) if files.exists(path) else None
    except READ_ERRORS as error:
        if files.exists(path):
            findings.error(path, f"cannot be read: {error}")
            return [None]
        found = None  # removed just now
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
