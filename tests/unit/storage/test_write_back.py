"""Which log is written back next, and in which pieces."""

from __future__ import annotations

import pytest

from raftmq.partition.storage.durability import PIECE_BYTES, next_due, pieces


def test_who_is_waited_for_comes_first() -> None:
    """Equals come in the order in which they became due."""
    due = dict.fromkeys("abcd", False)
    assert next_due(due) == "a"
    assert next_due(due | {"c": True, "d": True}) == "c"


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
