"""How far Spark has come with its tasks: a bar on stderr, and only for people.

A thread asks Spark and draws, as the job itself has to stay in the main thread, where Spark finds
its formats. Nothing is shown where stderr is no terminal.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

REFRESH_SECONDS = 0.5


@contextmanager
def shown_progress(session: SparkSession) -> Iterator[None]:
    """While the block runs; then the bar is gone."""
    if not sys.stderr.isatty():
        yield
        return
    is_over = Event()
    thread = Thread(target=_draw, args=(session, is_over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _draw(session: SparkSession, is_over: Event) -> None:
    columns = (BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("", total=None)
        while not is_over.wait(REFRESH_SECONDS):
            done, total = _tasks(session)
            told = f"{done} of {total} tasks" if total else ""
            bar.update(task, completed=done, total=total or None, description=told)
            bar.refresh()


def _tasks(session: SparkSession) -> tuple[int, int]:
    """How many are done, and how many there are, of the stages at work."""
    tracker = session.sparkContext.statusTracker()
    stages = filter(None, map(tracker.getStageInfo, tracker.getActiveStageIds()))
    counts = [(stage.numCompletedTasks, stage.numTasks) for stage in stages]
    return sum(done for done, _ in counts), sum(total for _, total in counts)
