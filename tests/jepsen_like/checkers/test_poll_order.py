"""The order in which readers get records: what moves a reader, and what a gap may be."""

from __future__ import annotations

import pytest

from jepsen_like.history.event import Type
from tests.jepsen_like.checkers.script import Script


def script_of(count: int = 6) -> Script:
    """All values sent, and seen by one reader."""
    script = Script()
    script.send_many(count)
    script.poll([(n, n) for n in range(count)], process=8)
    return script


def test_records_in_order_are_in_order() -> None:
    """Within polls and from poll to poll."""
    script = script_of()
    script.poll([(1, 1), (2, 2)])
    script.poll([])
    script.poll([(3, 3), (4, 4)])
    assert script.found() == {}


def test_a_skip_between_polls() -> None:
    """The sentence names reader, offsets, what was left out, and who has it."""
    script = script_of()
    script.poll([(1, 1)])
    script.poll([(3, 3)])
    assert script.found() == {"poll-skip": 1}
    assert script.finding("poll-skip").examples == [
        "key 'k': process 1 read offset 1 in event 5 and then offset 3 in event 7, "
        "though offset 2 holds 2 (read in event 3, acknowledged in event 1)"
    ]


@pytest.mark.parametrize("offset", [0, 1])
def test_back_between_polls(offset: int) -> None:
    """To an earlier record, or to the same."""
    script = script_of()
    script.poll([(0, 0), (1, 1)])
    script.poll([(offset, offset), *((n, n) for n in range(offset + 1, 3))])
    assert script.found() == {"nonmonotonic-poll": 1}


def test_a_skip_within_a_poll() -> None:
    """One poll, one record missing."""
    script = script_of()
    script.poll([(1, 1), (3, 3)])
    assert script.found() == {"int-poll-skip": 1}


def test_back_within_a_poll() -> None:
    """A record twice, and one too early."""
    script = script_of()
    script.poll([(1, 1), (1, 1), (2, 2)])
    assert script.found() == {"int-nonmonotonic-poll": 1}


def test_a_dense_poll_in_disorder_is_seen() -> None:
    """First and last are where they would be in order."""
    script = script_of()
    script.poll([(0, 0), (2, 2), (1, 1), (3, 3)])
    assert script.found() == {"int-poll-skip": 2, "int-nonmonotonic-poll": 1}


def test_offsets_that_hold_nothing_are_no_gap() -> None:
    """They may belong to records that are nobody's."""
    script = Script()
    script.send([0, 1, 2], [0, 3, 6])
    script.poll([(0, 0), (3, 1)])
    script.poll([(6, 2)])
    assert script.found() == {}


def test_what_only_a_replica_has_is_a_gap() -> None:
    """Below its high watermark it is committed."""
    script = Script()
    script.send([0], [0])
    script.send([1], kind=Type.INFO)
    script.send([2], [2])
    script.poll([(0, 0), (2, 2)])
    script.replica(1, [0, 1, 2])
    assert script.found() == {"int-poll-skip": 1}


def test_what_was_deleted_may_be_skipped() -> None:
    """Below the last log start; what is above is not excused."""
    script = script_of()
    script.poll([(0, 0)])
    script.poll([(3, 3)])
    script.replica(1, [3, 4, 5], log_start=3)
    assert script.found() == {}
    script.poll([(5, 5)])
    assert script.found() == {"poll-skip": 1}


@pytest.mark.parametrize("start", ["beginning", "end"])
def test_an_assign_moves_the_reader(start: str) -> None:
    """Where it reads on has nothing to do with where it was."""
    script = script_of()
    script.poll([(3, 3)])
    script.assign(start)
    script.poll([(0, 0)])
    assert script.found() == {}


def test_from_the_beginning_the_first_record_is_the_first() -> None:
    """A reader that is set there gets all there is."""
    script = script_of()
    script.assign("beginning")
    script.poll([(1, 1)])
    assert script.found() == {"poll-skip": 1}
    assert "process 1 began at the beginning" in script.finding("poll-skip").examples[0]


def test_from_the_end_the_first_record_is_any() -> None:
    """It is behind what was there when it was asked for."""
    script = script_of()
    script.assign("end")
    script.poll([(4, 4)])
    assert script.found() == {}


def test_a_crash_moves_the_reader() -> None:
    """Should its number be used again."""
    script = script_of()
    script.poll([(3, 3)])
    script.crash(1)
    script.poll([(0, 0)])
    assert script.found() == {}


def test_a_poll_of_unknown_outcome_moves_the_reader() -> None:
    """It may have got further than it told; its own records are in order."""
    script = script_of()
    script.poll([(0, 0), (2, 2)], kind=Type.INFO)
    script.poll([(5, 5)])
    assert script.found() == {"int-poll-skip": 1}


def test_a_poll_that_certainly_failed_moves_nobody() -> None:
    """The next one goes on where the last one ended."""
    script = script_of()
    script.poll([(0, 0)])
    script.poll([], kind=Type.FAIL)
    script.poll([(2, 2)])
    assert script.found() == {"poll-skip": 1}


def test_readers_and_keys_have_nothing_to_do_with_each_other() -> None:
    """Another process is elsewhere."""
    script = script_of()
    script.poll([(3, 3)], process=1)
    script.poll([(0, 0)], process=2)
    assert script.found() == {}
