"""Places in a stopped voter's journal and snapshots where damage must keep it from starting.

Reads only. Avoids the very last batch of the journal: damaged, it looks like a torn write, and the
voter would forget a promise. A journal that is only shorter cannot be told from an older copy, so
that journals are not truncated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jepsen_like.nemesis.wounds import Place
from raftmq.broker.meta import QUORUM_FOLDER
from raftmq.metadata.raft.background import JOURNAL_FOLDER
from raftmq.metadata.raft.journal.format import find_batch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def journal_places(root: Path) -> list[Place]:
    """Each whole batch of the last two files but the last one."""
    paths = sorted((root / QUORUM_FOLDER / JOURNAL_FOLDER).glob("*.journal"))[-2:]
    return [place for path in paths for place in _batches(path)][:-1]


def _batches(path: Path) -> Iterator[Place]:
    data, position = path.read_bytes(), 0
    while header := find_batch(data, position):
        yield Place(path, position, header.end)
        position = header.end


def snapshot_places(root: Path) -> list[Place]:
    """All of the newest snapshot: older ones are not read."""
    paths = sorted((root / QUORUM_FOLDER).glob("snapshot-*.snapshot"))[-1:]
    return [Place(path, 0, path.stat().st_size) for path in paths]
