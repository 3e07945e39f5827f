"""Bugs that moves of replicas could have, to be planted into ours one at a time.

Each takes away one rule of plans, of their start, or of the limits. Seeds of worlds that find them
stand here; `python -m tests.simulation.controller_planted_bugs --seeds 100` looks for others, where
a change of the code has shifted the worlds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from immutables import Map

from raftmq.metadata.apply import moves, partitions
from raftmq.metadata.apply.reviews import rules_of
from raftmq.metadata.commands import Done
from raftmq.metadata.controller.effects import InFlightProposals
from raftmq.metadata.controller.moves import CopiesUnderWay
from tests.simulation import planting
from tests.simulation.controller_world import World
from tests.simulation.planting import PlantedBugs

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.metadata.apply.draft import Draft
    from raftmq.metadata.commands import AnyResult, PartitionId
    from raftmq.metadata.image import MetadataImage, PartitionState
    from tests.simulation.planting import Patch

Target = tuple[int, ...]


# -- Plans -----------------------------------------------------------------------------------------


def plan_outlives_its_start(patch: Patch) -> None:
    """The start does not take it away."""
    original = partitions.begin_reassignment

    def begin(draft: Draft, key: PartitionId, before: PartitionState, target: Target) -> AnyResult:
        plan, result = draft.plan(key), original(draft, key, before, target)
        if plan is not None and draft.plan(key) is None:
            draft.put_plan(key, plan)
        return result

    patch.setattr(partitions, "begin_reassignment", begin)


def start_takes_every_plan(patch: Patch) -> None:
    """A reassignment takes away what is planned for other replicas, too."""
    original = partitions.begin_reassignment

    def begin(draft: Draft, key: PartitionId, before: PartitionState, target: Target) -> AnyResult:
        draft.forget_plan(key)
        return original(draft, key, before, target)

    patch.setattr(partitions, "begin_reassignment", begin)


def late_start_begins(patch: Patch) -> None:
    """Nobody looks whether the plan of a start still stands."""
    patch.setattr(partitions, "_stands", lambda *_arguments: True)


def late_plan_counts(patch: Patch) -> None:
    """Nobody looks what its sender has seen."""
    patch.setattr(moves, "_is_late", lambda *_arguments: False)


def cancel_drops_the_last(patch: Patch) -> None:
    """A cancel drops what was added, whoever else is in sync."""

    def begin(draft: Draft, key: PartitionId, before: PartitionState, target: Target) -> AnyResult:
        rules = rules_of(draft, key.topic_id)
        partitions._put(draft, key, partitions._moving(before, target, rules), rules)
        return Done()

    patch.setattr(moves, "begin_reassignment", begin)


# -- Limits ----------------------------------------------------------------------------------------


def limits_count_plans(patch: Patch) -> None:
    """What waits is counted, instead of what is under way."""
    original = CopiesUnderWay.__init__

    def count(self: CopiesUnderWay, image: MetadataImage, *_starting: object) -> None:
        waiting = {key: plan.replicas for key, plan in image.moves.items()}
        original(self, image._replace(moving=Map(waiting)))

    patch.setattr(CopiesUnderWay, "__init__", count)


def starts_in_flight_are_free(patch: Patch) -> None:
    """What is proposed counts only once the image shows it."""
    patch.setattr(InFlightProposals, "moves", lambda _self: [])


# -- all of them -----------------------------------------------------------------------------------


def _world(seed: int, **_options: object) -> World:
    """All faults, as long as ever."""
    return World(seed)


def _case(*seeds: int) -> planting.Case:
    return planting.Case(seeds, (), 0.0)


_CASES: dict[Callable[[Patch], None], planting.Case] = {
    plan_outlives_its_start: _case(1, 3),
    start_takes_every_plan: _case(1, 21, 26),
    late_start_begins: _case(9, 156),
    late_plan_counts: _case(4, 9, 11),
    cancel_drops_the_last: _case(62, 93, 96),
    limits_count_plans: _case(1, 4, 8),
    starts_in_flight_are_free: _case(71, 87),
}
BUGS = PlantedBugs(_world, _CASES)

if __name__ == "__main__":
    planting.main(BUGS, __doc__.splitlines()[0])
