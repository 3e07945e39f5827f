"""Which log is written back next, and in which pieces."""

from __future__ import annotations

import pytest

from raftmq.partition.storage.durability import PIECE_BYTES, FlushQueue, pieces


def taken(queue: FlushQueue[str], count: int, busy: str = "") -> str:
    """The next ones; `-` where there is none."""
    return "".join(queue.take(lambda log: log not in busy) or "-" for _ in range(count))


def filled(others: str, awaited: str = "") -> FlushQueue[str]:
    queue: FlushQueue[str] = FlushQueue()
    for log in others:
        queue.add(log, is_awaited=False)
    for log in awaited:
        queue.add(log, is_awaited=True)
    return queue


def test_who_is_waited_for_comes_first() -> None:
    """Equals come in the order in which they became due; none comes twice."""
    assert taken(filled("abc"), 4) == "abc-"
    assert taken(filled("abc", "c"), 4) == "cab-"


def test_the_others_have_their_turn() -> None:
    """However many there are that somebody waits for."""
    queue, found = filled("ab", "xyz"), ""
    for _ in range(5):
        found += taken(queue, 1)
        queue.add("w", is_awaited=True)
    assert found == "xaybz"


def test_one_that_is_waited_for_overtakes_others_but_in_their_turn() -> None:
    """A log that is written back stops for it, unless the one before was awaited as well."""
    queue = filled("ab")
    assert taken(queue, 1) == "a"
    assert not queue.overtakes
    queue.add("x", is_awaited=True)
    assert queue.overtakes
    assert taken(queue, 1) == "x"
    queue.add("y", is_awaited=True)
    assert not queue.overtakes
    assert taken(queue, 1) == "b"
    assert not queue.overtakes


def test_one_whose_files_are_changed_holds_up_no_other() -> None:
    """It keeps its place."""
    queue = filled("abc", "x")
    assert taken(queue, 3, busy="xb") == "ac-"
    assert taken(queue, 3) == "xb-"


def test_one_that_is_put_back_is_awaited_as_before() -> None:
    """Its files are to be changed while it is written back: its waiter does not go to the end."""
    queue = filled("ab", "x")
    assert taken(queue, 1) == "x"
    queue.put_back("x")
    assert taken(queue, 2, busy="x") == "ab"
    queue.put_back("b")
    assert taken(queue, 3) == "xb-"


def test_pieces_cover_all_of_it_once() -> None:
    """They begin where the last flush ended, and the last one is shorter."""
    assert list(pieces(5, 2 * PIECE_BYTES + 10)) == [
        (5, PIECE_BYTES),
        (5 + PIECE_BYTES, PIECE_BYTES),
        (5 + 2 * PIECE_BYTES, 5),
    ]


@pytest.mark.parametrize("end", [50, 100])
def test_a_log_that_has_not_grown_has_no_piece(end: int) -> None:
    """Or that was cut below the place where the last flush had ended."""
    assert list(pieces(100, end)) == []
