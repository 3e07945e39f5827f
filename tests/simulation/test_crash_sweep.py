"""A broker is crashed at every operation of its life, and never breaks a promise.

Here four scripts, each with one kind of crash; `python -m tests.simulation.crash_sweep --seeds N`
goes on from there. A failure prints the command that replays it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation.crash_case import OPERATIONS, Sweep
from tests.simulation.crash_script import ROOT
from tests.simulation.crash_sweep import SWEEPS, Camera, first_failure

if TYPE_CHECKING:
    from tests.simulation.disk import SimulatedFiles


# One is in `make check`, and the last two are long.
GATE, TEETH = pytest.mark.gate, pytest.mark.teeth
MARKED = [
    pytest.param(SWEEPS[0], marks=GATE),
    SWEEPS[1],
    *(pytest.param(sweep, marks=TEETH) for sweep in SWEEPS[2:]),
]


@pytest.mark.parametrize("sweep", MARKED, ids=str)
def test_no_crash_breaks_a_promise(sweep: Sweep) -> None:
    """At any operation: what was durable is there, what is there was appended, the log goes on."""
    failure = first_failure(sweep)
    assert failure is None, str(failure)


@pytest.mark.parametrize("sweep", SWEEPS, ids=str)
def test_the_sweep_crashes_everywhere(sweep: Sweep) -> None:
    """A script that does little would prove little: count what happens in each."""
    camera = Camera(sweep.seed, [sweep.mode], None)
    assert camera.run_script() is None
    assert {photograph.case.at for photograph in camera.photographs} >= set(
        range(1, OPERATIONS + 1)
    )
    kinds = {line.split()[1] for line in camera.disk.trace}
    assert kinds >= {"create", "write", "sync", "truncate", "rename", "remove", "sync_directory"}


def test_the_same_seed_is_the_same_life() -> None:
    """Replaying one crash takes the same script to the same bytes as the whole sweep did."""
    whole, replayed = Camera(1, ["power"], None), Camera(1, ["power"], 200)
    assert whole.run_script() is None
    assert replayed.run_script() is None
    assert whole.disk.trace == replayed.disk.trace
    [one] = replayed.photographs
    [same] = [found for found in whole.photographs if found.case.at == 200]
    assert one.owed == same.owed
    assert contents(one.disk) == contents(same.disk)


def contents(disk: SimulatedFiles) -> dict[str, bytes]:
    return {str(path): disk.open(path).read(0, disk.size(path)) for path in disk.paths(ROOT)}
