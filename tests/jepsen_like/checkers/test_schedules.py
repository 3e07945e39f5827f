"""Scheduled records: what is judged, by hand and in histories with one thing wrong."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from jepsen_like.checkers.activity import Demands
from jepsen_like.checkers.verdict import OF_SCHEDULES, Result, judge
from jepsen_like.history.event import Type
from tests.jepsen_like.checkers.plants import Tampered
from tests.jepsen_like.checkers.schedule_model import clean_schedule_history
from tests.jepsen_like.checkers.schedule_plants import SCHEDULE_PLANTS
from tests.jepsen_like.checkers.schedule_script import Batch, ScheduleScript

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS, PLANTED, SEEDS_MAX = 250, 20, 600
MANY = Demands(ok_share_min=0.0)


def test_where_nothing_is_wrong_nothing_is_found() -> None:
    """Late, early by a wrong clock, cancelled or perhaps so: all of it is legal (A12.2)."""
    delivered = cancelled = judged = 0
    for seed in range(SEEDS):
        verdict = judge(clean_schedule_history(Random(seed)), MANY)
        assert not verdict.failures, f"seed {seed}: {verdict}"
        assert verdict.not_looked_at.isdisjoint(OF_SCHEDULES)
        delivered += verdict.figures["scheduled records delivered"]
        cancelled += verdict.figures["scheduled records cancelled"]
        judged += sum(one.figures.get("pairs judged", 0) for one in verdict.findings)
    assert delivered > 20 * SEEDS
    assert cancelled > SEEDS
    assert judged > SEEDS


@pytest.mark.parametrize(("name", "plant"), SCHEDULE_PLANTS.values(), ids=SCHEDULE_PLANTS)
def test_what_is_planted_is_found(name: str, plant: Callable[[Tampered], None]) -> None:
    """Twenty times, in twenty histories (A12.2)."""
    count = 0
    for seed in range(SEEDS_MAX):
        history = Tampered(clean_schedule_history(Random(seed)), Random(seed))
        try:
            plant(history)
        except IndexError:
            continue
        count += 1
        verdict = judge(history.events, MANY)
        assert name in {found.name for found in verdict.failures}, f"seed {seed}: {verdict}"
        assert verdict.result is Result.FAIL
        if count == PLANTED:
            return
    pytest.fail(f"only {count} histories had a place for it")


def test_each_kind_is_planted() -> None:
    """A kind without plants is one of which nobody knows that it is found."""
    assert {name for name, _ in SCHEDULE_PLANTS.values()} == set(OF_SCHEDULES)


def due_at(due: float, *, now: float = 0.0) -> ScheduleScript:
    """Value 7 was acknowledged at offset 0, at `now`."""
    script = ScheduleScript()
    script.now = now
    script.schedule([7], due, [0])
    return script


def end(script: ScheduleScript, batches: list[Batch], *, now: float) -> dict[str, int]:
    """All is read, and the logs are; what was found."""
    script.now = now
    script.phase("final")
    script.assign(process=9)
    script.read([batch for batch in batches if batch.at is not None], process=9)
    script.logs(batches)
    return script.found()


def delivery(offset: int, due: float, *, at: float | None = None, epoch: int = 1) -> Batch:
    return Batch(offset, epoch, [7], due, due if at is None else at)


ORIGINAL = Batch(0, 1, [7], 5.0)


def test_a_record_that_came() -> None:
    """Once, when it was due (A12.2)."""
    assert end(due_at(5.0), [ORIGINAL, delivery(1, 5.0)], now=8.0) == {}


def test_a_record_that_is_early() -> None:
    """By the clock of the harness, though its leader took it for due (A12.2)."""
    script = due_at(5.0)
    script.now = 3.0
    script.read([delivery(1, 5.0)])
    assert end(script, [ORIGINAL, delivery(1, 5.0)], now=8.0) == {"early-delivery": 1}
    (example,) = script.finding("early-delivery").examples
    sent = "key 'k', value 7, sent in event 0, acknowledged at offset 0, due at 5.000 s"
    assert example == f"{sent}: read at offset 1 in event 3, at 3.000 s"


@pytest.mark.parametrize(("offset_ms", "early"), [(1_500, 1), (2_500, 0), (-2_500, 1)])
def test_a_clock_that_was_ahead(offset_ms: int, early: int) -> None:
    """It excuses as much as it was ahead, and no more (A12.2)."""
    script = due_at(5.0)
    script.now = 2.0
    script.fault("clock", Type.INVOKE, offset_ms=offset_ms)
    script.now = 3.0
    script.fault("clock", Type.INFO, offset_ms=offset_ms)
    script.read([delivery(1, 5.0)])
    found = end(script, [ORIGINAL, delivery(1, 5.0)], now=8.0)
    assert found == ({"early-delivery": 1} if early else {})


def test_a_clock_that_was_ahead_at_another_time() -> None:
    """Before it was sent (A12.2)."""
    script = ScheduleScript()
    script.fault("clock", Type.INVOKE, offset_ms=60_000)
    script.now = 1.0
    script.fault("clock", Type.INFO, offset_ms=60_000)
    script.now = 2.0
    script.schedule([7], 5.0, [0])
    script.now = 3.0
    script.read([delivery(1, 5.0)])
    assert end(script, [ORIGINAL, delivery(1, 5.0)], now=8.0) == {"early-delivery": 1}


def test_a_record_that_says_that_it_is_early() -> None:
    """No clock excuses a leader that delivers before its own (A12.2)."""
    script = due_at(5.0)
    script.fault("clock", Type.INVOKE, offset_ms=60_000)
    early = delivery(1, 5.0, at=4.999)
    assert end(script, [ORIGINAL, early], now=8.0) == {"early-delivery": 1}
    (example,) = script.finding("early-delivery").examples
    assert "delivered at offset 1 at 4.999 s by its leader's clock, due at 5.000 s" in example


def test_a_record_with_another_due_time() -> None:
    """It was asked for later (A12.2)."""
    script = due_at(5.0)
    assert end(script, [ORIGINAL, delivery(1, 2.0, at=6.0)], now=8.0) == {"early-delivery": 1}


def test_a_record_that_never_came() -> None:
    """It is scheduled in all logs, and was due (A12.2)."""
    script = due_at(5.0)
    assert end(script, [ORIGINAL], now=8.0) == {"undelivered": 1}
    (example,) = script.finding("undelivered").examples
    assert example.endswith("seen nowhere; scheduled in the logs of [1, 2, 3]")


@pytest.mark.parametrize("now", [5.0, 6.9])
def test_a_record_that_may_still_come(now: float) -> None:
    """The last readers began too soon to tell (A12.2)."""
    assert end(due_at(5.0), [ORIGINAL], now=now) == {}


def test_a_record_that_is_not_due_and_gone() -> None:
    """From all logs, or from one of a cluster in which all replicas are in sync (A12.2)."""
    script = due_at(500.0)
    assert end(script, [Batch(0, 1, [8], 500.0)], now=8.0) == {"lost-scheduled": 1}
    script = due_at(500.0)
    script.phase("heal")
    script.whole(2)
    script.log(1, [Batch(0, 1, [7], 500.0)])
    script.log(2, [])
    assert script.found()["lost-scheduled"] == 1
    (example,) = script.finding("lost-scheduled").examples
    assert example.endswith("neither delivered, nor scheduled in the logs of nodes [2]")


@pytest.mark.parametrize(("kind", "found"), [(Type.OK, 1), (Type.INFO, 0), (Type.FAIL, 0)])
def test_a_record_that_was_cancelled_and_came(kind: Type, found: int) -> None:
    """Only a cancel that was answered to be done forbids it (A12.2)."""
    script = due_at(5.0)
    script.cancel(7, 0, kind, "delivered" if kind is Type.FAIL else "")
    got = end(script, [ORIGINAL, delivery(1, 5.0)], now=8.0)
    assert got == ({"cancelled-delivery": 1} if found else {})


@pytest.mark.parametrize(("kind", "found"), [(Type.OK, 0), (Type.INFO, 0), (Type.FAIL, 1)])
def test_a_record_that_was_cancelled_and_did_not_come(kind: Type, found: int) -> None:
    """A cancel of which nothing is known excuses; one that was refused does not (A12.2)."""
    script = due_at(5.0)
    script.cancel(7, 0, kind, "delivered" if kind is Type.FAIL else "")
    got = end(script, [ORIGINAL], now=8.0)
    assert got == ({"undelivered": 1} if found else {})
    if found:
        assert "a cancel was refused: delivered" in script.finding("undelivered").examples[0]


@pytest.mark.parametrize(("pending", "found"), [([], "lost-scheduled"), ([0], "")])
def test_what_a_leader_has_still_to_deliver(pending: list[int], found: str) -> None:
    """All that is not due yet (A12.2)."""
    script = due_at(500.0)
    script.pending(pending)
    assert end(script, [Batch(0, 1, [7], 500.0)], now=8.0) == ({found: 1} if found else {})


def test_what_was_due_when_a_leader_was_asked() -> None:
    """It may be delivered just before or after; readers were too early to tell (A12.2)."""
    for pending in ([], [0]):
        script = due_at(9.0)
        script.now = 8.0
        script.phase("final")
        script.assign(process=9)
        script.pending(pending)
        script.now = 12.0
        script.logs([Batch(0, 1, [7], 9.0), delivery(1, 9.0)])
        assert script.found() == {}
    script = due_at(9.0)
    script.now = 8.0
    script.pending([])
    assert end(script, [Batch(0, 1, [7], 9.0)], now=8.0) == {}


def test_what_a_leader_would_deliver_once_more() -> None:
    """Or though it was cancelled (A12.2)."""
    script = due_at(5.0)
    end(script, [ORIGINAL, delivery(1, 5.0)], now=8.0)
    script.pending([0])
    assert script.found() == {"delivered-twice": 1}
    script = due_at(5.0)
    script.cancel(7, 0)
    script.pending([0])
    assert end(script, [ORIGINAL], now=8.0) == {"cancelled-delivery": 1}
    (example,) = script.finding("cancelled-delivery").examples
    assert example.endswith("cancelled, and still to be delivered, as its leader said in the end")


def test_a_record_that_was_found_cancelled() -> None:
    """A refusal for this reason is a promise, too; and none where nobody has cancelled (A12.2)."""
    script = due_at(5.0)
    script.cancel(7, 0, Type.INFO)
    script.cancel(7, 0, Type.FAIL, "cancelled")
    assert end(script, [ORIGINAL, delivery(1, 5.0)], now=8.0) == {"cancelled-delivery": 1}
    script = due_at(5.0)
    script.cancel(7, 0, Type.FAIL, "cancelled")
    assert end(script, [ORIGINAL], now=8.0) == {"undelivered": 1}


def test_a_cancel_that_never_ended() -> None:
    """It may have been carried out (A12.2)."""
    script = due_at(5.0)
    script.begin(3, "cancel", {"key": "k", "value": 7, "offset": 0})
    assert end(script, [ORIGINAL], now=8.0) == {}


def test_a_record_that_came_twice() -> None:
    """In two epochs (A12.2)."""
    script = due_at(5.0)
    twice = [ORIGINAL, delivery(1, 5.0), delivery(2, 5.0, epoch=2)]
    assert end(script, twice, now=8.0) == {"delivered-twice": 1}
    (example,) = script.finding("delivered-twice").examples
    assert "at offsets 1 (read in event " in example


@pytest.mark.parametrize(("due", "epoch", "found"), [(6.0, 1, 1), (6.0, 2, 0), (0.05, 1, 0)])
def test_records_in_the_wrong_order(due: float, epoch: int, found: int) -> None:
    """Of one epoch, and if the second one was there before the first one was due (A12.2)."""
    script = due_at(5.0)
    script.schedule([8], due, [1])
    batches = [ORIGINAL, Batch(1, 1, [8], due), Batch(2, 1, [8], due, 7.0)]
    got = end(script, [*batches, delivery(3, 5.0, at=7.0, epoch=epoch)], now=8.0)
    assert got == ({"due-order": 1} if found else {})


def test_order_where_disks_were_at_fault() -> None:
    """What cannot be read is delivered later; nobody judges the order then (A12.2)."""
    script = due_at(5.0)
    script.schedule([8], 6.0, [1])
    script.fault("bitflip", Type.INVOKE)
    script.fault("bitflip", Type.INFO)
    batches = [ORIGINAL, Batch(1, 1, [8], 6.0), Batch(2, 1, [8], 6.0, 7.0)]
    assert end(script, [*batches, delivery(3, 5.0, at=7.0)], now=8.0) == {}
    assert "due-order: disks were at fault" in judge(script.events).not_judged


def test_a_send_that_failed_and_was_delivered() -> None:
    """Of scheduled records, too, this is found, and what nobody has sent (A12.2)."""
    script = ScheduleScript()
    script.schedule([7], 5.0, None, Type.FAIL)
    assert end(script, [ORIGINAL, delivery(1, 5.0)], now=8.0) == {"aborted-read": 1}
    script = ScheduleScript()
    script.schedule([6], 500.0, None, Type.INFO)
    assert end(script, [ORIGINAL, delivery(1, 5.0)], now=8.0) == {"unexpected-read": 1}


def test_how_late_records_were() -> None:
    """All of them, and those around which nothing was broken (A12.2)."""
    script = ScheduleScript()
    batches = [Batch(0, 1, [1, 2], 20.0), Batch(2, 1, [1, 2], 20.0, 20.02)]
    script.schedule([1, 2], 20.0, [0, 1])
    script.schedule([3], 40.0, [4])
    script.now = 20.05
    script.read(batches[1:])
    script.now = 35.0
    script.fault("kill", Type.INVOKE)
    script.now = 42.0
    script.fault("kill", Type.INFO)
    script.read([Batch(5, 2, [3], 40.0, 41.5)])
    figures = judge(script.events).figures
    late = {name: count for name, count in figures.items() if "late" in name or "calm" in name}
    assert late == {
        "ms late p50": 50, "ms late p99": 2000, "ms late max": 2000,
        "delivered in calm": 2,
        "ms late in calm p50": 50, "ms late in calm p99": 50, "ms late in calm max": 50,
        "ms late at the leader in calm p50": 20, "ms late at the leader in calm p99": 20,
        "ms late at the leader in calm max": 20,
    }  # fmt: skip


def test_how_late_records_were_that_came_early() -> None:
    """A clock that was wrong is no calm (A12.2)."""
    script = due_at(50.0, now=12.0)
    script.fault("clock", Type.INVOKE, offset_ms=100_000)
    script.now = 13.0
    script.fault("clock", Type.INFO, offset_ms=100_000)
    script.read([delivery(1, 50.0, at=112.9)])
    figures = judge(script.events).figures
    assert figures["delivered in calm"] == 0
    assert figures["ms late max"] == -37_000


def test_too_few_deliveries_prove_nothing() -> None:
    """Nor do too few cancels (A12.2)."""
    script = due_at(5.0)
    verdict = judge(script.events, Demands(deliveries_min=3, cancels_min=2))
    assert verdict.result is Result.UNKNOWN
    assert verdict.reasons == [
        "0 scheduled records came, 3 are wanted",
        "0 were cancelled, 2 are wanted",
    ]


def test_who_schedules_nothing_is_not_looked_at() -> None:
    """It says so."""
    script = ScheduleScript()
    script.send_many(2)
    told = f"{', '.join(OF_SCHEDULES)}: nobody scheduled a record"
    assert told in judge(script.events).not_judged
