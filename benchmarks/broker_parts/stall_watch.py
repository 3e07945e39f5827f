"""`raftmq broker` with a counter of stalls in it: what held the event loop or a flush round.

    python -m benchmarks.broker_parts.stall_watch broker --config FILE

Owns what is counted, and a file beside FILE with JSON lines, written when the broker ends. Measures
from outside, by an instrument of trio and around methods of the product, which knows nothing of it.
Time in which a thread was ready but had no core is subtracted: on a shared machine it is not ours.

* step: a task held the loop; `where` is the innermost function of ours that a second thread saw
* turn: all tasks that ran between two waits of the loop
* collection: Python's garbage collector
* round: a disk thread was at work, by the name of the thread
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import trio

from raftmq.cli.main import main as raftmq_main
from raftmq.disk.thread import DiskThread
from raftmq.partition.storage import directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

T = TypeVar("T")

NOTED_SECONDS = 0.005
LOOK_SECONDS = 0.005
RETENTION_SECONDS = 10.0  # the product's 300 would be twice in a benchmark
PRODUCT = f"{os.sep}raftmq{os.sep}"


class Note(NamedTuple):
    """`at` is the end, of `time.monotonic`; `ms` is without the wait for a core, `cpu_ms` the part
    of it in which the thread ran: in the rest it waited for the kernel, or for the interpreter's
    lock, whose holder may have had no core."""

    kind: str
    place: str
    at: float
    ms: float
    cpu_ms: float
    where: str = ""


class Used(NamedTuple):
    """By one thread, so far; nanoseconds."""

    wall: int = 0
    cpu: int = 0
    no_core: int = 0


class Clock:
    """Of one thread."""

    def __init__(self) -> None:
        path = Path("/proc/self/task") / str(threading.get_native_id()) / "schedstat"
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> Used:
        cpu, no_core, _ = os.pread(self._descriptor, 64, 0).split()
        return Used(time.monotonic_ns(), int(cpu), int(no_core))


class Watch(trio.abc.Instrument):
    """Notes of one process."""

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self._clock, self._threads = Clock(), threading.local()
        self._loop = threading.get_ident()
        self._turn = self._before = self._collection = Used()
        self._step_ns = 0
        self._where: tuple[int, str] = (0, "")

    def note(self, kind: str, place: str, since: Used, until: Used, where: str = "") -> None:
        cpu_ms = (until.cpu - since.cpu) / 1e6
        ms = (until.wall - since.wall - (until.no_core - since.no_core)) / 1e6
        self.notes.append(
            Note(kind, place, time.monotonic(), round(ms, 2), round(min(cpu_ms, ms), 2), where)
        )

    def write(self, path: Path) -> None:
        path.write_text("".join(json.dumps(note._asdict()) + "\n" for note in self.notes))

    # -- the loop --------------------------------------------------------------------------

    def after_io_wait(self, _timeout: float) -> None:
        self._turn = self._before = self._clock.read()

    def before_io_wait(self, _timeout: float) -> None:
        if self._turn.wall and is_long(self._turn.wall):
            self.note("turn", "", self._turn, self._clock.read())

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        self._step_ns = time.monotonic_ns()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        begin, self._step_ns = self._step_ns, 0
        if is_long(begin):
            # What was used before this step in this turn is counted with it: it was short.
            since, self._before = self._before._replace(wall=begin), self._clock.read()
            where = self._where[1] if self._where[0] == begin else ""
            self.note("step", task.name, since, self._before, where)

    def on_collection(self, phase: str, info: dict[str, int]) -> None:
        if threading.get_ident() != self._loop:
            return
        if phase == "start":
            self._collection = self._clock.read()
        elif is_long(self._collection.wall):
            place = f"generation {info['generation']}"
            self.note("collection", place, self._collection, self._clock.read())

    def look(self) -> None:
        """In a thread of its own: where the loop is, if it is in the same step for long."""
        while True:
            time.sleep(LOOK_SECONDS)
            begin = self._step_ns
            if begin and is_long(begin):
                self._where = begin, ours(sys._current_frames().get(self._loop))

    # -- disk threads ----------------------------------------------------------------------

    def timed(self, thread: DiskThread, function: Callable[[], T]) -> T:
        """In the disk thread. Each round is noted, short ones, too: there are a few hundred a
        second at most."""
        if not hasattr(self._threads, "clock"):
            self._threads.clock = Clock()
        since: Used = self._threads.clock.read()
        try:
            return function()
        finally:
            self.note("round", thread._thread.name, since, self._threads.clock.read())

    def install(self) -> None:
        """Around what is measured, for as long as the process lives."""
        run, watch = DiskThread.run, self

        def run_timed(thread: DiskThread, function: Callable[[], T], /) -> Any:
            return run(thread, partial(watch.timed, thread, function))

        DiskThread.run = run_timed  # type: ignore[method-assign]
        trio.run = partial(trio.run, instruments=[self])
        gc.callbacks.append(self.on_collection)
        threading.Thread(target=self.look, name="stall-watch", daemon=True).start()


def is_long(since_ns: int) -> bool:
    return time.monotonic_ns() - since_ns > NOTED_SECONDS * 1e9


def ours(frame: FrameType | None) -> str:
    """The innermost function of the product on that stack."""
    while frame is not None:
        if PRODUCT in frame.f_code.co_filename:
            path = frame.f_code.co_filename.rpartition(PRODUCT)[2]
            return f"{path}: {frame.f_code.co_qualname}"
        frame = frame.f_back
    return ""


def notes_path(config: Path) -> Path:
    return config.with_suffix(".stalls")


def main() -> None:
    path = notes_path(Path(sys.argv[sys.argv.index("--config") + 1]))
    directory.RETENTION_CHECK_INTERVAL = RETENTION_SECONDS
    watch = Watch()
    watch.install()
    try:
        raftmq_main()
    finally:
        watch.write(path)


if __name__ == "__main__":
    main()
