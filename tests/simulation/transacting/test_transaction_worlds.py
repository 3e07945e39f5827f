"""Transactions of real clients in whole brokers, under faults that aim at them (A11.3, A11.4).

All of a transaction that was told committed is there, and nothing of one that was told aborted; no
reader of committed records ever got anything else; each input of the group has one result; of a
version of a shared transaction there is what its commit lists, and nothing that any other member
has sent; in the end nothing is open or unsettled. A failure prints the command that replays it.
"""

from __future__ import annotations

from collections import Counter

import pytest

from jepsen_like.checkers.transaction_listings import OF_VERSIONS
from jepsen_like.history.event import Type
from tests.simulation.seeds import first_line
from tests.simulation.transacting.world import TransactionWorld, failure

GATE_SECONDS = 3.0
TEETH = pytest.mark.teeth  # too long for `make check`
SEEDS = [
    pytest.param(0, marks=pytest.mark.gate),
    *(pytest.param(seed, marks=TEETH) for seed in range(1, 60)),
]
MEMBER_TROUBLES = ("abort_version", "kill_decider", "kill_open", "late_metadata", "isolate")
SOAK_SEEDS = range(2000, 2400)


@pytest.mark.parametrize("seed", SEEDS)
def test_transactions_survive_their_troubles(seed: int) -> None:
    found = failure(seed, seconds=GATE_SECONDS)
    assert found is None, found


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_transactions_survive_many_troubles(seed: int) -> None:
    """The same, longer and in many more worlds."""
    found = failure(seed)
    assert found is None, found


@TEETH
@pytest.mark.parametrize("seed", range(100, 112))
def test_versions_of_many_producers_survive_troubles_of_their_own(seed: int) -> None:
    """Coordinators and leaders die while members write, an operator aborts what they write."""
    found = failure(seed, seconds=GATE_SECONDS, kinds=MEMBER_TROUBLES)
    assert found is None, found


@TEETH
def test_the_same_seed_is_the_same_world() -> None:
    """Two processes with different hash seeds see the same trace, so a failure can be replayed."""
    told = [
        first_line("tests.simulation.transacting", seed=4, seconds=2, hash_seed=hash_seed)
        for hash_seed in ("1", "2")
    ]
    assert told[0].startswith("seed 4: ")
    assert told[0] == told[1]


@TEETH
def test_the_troubles_are_troubles() -> None:
    """Worlds in which little happens would prove little: look what did in two."""
    worlds = [TransactionWorld(seed, seconds=2 * GATE_SECONDS) for seed in (3, 4)]
    for world in worlds:
        world.play()
    assert sum(world.count("end", "committed") for world in worlds) >= 30
    assert sum(world.count("end", "aborted") for world in worlds) >= 4
    assert sum(world.count("open") for world in worlds) >= 8
    assert sum(world.nemesis.counts.total() for world in worlds) >= 3


@TEETH
def test_versions_are_tried_again_and_done_before() -> None:
    """The same of two worlds with members: what their drivers were told, and their tasks."""
    seconds = 2 * GATE_SECONDS
    worlds = [TransactionWorld(seed, seconds=seconds, kinds=MEMBER_TROUBLES) for seed in (6, 7)]
    told: Counter[tuple[str, Type, bool]] = Counter()
    for world in worlds:
        world.play()
        events = (e for e in world.history.recorder.events if e.f in OF_VERSIONS)
        for event in events:
            value = event.value or {}
            was_before = value.get("is_done") or value.get("is_repeated") or False
            told[event.f, event.type, was_before] += 1
    assert told["commit-version", Type.OK, False] >= 8
    assert told["commit-version", Type.OK, True] >= 1
    assert told["commit-version", Type.FAIL, False] >= 1
    assert told["join", Type.OK, False] >= 40
    assert told["join", Type.OK, True] >= 2
