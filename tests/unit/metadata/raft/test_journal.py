"""What a node may do to its journal, what PySyncObj sees of it, and what it never does."""

from __future__ import annotations

import errno
from random import Random
from typing import TYPE_CHECKING

import pytest

from raftmq.disk.files import OsFiles
from raftmq.errors import CorruptJournal, StorageError
from raftmq.metadata.raft.net.messages import Standing
from tests.simulation.disk_faults import PowerCut, crash_at
from tests.unit.metadata.raft.journals import (
    DIRECTORY,
    append,
    commands,
    commit_all,
    content,
    flush,
    prepared,
    simulated,
    started,
)

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq.metadata.raft.journal.journal import Journal


def hear(journal: Journal, *entries: tuple[bytes, int, int]) -> None:
    """As PySyncObj takes a message: delete everything behind the previous entry, then add."""
    journal.deleteEntriesFrom(entries[0][1] - journal.first_index)
    for entry in entries:
        journal.add(*entry)
    journal.end_message()


def test_a_new_journal_is_blank() -> None:
    """Nothing was ever promised: term 0, no vote, and only PySyncObj's first entry."""
    journal = started(simulated())
    assert journal[:] == [(b"\x01", 1, 0)]
    assert (journal.getCurrentTerm(), journal.getVotedForNodeId()) == (0, None)
    assert (journal.getRaftCommitIndex(), journal.synced_index, journal.torn_bytes) == (1, 1, 0)
    assert journal.identity == (b"0123456789abcdef", "c", 1, Standing.BLANK, 0, 1, ())
    assert not journal.dirty
    assert journal.prepare() is None


def test_what_was_completed_is_there_after_a_restart(tmp_path: Path) -> None:
    """Entries, term, vote, commit hint, standing: on real files, over two starts."""
    journal = started(OsFiles(), tmp_path, term=3)
    append(journal, b"two", b"", b"four" * 1000)
    commit_all(journal)
    journal.set_standing(Standing.ESTABLISHED)
    journal.set_enrolled_index(3)
    flush(journal)
    for starts in (2, 3):
        again = started(OsFiles(), tmp_path, disk_id=b"not needed again")
        assert again[:] == journal[:]
        assert (again.getCurrentTerm(), again.getVotedForNodeId()) == (3, 1)
        assert (again.getRaftCommitIndex(), again.synced_index) == (4, 4)
        expected = (b"0123456789abcdef", "c", 1, Standing.ESTABLISHED, 3, starts, ())
        assert again.identity == expected
        assert again.entry_bytes == journal.entry_bytes


@pytest.mark.parametrize(("cluster_id", "node_id"), [("other", 1), ("c", 2)])
def test_the_journal_of_another_node_is_refused(cluster_id: str, node_id: int) -> None:
    """A directory was mounted in the wrong place: it stays as it is."""
    files = simulated()
    started(files, term=3)
    before = content(files, 1)
    with pytest.raises(CorruptJournal, match="is the journal of node 1 of cluster 'c'"):
        started(files, cluster_id=cluster_id, node_id=node_id)
    assert content(files, 1) == before


def test_what_a_crash_left_half_made_is_removed() -> None:
    """A segment that was never put in place, and a name of somebody else."""
    files = simulated()
    started(files)
    for name in ("00000000000000000002.journal.tmp", "notes.tmp"):
        files.open(DIRECTORY / name, create=True)
    started(files)
    assert files.names(DIRECTORY) == ["00000000000000000001.journal", "notes.tmp"]


def test_the_directory_itself_is_made_durable() -> None:
    """The first start was killed when the directory was made, but not yet for good."""
    files = simulated()
    files.interrupt = crash_at(files.count + 1, "after")
    with pytest.raises(PowerCut):
        started(files)
    files = files.after_crash(power_lost=False)
    started(files, term=3)
    for seed in range(10):
        after = files.photograph(Random(seed), power_lost=True)
        assert started(after).getCurrentTerm() == 3


# Messages of a leader


def test_a_repeated_message_changes_nothing() -> None:
    """An old message comes twice: what follows its entries must stay, and nothing is written."""
    journal = started(simulated(), term=3)
    append(journal, b"two", b"three", b"four")
    flush(journal)
    hear(journal, (b"two", 2, 3))
    hear(journal, (b"two", 2, 3), (b"three", 3, 3))
    assert commands(journal) == [b"two", b"three", b"four"]
    assert not journal.dirty
    assert journal.synced_index == 4


def test_a_message_without_entries_deletes_nothing() -> None:
    """PySyncObj announces a deletion with each heartbeat of a leader that is behind."""
    journal = started(simulated(), term=3)
    append(journal, b"two")
    journal.deleteEntriesFrom(1)
    journal.end_message()
    assert commands(journal) == [b"two"]


def test_a_message_that_reaches_beyond_the_end_adds_the_rest() -> None:
    """Half of it was here already."""
    journal = started(simulated(), term=3)
    append(journal, b"two")
    hear(journal, (b"two", 2, 3), (b"three", 3, 3))
    assert commands(journal) == [b"two", b"three"]


