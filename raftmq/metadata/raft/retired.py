"""A directory that must not come back: the others refused it as an older copy.

Owns one small file with the reason. Without it a supervisor that starts the voter again and again
would have it counted as new in the end: each start raises the count by which copies are told apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.disk.checkpoint import read_file, replace_file
from raftmq.errors import CorruptJournal

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq.disk.files import Files

REFUSED_NAME = "REFUSED"


def retire(files: Files, directory: Path, reason: str) -> None:
    """From now on every start says why not. Waits for the disk: the voter ends anyhow."""
    replace_file(files, directory / REFUSED_NAME, reason.encode())


def check_not_retired(files: Files, directory: Path) -> None:
    """
    Raises:
        CorruptJournal: it was refused in an earlier run.
    """
    reason = read_file(files, directory / REFUSED_NAME)
    if reason is not None:
        raise CorruptJournal(
            f"{directory}: refused by another voter in an earlier run ({REFUSED_NAME}):"
            f" {reason.decode(errors='replace')}"
        )
