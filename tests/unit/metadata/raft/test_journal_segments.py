"""How a journal gets shorter: snapshots, compaction, segments that come and go."""

from __future__ import annotations

import errno

import pytest

from raftmq.errors import StorageError
from raftmq.metadata.raft.journal.segments import segment_path
from tests.unit.metadata.raft.journals import (
    DIRECTORY,
    append,
    commands,
    commit_all,
    content,
    flush,
    prepared,
    remove_dead,
    simulated,
    started,
)


def test_a_compaction_keeps_what_trails_the_snapshot() -> None:
    """Slow followers get the entries just below the snapshot from the log."""
    files = simulated()
    journal = started(files, term=3)
    append(journal, *(b"%d" % index for index in range(2, 12)))
    commit_all(journal)
    journal.compact(10, trailing=3)
    flush(journal)
    for found in (journal, started(files)):
        assert found[0] == (b"\x01", 7, 3)
        assert commands(found) == [b"8", b"9", b"10", b"11"]
        assert found.first_index == 7
        assert found.entry_bytes == 4 * 21 + 6


def test_a_compaction_that_finds_nothing_writes_nothing() -> None:
    """All that the snapshot covers is among the trailing entries, or gone already."""
    journal = started(simulated(), term=3)
    append(journal, b"two", b"three")
    flush(journal)
    commit_all(journal)
    journal.compact(3, trailing=10)
    assert not journal.dirty
    assert len(journal) == 3


def test_only_what_is_committed_is_compacted() -> None:
    """A snapshot beyond the commit index cannot be."""
    journal = started(simulated(), term=3)
    append(journal, b"two", b"three")
    journal.setRaftCommitIndex(2)
    with pytest.raises(AssertionError, match="3 is not committed"):
        journal.compact(3, trailing=0)
    with pytest.raises(AssertionError, match="3 is not committed"):
        journal.deleteEntriesTo(2)


def test_pysyncobj_compacts_by_position() -> None:
    """The entry at the position becomes the first."""
    journal = started(simulated(), term=3)
    append(journal, b"two", b"three")
    commit_all(journal)
    journal.deleteEntriesTo(1)
    assert journal[:] == [(b"\x01", 2, 3), (b"three", 3, 3)]


def test_an_installed_snapshot_keeps_the_log_behind_it() -> None:
    """The log holds the snapshot's last entry: what follows it was promised, and stays."""
    files = simulated()
    journal = started(files, term=3)
    append(journal, b"two", b"three", b"four")
    flush(journal)
    journal.install_base(3, 3)
    flush(journal)
    for found in (journal, started(files)):
        assert found[:] == [(b"\x01", 3, 3), (b"four", 4, 3)]
        assert found.getRaftCommitIndex() == 3
        assert found.synced_index == 4


@pytest.mark.parametrize(("index", "term"), [(50, 2), (5, 2), (4, 4), (3, 4)])
@pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
def test_an_installed_snapshot_replaces_a_log_that_does_not_hold_it(
    index: int, term: int, segment_bytes: int
) -> None:
    """It is beyond the end, or another term stands there: nothing of the log counts."""
    files = simulated()
    journal = started(files, term=4, segment_bytes=segment_bytes)
    append(journal, b"two", b"three", b"four", term=2)
    flush(journal)
    journal.install_base(index, term)
    assert journal.synced_index < index
    flush(journal)
    for found in (journal, started(files)):
        assert found[:] == [(b"\x01", index, term)]
        assert (found.getRaftCommitIndex(), found.synced_index) == (index, index)
        assert found.entry_bytes == 0


def test_a_snapshot_cannot_deny_what_is_committed() -> None:
    """Another term at a committed index, or one below the base: the quorum has forked."""
    journal = started(simulated(), term=4)
    append(journal, b"two", b"three", term=2)
    commit_all(journal)
    with pytest.raises(AssertionError, match="denies committed entry 3"):
        journal.install_base(3, 4)
    journal.compact(3, trailing=0)
    with pytest.raises(AssertionError, match="denies committed entry 2"):
        journal.install_base(2, 2)


def test_a_batch_under_way_does_not_outlive_a_snapshot() -> None:
    """Installed while entries were being written that it replaces: they do not count as synced."""
    journal = started(simulated(), term=4)
    append(journal, b"two", b"three", term=2)
    batch = prepared(journal)
    journal.install_base(3, 4)
    append(journal, b"four")
    batch.write()
    journal.complete(batch)
    assert journal.synced_index == 2
    flush(journal)
    assert journal.synced_index == 4


