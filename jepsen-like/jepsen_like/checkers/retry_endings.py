"""Anomalies of groups with retries: records without an end, with two, or with the wrong one.

Counts records of each group. Judges the groups that have done all, as they said, and whose letters
and results were read whole: until then records may be late. At least once a record may be handled
again, and set aside again; exactly once it may not. That a record was set aside as it had ended its
process is believed where it says so many deaths as are needed, and so many sessions of members may
have ended since it was sent.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from jepsen_like.checkers.finding import Finding, Findings
from jepsen_like.checkers.retry_account import DEATHS_MIN, DONE
from jepsen_like.history.event import Type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.columns import Value
    from jepsen_like.checkers.retry_account import Attempt, Letter, Place, Result, RetryGroup

NAMES = ("lost-retry", "retry-duplicate", "wrong-ending")


def check(account: Account) -> list[Finding]:
    found = {name: Findings(name) for name in NAMES}
    again = {"handled_again": 0, "letters_again": 0}
    for group in account.retries.groups.values():
        _check_lost(account, group, found["lost-retry"])
        if group.is_exactly_once:
            _check_once(group, found["retry-duplicate"])
        else:
            _count_again(group, again)
        for sentence in _wrong_endings(account, group):
            found["wrong-ending"].add(partial("group {!r}, {}".format, group.name, sentence))
    figures = {"wrong-ending": {"set_aside_for_deaths": _deaths(account)}, "retry-duplicate": again}
    return [found[name].finding(**figures.get(name, {})) for name in NAMES]


# -- lost -----------------------------------------------------------------------------------------


def _check_lost(account: Account, group: RetryGroup, found: Findings) -> None:
    if not group.is_told or group.left is None or not group.left.is_nothing:
        return
    ended = group.done() | {letter.place for letter in group.letters or ()}
    for place, value in account.retries.source(group):
        if place not in ended and not account.keys[place.key].may_be_deleted(value):
            found.add(partial(_lost_sentence, group, place, value))


def _lost_sentence(group: RetryGroup, place: Place, value: Value) -> str:
    neither = "neither done nor a dead letter"
    return f"group {group.name!r}, {place}, value {value!r}: {neither}; {group.history_of(place)}"


# -- twice ----------------------------------------------------------------------------------------


def _check_once(group: RetryGroup, found: Findings) -> None:
    """A result or a letter; and each attempt counts once, if it counts."""
    ends: defaultdict[Place, list[Result | Letter]] = defaultdict(list)
    for end in (*(group.results or ()), *(group.letters or ())):
        ends[end.place].append(end)
    for place, twice in ends.items():
        if len(twice) > 1:
            found.add(partial(_twice_sentence, group, place, twice))
    for place, attempts in group.attempts.items():
        counted: dict[int, Attempt] = {}
        for attempt in attempts:
            if attempt.kind is not Type.OK:
                continue
            before = counted.setdefault(attempt.number, attempt)
            if before is not attempt and place not in ends:  # else it was told above
                found.add(partial(_twice_sentence, group, place, [before, attempt]))


def _twice_sentence(
    group: RetryGroup, place: Place, twice: list[Result | Letter] | list[Attempt]
) -> str:
    told = f"group {group.name!r}, {place}: {' and '.join(map(str, twice))}"
    return f"{told}; {group.history_of(place)}"


def _count_again(group: RetryGroup, again: dict[str, int]) -> None:
    done = [attempt.place for attempt in group.all_attempts() if attempt.is_done]
    again["handled_again"] += len(done) - len(set(done))
    letters = [letter.place for letter in group.letters or ()]
    again["letters_again"] += len(letters) - len(set(letters))


# -- wrong ----------------------------------------------------------------------------------------


def _wrong_endings(account: Account, group: RetryGroup) -> Iterator[str]:
    """Sentences."""
    for end in (*(group.letters or ()), *(group.results or ())):
        known = account.retries.value_at(end.place)
        if known != end.value and (known is not None or _is_known(account, end.place)):
            yield f"{end}; there stood {known!r}"
    for letter in group.letters or ():
        if why := _why_not_a_letter(account, group, letter):
            yield f"{letter}; {why}; {group.history_of(letter.place)}"
    for result in group.results or ():
        if not result.fate.is_good_at_last:
            yield f"{result}; {group.history_of(result.place)}"
    for attempt in group.all_attempts():
        is_done = attempt.kind is not Type.FAIL and attempt.end == DONE
        if is_done and not attempt.fate.is_good_at(attempt.number):
            yield f"{attempt.place} ({attempt.fate}): {attempt}"


def _why_not_a_letter(account: Account, group: RetryGroup, letter: Letter) -> str:
    """Empty: it may be one."""
    if letter.is_for_deaths:
        if letter.deaths < max(group.attempts_max, DEATHS_MIN):
            return "too few deaths"
        return "" if _may_have_killed(account, group, letter) else "too few sessions have ended"
    return "it is good at last" if letter.fate.is_good_at_last else ""


def _is_known(account: Account, place: Place) -> bool:
    """Whether all is known that stands in its key, so that nothing stands there."""
    is_of_none = place.key not in account.keys
    return is_of_none or (place.key in account.final_keys and place.key not in account.behind)


def _may_have_killed(account: Account, group: RetryGroup, letter: Letter) -> bool:
    """Members of groups that are exactly once are never handed out one record alone for that."""
    if group.is_exactly_once:
        return False
    key = account.keys.get(letter.place.key)
    send = None if key is None else key.senders.get(letter.value)
    since = 0.0 if send is None else account.transactions.times[send.invoked]
    return sum(time >= since for time in group.deaths) >= letter.deaths


def _deaths(account: Account) -> int:
    return sum(
        letter.is_for_deaths
        for group in account.retries.groups.values()
        for letter in group.letters or ()
    )
