"""`Finding`: the result of a checker, with count, severity and example sentences.

Owns the names of all anomalies and their order of severity. A checker that found nothing reports a
count of 0, so that a report shows what was checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES_MAX = 10  # of each kind: one fault may have thousands

# The worst first. One fault shows in many ways: the first of them is the one to look at.
NAMES = (
    "inconsistent-offsets",
    "lost-write",
    "lost-on-node",
    "lost-scheduled",
    "undelivered",
    "lost-retry",
    "duplicate",
    "delivered-twice",
    "rerun-duplicate",
    "retry-duplicate",
    "torn-transaction",
    "lost-transaction",
    "lost-transaction-offset",
    "duplicate-effect",
    "version-twice",
    "zombie-write",
    "zombie-end",
    "aborted-transaction-read",
    "precommitted-read",
    "circular-reads",
    "transaction-skip",
    "transaction-order",
    "cancelled-delivery",
    "early-delivery",
    "wrong-ending",
    "wrong-attempts",
    "early-retry",
    "aborted-read",
    "unexpected-read",
    "not-linearizable",
    "offset-linearizable",
    "replica-divergence",
    "two-leaders",
    "high-watermark-back",
    "unseen",
    "group-unseen",
    "overlap",
    "zombie-commit",
    "commit-back",
    "group-duplicate",
    "group-order",
    "due-order",
    "not-healed",
    "unfinished-retries",
    "stuck-transaction",
    "nonmonotonic-send",
    "int-nonmonotonic-send",
    "poll-skip",
    "int-poll-skip",
    "nonmonotonic-poll",
    "int-nonmonotonic-poll",
)


class Finding(msgspec.Struct, frozen=True):
    """Attributes:
    name: one of `NAMES`.
    severity: its place there; 0 is the worst.
    count: how often it was found.
    fails: the run fails by it.
    examples: the first few, each a sentence.
    figures: what was counted beside, and is allowed.
    """

    name: str
    severity: int
    count: int
    fails: bool
    examples: list[str] = []
    figures: dict[str, int] = {}


class Findings:
    """Counts one kind of wrong; keeps the first few as sentences."""

    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0
        self._severity = NAMES.index(name)
        self._examples: list[str] = []

    def add(self, sentence: Callable[[], str], *, count: int = 1) -> None:
        """`sentence` is asked for only where it is shown: it may take a search to write."""
        self.count += count
        if len(self._examples) < EXAMPLES_MAX:
            self._examples.append(sentence())

    def finding(self, **figures: int) -> Finding:
        figures = {name.replace("_", " "): figure for name, figure in figures.items()}
        return Finding(
            self.name, self._severity, self.count, self.count > 0, self._examples, figures
        )
