"""A progress bar, or the rates so far, on stderr. Nothing is shown where stderr is no terminal.

Owns no numbers: it polls them from the command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import anyio

from raftmq.cli.terminal.output import is_terminal

if TYPE_CHECKING:
    from collections.abc import Callable

REFRESH_SECONDS = 0.2  # as fast as a person reads; drawing costs CPU time, which a bench measures


class Progress(NamedTuple):
    """Attributes:
    done: in the unit of `total`.
    told: the text beside the bar.
    total: None where it is not known.
    """

    done: Callable[[], float]
    told: Callable[[], str]
    total: float | None


async def show_progress(progress: Progress, *, quiet: bool = False) -> None:
    """Draw until it is cancelled; then the bar is erased."""
    if quiet or not is_terminal("stderr"):
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    shown = columns if progress.total is not None else columns[1:2]
    console = Console(stderr=True)
    with Bar(*shown, console=console, auto_refresh=False, transient=True) as bar:
        task = bar.add_task(progress.told(), total=progress.total)
        while True:
            bar.update(task, completed=progress.done(), description=progress.told())
            bar.refresh()
            await anyio.sleep(REFRESH_SECONDS)


def show_rates(*, records: int, byte_count: int, seconds: float) -> str:
    """`81300 records/s, 8.1 MB/s`"""
    seconds = max(seconds, 1e-6)  # the first line may be drawn within the clock's resolution
    return f"{records / seconds:.0f} records/s, {byte_count / seconds / 1e6:.2f} MB/s"
