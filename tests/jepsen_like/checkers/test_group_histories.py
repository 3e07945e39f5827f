"""Histories of groups as they may be, and with one thing wrong: what is judged, and as what."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from jepsen_like.checkers.verdict import OF_GROUPS, Result, judge
from jepsen_like.workloads.group_plan import COMMITS
from tests.jepsen_like.checkers.group_model import clean_group_history
from tests.jepsen_like.checkers.group_plants import GROUP_PLANTS
from tests.jepsen_like.checkers.plants import Tampered

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS, PLANTED, SEEDS_MAX = 25, 20, 80


@pytest.mark.parametrize("commit", COMMITS)
def test_where_nothing_is_wrong_nothing_is_found(commit: str) -> None:
    """Members are put out and crash, commits are in doubt and late: all of it is legal."""
    for seed in range(SEEDS):
        verdict = judge(clean_group_history(Random(seed), commit))
        assert not verdict.failures, f"seed {seed}: {verdict}"
        assert verdict.figures["generations"] > 1


@pytest.mark.parametrize(("name", "plant"), GROUP_PLANTS.values(), ids=GROUP_PLANTS)
def test_what_is_planted_is_found(name: str, plant: Callable[[Tampered], None]) -> None:
    """Twenty times, in twenty histories, by the checker whose business it is."""
    count = 0
    for seed in range(SEEDS_MAX):
        history = Tampered(clean_group_history(Random(seed), "batch"), Random(seed))
        try:
            plant(history)
        except IndexError:
            continue
        count += 1
        verdict = judge(history.events)
        assert name in {found.name for found in verdict.failures}, f"seed {seed}: {verdict}"
        assert verdict.result is Result.FAIL
        if count == PLANTED:
            return
    pytest.fail(f"only {count} histories had a place for it")


def test_each_kind_of_groups_is_planted() -> None:
    """A kind without plants is one of which nobody knows that it is found."""
    assert {name for name, _ in GROUP_PLANTS.values()} == set(OF_GROUPS)
