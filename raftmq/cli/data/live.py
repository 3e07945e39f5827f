"""How far a command has come, on stderr and only for people: a bar, or what was done so far.

Owns no numbers: it asks for them. Nothing is shown where stderr is no terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import anyio

from raftmq.cli.data.streams import is_terminal

if TYPE_CHECKING:
    from collections.abc import Callable

REFRESH_SECONDS = 0.2


class Progress(NamedTuple):
    """Attributes:
    done: in the unit of `total`.
    told: what stands beside the bar.
    total: None where nobody knows.
    """

    done: Callable[[], float]
    told: Callable[[], str]
    total: float | None


async def show_progress(progress: Progress, *, quiet: bool = False) -> None:
    """Until it is cancelled; then the bar is gone."""
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
    seconds = max(seconds, 1e-6)
    return f"{records / seconds:.0f} records/s, {byte_count / seconds / 1e6:.2f} MB/s"
