"""What is drawn for the versions of a shared transaction."""

from __future__ import annotations

from collections import Counter
from random import Random

from jepsen_like.workloads.version_plan import (
    ROWS_MAX,
    TASK_COUNTS,
    Fate,
    VersionEnd,
    draw_version,
    row_count,
)

KEYS = tuple(f"in-{number}" for number in range(4))
VERSIONS = 2_000


def test_every_end_and_every_fate_comes() -> None:
    """Many are simply committed, and of each task one attempt is to be done."""
    ends, fates = Counter[VersionEnd](), Counter[Fate]()
    for seed in range(VERSIONS):
        plan = draw_version(Random(seed), seed, KEYS)
        ends[plan.end] += 1
        assert len(plan.tasks) <= max(TASK_COUNTS)
        for attempts in plan.tasks:
            fates.update(attempt.fate for attempt in attempts)
            assert attempts[-1].fate is Fate.DONE
            rows = {sum(send.values for send in attempt.sends) for attempt in attempts}
            assert rows == {row_count(attempts)}
            assert row_count(attempts) <= ROWS_MAX + 1
    assert set(ends) == set(VersionEnd)
    assert set(fates) == set(Fate)
    assert ends[VersionEnd.COMMIT] > VERSIONS / 3


def test_who_tries_a_version_again_has_as_many_rows() -> None:
    """But for a few."""
    counts = Counter[tuple[int, ...]]()
    for seed in range(100):
        plan = draw_version(Random(seed), 7, KEYS)
        counts[tuple(map(row_count, plan.tasks))] += 1
    (_, most), *others = counts.most_common()
    assert most > 80
    assert sum(count for _, count in others) == 100 - most
