"""What a reader makes of a journal's files: torn ends are cut, everything else is damage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raftmq.disk.files import OsFiles
from raftmq.errors import CorruptJournal
from raftmq.metadata.raft.journal import format as form
from raftmq.metadata.raft.journal.format import (
    BatchBuilder,
    JournalBounds,
    VoterIdentity,
    find_batch,
)
from raftmq.metadata.raft.journal.journal import verify_journal
from raftmq.metadata.raft.journal.replay import replay_journal
from raftmq.metadata.raft.journal.segments import segment_path
from raftmq.metadata.raft.net.messages import Standing
from tests.unit.metadata.raft.journals import (
    DIRECTORY,
    DISK_ID,
    append,
    commands,
    commit_all,
    content,
    flush,
    head,
    remove_dead,
    replace_content,
    simulated,
    started,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.simulation.disk import SimulatedFiles


def with_three_batches(files: SimulatedFiles) -> list[int]:
    """Entries 2, 3 and 4, a batch each; where in segment 1 every batch begins, and the end."""
    journal = started(files, term=3)
    for command in (b"two", b"three", b"four"):
        append(journal, command)
        flush(journal)
    return batch_starts(content(files, 1))


def batch_starts(data: bytes) -> list[int]:
    starts = [0]
    while header := find_batch(data, starts[-1]):
        starts.append(header.end)
    return starts


def with_segments(files: SimulatedFiles) -> None:
    """Segments 1 to 4; the first three hold one entry each."""
    journal = started(files, term=3, segment_bytes=1)
    for command in (b"two", b"three"):
        append(journal, command)
        flush(journal)


@pytest.mark.parametrize("tail", [b"x", bytes(5000), form.MAGIC, b"\xff" * 700])
def test_a_torn_end_is_cut(tail: bytes) -> None:
    """What a crash left behind the last whole batch is reported once, and gone afterwards."""
    files = simulated()
    end = with_three_batches(files)[-1]
    files.open(segment_path(DIRECTORY, 1)).write(end, [tail])
    report = verify_journal(files, DIRECTORY)
    assert report.summary is not None
    assert report.summary.torn_bytes == len(tail)
    journal = started(files)
    assert journal.torn_bytes == len(tail)
    assert commands(journal) == [b"two", b"three", b"four"]
    assert started(files).torn_bytes == 0


@pytest.mark.parametrize("lost", [1, 20, 38, 50, 64])
def test_a_batch_in_part_counts_for_nothing(lost: int) -> None:
    """The last batch lost its end: its entry is gone, the ones before are there."""
    files = simulated()
    *_, last, end = with_three_batches(files)
    files.cut(segment_path(DIRECTORY, 1), max(end - lost, last))
    journal = started(files)
    assert commands(journal) == [b"two", b"three"]
    assert journal.torn_bytes == max(end - lost - last, 0)


def test_a_torn_command_may_hold_a_batch_of_another_journal() -> None:
    """Bytes inside of a command that look like a later batch do not make a torn write damage."""
    files = simulated()
    journal = started(files, term=3)
    append(journal, head(sequence=1000, disk_id=b"another journal!") + b"z" * 50)
    flush(journal)
    files.cut(segment_path(DIRECTORY, 1), files.size(segment_path(DIRECTORY, 1)) - 1)
    assert commands(started(files)) == []


def test_damage_in_the_middle_stops_the_node() -> None:
    """A whole batch behind a damaged one: that one was durable. Told with file, byte, way out."""
    files = simulated()
    starts = with_three_batches(files)
    before = content(files, 1)
    files.flip_bit(segment_path(DIRECTORY, 1), starts[3] + 50, 3)
    with pytest.raises(CorruptJournal) as caught:
        started(files)
    message = str(caught.value)
    assert f"{segment_path(DIRECTORY, 1)}: at byte {starts[3]}: batch 4 is damaged" in message
    assert f"batch 5 at byte {starts[4]} is not" in message
    assert f"move all of {DIRECTORY.parent} away" in message
    files.flip_bit(segment_path(DIRECTORY, 1), starts[3] + 50, 3)
    assert content(files, 1) == before, "a start that fails changes nothing"


def test_damage_that_moves_what_follows_is_found_as_well() -> None:
    """A byte is missing in the middle, so no batch is where its predecessor says."""
    files = simulated()
    starts = with_three_batches(files)
    data = content(files, 1)
    replace_content(files, 1, data[: starts[2] + 7] + data[starts[2] + 8 :])
    with pytest.raises(CorruptJournal, match="batch 3 is damaged, and batch 4"):
        started(files)


def test_bytes_before_the_last_batch_are_damage_as_well() -> None:
    """The batch that is missed stands behind them, whole: nothing here is torn."""
    files = simulated()
    starts = with_three_batches(files)
    data = content(files, 1)
    replace_content(files, 1, data[: starts[4]] + b"x" + data[starts[4] :])
    with pytest.raises(CorruptJournal, match="batch 5 is damaged, and batch 5 at byte"):
        started(files)


def test_the_first_batch_is_never_torn() -> None:
    """A segment is put in place whole; so if its beginning is bad, it was durable once."""
    files = simulated()
    with_three_batches(files)
    for data in (b"", content(files, 1)[:40], b"x" + content(files, 1)):
        replace_content(files, 1, data)
        with pytest.raises(CorruptJournal, match="at byte 0: the first batch of a segment"):
            started(files)


def test_an_older_segment_is_never_torn() -> None:
    """The next one was begun after all of it was synced."""
    files = simulated()
    with_three_batches(files)
    data = content(files, 1)
    journal = started(files, segment_bytes=1)
    append(journal, b"five")
    flush(journal)
    replace_content(files, 1, data[:-1])
    with pytest.raises(CorruptJournal, match="batch 5 is damaged, and a segment follows"):
        started(files)


@pytest.mark.parametrize("number", [2, 3])
def test_a_missing_segment_is_named(number: int) -> None:
    """One in the middle is gone: its name is the message."""
    files = simulated()
    with_segments(files)
    files.remove(segment_path(DIRECTORY, number))
    missing = f"{segment_path(DIRECTORY, number)}: the file is missing"
    with pytest.raises(CorruptJournal, match=missing):
        started(files)


def test_a_missing_first_segment_is_missed_if_it_held_live_entries() -> None:
    """Nobody may take the oldest segments away before the base has risen above them."""
    files = simulated()
    with_segments(files)
    files.remove(segment_path(DIRECTORY, 1))
    assert commands(started(files)) == [b"two", b"three"]
    for number in (2, 3):
        files.remove(segment_path(DIRECTORY, number))
    with pytest.raises(CorruptJournal, match="missing, and the entries from 2 to 2 with it"):
        replay_journal(files, DIRECTORY)


def test_dead_segments_that_a_crash_left_do_no_harm() -> None:
    """The removal never ran: the next start reads them, and removes them."""
    files = simulated()
    journal = started(files, term=3, segment_bytes=1)
    append(journal, b"two", b"three")
    flush(journal)
    commit_all(journal)
    journal.compact(3, 0)
    flush(journal)
    assert files.exists(segment_path(DIRECTORY, 1))
    journal = started(files)
    assert (journal.first_index, journal.last_index) == (3, 3)
    assert remove_dead(journal) == (1, 2, 3)
    assert [path.name for path in files.paths(DIRECTORY)] == [segment_path(DIRECTORY, 4).name]
    assert (started(files).first_index, started(files).last_index) == (3, 3)


def test_batches_that_are_missing_are_missed() -> None:
    """The bytes of a whole batch were cut out of the middle."""
    files = simulated()
    starts = with_three_batches(files)
    data = content(files, 1)
    replace_content(files, 1, data[: starts[2]] + data[starts[3] :])
    with pytest.raises(CorruptJournal, match="batch 3 should follow, and batch 4 does"):
        started(files)


def test_a_batch_of_another_journal_is_refused() -> None:
    """Somebody restored the wrong file: each batch says which disk it belongs to."""
    files = simulated()
    other = BatchBuilder()
    other.add_vote(9, None)
    replace_content_of_new(files, head() + other.build(2, b"another journal!"))
    with pytest.raises(CorruptJournal, match="batch 2 is from another voter's journal"):
        started(files)


def replace_content_of_new(files: SimulatedFiles, data: bytes) -> None:
    files.make_directory(DIRECTORY)
    replace_content(files, 1, data)


def entry(index: int, term: int) -> Callable[[BatchBuilder], None]:
    return lambda batch: batch.add_entry((b"", index, term))


def vote(term: int, voted_for: int | None) -> Callable[[BatchBuilder], None]:
    return lambda batch: batch.add_vote(term, voted_for)


def bounds(*numbers: int) -> Callable[[BatchBuilder], None]:
    return lambda batch: batch.add_bounds(JournalBounds(*numbers))


def commit(index: int) -> Callable[[BatchBuilder], None]:
    return lambda batch: batch.add_commit(index)


def identity(disk_id: bytes = DISK_ID, **fields: int) -> Callable[[BatchBuilder], None]:
    return lambda batch: batch.add_identity(VoterIdentity(disk_id, "c", 1)._replace(**fields))


IMPOSSIBLE = [
    ([entry(3, 5)], "entry 3 of term 5 cannot follow entry 1 of term 0"),
    ([entry(1, 5)], "entry 1 of term 5 cannot follow"),
    ([entry(2, 5), entry(3, 4)], "entry 3 of term 4 cannot follow entry 2 of term 5"),
    ([vote(4, None)], "a vote for None in term 4 cannot follow one for None in term 5"),
    ([vote(5, 2), vote(5, 3)], "a vote for 3 in term 5 cannot follow one for 2 in term 5"),
    ([vote(5, 2), vote(5, None)], "a vote for None in term 5 cannot follow"),
    ([commit(2)], "the commit index is 2, the log ends at 1"),
    ([entry(2, 5), entry(3, 5), commit(3), bounds(1, 0, 2, 5)], "cannot follow JournalBounds"),
    ([entry(2, 5), bounds(1, 0, 3, 5)], "cannot follow JournalBounds"),
    ([entry(2, 5), entry(3, 5), bounds(1, 0, 2, 4)], "cannot follow JournalBounds"),
    ([entry(2, 5), entry(3, 5), bounds(2, 4, 3, 5)], "cannot follow JournalBounds"),
    ([entry(2, 5), bounds(0, 0, 2, 5)], "cannot follow JournalBounds"),
    ([bounds(0, 0, 0, 0)], "cannot follow JournalBounds"),
    ([bounds(3, 5, 2, 5)], "cannot follow JournalBounds"),
    ([identity(bytes(16))], "cannot become"),
    ([identity(node_id=2)], "cannot become"),
    ([identity(standing=Standing.ESTABLISHED), identity()], "cannot become"),
    ([identity(standing=7)], "makes no sense"),
    ([lambda batch: batch._add(6, 0, 0, b"")], "unknown kind 6"),
    ([lambda batch: batch._add(form.BOUNDS, 1, 0, b"short")], "makes no sense"),
]


@pytest.mark.parametrize(("records", "message"), IMPOSSIBLE)
def test_no_writer_of_ours_would_have_written_this(
    records: list[Callable[[BatchBuilder], None]], message: str
) -> None:
    """Whole batches that break a rule of Raft: the rule is told, nothing is believed."""
    files, batch = simulated(), BatchBuilder()
    for add in records:
        add(batch)
    replace_content_of_new(files, head() + batch.build(2, DISK_ID))
    with pytest.raises(CorruptJournal, match=message):
        replay_journal(files, DIRECTORY)
    assert message in str(verify_journal(files, DIRECTORY).damage)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([vote(1, None)], "does not begin with an identity"),
        ([identity()], "does not begin with the bounds of its log"),
        ([identity(), entry(2, 0)], "does not begin with the bounds of its log"),
        ([identity(), bounds(5, 1, 9, 2)], "the entries from 6 to 9 with it"),
    ],
)
def test_a_journal_begins_with_all_that_follows_from_it(
    records: list[Callable[[BatchBuilder], None]], message: str
) -> None:
    """The first batch that is left must say whose journal it is and where its log begins."""
    files, batch = simulated(), BatchBuilder()
    for add in records:
        add(batch)
    replace_content_of_new(files, batch.build(7, DISK_ID))
    with pytest.raises(CorruptJournal, match=message):
        replay_journal(files, DIRECTORY)


def test_entries_of_removed_segments_may_be_dropped_bit_by_bit() -> None:
    """The base rises and the end falls while the entries in question are gone already."""
    files, batch = simulated(), BatchBuilder()
    batch.add_bounds(JournalBounds(6, 1, 9, 2))
    batch.add_entry((b"ten", 10, 5))
    batch.add_bounds(JournalBounds(6, 1, 8, 2))
    batch.add_entry((b"nine", 9, 5))
    batch.add_bounds(JournalBounds(8, 2, 9, 5))
    old = head(bounds=JournalBounds(5, 1, 9, 2), sequence=50)
    replace_content_of_new(files, old + batch.build(51, DISK_ID))
    state = replay_journal(files, DIRECTORY)
    assert state is not None
    assert state.log.items == [(b"\x01", 8, 2), (b"nine", 9, 5)]


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer program wrote it: this one says which to run, and touches nothing."""
    files = simulated()
    monkeypatch.setattr(form, "VERSION", 2)
    with_three_batches(files)
    monkeypatch.undo()
    with pytest.raises(CorruptJournal, match="version 2 of the format, this program reads 1"):
        started(files)


