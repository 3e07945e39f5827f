"""Moments that seeds seldom meet, in worlds where nothing else goes wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.broker.groups.limits import GroupSettings
from raftmq.client.group.states import State
from raftmq.errors import ErrorCode
from tests.simulation.groups.asks import Commit, Committed
from tests.simulation.groups.plan import MemberPlan, Plan
from tests.simulation.groups.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.groups.connection import Heard
    from tests.simulation.groups.process import Process

SETTINGS = GroupSettings(session_timeout_ms_min=1_000, initial_rebalance_delay_ms=0)


def run_until(world: World, is_there: Callable[[], bool]) -> None:
    end = world.timeline.now + 10.0
    while not is_there():
        world.run(0.002)
        assert world.timeline.now < end, "the moment never came"


def test_a_static_member_restarts_before_it_has_handed_over() -> None:
    """What it was to give up is nobody's, its new process does not hold it: all of it is read."""
    world = World(2, Plan(member=MemberPlan(work_seconds=3.0), settings=SETTINGS))
    world.brokers[0].take_office(world.quorum.assign(0))
    world.start("i0")
    world.run(3.0)
    world.start(None)
    before = world.processes[0]
    run_until(world, lambda: before.membership.state is State.REVOKING)
    before.kill()
    world.start("i0")
    world.heal()
    assert world.checks.returns == 1


def test_the_next_coordinator_tells_of_the_same_generation() -> None:
    """A plan is saved while the group deals anew, and its coordinator dies: whoever claims what it
    claimed for that plan is told of it again by the next one, and may commit what it has."""
    world = World(0, Plan(settings=SETTINGS, save_seconds_max=0.5))
    world.brokers[0].take_office(world.quorum.assign(0))
    for _ in range(2):
        world.start(None)
        world.run(3.0)
    leader, member = world.processes
    assert leader.membership.is_leader
    world.start(None)
    run_until(world, lambda: all(is_syncing(process) for process in world.processes))
    generation = member.membership.generation
    leader.pause()  # it does not join again: the group waits for it
    world.start(None)
    run_until(world, lambda: member.membership.state is State.JOINING)
    world.processes[-1].kill()
    run_until(world, lambda: is_saved(world, generation))
    world.coordinator_broker().crash()
    world.move(0.0)
    run_until(world, lambda: is_syncing(member))
    assert member.membership.generation == generation
    assert member.membership.held
    heard: list[Heard] = []
    member.send(Commit(member.membership.member_id, generation, None), heard.append)
    run_until(world, lambda: bool(heard))
    assert heard[0].outcome == Committed(ErrorCode.NONE)
    leader.resume()
    world.heal()


def test_the_number_of_a_lost_coordinator_is_not_the_generation() -> None:
    """A coordinator dies before the plan is saved, and the next one comes to the same number while
    a static member is silent: the judge knows that it means another one, and so does the group."""
    world = World(0, Plan(member=MemberPlan(rebalance_seconds=2.0), settings=SETTINGS))
    world.brokers[0].take_office(world.quorum.assign(0))
    world.start("i0")
    world.run(3.0)
    member = world.processes[0]
    world.faults.save_factor = 1000.0
    world.start(None)
    run_until(world, lambda: is_syncing(member))
    generation = member.membership.generation
    member.pause()
    world.coordinator_broker().crash()
    world.move(0.0)
    world.faults.save_factor = 1.0
    run_until(world, lambda: is_saved(world, generation))
    assert member.membership.generation == generation
    assert world.checks.is_elsewhere(member)
    heard: list[Heard] = []
    member.forget_coordinator()
    member.send(Commit(member.membership.member_id, generation, "i0"), heard.append)
    world.run(1.0)
    member.resume()
    assert heard[0].outcome == Committed(ErrorCode.ILLEGAL_GENERATION)
    world.heal()


def test_whoever_is_cut_off_asks_somebody_else_at_once() -> None:
    """The coordinator is another broker by now, to which there was no connection: that one is
    opened while the others break, and stays."""
    world = World(0, Plan(settings=SETTINGS))
    world.brokers[0].take_office(world.quorum.assign(0))
    world.start(None)
    world.run(3.0)
    member = world.processes[0]
    commit = Commit(member.membership.member_id, member.membership.generation, None)
    heard: list[Heard] = []

    def ask_again(_: Heard) -> None:
        member.forget_coordinator()
        member.send(commit, heard.append)

    member.send(commit, ask_again)
    world.brokers[0].abandon()
    world.brokers[1].take_office(world.quorum.assign(1))
    member.cut()
    run_until(world, lambda: bool(heard))
    assert heard[0].outcome == Committed(ErrorCode.NONE)
    world.heal()


def is_syncing(process: Process) -> bool:
    return process.membership.state is State.SYNCING


def is_saved(world: World, generation: int) -> bool:
    group = world.quorum.group
    return group is not None and group.generation == generation
