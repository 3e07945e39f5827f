"""What the checkers are worth: silent on histories in which nothing is wrong, never on others.

The clean ones are full of what looks suspicious and is legal; see `queue_model`. The planted ones
are such with one thing changed.

A15.
"""

from __future__ import annotations

from itertools import chain
from random import Random

import pytest

from jepsen_like.checkers.activity import Demands
from jepsen_like.checkers.finding import NAMES
from jepsen_like.checkers.verdict import (
    OF_GROUPS,
    OF_NAMES,
    OF_RETRIES,
    OF_SCHEDULES,
    OF_TRANSACTIONS,
    Result,
    judge,
)
from tests.jepsen_like.checkers.plants import PLANTS, planted
from tests.jepsen_like.checkers.queue_model import Shape, clean_history

PLANTED = 20
SEEDS_MAX = 300  # a history may have no place for what is to be planted
SMALL = Shape(operations=20)
ROOMY = Shape(operations=60, other_share=0.25)
# These histories end with replicas that lag, to see whether anybody takes that for a loss.
DEMANDS = Demands(allowed=frozenset({"not-healed"}))


@pytest.mark.parametrize("start", range(0, 1000, 250))
def test_where_nothing_is_wrong_nothing_is_found(start: int) -> None:
    """A thousand small histories, each of another seed."""
    for seed in range(start, start + 250):
        verdict = judge(clean_history(Random(seed), SMALL), DEMANDS)
        assert not verdict.failures, f"seed {seed}: {verdict}"


@pytest.mark.parametrize("seed", range(10))
def test_where_nothing_is_wrong_in_many_ways(seed: int) -> None:
    """Larger ones, of many shapes: more keys, more trouble, longer polls."""
    random = Random(f"shape {seed}")
    shape = Shape(
        operations=300,
        keys=random.randint(1, 4),
        processes=random.randint(1, 10),
        values_per_send=random.randint(1, 8),
        records_per_poll=random.randint(1, 20),
        poll_share=random.choice([0.1, 0.4, 0.7]),
        trouble=random.choice([0.0, 0.3, 0.8]),
    )
    verdict = judge(clean_history(random, shape), DEMANDS)
    assert not verdict.failures, f"{shape}: {verdict}"


@pytest.mark.parametrize(("name", "plant"), PLANTS.values(), ids=PLANTS)
def test_what_is_planted_is_found(name: str, plant: object) -> None:
    """Twenty times, in twenty histories, by the checker whose business it is."""
    assert callable(plant)
    count = 0
    for seed in range(SEEDS_MAX):
        events = planted(clean_history(Random(seed), ROOMY), Random(seed), plant)
        if events is None:
            continue
        count += 1
        verdict = judge(events)
        found = {finding.name: finding for finding in verdict.failures}
        assert name in found, f"seed {seed}: {verdict}"
        assert found[name].examples
        assert verdict.result is Result.FAIL
        if count == PLANTED:
            return
    pytest.fail(f"only {count} histories had a place for it")


def test_each_kind_is_planted() -> None:
    """A kind without plants is one of which nobody knows that it is found. Those of groups, of
    producers with names, of transactions, schedules and retries are planted elsewhere."""
    others = (OF_GROUPS, OF_NAMES, OF_TRANSACTIONS, OF_SCHEDULES, OF_RETRIES)
    elsewhere = {*DEMANDS.allowed, *chain.from_iterable(others)}
    assert {name for name, _ in PLANTS.values()} == set(NAMES) - elsewhere
