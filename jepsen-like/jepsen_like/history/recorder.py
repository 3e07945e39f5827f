"""Records events in order, with index and time, in memory and in a JSON lines file.

Writes each event at once, so that a run that was killed can still be judged up to there. Not thread
safe.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from jepsen_like.history.event import NEMESIS, Event, Type, encode_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from jepsen_like.history.event import Process


class Recorder:
    """Attributes:
    events: so far.
    """

    def __init__(self, now: Callable[[], float], *, file: IO[bytes] | None = None) -> None:
        """`now`: seconds by a clock that never goes back; the first event need not be at 0."""
        self._now, self._file, self._began_at = now, file, now()
        self.events: list[Event] = []

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return self._now() - self._began_at

    def record(
        self,
        process: Process,
        kind: Type,
        f: str,
        value: object = None,
        *,
        node: int | None = None,
        error: str | None = None,
    ) -> Event:
        event = Event(len(self.events), self.seconds, process, kind, f, value, node, error)
        self.events.append(event)
        if self._file is not None:
            self._file.write(encode_line(event))
        return event

    def invoke(self, process: Process, f: str, value: object = None) -> Event:
        return self.record(process, Type.INVOKE, f, value)

    def fault(self, kind: Type, f: str, value: object) -> Event:
        """`Type.INVOKE` when it begins, `Type.INFO` when it is over."""
        return self.record(NEMESIS, kind, f, value)
