"""Failures about which nobody has been told yet: silence would look like success. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.errors import RaftmqError

REMEMBERED_MAX = 1000  # that nobody knows; of more than these the first ones are told


class _Failure(NamedTuple):
    error: RaftmqError
    unclaimed: Callable[[], int]  # records for which nobody has asked, or has been told


class Failures:
    """Of one producer, since somebody has looked last."""

    def __init__(self) -> None:
        self._failures: list[_Failure] = []

    def add(self, error: RaftmqError, unclaimed: Callable[[], int]) -> None:
        self._failures.append(_Failure(error, unclaimed))
        if len(self._failures) >= 2 * REMEMBERED_MAX:  # of most of them somebody knows, perhaps
            unknown = [failure for failure in self._failures if failure.unclaimed()]
            self._failures = unknown[:REMEMBERED_MAX]

    def raise_first(self) -> None:
        """Forget all, and raise the first one that is still unknown, if there is one."""
        failures, self._failures = self._failures, []
        found = [(failure.error, failure.unclaimed()) for failure in failures]
        unknown = [(error, count) for error, count in found if count]
        if unknown:
            error = unknown[0][0].copied()
            total = sum([count for _, count in unknown])
            error.add_note(f"{total} records or more were not delivered, and nobody was told")
            raise error
