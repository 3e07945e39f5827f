"""The progress line of a run on stderr: phase, operations, faults.

On a terminal it is overwritten again and again, elsewhere a line is printed now and then.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

import trio

from jepsen_like.history.event import NEMESIS, RUN, Type

if TYPE_CHECKING:
    from jepsen_like.history.event import Event
    from jepsen_like.history.recorder import Recorder

TERMINAL_SECONDS, FILE_SECONDS = 0.5, 20.0
WIDTH = 100


class Progress:
    def __init__(self, recorder: Recorder, *, stream: TextIO = sys.stderr) -> None:
        self._recorder, self._stream, self._seen = recorder, stream, 0
        self._phase, self._acknowledged, self._faults = "start", 0, 0
        self._broken: dict[str, str] = {}
        self._is_terminal = stream.isatty()

    async def run(self) -> None:
        while True:
            await trio.sleep(TERMINAL_SECONDS if self._is_terminal else FILE_SECONDS)
            self.show()

    def show(self, *, is_last: bool = False) -> None:
        line = self.line()
        if self._is_terminal:
            self._stream.write(f"\r{line[:WIDTH]:{WIDTH}}" + ("\n" if is_last else ""))
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()

    def line(self) -> str:
        """Up to now."""
        events = self._recorder.events
        for event in events[self._seen :]:
            self._take(event)
        self._seen = len(events)
        broken = f" · now: {', '.join(self._broken.values())}" if self._broken else ""
        return (
            f"{self._recorder.seconds:4.0f} s  {self._phase:8} {self._acknowledged:,} acknowledged"
            f" · {self._faults} faults{broken}"
        )

    def _take(self, event: Event) -> None:
        if event.process == RUN:
            self._phase = str(event.value)
        elif event.process == NEMESIS:
            self._take_fault(event)
        elif event.f == "send" and event.type is not Type.INVOKE and event.value:
            offsets = event.value.get("offsets") or ()
            self._acknowledged += sum(offset is not None for offset in offsets)

    def _take_fault(self, event: Event) -> None:
        nodes = (event.value or {}).get("nodes", ())
        if event.type is Type.INVOKE:
            self._faults += 1
            where = f" of {', '.join(f'n{node}' for node in nodes)}" if nodes else ""
            self._broken[event.f] = f"{event.f}{where}"
        else:
            self._broken.pop(event.f, None)
