"""Takes a history of groups with retries in which nothing is wrong, and makes one thing wrong.

Owns the planters of what only such groups can bring: what they plant may show as other kinds as
well. An IndexError says that there is no place for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jepsen_like.history.event import Type
from tests.jepsen_like.checkers.retry_script import LEAST, ONCE, PAUSES

if TYPE_CHECKING:
    from collections.abc import Callable

    from jepsen_like.history.event import Event
    from tests.jepsen_like.checkers.plants import Tampered

LETTER_FATE, LETTER_ATTEMPTS, LETTER_ERROR = 4, 5, 6  # places in a row
RESULT_OFFSET, LETTER_OFFSET = 2, 2


def _rows(history: Tampered, f: str, group: str) -> list[list[Any]]:
    rows: list[list[Any]] = next(
        event.value["rows"] for event in history.of(f) if event.value["group"] == group
    )
    return rows


def _letters(history: Tampered, group: str) -> list[list[Any]]:
    """Without those of records that have ended processes."""
    rows = _rows(history, "letters", group)
    return [row for row in rows if not row[LETTER_ERROR].startswith("its process died")]


def _invoked(history: Tampered, group: str) -> dict[int, Event]:
    """Attempts by number."""
    begun = history.of("handle", Type.INVOKE)
    return {event.value["number"]: event for event in begun if str(event.process).startswith(group)}


def _ended(history: Tampered, group: str, end: str) -> list[Event]:
    """Attempts that ended so, for certain."""
    invoked = _invoked(history, group)
    return [
        event
        for event in history.of("handle")
        if event.value["end"] == end and event.value["number"] in invoked
    ]


# -- endings --------------------------------------------------------------------------------------


def lost(history: Tampered) -> None:
    """Nobody has done it, and it is no dead letter."""
    invoked = _invoked(history, LEAST)
    offsets = {n: event.value["offset"] for n, event in invoked.items()}
    done = _ended(history, LEAST, "done")
    offset = offsets[history.pick(done).value["number"]]
    for event in done:
        if offsets[event.value["number"]] == offset:
            history.change(event, type=Type.FAIL)
    _drop(_rows(history, "letters", LEAST), LETTER_OFFSET, offset)


def lost_result(history: Tampered) -> None:
    """A transaction was committed without it."""
    rows = _rows(history, "results", ONCE)
    rows.remove(history.pick(rows))


def lost_letter(history: Tampered) -> None:
    """A record that always fails is gone in the end."""
    rows = _rows(history, "letters", LEAST)
    dead = [row for row in _letters(history, LEAST) if row[LETTER_FATE] in ("always", "rejected")]
    _drop(rows, LETTER_OFFSET, history.pick(dead)[LETTER_OFFSET])


def _drop(rows: list[list[Any]], place: int, offset: int) -> None:
    rows[:] = [row for row in rows if row[place] != offset]


def two_results(history: Tampered) -> None:
    rows = _rows(history, "results", ONCE)
    rows.append(list(history.pick(rows)))


def two_letters(history: Tampered) -> None:
    rows = _rows(history, "letters", ONCE)
    rows.append(list(history.pick(rows)))


def result_and_letter(history: Tampered) -> None:
    """Of one record that is good at last."""
    result = history.pick(_rows(history, "results", ONCE))
    row = [99, *result[1:], 3, "ValueError: no"]
    _rows(history, "letters", ONCE).append(row)


def good_and_dead(history: Tampered) -> None:
    """A dead letter of a record that is good, or good at last."""
    invoked = _invoked(history, LEAST)
    done = history.pick(_ended(history, LEAST, "done"))
    told = invoked[done.value["number"]].value
    row = [99, "k", told["offset"], told["value"], told["fate"], 3, "ValueError: no"]
    _rows(history, "letters", LEAST).append(row)


def set_aside_without_deaths(history: Tampered) -> None:
    """No session has ended, and it is said to have ended some."""
    for event in (*history.of("crash", Type.INFO), *history.of("gone", Type.INFO)):
        history.change(event, f="leave")
    row = history.pick(_rows(history, "letters", LEAST))
    row[LETTER_ERROR] = "its process died 3 times"


def dead_and_done(history: Tampered) -> None:
    """A result of a record that fails always."""
    letter = history.pick(
        [row for row in _letters(history, ONCE) if row[LETTER_FATE] in ("always", "rejected")]
    )
    _rows(history, "results", ONCE).append([["r-0", 99], *letter[1:5]])


def done_before_it_is_good(history: Tampered) -> None:
    """An attempt that fails is told to be done."""
    event = history.pick(_ended(history, LEAST, "moved"))
    event.value["end"] = "done"


def letter_of_another(history: Tampered) -> None:
    """It names a record, and has the value of none."""
    history.pick(_rows(history, "letters", LEAST))[3] += 1000


# -- attempts -------------------------------------------------------------------------------------


def too_many_in_a_letter(history: Tampered) -> None:
    row = history.pick(
        [row for row in _letters(history, LEAST) if row[LETTER_FATE] in ("always", "rejected")]
    )
    row[LETTER_ATTEMPTS] += 1


def too_many_attempts(history: Tampered) -> None:
    """One more than the policy has."""
    history.pick(list(_invoked(history, ONCE).values())).value["attempt"] = 4


def first_attempt_of_what_is_back(history: Tampered) -> None:
    """It does not know that it was tried before."""
    back = [one for one in _invoked(history, LEAST).values() if one.value["is_back"]]
    history.pick(back).value["attempt"] = 1


def attempt_left_out(history: Tampered) -> None:
    """The one before has certainly not moved it."""
    invoked = _invoked(history, ONCE)
    ended = {
        event.value["number"]: event
        for kind in (Type.OK, Type.INFO, Type.FAIL)
        for event in history.of("handle", kind)
    }
    second = [one for one in invoked.values() if one.value["attempt"] == 2]
    never = {one.value["offset"] for one in second if one.value["number"] not in ended}
    third = {one.value["offset"] for one in invoked.values() if one.value["attempt"] == 3}
    offset = history.pick(sorted(third - never))
    for one in second:
        if one.value["offset"] == offset:
            history.change(ended[one.value["number"]], type=Type.FAIL)


def _calm_returns(history: Tampered) -> list[Event]:
    """Where no clock was wrong."""
    if history.of("clock", Type.INVOKE):
        return []
    return [one for one in _invoked(history, LEAST).values() if one.value["is_back"]]


def too_early(history: Tampered) -> None:
    """By the clock of the harness, before its pause was over."""
    event = history.pick(_calm_returns(history))
    before = [
        one.time
        for one in _invoked(history, LEAST).values()
        if one.value["offset"] == event.value["offset"]
        and one.value["attempt"] == event.value["attempt"] - 1
    ]
    pause = PAUSES[event.value["attempt"] - 2]
    history.change(event, time=min(before) + 0.8 * pause)


def early_by_its_leader(history: Tampered) -> None:
    """Its leader has delivered it before it was due."""
    event = history.pick(list(_invoked(history, ONCE).values()))
    event.value.update(due=event.time, at=event.time - 0.001)


# -- the end --------------------------------------------------------------------------------------


def still_behind(history: Tampered) -> None:
    history.pick(history.of("left")).value["lags"].append(["k", 3, 7])


def still_waiting(history: Tampered) -> None:
    history.pick(history.of("left")).value["pending"].append(5)


RETRY_PLANTS: dict[str, tuple[str, Callable[[Tampered], None]]] = {
    "lost": ("lost-retry", lost),
    "a lost result": ("lost-retry", lost_result),
    "a lost letter": ("lost-retry", lost_letter),
    "two results": ("retry-duplicate", two_results),
    "two letters": ("retry-duplicate", two_letters),
    "a result and a letter": ("retry-duplicate", result_and_letter),
    "good and dead": ("wrong-ending", good_and_dead),
    "set aside without deaths": ("wrong-ending", set_aside_without_deaths),
    "dead and done": ("wrong-ending", dead_and_done),
    "done before it is good": ("wrong-ending", done_before_it_is_good),
    "a letter of another record": ("wrong-ending", letter_of_another),
    "too many attempts in a letter": ("wrong-attempts", too_many_in_a_letter),
    "too many attempts": ("wrong-attempts", too_many_attempts),
    "the first attempt of what is back": ("wrong-attempts", first_attempt_of_what_is_back),
    "an attempt left out": ("wrong-attempts", attempt_left_out),
    "too early": ("early-retry", too_early),
    "early by its leader's clock": ("early-retry", early_by_its_leader),
    "still behind": ("unfinished-retries", still_behind),
    "still waiting": ("unfinished-retries", still_waiting),
}
