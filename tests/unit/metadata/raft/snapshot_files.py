"""Snapshot files for tests: a store on a simulated disk, and what another node would send.

Owns two contents, old and new, that differ in length; the new one takes several chunks.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from raftmq.metadata.raft.snapshot.store import SnapshotStore
from tests.simulation.disk import SimulatedFiles

if TYPE_CHECKING:
    from raftmq.disk.files import Files
    from raftmq.metadata.raft.snapshot.store import SnapshotInfo
    from raftmq.metadata.raft.snapshot.transfer import SnapshotId

ROOT = Path("/quorum")
CLUSTER = "orders-cluster"
OLD, NEW = [b"old", b"o" * 700], [b"new", b"n" * 1500, b"!"]
CHUNK_BYTES = 512


def disk(seed: int = 0) -> SimulatedFiles:
    files = SimulatedFiles(Random(seed))
    files.make_directory(ROOT)
    return files


def opened(files: Files, directory: Path = ROOT, cluster: str = CLUSTER) -> SnapshotStore:
    store = SnapshotStore(files, directory, cluster_id=cluster)
    store.newest()
    return store


def names(files: Files) -> list[str]:
    return files.names(ROOT)


def raw(files: Files, path: Path) -> bytes:
    return files.open(path).read(0, files.size(path))


def receive(store: SnapshotStore, snapshot: SnapshotId, data: bytes) -> SnapshotInfo:
    incoming = store.incoming(snapshot)
    while incoming.position < len(data):
        incoming.write(incoming.position, data[incoming.position : incoming.position + CHUNK_BYTES])
    return incoming.finish()


def elsewhere(index: int = 20, slices: list[bytes] = NEW) -> tuple[SnapshotId, bytes]:
    """A snapshot of another node: its id and its bytes."""
    files = disk()
    info = opened(files).write(index=index, term=3, slices=slices)
    return info.id, raw(files, info.path)
