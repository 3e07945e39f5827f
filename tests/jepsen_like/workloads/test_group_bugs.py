"""Bugs of groups, planted under members that live in virtual time: the checkers find each."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from jepsen_like.planted import groups
from jepsen_like.workloads.group_plan import End, Fate
from tests.jepsen_like.workloads.group_runs import PARTITIONS, a_group_run
from tests.simulation.planting import demand_called, planted

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock

    from tests.simulation.planting import Patch


@pytest.mark.parametrize(
    ("plant", "found_as"),
    [
        (groups.commits_of_any_generation, "zombie-commit"),
        (groups.go_on_with_what_was_given_up, "overlap"),
        (groups.sessions_do_not_end_here, "overlap"),
    ],
)
async def test_a_bug_is_found(
    plant: Callable[[Patch], None], found_as: str, autojump_clock: MockClock
) -> None:
    with planted(plant) as calls:
        found = await _findings()
    assert found_as in found, found
    demand_called(plant.__name__, calls)


async def _findings() -> set[str]:
    """Of a run in which a member falls silent for longer than a session, others come and leave."""
    random = Random(1)
    async with a_group_run("batch") as run:
        run.begin("a", Fate(100.0, End.LEAVE, mute_at=6.3, mute_seconds=9.0))
        run.begin("b", Fate(25.0, End.LEAVE))
        for step in range(150):
            run.append(random.randrange(PARTITIONS), 2)
            if step == 90:
                run.begin("c")
            if step in (100, 120):
                await run.here.give(step // 20 % 3 + 1)
            await trio.sleep(0.2)
        return {finding.name for finding in (await run.finish()).failures}
