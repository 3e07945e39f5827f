"""Which records of a batch fail by themselves, for any of them, in any number (A12.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from raftmq.client.transactions.suspects import Suspects

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

ATTEMPTS = 3


class Piece(NamedTuple):
    """A batch of records of one partition, as far as it is looked at."""

    base_offset: int
    end: int
    topic: str = "orders"
    partition: int = 0

    @property
    def last_offset(self) -> int:
        return self.end - 1

    def __len__(self) -> int:
        return self.end - self.base_offset


class Run(NamedTuple):
    """Attributes:
    rejected: records that were set aside.
    tries: batches that were tried, in order.
    """

    rejected: list[int]
    tries: list[Any]


def run(count: int, bad: AbstractSet[int], records_max: int) -> Run:
    """The loop of `exactly_once`, with a transform that fails with each bad record."""
    suspects, at = Suspects(), 0
    found = Run([], [])
    while at < count:
        batch: Any = Piece(at, min(count, at + min(records_max, suspects.records_max)))
        suspect = suspects.find(batch)
        if suspect.failures >= ATTEMPTS and len(batch) == 1:
            found.rejected.append(at)
        else:
            found.tries.append(batch)
            if bad & {*range(batch.base_offset, batch.end)}:
                suspects.on_failed(batch, ValueError("no"))
                continue
        suspects.on_done(batch)
        at = batch.end
    assert not suspects.are_there
    return found


@given(st.integers(1, 200), st.sets(st.integers(0, 199)), st.integers(1, 200))
def test_exactly_the_bad_ones_are_set_aside(count: int, bad: set[int], records_max: int) -> None:
    """Each after as many tries alone as it may have; all others are done."""
    found = run(count, bad, records_max)
    bad = {one for one in bad if one < count}
    assert found.rejected == sorted(bad)
    alone = [batch.base_offset for batch in found.tries if len(batch) == 1]
    for offset in bad:
        assert alone.count(offset) == ATTEMPTS


@given(st.integers(0, 9_999))
def test_one_of_many_takes_few_steps(offset: int) -> None:
    """It is found by halving, and behind it batches become larger again."""
    found = run(10_000, {offset}, 10_000)
    assert found.rejected == [offset]
    assert len(found.tries) <= ATTEMPTS + 4 * 14


def test_the_transaction_before_is_committed_late() -> None:
    """What it has done says nothing of the one behind it, which has failed meanwhile."""
    suspects = Suspects()
    before: Any = Piece(0, 1)
    bad: Any = Piece(1, 2)
    for failures in range(1, ATTEMPTS + 1):
        suspects.on_failed(bad, ValueError("no"))
        suspects.on_done(before)
        assert suspects.find(bad).failures == failures
        assert suspects.records_max == 1
    assert suspects.find(bad).error == "ValueError: no"


def test_partitions_that_are_lost() -> None:
    """Nothing is slowed down for them."""
    suspects = Suspects()
    for partition in range(2):
        bad: Any = Piece(0, 10 + partition, "orders", partition)
        suspects.on_failed(bad, ValueError("no"))
    suspects.keep([("orders", 1)])
    assert suspects.are_there
    suspects.keep([])
    assert not suspects.are_there
