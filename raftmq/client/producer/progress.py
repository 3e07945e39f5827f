"""How far a long call has come: a bar on stderr, or a function of the program's own."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from raftmq.client.producer.bulk import Progress

    Report = Callable[[int], object]


@contextmanager
def reporting(progress: Progress, total: int | None) -> Iterator[Report]:
    """What is to be called with the number of records that were handed in so far."""
    if callable(progress):
        yield progress
    elif progress:
        with _bar(total) as report:
            yield report
    else:
        yield _nothing


def _nothing(_count: int) -> None:
    pass


@contextmanager
def _bar(total: int | None) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("records"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("records", total=total)
        yield lambda count: bar.update(task, completed=count)
