"""A voter's journal is crashed at every operation of its life, and never takes anything back.

Here one script for each kind of crash; `python -m tests.simulation.journal_sweep --seeds N` goes
on from there. A failure prints the command that replays it.
"""

from __future__ import annotations

import pytest

from tests.simulation.journal_script import DIRECTORY
from tests.simulation.journal_sweep import (
    MODES,
    JournalCamera,
    Mode,
    crashes,
    flips,
    operations,
    sweep,
)

# One is in `make check`.
CASES = [
    pytest.param(seed, mode, marks=pytest.mark.gate if mode == "power" else ())
    for seed, mode in enumerate(MODES)
]


@pytest.mark.parametrize(("seed", "mode"), CASES)
def test_no_crash_takes_anything_back(seed: int, mode: Mode) -> None:
    """At any operation: exactly what was completed is found, or with it the batch in progress."""
    assert sweep(seed, mode) >= operations(seed)


def test_no_turned_bit_goes_unnoticed() -> None:
    """Rot anywhere below the last batch is damage; in the last batch it looks torn, and is said."""
    assert flips(seed=4, every=9) > 100


@pytest.mark.parametrize("seed", range(4))
def test_the_sweep_goes_through_everything(seed: int) -> None:
    """A script that does little would prove little: segments come and go, and it restarts."""
    camera = JournalCamera(seed, [])
    camera.run()
    kinds = {line.split()[1] for line in camera.disk.trace}
    assert kinds >= {"create", "write", "sync", "rename", "remove", "sync_directory"}
    assert camera.disk.count > 100
    assert camera.script.model.start_count > 2
    assert int(camera.disk.paths(DIRECTORY)[-1].stem) > 4


def test_the_same_seed_is_the_same_life() -> None:
    """Replaying one crash takes the same script to the same bytes as the whole sweep did."""
    [same] = [crashed for crashed in crashes(1, "reorder") if crashed.case.at == 70]
    [one] = crashes(1, "reorder", at=70)
    assert one.owed == same.owed
    assert [one.disk.open(path).read(0, 1 << 20) for path in one.disk.paths(DIRECTORY)] == [
        same.disk.open(path).read(0, 1 << 20) for path in same.disk.paths(DIRECTORY)
    ]
