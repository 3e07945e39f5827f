"""Faults of processes, power, disks and clocks on machines that keep accounts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jepsen_like.nemesis.clocks import Clock
from jepsen_like.nemesis.fault import comes_up
from jepsen_like.nemesis.registry import FAULTS
from tests.jepsen_like.nemesis.scripted_machines import PageInMemory, ScriptedMachines, scene

if TYPE_CHECKING:
    from jepsen_like.nemesis.fault import Fault, Told

OF_NODES = ("kill", "pause", "freezer", "powercut", "fsync-kill", "fsync-eio", "fsync-slow",
            "disk-stall", "disk-full", "clock")  # fmt: skip


def made(machines: ScriptedMachines, kind: str, *nodes: int, **params: object) -> Fault:
    return FAULTS[kind](scene(machines, *nodes, kind=kind, **params))


def struck(machines: ScriptedMachines, kind: str, *nodes: int, **params: object) -> Told:
    fault = made(machines, kind, *nodes, **params)
    return fault.begin() | fault.end()


@pytest.mark.parametrize("kind", OF_NODES)
def test_a_fault_is_undone(kind: str) -> None:
    """Begun on two nodes and ended twice: all is well, and the second end did nothing."""
    machines = ScriptedMachines()
    fault = made(machines, kind, 1, 3)
    fault.begin()
    assert not machines.is_well()
    fault.end()
    assert machines.is_well()
    calls = list(machines.calls)
    assert fault.end() == {}
    assert machines.calls == calls


@pytest.mark.parametrize("kind", OF_NODES)
def test_a_fault_that_did_not_begin_ends_as_well(kind: str) -> None:
    """Whoever heals ends everything."""
    machines = ScriptedMachines()
    assert made(machines, kind, 2).end() == {}
    assert machines.calls == []


@pytest.mark.parametrize("kind", ["kill", "pause", "freezer"])
def test_a_node_that_is_down_is_left_alone(kind: str) -> None:
    """One of two has ended by itself before: only the other one is hit."""
    machines = ScriptedMachines()
    machines.end_by_itself(1)
    told = struck(machines, kind, 1, 2)
    assert [2] in told.values()
    assert 1 not in machines.running
    assert not [call for call in machines.calls if call.endswith(" 1")]


def test_a_paused_node_that_died_is_not_woken() -> None:
    """It was killed from outside while it was paused."""
    machines = ScriptedMachines()
    fault = made(machines, "pause", 2)
    fault.begin()
    machines.kill(2)
    fault.end()
    assert "resume 2" not in machines.calls


def test_a_second_power_cut_meets_the_recovery() -> None:
    """Power comes back, and is lost again while the node starts."""
    machines = ScriptedMachines()
    told = struck(machines, "powercut", 2, second_after_seconds=0.5)
    assert told == {"cuts": 2}
    assert machines.calls == ["cut power 2", "start 2", "cut power 2", "start 2"]


@pytest.mark.parametrize("missing", ["", "no loop devices"])
def test_death_at_a_sync_is_followed_by_a_power_cut_where_possible(missing: str) -> None:
    """The node died at its sync; the other one got by without."""
    machines = ScriptedMachines()
    machines.capabilities["power cuts"] = missing
    fault = made(machines, "fsync-kill", 1, 2, at_sync=5)
    fault.begin()
    assert machines.pages[1].kill_at_sync == 5
    machines.end_by_itself(1, -9)
    assert fault.end() == {"died": [1], "power_cut": not missing}
    assert ("cut power 1" in machines.calls) == (not missing)
    assert machines.is_well()


@pytest.mark.parametrize("kind", ["fsync-eio", "fsync-slow"])
def test_bad_syncs_are_counted(kind: str) -> None:
    """Three syncs were hit; or none, and then nothing has happened."""
    machines = ScriptedMachines()
    fault = made(machines, kind, 1)
    fault.begin()
    machines.pages[1].syncs += 3
    assert fault.end() == {"syncs": 3}
    assert struck(machines, kind, 1) == {"syncs": 0, "skipped": "nothing was synced meanwhile"}


def test_a_death_that_did_not_come_is_none() -> None:
    """No sync was the one to die at, and power cannot be cut: the history says so."""
    machines = ScriptedMachines()
    machines.capabilities["power cuts"] = "no loop devices"
    told = struck(machines, "fsync-kill", 1)
    assert told == {"died": [], "power_cut": False, "skipped": "nothing was synced meanwhile"}
    assert machines.is_well()


def test_a_strobe_comes_and_goes_until_its_end() -> None:
    """A clock that is told to jump to and fro: both values are seen, and then it is right."""
    machines = ScriptedMachines()
    given = scene(machines, 1, 2, kind="clock", offset_ms=-700, period_seconds=0.0001)
    fault = Clock(given)
    assert fault.begin() == {"how": "strobe"}
    seen: set[int] = set()
    while seen != {0, -700}:
        seen.add(machines.pages[2].clock_offset_ms)
    fault.end()
    assert machines.pages[2] == PageInMemory()


def test_a_bump_stays_until_its_end() -> None:
    """A clock that is ahead."""
    machines = ScriptedMachines()
    given = scene(machines, 3)._replace(params={"offset_ms": 90_000})
    fault = Clock(given)
    assert fault.begin() == {"how": "bump"}
    assert machines.pages[3].clock_offset_ms == 90_000
    fault.end()
    assert machines.is_well()


def test_whoever_ends_does_not_come_up() -> None:
    """Waiting ends at once when the process has ended, and in the end in any case."""
    machines = ScriptedMachines()
    assert comes_up(machines, 1)
    machines.never_ready.add(1)
    assert not comes_up(machines, 1)
    machines.end_by_itself(1)
    assert not comes_up(machines, 1)
