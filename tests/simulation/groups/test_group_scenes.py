"""Moments that seeds seldom meet, in worlds where nothing else goes wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raftmq.broker.groups.phases import GroupSettings
from raftmq.client.group.effects import State
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
    """Partitions that it was to give up have a new owner in the end: all of them are read."""
    world = World(2, Plan(member=MemberPlan(work_seconds=3.0), settings=SETTINGS))
    world.brokers[0].take_office(world.assign(world.brokers[0]))
    world.start("i0")
    world.run(3.0)
    world.start(None)
    before = world.processes[0]
    run_until(world, lambda: before.membership.state is State.REVOKING)
    before.kill()
    world.start("i0")
    world.heal()
    assert world.checks.returns == 1


def test_the_next_coordinator_begins_a_generation() -> None:
    """An assignment is saved during a rebalance, and its coordinator dies: the next one does not
    know whether it was handed out. A member that joins again has another generation, and keeps
    what it holds meanwhile, and may commit."""
    world = World(0, Plan(settings=SETTINGS, save_seconds_max=0.5))
    world.brokers[0].take_office(world.assign(world.brokers[0]))
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
    held = member.membership.held
    run_until(world, lambda: is_syncing(member))
    assert member.membership.generation > generation
    assert member.membership.held == held != frozenset()
    run_until(world, lambda: member.membership.state is State.STABLE)
    heard: list[Heard] = []
    commit = Commit(member.membership.member_id, member.membership.generation, None)
    member.send(commit, heard.append)
    run_until(world, lambda: bool(heard))
    assert heard[0].outcome == Committed(ErrorCode.NONE)
    leader.resume()
    world.heal()


def test_the_number_of_a_lost_coordinator_is_not_the_generation() -> None:
    """A coordinator dies before the plan is saved, and the next one comes to the same number while
    a static member is silent: the judge knows that it means another one, and so does the group."""
    world = World(0, Plan(member=MemberPlan(rebalance_seconds=2.0), settings=SETTINGS))
    world.brokers[0].take_office(world.assign(world.brokers[0]))
    world.start("i0")
    world.run(3.0)
    member = world.processes[0]
    world.coordinator_faults.save_factor = 1000.0
    world.start(None)
    run_until(world, lambda: is_syncing(member))
    generation = member.membership.generation
    member.pause()
    world.coordinator_broker().crash()
    world.move(0.0)
    world.coordinator_faults.save_factor = 1.0
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
    world.brokers[0].take_office(world.assign(world.brokers[0]))
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
    world.brokers[1].take_office(world.assign(world.brokers[1]))
    member.cut()
    run_until(world, lambda: bool(heard))
    assert heard[0].outcome == Committed(ErrorCode.NONE)
    world.heal()


def test_a_commit_comes_when_the_slot_is_back() -> None:
    """The slot goes elsewhere, and comes back while a proxy has a commit: a later one stands. The
    judge sees it where epochs are not compared."""
    world = World(0, Plan(member=MemberPlan(commit_seconds=1000.0), settings=SETTINGS))
    home, other = world.brokers[:2]
    home.take_office(world.assign(home))
    world.start(None)
    world.run(3.0)
    member = world.processes[0]
    id_, generation = member.membership.member_id, member.membership.generation
    heard: list[Heard] = []
    member.keep_back(5.0, lambda: None, from_join=False)
    member.send(Commit(id_, generation, None, 1), heard.append)
    for old, new in ((home, other), (other, home)):
        new.take_office(world.assign(new))
        old.abandon()
        if new is other:
            member.forget_coordinator()
            member.send(Commit(id_, generation, None, 2), heard.append)
            run_until(world, lambda: bool(heard))
            assert heard[0].outcome == Committed(ErrorCode.NONE)
    world.run(6.0)
    assert any("late, of p0" in line and "number=1" in line for line in world.lines)
    assert world.checks.commits == 1
    world.heal()


@pytest.mark.parametrize("seed", range(4))
def test_a_join_comes_when_its_member_holds_more(seed: int) -> None:
    """A proxy keeps back the JoinGroup with which a member comes, and which claims nothing. It
    arrives when the member stalls with all that it owns by then, and another member joins: it has
    no effect, and no member is assigned partitions that the stalled one may still work on."""
    world = World(seed, Plan(member=MemberPlan(session_seconds=12.0), settings=SETTINGS))
    world.brokers[0].take_office(world.assign(world.brokers[0]))
    world.start("leads")
    world.run(2.0)
    world.start("late")
    leader, late = world.processes

    def stall() -> None:
        late.pause()
        world.start("comes")

    late.keep_back(9.0, stall, from_join=True)
    world.run(4.0)
    world.set_partitions("a", 7)  # so it joins again, with what it has got
    world.run(4.9)
    assert leader.membership.is_leader
    assert late.membership.held
    world.run(4.0)
    assert any("late, of p1" in line for line in world.lines)
    assert late.works_on()
    late.resume()
    world.heal()


def is_syncing(process: Process) -> bool:
    return process.membership.state is State.SYNCING


def is_saved(world: World, generation: int) -> bool:
    group = world.quorum.group
    return group is not None and group.generation == generation
