"""Runs of producers with names: what is judged, by hand and in histories with one thing wrong."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from jepsen_like.checkers.activity import Demands
from jepsen_like.checkers.verdict import OF_NAMES, Result, judge
from jepsen_like.history.event import Type
from tests.jepsen_like.checkers.plants import Tampered
from tests.jepsen_like.checkers.rerun_model import RerunScript, clean_rerun_history
from tests.jepsen_like.checkers.rerun_plants import RERUN_PLANTS

if TYPE_CHECKING:
    from collections.abc import Callable

(NAME,) = OF_NAMES
SEEDS, PLANTED, SEEDS_MAX = 250, 20, 400


def test_where_nothing_is_wrong_nothing_is_found() -> None:
    """Runs are broken off, overtaken and given up: all of it is legal."""
    finished = 0
    for seed in range(SEEDS):
        verdict = judge(clean_rerun_history(Random(seed)), Demands(ok_share_min=0.0))
        assert not verdict.failures, f"seed {seed}: {verdict}"
        assert NAME not in verdict.not_looked_at
        finished += verdict.figures["generations finished"]
    assert finished > SEEDS


@pytest.mark.parametrize("plant", RERUN_PLANTS.values(), ids=RERUN_PLANTS)
def test_what_is_planted_is_found(plant: Callable[[Tampered], None]) -> None:
    """Twenty times, in twenty histories."""
    count = 0
    for seed in range(SEEDS_MAX):
        history = Tampered(clean_rerun_history(Random(seed)), Random(seed))
        try:
            plant(history)
        except (IndexError, ValueError):
            continue
        count += 1
        verdict = judge(history.events)
        assert NAME in {found.name for found in verdict.failures}, f"seed {seed}: {verdict}"
        assert verdict.result is Result.FAIL
        if count == PLANTED:
            return
    pytest.fail(f"only {count} histories had a place for it")


def test_a_row_that_stands_twice() -> None:
    """Each run says that it stands there once at most; together they say so, too."""
    script = RerunScript()
    script.run(3, [1, 2], Type.INFO)
    script.run(3, [1, 2])
    script.replicas([None, 1, None, 2, 1])
    assert script.found() == {NAME: 1}
    (example,) = script.finding(NAME).examples
    assert example.startswith("key 'k', generation 3 of 'task': row 1 is at offsets 1 (kept by ")


def test_an_end_that_was_told_too_soon() -> None:
    """Nothing is missing as long as nobody was told of the end; nobody has skipped anything."""
    script = RerunScript()
    script.run(3, [1, 2], Type.INFO)
    script.replicas([None, 1])
    assert script.found() == {}
    script.run(3, [1, 2])
    assert script.found()[NAME] == 1
    (example,) = script.finding(NAME).examples
    told = "row 2 is in no log, though a run was told in event 6 that all stand there"
    assert example == f"key 'k', generation 3 of 'task': {told}"


def test_a_row_that_was_left_out() -> None:
    """Whoever goes on behind a row that was given up leaves a hole that is never filled."""
    script = RerunScript()
    script.run(3, [1, 2, 3], Type.INFO)
    script.replicas([None, 1, 3])
    assert script.found() == {NAME: 1}
    assert "row 2 is in no log, though rows that come after it" in script.finding(NAME).examples[0]


def test_a_generation_that_is_over() -> None:
    """A row of it that comes late stands there once, and is out of order."""
    script = RerunScript()
    script.run(3, [1, 2], Type.INFO)
    script.run(4, [3])
    script.replicas([None, 1, None, 3, 2])
    assert script.found() == {NAME: 1}
    (example,) = script.finding(NAME).examples
    assert example.endswith("row 2 stands at offset 4, behind 3, which comes after it, at offset 3")


def test_what_may_have_been_deleted_is_not_judged() -> None:
    """With its records a name may be forgotten."""
    script = RerunScript()
    script.run(3, [1, 2], Type.INFO)
    script.run(3, [1, 2])
    for node in (1, 2, 3):
        script.replica(node, [2, None, 1, 2], log_start=4)
    assert script.found() == {}


def test_runs_that_never_ended_prove_nothing() -> None:
    """A run of which more was asked than was finished is no success."""
    script = RerunScript()
    script.run(3, [1])
    script.begin_run(4, [2])
    script.send([7], [3])
    script.replicas([None, 1, None, 7])
    verdict = judge(script.events, Demands(ok_share_min=0.0, finished_min=2))
    assert verdict.result is Result.UNKNOWN
    assert verdict.reasons == ["1 generations of names were finished, 2 are wanted"]


def test_who_has_no_name_is_not_looked_at() -> None:
    """It says so."""
    script = RerunScript()
    script.send_many(2)
    assert f"{NAME}: nobody sent under a name" in judge(script.events).not_judged
