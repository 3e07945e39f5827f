"""How records fare, which groups there are, and pauses: by value, and by chance."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from jepsen_like.history.record_fate import RecordFate
from jepsen_like.workloads.retry_bench import POLICY
from jepsen_like.workloads.retry_plan import (
    ATTEMPTS,
    COMMITS,
    Way,
    draw_retry_groups,
    pauses_min,
    record_fate,
)

RECORDS = 30_000


def test_one_record_of_ten_fails() -> None:
    """A third of these for a while, a third always, a third is rejected (A12.4, A12.5)."""
    fates = Counter(record_fate("all-1-0", value) for value in range(RECORDS))
    assert set(fates) == set(RecordFate)
    assert 0.89 < fates[RecordFate.GOOD] / RECORDS < 0.91
    thirds = (
        fates[RecordFate.ONCE] + fates[RecordFate.TWICE],
        fates[RecordFate.ALWAYS],
        fates[RecordFate.REJECTED],
    )
    assert all(0.03 < count / RECORDS < 0.037 for count in thirds), fates
    assert min(fates[RecordFate.ONCE], fates[RecordFate.TWICE]) > RECORDS / 100


def test_a_record_fares_alike_each_time() -> None:
    """Whoever handles it; and not as the same value of another key (A12.4)."""
    one = [record_fate("all-1-0", value) for value in range(1000)]
    assert one == [record_fate("all-1-0", value) for value in range(1000)]
    assert one != [record_fate("all-1-1", value) for value in range(1000)]


@pytest.mark.parametrize(
    ("fate", "good"),
    [
        (RecordFate.GOOD, [True, True, True]),
        (RecordFate.ONCE, [False, True, True]),
        (RecordFate.TWICE, [False, False, True]),
        (RecordFate.ALWAYS, [False, False, False]),
        (RecordFate.REJECTED, [False, False, False]),
    ],
)
def test_when_a_record_is_good(fate: RecordFate, good: list[bool]) -> None:
    """The policy has enough attempts for each that is good at last (A12.4)."""
    assert [fate.is_good_at(attempt) for attempt in range(1, ATTEMPTS + 1)] == good
    assert fate.is_good_at_last is good[-1]


def test_the_shortest_pauses() -> None:
    """Of those that the policy draws none is shorter, and some are nearly so short (A12.4)."""
    random = Random(1)
    assert len(pauses_min()) == POLICY.attempts - 1
    for attempt, least in enumerate(pauses_min(), 1):
        drawn = [POLICY.backoff.pause_seconds(attempt, random) for _ in range(500)]
        assert least <= min(drawn) < 1.05 * least
        assert max(drawn) <= 2.0


def test_each_way_has_a_group() -> None:
    """With commits of all kinds that lose nothing, over the seeds (A12.4)."""
    drawn = [draw_retry_groups(Random(seed)) for seed in range(30)]
    assert all({group.way for group in groups} == set(Way) for groups in drawn)
    assert {group.commit for groups in drawn for group in groups} == {*COMMITS, ""}
    assert [group.name for group in drawn[0] if not group.can_reject] == ["process"]
