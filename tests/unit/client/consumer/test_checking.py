"""An answer to a fetch is looked through before anybody sees it; what is right counts."""

from __future__ import annotations

import pytest

from raftmq.client.consumer.fetch_response import Expected, check_answer
from tests.unit.client.consumer.pieces import data_at

ASKED = Expected(offset=5, epoch_before=2, leader_epoch=4, end=10, where="t-0 from offset 5")


def test_what_is_right() -> None:
    """In a row, from the batch that holds the offset on, up to the high watermark."""
    data = data_at(4, "a", "b", epoch=2) + data_at(6, "c", epoch=4) + data_at(7, *"def", epoch=4)
    checked = check_answer(data, ASKED)
    assert checked.damage is None
    assert [piece.header.base_offset for piece in checked.pieces] == [4, 6, 7]
    assert check_answer(b"", ASKED).pieces == []


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (data_at(7, "x", epoch=3), "base offset 7, expected 6"),
        (data_at(5, "x", epoch=3), "base offset 5, expected 6"),
        (data_at(6, *"12345", epoch=3), "end offset 11, committed is up to 10"),
        (data_at(6, "x", epoch=2), "leader epoch 2 after 3"),
        (data_at(6, "x", epoch=5), "leader epoch 5 from a leader of 4"),
        (data_at(6, "x", epoch=3)[:-1], "1 are missing"),
        (data_at(6, "x", epoch=3)[:-1] + b"\0", "CRC-32C"),
        (b"junk", "shorter than a batch header"),
    ],
)
def test_what_is_not_right(bad: bytes, told: str) -> None:
    """What comes before it is kept; the message says where it stands."""
    good = data_at(5, "a", epoch=3)
    checked = check_answer(good + bad, ASKED)
    assert [piece.header.base_offset for piece in checked.pieces] == [5]
    assert checked.damage is not None
    assert told in str(checked.damage)
    assert f"at byte {len(good)} of t-0 from offset 5" in str(checked.damage)


@pytest.mark.parametrize(
    ("first", "told"),
    [
        (data_at(6, "x", epoch=3), "offsets 6 to 7 came, 5 was asked for"),
        (data_at(4, "x", epoch=3), "offsets 4 to 5 came, 5 was asked for"),
        (data_at(5, "x", epoch=1), "leader epoch 1 after 2"),
    ],
)
def test_a_first_batch_that_is_not_right(first: bytes, told: str) -> None:
    """It does not hold the offset, or is of an older leader than what was read before."""
    checked = check_answer(first, ASKED)
    assert (checked.pieces, told in str(checked.damage)) == ([], True)
