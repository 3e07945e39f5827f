"""What was said of the replicas by whoever watched the cluster.

Owns what may be concluded from looks that nobody answered: one may be chance, some are silence.
"""

from __future__ import annotations

from dataclasses import dataclass

SILENT_LOOKS = 4  # one after the other without an answer


@dataclass(eq=False, slots=True)
class Looks:
    """Attributes:
    is_any: somebody was ever answered.
    is_whole: the last answer after the faults: all replicas are in sync; None: there was none.
    was_whole: one of the answers after the faults said so. Topics that are made meanwhile are not
        in sync at once, so the last answer may say otherwise.
    whole_since: the event from which on all answers were so.
    unanswered: looks after the faults since the last answer.
    """

    is_any: bool = False
    is_whole: bool | None = None
    was_whole: bool = False
    whole_since: int | None = None
    unanswered: int = 0

    @property
    def is_silent(self) -> bool:
        """Nobody could say at the end how the cluster was, though somebody had asked."""
        return self.is_any and (self.is_whole is None or self.unanswered >= SILENT_LOOKS)

    def take(self, event: int, *, is_whole: bool | None, is_after: bool) -> None:
        """`is_whole` is None where nobody answered; `is_after`: the faults are over."""
        self.is_any = self.is_any or is_whole is not None
        if not is_after:
            return
        if is_whole is None:
            self.unanswered += 1
            return
        self.unanswered, self.is_whole = 0, is_whole
        self.was_whole = self.was_whole or is_whole
        if not is_whole:
            self.whole_since = None
        elif self.whole_since is None:
            self.whole_since = event
