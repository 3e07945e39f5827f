"""Which groups a run has, and what is drawn for the life of a member."""

from __future__ import annotations

from collections import Counter
from random import Random

from jepsen_like.workloads.group_bench import Progress
from jepsen_like.workloads.group_plan import (
    COMMITS,
    LIFE_SECONDS_MIN,
    End,
    draw_fate,
    draw_groups,
)

TOPICS = ("all-1", "1-2", "2-3")


def test_groups_commit_in_different_ways() -> None:
    """All ways come with some seed; one group reads everything, another one leaves a topic out."""
    seen = Counter[str]()
    for seed in range(30):
        first, second = draw_groups(Random(seed), TOPICS, count=2)
        assert first.commit != second.commit
        assert (first.topics, second.topics) == (TOPICS, TOPICS[:2])
        assert first.assignor == "cooperative_sticky"
        seen.update((first.commit, second.commit))
    assert set(seen) == set(COMMITS)
    assert len(draw_groups(Random(1), ("only",), count=6)) == 6


def test_the_same_chance_draws_the_same() -> None:
    """A run can be repeated."""
    assert draw_groups(Random(3), TOPICS, count=2) == draw_groups(Random(3), TOPICS, count=2)
    assert draw_fate(Random(3), life_seconds=9.0) == draw_fate(Random(3), life_seconds=9.0)


def test_lives_differ() -> None:
    """Some are idle, some are not heard, never both; whatever befalls them comes in their time."""
    fates = [draw_fate(Random(seed), life_seconds=20.0) for seed in range(200)]
    assert {fate.end for fate in fates} == set(End)
    assert 15.0 < sum(fate.seconds for fate in fates) / len(fates) < 25.0
    assert 30 < sum(fate.idle_at is not None for fate in fates) < 70
    assert 30 < sum(fate.mute_at is not None for fate in fates) < 70
    for fate in fates:
        assert fate.seconds >= LIFE_SECONDS_MIN
        assert None in (fate.idle_at, fate.mute_at)
        for at in (fate.idle_at, fate.mute_at):
            assert at is None or 0 <= at <= fate.seconds


def test_progress_is_what_anybody_reached() -> None:
    """Of each group by itself; whoever begins again takes nothing back."""
    progress = Progress()
    progress.on_position("g", "k-0", 5)
    progress.on_position("g", "k-0", 3)
    assert progress.behind("g", {"k-0": 5, "k-1": 2}) == [("k-1", 0, 2)]
    assert progress.behind("h", {"k-0": 5}) == [("k-0", 0, 5)]
