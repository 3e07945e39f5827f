"""Waiting for what became of an entry in the line of a slot, for so long and not longer.

Owns what is told when the time is over: who was not sent yet is taken out of the line, and that is
certain; of all others nobody can know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.errors import CoordinatorNotAvailable, RequestTimedOut

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.broker.groups.entries import Entry, Outcome
    from raftmq.broker.groups.pipeline import Pipeline


class Awaited:
    """`make` is given the function that the entry has to tell."""

    def __init__(self, make: Callable[[Callable[[Outcome], None]], Entry]) -> None:
        self.entry = make(self._on_outcome)
        self._outcome: Outcome | None = None
        self._told = trio.Event()

    def _on_outcome(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._told.set()

    async def wait(self, pipeline: Pipeline, deadline: float) -> Outcome:
        """A result, or the error that says whether it may have happened."""
        with trio.move_on_at(deadline):
            await self._told.wait()
        if self._outcome is not None:
            return self._outcome
        if pipeline.withdraw(self.entry):
            return CoordinatorNotAvailable(
                "the quorum took nothing in time, and nothing was changed: ask again"
            )
        return RequestTimedOut("the quorum has not answered in time; it may have been carried out")
