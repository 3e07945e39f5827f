"""The note in a directory that must not come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raftmq.disk.files import OsFiles
from raftmq.errors import CorruptJournal
from raftmq.metadata.raft.background import check_not_retired, retire

if TYPE_CHECKING:
    from pathlib import Path


def test_a_retired_directory_says_why_at_every_start(tmp_path: Path) -> None:
    """The reason of the refusal comes back, however often somebody starts it."""
    files = OsFiles()
    check_not_retired(files, tmp_path)
    retire(files, tmp_path, "the directory of voter 1 is an older copy")
    for _ in range(2):
        with pytest.raises(CorruptJournal, match=r"earlier run.*voter 1 is an older copy"):
            check_not_retired(files, tmp_path)
