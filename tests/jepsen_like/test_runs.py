"""Whole runs on real clusters: a share of the first level, a bug that must be found, less rights.

Where this machine cannot do a fault, the run says so and goes on; what a test is about it demands.

A15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jepsen_like.checkers.verdict import Result
from jepsen_like.network.probe import lab_missing
from jepsen_like.nodes.capabilities import power_cuts
from jepsen_like.report.folder import RunFolder
from tests.jepsen_like.commands import jepsen_like
from tests.jepsen_like.planted_runs import find
from tests.powercut.capabilities import require

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.powercut

FAULTS = "kill,pause,partition,reset,powercut,fsync-kill,fsync-eio,bitflip"
ACKNOWLEDGED_MIN, FAULTS_MIN = 2_000, 6
HANDED_OUT_MIN, GENERATIONS_MIN = 300, 4
DELIVERED_MIN, CANCELLED_MIN = 200, 10
HANDLED_MIN, RETURNS_MIN, LETTERS_MIN = 300, 20, 20
WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")


def test_a_queue_that_is_broken_keeps_its_promises(tmp_path: Path) -> None:
    """Processes, network, power and disks; everything acknowledged is there in the end (A5.8)."""
    require(lab_missing, power_cuts)
    folder = tmp_path / "run"
    said = jepsen_like(
        *("run", "--nemesis", FAULTS, "--time-limit", "30", "--pace", "2", "--seed", "11"),
        *("--folder", str(folder)),
    )
    assert said.status == 0, said.output + said.errors
    figures = RunFolder(folder).read().verdict.figures
    assert figures["values acknowledged"] > ACKNOWLEDGED_MIN
    assert sum(count for name, count in figures.items() if "fault " in name) >= FAULTS_MIN
    again = jepsen_like("report", str(folder))
    assert (again.status, again.output) == (0, said.output)
    assert said.output.startswith("PASSED")
    assert (folder / "timeline.png").stat().st_size > 10_000


def test_metadata_that_is_broken_is_linearizable(tmp_path: Path) -> None:
    """Topics and their configuration, while nodes are killed, paused and cut off."""
    require(lab_missing)
    said = jepsen_like(
        *("run", "--workload", "metadata", "--nemesis", "kill,pause,partition"),
        *("--time-limit", "20", "--pace", "2", "--seed", "11", "--folder", str(tmp_path / "run")),
    )
    assert said.status == 0, said.output + said.errors


def test_groups_that_are_broken_keep_their_promises(tmp_path: Path) -> None:
    """Members come, go, crash and fall silent while nodes are killed, paused and cut off."""
    require(lab_missing)
    folder = tmp_path / "run"
    said = jepsen_like(
        *("run", "--workload", "groups", "--nemesis", "kill,pause,partition"),
        *("--time-limit", "30", "--pace", "2", "--seed", "11", "--folder", str(folder)),
    )
    assert said.status == 0, said.output + said.errors
    figures = RunFolder(folder).read().verdict.figures
    assert figures["records handed out to groups"] > HANDED_OUT_MIN
    assert figures["generations"] >= GENERATIONS_MIN


def test_schedules_that_are_broken_keep_their_promises(tmp_path: Path) -> None:
    """Records come once, when they are due, or not at all, while nodes are killed, cut off, lose
    their power and have wrong clocks (A12.2, A12.3)."""
    require(lab_missing, power_cuts)
    folder = tmp_path / "run"
    said = jepsen_like(
        *("run", "--workload", "schedule", "--nemesis", "kill,pause,partition,powercut,clock"),
        *("--time-limit", "10", "--pace", "1", "--seed", "11", "--folder", str(folder)),
    )
    assert said.status == 0, said.output + said.errors
    figures = RunFolder(folder).read().verdict.figures
    assert figures["scheduled records delivered"] > DELIVERED_MIN
    assert figures["scheduled records cancelled"] > CANCELLED_MIN


def test_retries_that_are_broken_keep_their_promises(tmp_path: Path) -> None:
    """Each record is done or a dead letter, after as many attempts as it needs, while members crash
    and nodes are killed, cut off, and lose their power (A12.4, A12.5)."""
    require(lab_missing, power_cuts)
    folder = tmp_path / "run"
    said = jepsen_like(
        *("run", "--workload", "retries", "--nemesis", "kill,pause,partition,powercut"),
        *("--time-limit", "10", "--pace", "1", "--seed", "11", "--folder", str(folder)),
    )
    assert said.status == 0, said.output + said.errors
    figures = RunFolder(folder).read().verdict.figures
    assert figures["retries handled"] > HANDLED_MIN
    assert figures["retries returns"] > RETURNS_MIN
    assert figures["retries letters"] > LETTERS_MIN


def test_a_planted_bug_is_found(tmp_path: Path) -> None:
    """A compare-and-set that does not compare. The others are planted in `make soak`."""
    require(lab_missing)
    folder = tmp_path / "run"
    found = find("overwrite_what_was_not_expected", folder)
    assert found.is_good, str(found)
    assert RunFolder(folder).read().verdict.result is Result.FAIL


def test_a_run_without_any_rights(tmp_path: Path) -> None:
    """On the loopback, with what is left; each fault that is not tested is told, and why."""
    said = jepsen_like(
        *("run", "--nemesis", "kill,partition,powercut", "--time-limit", "10", "--pace", "1"),
        *("--seed", "1", "--folder", str(tmp_path / "run")),
        before=WITHOUT_RIGHTS,
    )
    assert said.status == 0, said.output + said.errors
    assert "!!! NOT TESTED: partition: needs network: " in said.errors
    assert "!!! NOT TESTED: powercut: needs power cuts: " in said.errors
    assert "no network lab" in said.output


def test_too_little_proves_nothing(tmp_path: Path) -> None:
    """A run of a second finds nothing wrong, and does not pass."""
    said = jepsen_like(
        *("run", "--time-limit", "1", "--rate", "1", "--processes", "1", "--nemesis", "kill"),
        *("--pace", "100", "--folder", str(tmp_path / "run")),
        before=WITHOUT_RIGHTS,
    )
    assert said.status == 3, said.output + said.errors
    assert said.output.startswith("PROVES NOTHING")


def test_nothing_that_was_asked_for_can_be_done(tmp_path: Path) -> None:
    """Said at once, and not after a minute without a fault."""
    said = jepsen_like(
        *("run", "--nemesis", "partition,powercut", "--folder", str(tmp_path / "run")),
        before=WITHOUT_RIGHTS,
    )
    assert said.status == 2, said.output + said.errors
    assert said.errors.endswith("none of these faults can be done here\n")
