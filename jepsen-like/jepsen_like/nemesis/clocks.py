"""Clock faults: wall clocks that jump once (bump), or to and fro (strobe).

Only the time of day changes; the monotonic clock of timeouts goes on. A strobe needs a thread that
changes the offset as long as it lasts.
"""

from __future__ import annotations

from threading import Event, Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jepsen_like.nemesis.fault import Scene, Told

JOIN_SECONDS = 10.0  # for the strobe's thread to end, which looks each period


class Clock:
    """A bump of `offset_ms`; with `period_seconds` it comes and goes."""

    def __init__(self, scene: Scene) -> None:
        self._scene, self._has_begun = scene, False
        self._is_over = Event()
        self._strobe: Thread | None = None

    def begin(self) -> Told:
        self._has_begun = True
        self._set(self._scene.params["offset_ms"])
        period = self._scene.params.get("period_seconds")
        if period:
            self._strobe = Thread(target=self._run_strobe, args=(period,), daemon=True)
            self._strobe.start()
        return {"how": "strobe" if period else "bump"}

    def end(self) -> Told:
        self._is_over.set()
        if self._strobe:
            self._strobe.join(JOIN_SECONDS)
            self._strobe = None
        if self._has_begun:
            self._set(0)
        self._has_begun = False
        return {}

    def _run_strobe(self, period_seconds: float) -> None:
        is_off = True
        while not self._is_over.wait(period_seconds):
            is_off = not is_off
            self._set(self._scene.params["offset_ms"] if is_off else 0)

    def _set(self, offset_ms: int) -> None:
        for node in self._scene.nodes:
            self._scene.machines.page(node).clock_offset_ms = offset_ms
