"""The tables of faults that worlds are composed of: no name twice, and all that is drawn exists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.simulation.brokers import group_plan, task_plan
from tests.simulation.brokers import plan as broker_plan
from tests.simulation.brokers import world as broker_world
from tests.simulation.fault_table import by_name, composed
from tests.simulation.groups import plan as group_world_plan
from tests.simulation.groups import world as group_world
from tests.simulation.raft import plan as quorum_plan
from tests.simulation.raft import world as quorum_world
from tests.simulation.replication import plan as replication_plan
from tests.simulation.replication import world as replication_world

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


class Links:
    def cut(self) -> None: ...


class Cables:
    def cut(self) -> None: ...


def test_two_families_with_a_fault_of_the_same_name_are_refused() -> None:
    """Neither takes the place of the other in silence."""
    with pytest.raises(ValueError, match="two families have a fault of the name cut"):
        composed(by_name(Links().cut), by_name(Cables().cut))


def test_a_fault_that_no_family_has_is_refused() -> None:
    """Before the world begins, and not when its seed draws it."""
    with pytest.raises(ValueError, match="no family has a fault heal, mend"):
        composed(by_name(Links().cut), kinds=("cut", "mend", "heal"))


GROUP_KINDS = (*group_world_plan.KINDS, *group_world_plan.MORE_KINDS)
BROKER_KINDS = (*broker_plan.KINDS, *group_plan.GROUP_KINDS, *task_plan.TASK_KINDS)


@pytest.mark.parametrize(
    ("make", "kinds"),
    [
        pytest.param(broker_world.World, BROKER_KINDS, id="brokers"),
        pytest.param(quorum_world.World, quorum_plan.KINDS, id="quorum"),
        pytest.param(replication_world.drawn_world, replication_plan.KINDS, id="replication"),
        pytest.param(group_world.drawn_world, GROUP_KINDS, id="groups"),
    ],
)
def test_what_is_drawn_is_all_that_there_is(
    make: Callable[[int], Any], kinds: Collection[str]
) -> None:
    """A fault that no plan draws would never strike."""
    assert set(make(0).nemesis.faults) == set(kinds)
