"""A voter's journal for tests: started, written and read in one line.

Owns shorthand only. The directory is on whatever Files it is given.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from raftmq.metadata.raft.journal.format import BatchBuilder, JournalBounds, VoterIdentity
from raftmq.metadata.raft.journal.journal import Journal, start_journal
from raftmq.metadata.raft.journal.segments import SEGMENT_BYTES, segment_path
from tests.simulation.disk import SimulatedFiles

if TYPE_CHECKING:
    from raftmq.disk.files import Files
    from raftmq.metadata.raft.journal.segments import JournalWrite

DIRECTORY = Path("/data/journal")
DISK_ID = b"0123456789abcdef"


def simulated() -> SimulatedFiles:
    files = SimulatedFiles(Random(0))
    files.make_directory(DIRECTORY.parent)
    return files


def started(
    files: Files,
    directory: Path = DIRECTORY,
    *,
    term: int | None = None,
    cluster_id: str = "c",
    node_id: int = 1,
    disk_id: bytes = DISK_ID,
    sync: bool = True,
    segment_bytes: int = SEGMENT_BYTES,
) -> Journal:
    """With `term`, this voter has voted for itself in it, durably."""
    journal = start_journal(
        files,
        directory,
        cluster_id=cluster_id,
        node_id=node_id,
        new_disk_id=disk_id,
        sync=sync,
        segment_bytes=segment_bytes,
    )
    if term is not None:
        journal.setCurrentTerm(term, node_id)
        flush(journal)
    return journal


def flush(journal: Journal) -> None:
    batch = prepared(journal)
    batch.write()
    journal.complete(batch)


def prepared(journal: Journal) -> JournalWrite:
    batch = journal.prepare()
    assert batch is not None
    return batch


def append(journal: Journal, *commands: bytes, term: int | None = None) -> None:
    """At the end, in the current term."""
    for command in commands:
        journal.add(command, journal.last_index + 1, term or journal.getCurrentTerm())


def commit_all(journal: Journal) -> None:
    journal.setRaftCommitIndex(journal.last_index)


def remove_dead(journal: Journal) -> tuple[int, ...]:
    removal = journal.prepare_removal()
    if removal is None:
        return ()
    removal.run()
    journal.removed(removal)
    return removal.numbers


def commands(journal: Journal) -> list[bytes]:
    return [command for command, _, _ in journal[1:]]


def content(files: Files, number: int, directory: Path = DIRECTORY) -> bytes:
    file = files.open(segment_path(directory, number))
    return file.read(0, file.size())


def replace_content(files: Files, number: int, data: bytes) -> None:
    file = files.open(segment_path(DIRECTORY, number), create=True)
    file.truncate(0)
    file.write(0, [data])


def head(
    *,
    bounds: JournalBounds | None = None,
    term: int = 5,
    sequence: int = 1,
    disk_id: bytes = DISK_ID,
) -> bytes:
    """A first batch, written by hand."""
    builder = BatchBuilder()
    builder.add_identity(VoterIdentity(disk_id, "c", 1))
    builder.add_vote(term, None)
    builder.add_bounds(bounds or JournalBounds(1, 0, 1, 0))
    return builder.build(sequence, disk_id)
