"""The line that tells what a run is doing."""

from __future__ import annotations

from io import StringIO

from jepsen_like.history.event import RUN, Type
from jepsen_like.history.recorder import Recorder
from jepsen_like.progress import Progress


def test_what_is_counted() -> None:
    """Acknowledged values, faults that began, and those that are not over."""
    recorder = Recorder(lambda: 0.0)
    stream = StringIO()
    progress = Progress(recorder, stream=stream)
    recorder.record(RUN, Type.INFO, "phase", "faults")
    recorder.invoke(0, "send", {"key": "k", "values": [1, 2, 3], "acks": -1})
    recorder.record(0, Type.INFO, "send", {"key": "k", "offsets": [7, None, 9]})
    recorder.fault(Type.INVOKE, "kill", {"nodes": [1]})
    recorder.fault(Type.INVOKE, "clock", {"nodes": [2, 3]})
    recorder.fault(Type.INFO, "kill", {"nodes": [1]})
    progress.show()
    assert stream.getvalue() == (
        "   0 s  faults   2 acknowledged · 2 faults · now: clock of n2, n3\n"
    )


def test_nothing_is_counted_twice() -> None:
    """Each look goes on where the last one ended."""
    recorder = Recorder(lambda: 0.0)
    progress = Progress(recorder, stream=StringIO())
    recorder.record(0, Type.OK, "send", {"key": "k", "offsets": [7]})
    assert progress.line() == progress.line()
