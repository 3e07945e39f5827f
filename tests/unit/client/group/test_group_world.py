"""Members against a coordinator, by seed: never two at one partition, and in the end all are read.

A seed that fails is replayed by its number: `pytest ... -k "test_world and 7"`. Rules that are
taken away must be missed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from raftmq.client.group.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from raftmq.client.group.member_requests import MemberSession
from tests.unit.client.group.group_world import GroupWorld

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = {
    "cooperative": ["cooperative_sticky"],
    "sticky": ["sticky"],
    "eager": [["range", "round_robin"], "range"],
    "upgrade": ["cooperative_sticky", ["cooperative_sticky", "sticky"]],
}
STROKES = 25
QUIET_SECONDS = 200.0
SEEDS = [0, *[pytest.param(seed, marks=pytest.mark.teeth) for seed in range(1, 10)]]


def run(seed: int, kind: str) -> GroupWorld:
    world = GroupWorld(seed, KINDS[kind])
    for _ in range(3):
        world.add()
    for _ in range(STROKES):
        world.run(world.random.choice((0.2, 1.0, 4.0, 15.0)))
        world.strike()
    world.run(QUIET_SECONDS)
    world.check_quiet()
    return world


def run_some() -> None:
    for seed in range(10):
        for kind in ("cooperative", "sticky", "upgrade"):
            run(seed, kind)


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("seed", SEEDS)
def test_world(seed: int, kind: str) -> None:
    """Strokes of all kinds, then quiet (A8.4)."""
    assert run(seed, kind).rebalances > 0


def give_away_what_is_held(patch: pytest.MonkeyPatch) -> None:
    def assign(_self: object, partitions: Any, members: Any) -> Any:
        return StickyAssignor().assign(partitions, members)

    patch.setattr(CooperativeStickyAssignor, "assign", assign)


def believe_in_endless_sessions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemberSession, "ends_at", math.inf)


def believe_in_endless_patience(patch: pytest.MonkeyPatch) -> None:
    hear = MemberSession.hear

    def settle(self: MemberSession, sent_at: float, *, is_settled: bool) -> None:
        hear(self, sent_at, is_settled=True)

    patch.setattr(MemberSession, "hear", settle)


@pytest.mark.teeth
@pytest.mark.parametrize(
    "plant", [give_away_what_is_held, believe_in_endless_sessions, believe_in_endless_patience]
)
def test_a_rule_that_is_missing_is_missed(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some seed out of a few finds two members at one partition."""
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=" and p"):
        run_some()