def test_verifying_reads_only(tmp_path: Path) -> None:
    """The summary of a sound journal, from files that cannot be written."""
    journal = started(OsFiles(), tmp_path, term=3, segment_bytes=200)
    for command in (b"a" * 200, b"b", b"c"):
        append(journal, command)
        flush(journal)
    commit_all(journal)
    names = {path: path.read_bytes() for path in tmp_path.iterdir()}
    summary = verify_journal(OsFiles(read_only=True), tmp_path).summary
    assert summary is not None
    assert summary.identity == journal.identity
    assert (summary.term, summary.voted_for, summary.torn_bytes) == (3, 1, 0)
    assert (summary.first_index, summary.last_index, summary.last_term) == (1, 4, 3)
    assert (summary.entry_count, summary.commit_index) == (3, 1)
    assert summary.segment_count == len(names) == 3
    assert summary.batch_count == 5
    assert summary.size_bytes == sum(map(len, names.values())) == journal.size_bytes
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == names


def test_there_may_be_no_journal() -> None:
    """Neither a missing nor an empty directory is damage; files of others do not matter."""
    files = simulated()
    assert verify_journal(files, DIRECTORY) == (None, None)
    files.make_directory(DIRECTORY)
    files.open(DIRECTORY / "1.journal", create=True)
    files.open(DIRECTORY / "00000000000000000001.journal.tmp", create=True)
    assert verify_journal(files, DIRECTORY) == (None, None)
