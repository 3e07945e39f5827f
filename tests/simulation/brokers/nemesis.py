"""What the nemesis of the world of brokers is composed of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.brokers.fault_scripts import FaultScripts
from tests.simulation.brokers.faults import (
    BrokerCrashFaults,
    BrokerDiskFaults,
    RoleFaults,
    TopicFaults,
)
from tests.simulation.brokers.group_faults import GroupFaults
from tests.simulation.brokers.injector import BrokerInjector
from tests.simulation.brokers.task_faults import TaskFaults
from tests.simulation.machine_faults import CrashFaults, LinkFaults, StallFaults
from tests.simulation.nemesis import Nemesis

if TYPE_CHECKING:
    from tests.simulation.brokers.world import World
    from tests.simulation.nemesis import Family


def nemesis_of(world: World, injector: BrokerInjector | None = None, *more: Family) -> Nemesis:
    """`more`: faults of worlds of another kind, which use the same injector."""
    injector = injector or BrokerInjector(world)
    crashes = CrashFaults(world, injector)
    roles = RoleFaults(world, injector, crashes)
    disks = BrokerDiskFaults(world, injector, crashes)
    topics = TopicFaults(world, injector, crashes)
    return Nemesis(
        world,
        injector,
        LinkFaults(world, injector).faults,
        StallFaults(world, injector).faults,
        crashes.faults,
        BrokerCrashFaults(world, injector, crashes).faults,
        roles.faults,
        disks.faults,
        topics.faults,
        FaultScripts(world, injector, crashes, disks, topics).faults,
        GroupFaults(world, injector, crashes, roles).faults,
        TaskFaults(world, injector, crashes, roles).faults,
        *more,
    )
