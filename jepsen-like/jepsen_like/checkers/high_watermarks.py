"""Anomaly: a high watermark went back, or lies behind the end of every log.

Counts observations that are lower than an earlier one. The high watermarks in a consumer's polls
never fall, and none that was ever reported lies behind the end of every log. An assign makes
another consumer, and a leader that has just been elected may report what it knew as a follower.
Answers of leaders to any process are ordered in real time: one that was invoked after another
completed, of the same or a lower epoch, is not lower. A leader of a lower epoch may not know that
it was deposed, and may lag.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import partial
from typing import TYPE_CHECKING

from jepsen_like.checkers.finding import Finding, Findings

if TYPE_CHECKING:
    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.columns import KeyAccount, PolledWatermark, Session, Watermark


def check(account: Account) -> list[Finding]:
    found = Findings("high-watermark-back")
    for key in account.keys.values():
        _check_polls(key, found)
        _check_leaders(key, found)
        _check_logs(key, found)
    return [found.finding()]


def _check_polls(key: KeyAccount, found: Findings) -> None:
    highest: dict[Session, PolledWatermark] = {}
    for polled in key.polled_watermarks:
        before = highest.get(polled.session)
        if before is not None and polled.high_watermark < before.high_watermark:
            found.add(partial(_poll_sentence, key, before, polled))
        else:
            highest[polled.session] = polled


def _poll_sentence(key: KeyAccount, before: PolledWatermark, polled: PolledWatermark) -> str:
    return (
        f"key {key.key!r}: process {polled.session.process} was told {before.high_watermark} in "
        f"event {before.completed} and {polled.high_watermark} in event {polled.completed}"
    )


def _check_leaders(key: KeyAccount, found: Findings) -> None:
    by_start = sorted(key.watermarks, key=lambda said: said.invoked)
    by_end = sorted(key.watermarks, key=lambda said: said.completed, reverse=True)
    highest = _Highest()
    for said in by_start:
        while by_end[-1].completed < said.invoked:
            highest.add(by_end.pop())
        before = highest.up_to(said.epoch)
        if before is not None and said.high_watermark < before.high_watermark:
            found.add(partial(_leader_sentence, key, before, said))


def _check_logs(key: KeyAccount, found: Findings) -> None:
    told = [(said.high_watermark, said.completed) for said in key.watermarks]
    told += [(polled.high_watermark, polled.completed) for polled in key.polled_watermarks]
    log_end = max((replica.log_end for replica in key.replicas.values()), default=None)
    if told and log_end is not None and max(told)[0] > log_end:
        found.add(partial(_log_sentence, key, *max(told), log_end))


def _log_sentence(key: KeyAccount, high_watermark: int, event: int, log_end: int) -> str:
    return (
        f"key {key.key!r}: event {event} said {high_watermark}, but every log ends before it, the "
        f"longest at {log_end}"
    )


class _Highest:
    """Of all that leaders have said so far, the highest for each epoch and those before it."""

    def __init__(self) -> None:
        self._steps: list[Watermark] = []  # epochs and high watermarks both rise

    def up_to(self, epoch: int) -> Watermark | None:
        place = bisect_right(self._steps, epoch, key=_epoch)
        return self._steps[place - 1] if place else None

    def add(self, said: Watermark) -> None:
        before = self.up_to(said.epoch)
        if before is not None and said.high_watermark <= before.high_watermark:
            return
        start = end = bisect_left(self._steps, said.epoch, key=_epoch)
        while end < len(self._steps) and self._steps[end].high_watermark <= said.high_watermark:
            end += 1
        self._steps[start:end] = [said]


def _epoch(said: Watermark) -> int:
    return said.epoch


def _leader_sentence(key: KeyAccount, before: Watermark, said: Watermark) -> str:
    return (
        f"key {key.key!r}: the leader of epoch {before.epoch} said {before.high_watermark} in "
        f"event {before.completed}, that of epoch {said.epoch} said {said.high_watermark} in "
        f"event {said.completed}, asked in event {said.invoked}"
    )
