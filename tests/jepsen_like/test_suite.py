"""The ladder: what its runs are, and what it says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from jepsen_like import suite
from jepsen_like.nemesis.registry import KINDS, check_kinds
from jepsen_like.settings import BadSettings, RunSettings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def test_every_run_can_be() -> None:
    """Known faults, settings that are accepted, and a name of its own in each level."""
    for rungs in suite.LEVELS.values():
        assert len({rung.name for rung in rungs}) == len(rungs)
        for rung in rungs:
            rung.settings.check()
            assert set(check_kinds(rung.settings.nemesis)) == set(rung.settings.nemesis)


@pytest.mark.parametrize("level", [2, 3])
def test_all_faults_strike(level: int) -> None:
    """A level for a night leaves none out."""
    struck = {kind for rung in suite.LEVELS[level] for kind in rung.settings.nemesis}
    assert struck == set(KINDS)


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        (["passed", "passed"], "passed"),
        (["passed", "unknown"], "unknown"),
        (["unknown", "failed", "passed"], "failed"),
    ],
)
def test_the_worst_counts(outcomes: list[str], said: str) -> None:
    """A run that proves nothing is no success, and no failure either."""
    assert suite.worst(outcomes) == said


def test_each_run_is_a_process_with_a_seed_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that could not even begin is told in the table, and the others go on."""
    started: list[Sequence[str]] = []
    rungs = tuple(suite.Rung(name, RunSettings(nemesis=("kill",))) for name in ("one", "two"))
    monkeypatch.setitem(suite.LEVELS, 1, rungs)
    monkeypatch.setattr(suite, "run_process", lambda command, **_: started.append(command))
    assert suite.climb(1, rungs=(1, 2), first_seed=7, folder=tmp_path) == "unknown"
    for command, seed in zip(started, (7, 8), strict=True):
        words = replace(rungs[0].settings, seed=seed).command.split()[2:]
        assert list(command[2 : 2 + len(words)]) == words
    (table,) = tmp_path.glob("*-level-1/table.md")
    assert "01-one" in table.read_text()
    assert "02-two" in table.read_text()


def test_some_rungs_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They keep their numbers and their seeds; what is no rung is refused by name."""
    started: list[Sequence[str]] = []
    monkeypatch.setattr(suite, "run_process", lambda command, **_: started.append(command))
    assert suite.chosen(1, ()) == tuple(range(1, len(suite.FIRST) + 1))
    assert suite.chosen(1, ("4", "2")) == (2, 4)
    suite.climb(1, rungs=(2, 4), first_seed=7, folder=tmp_path)
    assert [command[command.index("--seed") + 1] for command in started] == ["8", "10"]
    with pytest.raises(BadSettings, match="rungs = 0,x: expected 1 to"):
        suite.chosen(1, ("x", "0", "1"))
