"""Anomalies of attempts to handle a record: counted wrongly, or made before their time.

Counts attempts, and dead letters, of each group. The first attempt is at the record where it stood;
each later one follows an attempt that may have moved it, and its pause. A pause may be shorter by
as much as a broker's clock was ahead meanwhile, as for all scheduled records; never by the clock of
the leader that kept it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from jepsen_like.checkers.finding import Finding, Findings
from jepsen_like.history.event import Type

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.retry_account import Attempt, Letter, RetryGroup


def check(account: Account) -> list[Finding]:
    wrong, early, returns = Findings("wrong-attempts"), Findings("early-retry"), 0
    for group in account.retries.groups.values():
        for attempts in group.attempts.values():
            for place, attempt in enumerate(attempts):
                before = [
                    one for one in attempts[:place] if _may_have_moved(one, attempt.number - 1)
                ]
                for why in _reasons_of_wrong(group, attempt, before):
                    wrong.add(partial(_sentence, group, attempt, why))
                for why in _reasons_of_early(account, group, attempt, before):
                    early.add(partial(_sentence, group, attempt, why))
                returns += attempt.is_back
        for letter in group.letters or ():
            for why in _reasons_of_wrong_letter(group, letter):
                wrong.add(partial("group {!r}, {}: {}".format, group.name, letter, why))
    return [wrong.finding(), early.finding(records_that_came_back=returns)]


def _may_have_moved(attempt: Attempt, number: int) -> bool:
    """It was this one, and it is not certain that it has no effect."""
    return attempt.number == number and attempt.kind is not Type.FAIL


def _reasons_of_wrong(
    group: RetryGroup, attempt: Attempt, before: Sequence[Attempt]
) -> Iterator[str]:
    if attempt.number > group.attempts_max:
        yield f"the policy has {group.attempts_max}"
    if attempt.is_back is (attempt.number == 1):
        yield "read from the topic of retries" if attempt.is_back else "read where it stood first"
    elif attempt.is_back and not before:
        yield f"no attempt {attempt.number - 1} may have moved it"


def _reasons_of_early(
    account: Account, group: RetryGroup, attempt: Attempt, before: Sequence[Attempt]
) -> Iterator[str]:
    if attempt.is_back and before and attempt.number - 2 < len(group.pauses):
        first = min(before, key=lambda one: one.time)
        due = first.time + group.pauses[attempt.number - 2]
        if attempt.time < due - account.schedule.ahead(first.time, attempt.time):
            yield f"at {attempt.time:.3f} s, not due before {due:.3f} s"
            return
    if attempt.stamp is not None:
        due, at = attempt.stamp
        if at < due:
            yield f"delivered at {at:.3f} s by its leader's clock, due at {due:.3f} s as it says"


def _reasons_of_wrong_letter(group: RetryGroup, letter: Letter) -> Iterator[str]:
    """Of what is good at last, others judge that there is a letter at all."""
    if letter.is_for_deaths or letter.fate.is_good_at_last:
        return
    wanted = group.letter_attempts(letter.fate)
    if letter.attempts != wanted:
        yield f"{wanted} are wanted; {group.history_of(letter.place)}"
    elif not any(
        _may_have_moved(one, letter.attempts) for one in group.attempts.get(letter.place, ())
    ):
        yield f"no such attempt; {group.history_of(letter.place)}"


def _sentence(group: RetryGroup, attempt: Attempt, why: str) -> str:
    told = f"group {group.name!r}, {attempt.place}, value {attempt.value!r}: {attempt}, {why}"
    return f"{told}; {group.history_of(attempt.place)}"