# Segments


def test_a_full_segment_is_followed_by_another() -> None:
    """At its size; the new one begins with all that must outlive the old one."""
    files = simulated()
    journal = started(files, term=3, segment_bytes=1000)
    for index in range(2, 12):
        append(journal, bytes([index]) * 150)
        flush(journal)
    sizes = [len(content(files, number)) for number in (1, 2)]
    assert len(files.paths(DIRECTORY)) == 3
    assert all(1000 <= size < 1300 for size in sizes)
    assert journal.size_bytes == sum(sizes) + len(content(files, 3))
    again = started(files)
    assert again[:] == journal[:]
    assert again.getVotedForNodeId() == 1


def test_a_conflict_reaches_back_into_older_segments() -> None:
    """What they hold above it is dead, whatever follows; over restarts, too."""
    files = simulated()
    journal = started(files, term=3, segment_bytes=1)
    for command in (b"two", b"three", b"four"):
        append(journal, command)
        flush(journal)
    journal.setCurrentTerm(5, None)
    journal.deleteEntriesFrom(2)
    journal.add(b"THREE", 3, 5)
    journal.end_message()
    flush(journal)
    for _ in range(3):
        assert commands(started(files)) == [b"two", b"THREE"]


def test_segments_go_when_their_death_is_durable() -> None:
    """Oldest first, after the batch that raised the base, and never the last one."""
    files = simulated()
    journal = started(files, term=3, segment_bytes=1)
    for command in (b"two", b"three", b"four"):
        append(journal, command)
        flush(journal)
    commit_all(journal)
    assert remove_dead(journal) == (1, 2), "begun before there were entries"
    journal.compact(3, trailing=0)
    assert journal.prepare_removal() is None
    batch = prepared(journal)
    batch.write()
    assert journal.prepare_removal() is None
    journal.complete(batch)
    files.trace.clear()
    assert remove_dead(journal) == (3, 4)
    operations = [line.split()[1:] for line in files.trace]
    expected = [
        step
        for number in (3, 4)
        for step in (
            ["remove", str(segment_path(DIRECTORY, number))],
            ["sync_directory", str(DIRECTORY)],
        )
    ]
    assert operations == expected
    assert journal.size_bytes == sum(files.size(path) for path in files.paths(DIRECTORY))
    assert commands(started(files)) == [b"four"]


def test_one_removal_at_a_time() -> None:
    """Two could leave a gap; after a failure none is tried again before the next start."""
    files = simulated()
    journal = started(files, term=3, segment_bytes=1)
    append(journal, b"two")
    flush(journal)
    commit_all(journal)
    journal.compact(2, trailing=0)
    flush(journal)
    removal = journal.prepare_removal()
    assert removal is not None
    files.fail("remove", "*", error=errno.EIO)
    with pytest.raises(StorageError):
        removal.run()
    assert journal.prepare_removal() is None
    append(journal, b"three")
    flush(journal)
    assert remove_dead(started(files)) == (1, 2, 3, 4)


def test_a_removal_beside_a_batch_takes_only_what_it_may() -> None:
    """Segments that die with a batch under way are not counted twice."""
    files = simulated()
    journal = started(files, term=3, segment_bytes=1)
    for command in (b"two", b"three", b"four", b"five"):
        append(journal, command)
        flush(journal)
    commit_all(journal)
    journal.compact(2, trailing=0)
    flush(journal)
    removal = journal.prepare_removal()
    assert removal is not None
    journal.compact(3, trailing=0)
    batch = prepared(journal)
    removal.run()
    journal.removed(removal)
    batch.write()
    journal.complete(batch)
    assert removal.numbers == (1, 2, 3)
    assert remove_dead(journal) == (4,)
    assert commands(started(files)) == [b"four", b"five"]


def test_a_segment_that_is_mostly_dead_is_left_behind() -> None:
    """The next batch begins another, so that a later compaction can remove this one."""
    files = simulated()
    journal = started(files, term=3)
    append(journal, *(b"%d" % index for index in range(2, 22)))
    flush(journal)
    commit_all(journal)
    journal.compact(10, trailing=0)
    flush(journal)
    assert len(files.paths(DIRECTORY)) == 1, "half of it is alive"
    journal.compact(18, trailing=0)
    flush(journal)
    assert len(files.paths(DIRECTORY)) == 2
    append(journal, b"22")
    flush(journal)
    commit_all(journal)
    journal.compact(22, trailing=0)
    flush(journal)
    assert remove_dead(journal) == (1, 2)
