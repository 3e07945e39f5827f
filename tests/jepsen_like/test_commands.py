"""What the command line says without starting anything, and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jepsen_like.cli import CANNOT, main
from jepsen_like.nemesis.registry import check_kinds
from jepsen_like.settings import BadSettings, RunSettings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("run --nemesis kill,earthquake", "no such fault: earthquake; there are kill, pause"),
        ("run --workload offsets", "workload = 'offsets': expected one of queue, metadata"),
        ("run --acks 7", "acks = '7': expected one of all, 1, 2"),
        (
            "run --nodes 4 --rate 0",
            "nodes = 4: expected 3 or 5; rate = 0: expected more than 0, and",
        ),
        (
            "run --nemesis pause,powercut --whom rolling,halves",
            "whom = rolling,halves: pause hits controller",
        ),
        ("run --fault-events 3", "fault events of what? name them with --nemesis"),
        ("report /nowhere", "no run in /nowhere"),
    ],
)
def test_what_cannot_be(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names what is wrong, and all that is; nothing was started."""
    assert main(words.split()) == CANNOT
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert told in said


def test_the_command_that_repeats_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It asks for the same: nothing that was chosen is left out."""
    played: list[RunSettings] = []
    monkeypatch.setattr("jepsen_like.run.run", lambda *given: played.append(given[0]) or "passed")
    wanted = RunSettings(
        workload="metadata", nemesis=("kill", "clock"), time_limit=7.5, seed=3, nodes=5,
        acks=("all",), processes=2, rate=11.0, pace=1.5, fault_events=4,
        whom=("leader-and-controller", "one"),
    )  # fmt: skip
    assert main(wanted.command.split()[2:]) == 0
    assert main([*RunSettings(seed=9).command.split()[2:], "--folder", str(tmp_path)]) == 0
    assert played == [wanted, RunSettings(seed=9)]


def test_the_command_of_an_older_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says --strokes."""
    played: list[RunSettings] = []
    monkeypatch.setattr("jepsen_like.run.run", lambda *given: played.append(given[0]) or "passed")
    assert main(["run", "--nemesis", "kill", "--strokes", "4", "--seed", "3"]) == 0
    assert played == [RunSettings(nemesis=("kill",), fault_events=4, seed=3)]


def test_a_seed_is_drawn_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gives none gets another one each time, and can repeat it."""
    played: list[RunSettings] = []
    monkeypatch.setattr("jepsen_like.run.run", lambda *given: played.append(given[0]) or "unknown")
    assert [main(["run"]), main(["run"])] == [3, 3]
    assert played[0].seed != played[1].seed
    assert f"--seed {played[0].seed}" in played[0].command


def test_all_that_is_wrong_is_told_at_once() -> None:
    """And a run that can be is accepted."""
    RunSettings().check()
    with pytest.raises(BadSettings, match=r"processes = 0.*pace = -1.*fault_events = -2"):
        RunSettings(processes=0, pace=-1, fault_events=-2).check()


def test_all_faults_have_a_short_name() -> None:
    """A command that nobody can read is not typed."""
    command = RunSettings(nemesis=check_kinds(("all",))).command
    assert command == "python jepsen-like run --workload queue --nemesis all --seed 0 --nodes 3"


def test_a_folder_holds_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is left of another one would be taken for this one's."""
    (tmp_path / "history.jsonl").touch()
    assert main(["run", "--folder", str(tmp_path)]) == CANNOT
    assert "holds a run already: name another with --folder" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file is in its place."""
    (tmp_path / "taken").touch()
    assert main(["run", "--folder", str(tmp_path / "taken")]) == CANNOT
    assert "cannot be made (Not a directory): name another" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (BaseExceptionGroup("", [KeyboardInterrupt()]), 130, "interrupted"),
        (ExceptionGroup("", [ValueError("a slip")]), 2, "says nothing of what it tests"),
        (AssertionError("a slip"), 2, "says nothing of what it tests"),
    ],
)
def test_a_run_that_ends_otherwise(
    error: BaseException,
    status: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Never with the code of a promise that was broken; a slip of ours is shown as it is."""

    def fail(*_: object) -> str:
        raise error

    monkeypatch.setattr("jepsen_like.run.run", fail)
    assert main(["run"]) == status
    said = capsys.readouterr().err
    assert told in said
    assert ("a slip" in said) == (status == CANNOT)
