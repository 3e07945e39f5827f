"""A node that is away, and the deaths of all others, on machines that keep accounts."""

from __future__ import annotations

import pytest

from jepsen_like.nemesis.registry import FAULTS
from tests.jepsen_like.nemesis.scripted_machines import ScriptedMachines, scene

KINDS = ("part-kill", "pause-kill")


def first(machines: ScriptedMachines, call: str) -> int:
    return next(at for at, done in enumerate(machines.calls) if done.startswith(call))


@pytest.mark.parametrize("kind", KINDS)
def test_one_is_away_and_the_others_die(kind: str) -> None:
    """In that order: gone, the others without power, back, and one of them beside it."""
    machines = ScriptedMachines()
    fault = FAULTS[kind](scene(machines, 1, 2, 3, whom="all", kind=kind))
    told = fault.begin()
    absent, killed = told["absent"], told["killed"]
    assert sorted([absent, *killed]) == [1, 2, 3]
    assert machines.running == {absent, killed[0]}
    leaving, returning = ("cut n", "heal") if kind == "part-kill" else ("pause", "resume")
    order = [first(machines, call) for call in (leaving, "cut power", returning, "start")]
    assert order == sorted(order)
    fault.end()
    assert machines.is_well()
    assert fault.end() == {}


def test_of_five_nodes_a_quorum_is_left() -> None:
    """Those that died stay dead until the end."""
    machines = ScriptedMachines(5)
    fault = FAULTS["pause-kill"](scene(machines, *range(1, 6), whom="all", kind="pause-kill"))
    told = fault.begin()
    assert len(told["killed"]) == 2
    assert machines.running == {*range(1, 6)} - {*told["killed"]}
    fault.end()
    assert machines.is_well()


@pytest.mark.parametrize("kind", KINDS)
def test_an_absence_that_did_not_begin(kind: str) -> None:
    """Whoever heals ends everything."""
    machines = ScriptedMachines()
    fault = FAULTS[kind](scene(machines, 1, 2, 3, whom="all", kind=kind))
    assert fault.end() == {}
    assert machines.calls == []


def test_without_power_cuts() -> None:
    """Then they are killed."""
    machines = ScriptedMachines()
    machines.capabilities["power cuts"] = "not here"
    told = FAULTS["pause-kill"](scene(machines, 1, 2, 3, whom="all", kind="pause-kill")).begin()
    assert [call for call in machines.calls if call.startswith("kill")] == [
        f"kill {node}" for node in told["killed"]
    ]
