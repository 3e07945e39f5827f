"""Groups with retries: what is judged, by hand and in histories with one thing wrong."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from jepsen_like.checkers.activity import Demands
from jepsen_like.checkers.retry_activity import RetryCounts
from jepsen_like.checkers.verdict import OF_RETRIES, Result, judge
from jepsen_like.history.event import Type
from jepsen_like.history.record_fate import RecordFate
from tests.jepsen_like.checkers.plants import Tampered
from tests.jepsen_like.checkers.retry_model import clean_retry_history
from tests.jepsen_like.checkers.retry_plants import RETRY_PLANTS
from tests.jepsen_like.checkers.retry_script import LEAST, ONCE, RetryScript
from tests.jepsen_like.checkers.script import Script

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS, PLANTED, SEEDS_MAX = 250, 20, 600
GOOD, TWICE, ALWAYS, REJECTED = (
    RecordFate.GOOD,
    RecordFate.TWICE,
    RecordFate.ALWAYS,
    RecordFate.REJECTED,
)
ERROR, DIED = "ValueError: no", "its process died 3 times"


def test_where_nothing_is_wrong_nothing_is_found() -> None:
    """Crashed, aborted, moved twice, early by a wrong clock: all of it is legal (A12.4, A12.5)."""
    returns = again = set_aside = 0
    for seed in range(SEEDS):
        verdict = judge(clean_retry_history(Random(seed)))
        assert not verdict.failures, f"seed {seed}: {verdict}"
        assert verdict.not_looked_at.isdisjoint(OF_RETRIES)
        returns += verdict.figures["retries returns"]
        for one in verdict.findings:
            again += one.figures.get("handled again", 0) + one.figures.get("letters again", 0)
            set_aside += one.figures.get("set aside for deaths", 0)
    assert returns > 20 * SEEDS
    assert again > SEEDS
    assert set_aside > SEEDS // 10


@pytest.mark.parametrize(("name", "plant"), RETRY_PLANTS.values(), ids=RETRY_PLANTS)
def test_what_is_planted_is_found(name: str, plant: Callable[[Tampered], None]) -> None:
    """Twenty times, in twenty histories (A12.4, A12.5)."""
    count = 0
    for seed in range(SEEDS_MAX):
        history = Tampered(clean_retry_history(Random(seed)), Random(seed))
        try:
            plant(history)
        except IndexError:
            continue
        count += 1
        verdict = judge(history.events)
        assert name in {found.name for found in verdict.failures}, f"seed {seed}: {verdict}"
        assert verdict.result is Result.FAIL
        if count == PLANTED:
            return
    pytest.fail(f"only {count} histories had a place for it")


def test_each_kind_is_planted() -> None:
    """A kind without plants is one of which nobody knows that it is found."""
    assert {name for name, _ in RETRY_PLANTS.values()} == set(OF_RETRIES)


def least(*, count: int = 1, can_reject: bool = True) -> RetryScript:
    return RetryScript(LEAST, count=count, can_reject=can_reject)


def end(
    script: RetryScript,
    letters: list[tuple[int, RecordFate, int, str]] | None = None,
    *,
    group: str = LEAST,
    results: list[tuple[int, RecordFate]] | None = None,
) -> dict[str, int]:
    """All is read; what was found."""
    script.read_all()
    script.left(group)
    script.letters(group, letters or [])
    if group == ONCE:
        script.results(results or [])
    return script.found()


def fails_twice(script: RetryScript, member: str = "g1") -> None:
    """The record at offset 0, and its pauses are kept."""
    for attempt, now in ((1, 0.0), (2, 1.5)):
        script.now = now
        script.handle(member, 0, TWICE, attempt, end="moved")
    script.now = 4.0


def test_a_record_that_is_good_at_last() -> None:
    """Its third attempt (A12.4)."""
    script = least()
    fails_twice(script)
    script.handle("g1", 0, TWICE, 3)
    assert end(script) == {}


def test_a_record_that_nobody_was_handed_out() -> None:
    """Nor did it come to the dead letters (A12.4)."""
    script = least(count=2)
    script.handle("g1", 0, GOOD)
    assert end(script) == {"lost-retry": 1}
    (example,) = script.finding("lost-retry").examples
    told = "neither done nor a dead letter; never handed out"
    assert example == f"group 'g', key 'k', offset 1, value 1: {told}"


def test_a_record_that_was_moved_and_is_gone() -> None:
    """Its sentence has all of its attempts (A12.4)."""
    script = least()
    script.handle("g1", 0, TWICE, end="moved")
    assert end(script) == {"lost-retry": 1}
    (example,) = script.finding("lost-retry").examples
    assert example.endswith("attempt 1 by g1 in event 4, ok 'moved' in event 5")


def test_an_attempt_that_never_ended_is_no_end() -> None:
    """Nor is one without effect (A12.4)."""
    script = least()
    script.begin_handling("g1", 0, GOOD)
    script.handle("g1", 0, GOOD, kind=Type.FAIL)
    assert end(script) == {"lost-retry": 1}


def test_what_is_late_is_not_lost() -> None:
    """A group that has not done all has it before it (A12.4)."""
    script = least()
    script.read_all()
    script.left(LEAST, [("k", 0, 1)], [4, 5, 6, 7, 8, 9])
    script.letters(LEAST)
    assert script.found() == {"unfinished-retries": 2}
    lag, pending = script.finding("unfinished-retries").examples
    assert lag == "group 'g', key 'k': committed up to 0, and ends at 1"
    assert pending.endswith("topic of retries [4, 5, 6, 7, 8] and 1 more still wait")


def test_at_least_once_it_may_come_again() -> None:
    """Done twice, moved twice, set aside twice (A12.4, A12.5)."""
    script = least(count=2)
    script.handle("g1", 0, GOOD)
    script.handle("g1", 0, GOOD)
    script.handle("g1", 1, REJECTED, end="letter")
    script.handle("g1", 1, REJECTED, end="letter")
    assert end(script, [(1, REJECTED, 1, ERROR), (1, REJECTED, 1, ERROR)]) == {}
    figures = script.finding("retry-duplicate").figures
    assert figures == {"handled again": 1, "letters again": 1}


def test_exactly_once_it_may_not() -> None:
    """Two results, or a result and a letter (A12.4)."""
    script = RetryScript(ONCE, count=1)
    script.handle("t1", 0, GOOD)
    assert end(script, group=ONCE, results=[(0, GOOD), (0, GOOD)]) == {"retry-duplicate": 1}
    script = RetryScript(ONCE, count=1)
    script.handle("t1", 0, TWICE)
    found = end(script, [(0, TWICE, 3, ERROR)], group=ONCE, results=[(0, TWICE)])
    assert found["retry-duplicate"] == 1


def test_one_attempt_counts_once() -> None:
    """In two transactions that were committed (A12.4)."""
    script = RetryScript(ONCE, count=1)
    script.handle("t1", 0, TWICE, end="moved")
    script.handle("t1", 0, TWICE, end="moved")
    assert script.found() == {"retry-duplicate": 1}
    script = RetryScript(ONCE, count=1)
    script.handle("t1", 0, TWICE, end="moved", kind=Type.FAIL)
    script.handle("t1", 0, TWICE, end="moved", kind=Type.INFO)
    script.handle("t1", 0, TWICE, end="moved")
    assert script.found() == {}


@pytest.mark.parametrize(("deaths", "found"), [(2, 1), (3, 0)])
def test_a_record_that_may_have_ended_its_process(deaths: int, found: int) -> None:
    """So many sessions must have ended since it was sent (A12.5)."""
    script = least()
    script.now = 1.0
    for number in range(deaths):
        script.begin_handling(f"g{number + 1}", 0, GOOD)
        script.tell(f"g{number + 1}", "crash")
        script.work(f"g{number + 2}")
    assert end(script, [(0, GOOD, 3, DIED)]) == ({"wrong-ending": 1} if found else {})


@pytest.mark.parametrize("error", ["its process died 2 times", "its process died often"])
def test_too_few_deaths(error: str) -> None:
    """Two may be accidents, beside others; so it must tell of three (A12.5)."""
    script = least()
    script.now = 1.0
    for _ in range(5):
        script.tell("g1", "mute")
    assert end(script, [(0, GOOD, 3, error)]) == {"wrong-ending": 1}


def test_deaths_before_it_was_sent_are_none_of_its() -> None:
    """And those of groups that are exactly once set nothing aside (A12.5)."""
    script = RetryScript(LEAST)
    for number in range(3):
        script.tell(f"g{number + 1}", "crash")
        script.work(f"g{number + 2}")
    script.now = 1.0
    script.send_many(1)
    assert end(script, [(0, GOOD, 3, DIED)]) == {"wrong-ending": 1}
    script = RetryScript(ONCE, count=1)
    script.now = 1.0
    for number in range(3):
        script.tell(f"t{number + 1}", "crash")
        script.work(f"t{number + 2}")
    assert end(script, [(0, GOOD, 3, DIED)], group=ONCE) == {"wrong-ending": 1}


@pytest.mark.parametrize("f", ["mute", "gone", "holds"])
def test_other_ends_of_sessions(f: str) -> None:
    """Silence, an error, and a loss that the member noticed (A12.5)."""
    script = least()
    script.now = 1.0
    value = {"lost": ["k"]} if f == "holds" else None
    for _ in range(3):
        script.tell("g1", f, value)
    script.tell("g1", "holds", {"revoked": ["k"]})
    assert end(script, [(0, GOOD, 3, DIED)]) == {}


@pytest.mark.parametrize(
    ("fate", "attempts", "can_reject", "found"),
    [(REJECTED, 1, True, 0), (REJECTED, 3, True, 1), (REJECTED, 3, False, 0), (ALWAYS, 2, True, 1)],
)
def test_how_many_attempts_a_letter_tells(
    fate: RecordFate, attempts: int, can_reject: bool, found: int
) -> None:
    """One of what is rejected, where it can be; all of the policy otherwise (A12.4, A12.5)."""
    script = least(can_reject=can_reject)
    for attempt in range(1, attempts + 1):
        script.now += 3.0
        script.handle("g1", 0, fate, attempt, end="letter" if attempt == attempts else "moved")
    got = end(script, [(0, fate, attempts, ERROR)])
    assert got == ({"wrong-attempts": 1} if found else {})


def test_a_letter_of_an_attempt_that_was_not_made() -> None:
    """It tells of three, and there were two (A12.4)."""
    script = least()
    script.handle("g1", 0, ALWAYS, 1, end="moved")
    script.now = 2.0
    script.handle("g1", 0, ALWAYS, 2, end="letter")
    assert end(script, [(0, ALWAYS, 3, ERROR)]) == {"wrong-attempts": 1}


@pytest.mark.parametrize(("attempt", "is_back"), [(1, True), (2, False), (3, True)])
def test_attempts_that_do_not_follow(attempt: int, is_back: bool) -> None:
    """The first one is where the record stood, and none is left out (A12.4)."""
    script = least()
    script.handle("g1", 0, ALWAYS, end="moved")
    script.now = 9.0
    script.begin_handling("g1", 0, ALWAYS, attempt, is_back=is_back)
    assert script.found() == {"wrong-attempts": 1}


@pytest.mark.parametrize(("now", "early"), [(0.85, 1), (0.95, 0)])
def test_a_retry_before_its_pause_was_over(now: float, early: int) -> None:
    """Clocks may differ by a tenth of a second (A12.4)."""
    script = least()
    script.handle("g1", 0, TWICE, end="moved")
    script.now = now
    script.begin_handling("g1", 0, TWICE, 2)
    assert script.found() == ({"early-retry": 1} if early else {})


def test_a_pause_counts_from_the_first_move() -> None:
    """Moved again later, and without effect before (A12.4)."""
    script = least()
    script.handle("g1", 0, TWICE, end="moved", kind=Type.FAIL)
    script.now = 1.0
    script.handle("g1", 0, TWICE, end="moved", kind=Type.INFO)
    script.now = 1.5
    script.handle("g1", 0, TWICE, end="moved")
    script.now = 1.7
    script.begin_handling("g1", 0, TWICE, 2)
    assert script.found() == {"early-retry": 1}
    script.now = 2.1
    script.begin_handling("g1", 0, TWICE, 2)
    assert script.found() == {"early-retry": 1}


def test_a_clock_that_was_ahead() -> None:
    """It excuses as much as it was ahead; no clock excuses its own leader (A12.4)."""
    script = least()
    script.handle("g1", 0, TWICE, end="moved")
    script.fault("clock", Type.INVOKE, offset_ms=5_000)
    script.now = 0.2
    script.begin_handling("g1", 0, TWICE, 2, stamp=(1.0, 5.0))
    assert script.found() == {}
    script.begin_handling("g1", 0, TWICE, 2, stamp=(1.0, 0.9))
    assert script.found() == {"early-retry": 1}


def test_an_end_of_what_is_not_there() -> None:
    """A letter, or a result, that names no record (A12.5)."""
    script = least(count=1)
    script.handle("g1", 0, GOOD)
    script.handle("g1", 7, REJECTED, end="letter")
    assert end(script, [(7, REJECTED, 1, ERROR)]) == {"wrong-ending": 1}
    (example,) = script.finding("wrong-ending").examples
    assert "there stood None" in example


def test_a_record_that_is_done_too_soon() -> None:
    """It fails twice (A12.4)."""
    script = least()
    script.handle("g1", 0, TWICE)
    assert end(script) == {"wrong-ending": 1}


def test_too_little_proves_nothing() -> None:
    """Nor does a group of whose end nobody has told (A12.4, A12.5)."""
    script = RetryScript(count=1)
    script.handle("g1", 0, GOOD)
    wanted = RetryCounts(handled=2, returns=1, letters=1, crashes=1)
    verdict = judge(script.events, Demands(retries=wanted))
    assert verdict.result is Result.UNKNOWN
    assert verdict.reasons == [
        "1 records were handled, 2 are wanted",
        "0 records came back, 1 are wanted",
        "0 dead letters were there, 1 are wanted",
        "0 members crashed, 1 are wanted",
    ]
    reasons = judge(script.events, Demands(is_to_end=True)).reasons
    assert "nobody said what group 'g' has left" in reasons
    assert "nobody read the dead letters of group 't'" in reasons
    assert "nobody read the results of group 't'" in reasons


def test_without_such_groups_nothing_is_looked_at() -> None:
    """It says so."""
    script = Script()
    script.send_many(2)
    assert f"{', '.join(OF_RETRIES)}: no group had retries" in judge(script.events).not_judged
