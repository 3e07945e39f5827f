"""A journal against a plain list: whatever a node does to it, both say the same.

The script and the model are those of the crash sweep; here nothing crashes, and the examples are
many. Every step compares all that the journal says.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from raftmq.disk.files import OsFiles
from tests.simulation.disk import SimulatedFiles
from tests.simulation.journal_script import DIRECTORY, JournalScript

if TYPE_CHECKING:
    from pathlib import Path


@given(st.integers(min_value=0))
@settings(max_examples=20)
def test_it_says_what_a_list_would_say(seed: int) -> None:
    """Appends, messages, votes, compactions, snapshots and restarts in any order."""
    files = SimulatedFiles(Random(0))
    files.make_directory(DIRECTORY.parent)
    JournalScript(files, Random(seed)).run(80)


def test_real_files_say_the_same(tmp_path: Path) -> None:
    """One of these lives on the disk of this machine."""
    JournalScript(OsFiles(), Random(1), tmp_path / "journal").run(100)
