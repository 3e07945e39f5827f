"""The index of aborted transactions: what it says, and that a lost one is built before it does."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from raftmq.disk.files import WouldBlock
from raftmq.errors import CorruptRecord
from raftmq.partition.storage.aborted_index import Aborted
from raftmq.partition.storage.entries import ABORTED_SIZE, read_aborted
from raftmq.partition.storage.lookups import find_aborted_now
from raftmq.partition.storage.recovery import Past
from tests.simulation.disk import SimulatedFiles
from tests.unit.storage.numbered import FOLDER, cut, opened, perform_trim
from tests.unit.storage.transactional import (
    abort,
    all_aborted,
    end,
    marked_batches,
    open_by_log,
    open_in,
    send,
)

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq.partition.storage.log import PartitionLog

ALL = 1 << 40


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(random.Random(0))


def path_of(base_offset: int) -> Path:
    return FOLDER / f"{base_offset:020d}.aborted"


def raw(files: SimulatedFiles, base_offset: int) -> list[tuple[int, ...] | None]:
    file = files.open(path_of(base_offset))
    data = file.read(0, file.size())
    return [read_aborted(data[at : at + 36]) for at in range(0, len(data), ABORTED_SIZE)]


def filled(files: SimulatedFiles, transactions: int = 20) -> PartitionLog:
    """Several segments; each second transaction is aborted, and three are always open."""
    log = opened(files)
    for number in range(transactions):
        send(log, number)
        if number >= 3:
            end(log, number - 3, commit=number % 2 == 0)
    assert len(log.segments) > 3
    return log


def close(log: PartitionLog) -> Past:
    log.write_indexes()
    log.close_aborted()
    flush = log.begin_flush(0.0)
    flush.perform(log.files)
    log.complete_flush(flush)
    log.close()
    return Past(log.log_end_offset, was_clean=True)


def check(log: PartitionLog) -> None:
    batches = marked_batches(log)
    assert sorted(log.aborted_in(0, ALL)) == sorted(all_aborted(batches))
    assert open_by_log(log) == open_in(batches)


def test_says_who_when_and_until_where(files: SimulatedFiles) -> None:
    """Two transactions overlap, one of them is aborted (A11.3)."""
    log = opened(files)
    first = send(log, 7)
    send(log, 8)
    send(log, 7, sequence=2)
    where = abort(log, 7)
    end(log, 8, commit=True)
    assert log.aborted_in(0, ALL) == [Aborted(7, first, where)]
    assert log.aborted_in(where - 1, where) == [Aborted(7, first, where)]
    assert log.aborted_in(where, ALL) == []  # behind the marker's offset nothing is left to drop
    assert log.aborted_in(0, first) == []


def test_an_abort_of_nothing_has_no_entry(files: SimulatedFiles) -> None:
    """A marker without batches before it, and a second one behind the first."""
    log = opened(files)
    abort(log, 7)
    send(log, 7, epoch=1)
    abort(log, 7, epoch=2)
    abort(log, 7, epoch=3)
    assert log.aborted_in(0, ALL) == [Aborted(7, 1, 3)]


def test_no_file_without_an_entry(files: SimulatedFiles) -> None:
    """What is written is only ever committed: an active segment has no file."""
    log = opened(files)
    send(log, 7)
    end(log, 7, commit=True)
    log.write_indexes()
    assert not files.exists(path_of(0))


def test_entries_name_what_is_still_open(files: SimulatedFiles) -> None:
    """The fourth field is the same on every replica: it follows from the batches alone."""
    log = opened(files)
    send(log, 7)
    send(log, 8)
    abort(log, 7)
    abort(log, 8)
    log.write_indexes()
    assert raw(files, 0) == [(7, 0, 4, 2), (8, 2, 5, 6)]


def test_a_long_transaction_is_found_from_before_it(files: SimulatedFiles) -> None:
    """Its marker stands segments behind the slice, and many others end in between."""
    log = opened(files)
    first = send(log, 99)
    for number in range(20):
        send(log, number)
        end(log, number, commit=number % 2 == 0)
    marker_offset = abort(log, 99)
    assert log.segment_of(marker_offset) is not log.segments[0]
    assert log.aborted_in(0, 2) == [Aborted(99, first, marker_offset)]
    check(log)


def test_more_than_the_limit_say_where_to_stop(files: SimulatedFiles) -> None:
    """Ten aborted ones interleave; a reader that may learn of three stops before the fourth."""
    log = opened(files)
    for number in range(10):
        send(log, number)
    for number in reversed(range(10)):
        abort(log, number)
    found = log.aborted_in(0, ALL, 3)
    assert [each.producer_id for each in found] == [0, 1, 2, 3]
    assert log.aborted_in(0, found[3].first_offset, 3) == found[:3]


@pytest.mark.parametrize("harm", ["lost", "short", "damaged", "empty"])
def test_a_lost_index_is_built_again(files: SimulatedFiles, harm: str) -> None:
    """A file is removed, cut short, or one of its bytes rots while the log is in use."""
    log = filled(files)
    before = sorted(log.aborted_in(0, ALL))
    log.write_indexes()
    for segment in log.segments[:-1]:
        segment.aborted.void()
        harm_file(files, segment.aborted.path, harm)
        assert sorted(log.aborted_in(0, ALL)) == before
    check(log)


def harm_file(files: SimulatedFiles, path: Path, harm: str) -> None:
    file = files.open(path)
    if harm == "lost":
        files.remove(path)
    elif harm == "short":
        file.truncate(file.size() - ABORTED_SIZE)
    elif harm == "empty":
        file.truncate(0)
    else:
        file.write(3, [b"\xff"])


@pytest.mark.parametrize("is_sealed", [True, False])
def test_what_is_forgotten_during_a_lookup(files: SimulatedFiles, *, is_sealed: bool) -> None:
    """The loop cuts a log, or another reader finds damage, while a thread looks up: it has all
    entries, or finds that they are not to be believed, never none."""
    segment = filled(files).segments[0 if is_sealed else -1]
    closing = segment.aborted.closing(segment.end_offset) if is_sealed else None
    expected = list(segment.aborted.behind(-1))
    assert expected
    entries = segment.aborted.behind(-1)
    assert segment.aborted.is_believed(closing)
    segment.aborted.void()
    assert list(entries) == expected
    assert not segment.aborted.is_believed(closing)


def test_nothing_is_read_on_the_loop_for_a_lost_index(files: SimulatedFiles) -> None:
    """A request of a reader meets it: the lookup on the loop refuses."""
    log = filled(files)
    log.segments[0].aborted.void()
    files.remove(path_of(0))
    with pytest.raises(WouldBlock):
        find_aborted_now(log, 0, ALL, 10)
    log.aborted_in(0, ALL)
    assert find_aborted_now(log, 0, ALL, 10) == log.aborted_in(0, ALL, 10)


def test_a_closed_log_opens_without_reading_its_segment(files: SimulatedFiles) -> None:
    """Everything has ended, and the log is closed in order."""
    log = opened(files)
    for number in range(3):
        send(log, number)
        abort(log, number)
    past = close(log)
    files.open(log.active.path).write(30, [b"\xff" * 8])  # a walk would fail here
    log = opened(files, past)
    assert [each.producer_id for each in log.aborted_in(0, ALL)] == [0, 1, 2]
    send(log, 9)
    abort(log, 9)
    log.write_indexes()
    assert len(raw(files, 0)) == 4  # in place of the closing entry


def test_it_goes_on_after_an_opening_in_order(files: SimulatedFiles) -> None:
    log = filled(files)
    log = opened(files, close(log))
    check(log)
    for number in (17, 18, 19):
        abort(log, number)
    check(log)
    check(opened(files, close(log)))


def test_it_is_read_from_the_batches_after_a_crash(files: SimulatedFiles) -> None:
    """Entries were buffered: the file ends before the log."""
    log = filled(files)
    check(opened(files))
    log = opened(files)
    abort(log, 18)
    check(log)


def test_an_old_closing_entry_is_not_believed(files: SimulatedFiles) -> None:
    """The log was closed, cut by a crash, and grew to the same end with other batches."""
    log = opened(files)
    send(log, 7)
    abort(log, 7)
    close(log)
    stale = files.open(path_of(0)).read(0, 1000)
    log = opened(files)
    cut(log, log.begin_truncate(2))
    assert not files.exists(path_of(0))
    end(log, 7, commit=True)
    assert log.aborted_in(0, ALL) == []
    files.open(path_of(0), create=True).write(0, [stale])
    log = opened(files)  # not closed: nothing is believed
    assert log.aborted_in(0, ALL) == []


def test_a_cut_opens_transactions_again(files: SimulatedFiles) -> None:
    """The marker is cut: its entry goes, and a commit of the next leader stands for good."""
    log = opened(files)
    send(log, 7)
    where = abort(log, 7)
    log.write_indexes()
    cut(log, log.begin_truncate(where))
    assert log.aborted_in(0, ALL) == []
    assert open_by_log(log) == {7: 0}
    end(log, 7, commit=True)
    assert log.aborted_in(0, ALL) == []


def test_a_cut_into_a_sealed_segment(files: SimulatedFiles) -> None:
    """Whole segments go, with their files."""
    log = filled(files)
    base = log.segments[1].base_offset
    gone = [segment.aborted.path for segment in log.segments[2:]]
    cut(log, log.begin_truncate(base + 3))
    assert not any(files.exists(path) for path in gone)
    check(log)
    abort(log, 1)
    check(log)


def test_a_trim_takes_the_files_with_it(files: SimulatedFiles) -> None:
    log = filled(files)
    first = log.segments[2].base_offset
    flush = log.begin_flush(0.0)
    flush.perform(log.files)
    log.complete_flush(flush)
    work = log.plan_trim(first)
    assert work is not None
    perform_trim(log, work)
    names = [name for name in files.names(FOLDER) if name.endswith(".aborted")]
    assert int(names[0][:20]) == first
    dropped = {each.marker_offset for each in log.aborted_in(first, ALL)}
    assert {each.marker_offset for each in all_aborted(marked_batches(log))} <= dropped


def test_start_over_knows_of_nothing(files: SimulatedFiles) -> None:
    log = filled(files)
    work = log.begin_start_over(500)
    cut(log, work)
    assert [name for name in files.names(FOLDER) if name.endswith(".aborted")] == []
    assert log.aborted_in(500, ALL) == []
    assert open_by_log(log) == {}


def test_rot_does_not_hide_what_the_index_has(files: SimulatedFiles) -> None:
    """A batch has rotted in a sealed segment. Its index is sound, so readers go on; without it
    they are refused, as a marker may stand in the rot."""
    log = filled(files)
    before = log.aborted_in(0, ALL)
    file = files.open(log.segments[1].path)
    file.write(8, [b"\xff" * 4])
    assert log.aborted_in(0, ALL) == before
    log.segments[1].aborted.void()
    files.remove(log.segments[1].aborted.path)
    with pytest.raises(CorruptRecord):
        log.aborted_in(0, ALL)