def test_a_conflict_ends_the_old_log() -> None:
    """Another term at an index: it and everything behind it was never committed."""
    files = simulated()
    journal = started(files, term=3)
    append(journal, b"two", b"three", b"four")
    flush(journal)
    journal.setCurrentTerm(5, None)
    hear(journal, (b"two", 2, 3), (b"THREE", 3, 5))
    assert commands(journal) == [b"two", b"THREE"]
    assert journal.synced_index == 2
    flush(journal)
    assert journal.synced_index == 3
    assert commands(started(files)) == [b"two", b"THREE"]


def test_a_committed_entry_is_never_deleted() -> None:
    """A conflict at or below the commit index means that two leaders disagree: stop."""
    journal = started(simulated(), term=3)
    append(journal, b"two", b"three")
    journal.setRaftCommitIndex(2)
    journal.setCurrentTerm(5, None)
    with pytest.raises(AssertionError, match="entry 2 conflicts, and 2 is committed"):
        hear(journal, (b"TWO", 2, 5))
    assert commands(journal) == [b"two", b"three"]


def test_one_leader_does_not_say_two_things() -> None:
    """The same index and term with another command: Raft's log matching is broken."""
    journal = started(simulated(), term=3)
    append(journal, b"two")
    with pytest.raises(AssertionError, match="two commands for entry 2 of term 3"):
        hear(journal, (b"TWO", 2, 3))


@pytest.mark.parametrize(("index", "term"), [(1, 3), (2, 3), (4, 3), (3, 2), (3, 4)])
def test_entries_follow_each_other(index: int, term: int) -> None:
    """Outside of a message, only the next index will do, in a term that is known."""
    journal = started(simulated(), term=3)
    append(journal, b"two")
    with pytest.raises(AssertionError):
        journal.add(b"x", index, term)
    assert commands(journal) == [b"two"]


# Terms and votes


@pytest.mark.parametrize(("term", "vote"), [(2, None), (2, 1), (3, 2), (3, None)])
def test_a_promise_is_kept(term: int, vote: int | None) -> None:
    """In term 3 the vote went to voter 1: no older term, and nobody else in this one."""
    journal = started(simulated(), term=3)
    with pytest.raises(AssertionError):
        journal.setCurrentTerm(term, vote)
    assert (journal.getCurrentTerm(), journal.getVotedForNodeId()) == (3, 1)


def test_a_new_term_comes_without_a_vote_and_then_has_one() -> None:
    """Saying the same again is not written again."""
    journal = started(simulated(), term=3)
    journal.setCurrentTerm(4, None)
    journal.setCurrentTerm(4, 0)
    assert (journal.getCurrentTerm(), journal.getVotedForNodeId()) == (4, 0)
    flush(journal)
    journal.setCurrentTerm(4, 0)
    assert not journal.dirty


def test_the_commit_index_is_a_hint() -> None:
    """It never asks for a sync, travels with what is written, and never falls."""
    files = simulated()
    journal = started(files, term=3)
    append(journal, b"two", b"three")
    flush(journal)
    commit_all(journal)
    journal.onOneSecondTimer()
    assert not journal.dirty
    assert started(files).getRaftCommitIndex() == 1
    journal = started(files)
    journal.setRaftCommitIndex(3)
    journal.setRaftCommitIndex(2)
    append(journal, b"four")
    flush(journal)
    assert started(files).getRaftCommitIndex() == 3
    with pytest.raises(AssertionError, match="5 is beyond the log's end"):
        journal.setRaftCommitIndex(5)


def test_standing_and_enrolment_only_rise() -> None:
    """An enrolment that is applied again after a restart costs nothing."""
    journal = started(simulated())
    journal.set_standing(Standing.ESTABLISHED)
    journal.set_enrolled_index(7)
    flush(journal)
    journal.set_standing(Standing.ESTABLISHED)
    journal.set_enrolled_index(5)
    assert journal.identity.enrolled_index == 7
    assert not journal.dirty
    with pytest.raises(AssertionError, match="cannot become"):
        journal.set_standing(Standing.BLANK)


# Writing


def test_what_comes_later_belongs_to_the_next_batch() -> None:
    """While a batch is being written the node goes on."""
    files = simulated()
    journal = started(files, term=3)
    append(journal, b"two")
    batch = prepared(journal)
    append(journal, b"three")
    batch.write()
    assert journal.synced_index == 1
    journal.complete(batch)
    assert journal.synced_index == 2
    assert journal.dirty
    assert commands(started(files)) == [b"two"]


def test_a_conflict_while_a_batch_is_written_is_not_synced_with_it() -> None:
    """The batch holds entries 2 and 3; meanwhile 3 becomes another."""
    journal = started(simulated(), term=3)
    append(journal, b"two", b"three")
    batch = prepared(journal)
    journal.setCurrentTerm(5, None)
    hear(journal, (b"THREE", 3, 5), (b"four", 4, 5))
    batch.write()
    journal.complete(batch)
    assert journal.synced_index == 2
    flush(journal)
    assert journal.synced_index == 4


