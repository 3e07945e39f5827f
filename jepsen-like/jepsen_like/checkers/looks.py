"""The watcher's observations of the replicas: in sync, not in sync, or no answer.

Owns the conclusion from missing answers: one may be chance, several in a row are silence.
"""

from __future__ import annotations

from dataclasses import dataclass

# In a row without an answer: one or two may be chance while the watcher finds another broker.
SILENT_LOOKS = 4


@dataclass(eq=False, slots=True)
class Looks:
    """Attributes:
    is_any: there was any answer.
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
        """The watcher got no more answers at the end, though it asked."""
        return self.is_any and (self.is_whole is None or self.unanswered >= SILENT_LOOKS)

    def take(self, event: int, *, is_whole: bool | None, is_after: bool) -> None:
        """`is_whole` is None without an answer; `is_after`: the faults are over."""
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