def test_one_batch_at_a_time() -> None:
    """A second one would be written before the first is known to be synced."""
    journal = started(simulated(), term=3)
    append(journal, b"two")
    batch = prepared(journal)
    append(journal, b"three")
    with pytest.raises(AssertionError, match="one batch at a time"):
        journal.prepare()
    batch.write()
    journal.complete(batch)
    with pytest.raises(AssertionError, match="another batch"):
        journal.complete(batch)


def test_bytes_are_counted() -> None:
    """Of the batches that were synced, of the entries, and of the files."""
    files = simulated()
    journal = started(files)
    first = journal.synced_bytes
    assert journal.size_bytes == len(content(files, 1)) == first
    journal.setCurrentTerm(1, 1)
    append(journal, b"x" * 100)
    batch = prepared(journal)
    batch.write()
    assert journal.synced_bytes == first
    journal.complete(batch)
    assert journal.synced_bytes == journal.size_bytes == len(content(files, 1))
    assert journal.entry_bytes == 121


@pytest.mark.parametrize(
    ("operation", "error", "reason"),
    [("write", errno.ENOSPC, "No space left"), ("sync", errno.EIO, "Input/output error")],
)
@pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
def test_after_a_failed_write_only_a_restart_helps(
    operation: str, error: int, reason: str, segment_bytes: int
) -> None:
    """A full disk is an error that says so, and nothing is tried again, in either kind of write."""
    files = simulated()
    journal = started(files, term=3, segment_bytes=segment_bytes)
    append(journal, b"two")
    flush(journal)
    append(journal, b"three")
    files.fail(operation, "*", error=error)
    batch = prepared(journal)
    with pytest.raises(StorageError, match=reason):
        batch.write()
    count = files.count
    with pytest.raises(StorageError, match=f"no more writes until a restart.*{reason}"):
        journal.prepare()
    with pytest.raises(StorageError, match="no more writes until a restart"):
        batch.write()
    assert files.count == count
    assert journal.synced_index == 2
    assert commands(started(files))[:1] == [b"two"]


def test_a_start_that_fails_leaves_the_journal_as_it_was() -> None:
    """No room for the new last segment: the old one is still there."""
    files = simulated()
    journal = started(files, term=3)
    append(journal, b"two")
    flush(journal)
    files.fail("write", "*", error=errno.ENOSPC)
    with pytest.raises(StorageError, match="No space left"):
        started(files)
    assert commands(started(files)) == [b"two"]


def test_a_closed_journal_takes_no_more_writes() -> None:
    """PySyncObj destroys it with itself."""
    journal = started(simulated(), term=3)
    append(journal, b"two")
    batch = prepared(journal)
    journal._destroy()
    with pytest.raises(StorageError, match="closed"):
        batch.write()


def test_syncing_can_be_turned_off() -> None:
    """For benchmarks: batches stay in the page cache, new segments do not."""
    files = simulated()
    journal = started(files, sync=False)
    files.trace.clear()
    journal.setCurrentTerm(1, 1)
    append(journal, b"two")
    flush(journal)
    assert [line.split()[1] for line in files.trace] == ["write"]


# Reading


def test_entries_are_taken_by_index_and_bytes() -> None:
    """A half-open range, cut where the commands get too many; always one, so that it goes on."""
    journal = started(simulated(), term=3)
    append(journal, b"aa", b"bbb", b"", b"cccc")
    assert journal.entries(2, 6, 100) == journal[1:]
    assert journal.entries(3, 5, 100) == journal[2:4]
    assert journal.entries(2, 6, 5) == journal[1:4]
    assert journal.entries(2, 6, 4) == journal[1:2]
    assert journal.entries(3, 6, 1) == journal[2:3]
    assert journal.entries(5, 99, 100) == journal[4:]
    assert journal.entries(6, 9, 100) == []
    assert journal.entries(3, 3, 100) == []
    with pytest.raises(AssertionError, match="entry 1 is below the log"):
        journal.entries(1, 3, 100)


def test_terms_are_known_from_the_base_to_the_end() -> None:
    """And None elsewhere."""
    journal = started(simulated(), term=3)
    append(journal, b"two")
    assert [journal.term_at(index) for index in (0, 1, 2, 3)] == [None, 0, 3, None]


def test_it_is_a_list_to_pysyncobj() -> None:
    """Length, single entries from both ends, slices."""
    journal = started(simulated(), term=3)
    append(journal, b"two", b"three")
    assert len(journal) == 3
    assert journal[0] == (b"\x01", 1, 0)
    assert journal[-1] == (b"three", 3, 3)
    assert journal[1:] == [(b"two", 2, 3), (b"three", 3, 3)]
    assert journal[5:6] == []
    with pytest.raises(AssertionError, match="never cleared"):
        journal.clear()
