"""What the demonstration shows: a line for each thing that happens, tables, and progress.

Knows how things are shown and nothing of how they come about. On a terminal there are progress
bars; elsewhere there is a line for each quarter.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Self

from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from rich.console import Console

QUARTERS = 4


class View:
    """Times are seconds since it was made."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._began_at = perf_counter()

    @property
    def seconds(self) -> float:
        return perf_counter() - self._began_at

    def say(self, text: str) -> None:
        """What has happened just now."""
        self.write(f"{self.seconds:5.1f} s  {text}")

    def write(self, text: str = "") -> None:
        """A line as it is, however long."""
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)

    def show_table(self, titles: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
        """Columns of numbers are on the right."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=True, header_style="bold")
        shown = [[_shown(cell) for cell in row] for row in rows]
        for title, cells in zip(titles, zip(*shown, strict=True), strict=True):
            is_numbers = all(cell.replace(",", "").replace(".", "", 1).isdigit() for cell in cells)
            table.add_column(title, justify="right" if is_numbers else "left")
        for row in shown:
            table.add_row(*row)
        self.console.print(table)

    def progress(self, total: int) -> Bars | Quarters:
        """A context manager with `on_acknowledged` and `on_counted`."""
        return Bars(self.console, total) if self.console.is_terminal else Quarters(self, total)


class Bars:
    """Two bars, of what was acknowledged and what was read along."""

    def __init__(self, console: Console, total: int) -> None:
        columns = (TextColumn("         {task.description}"), BarColumn(), MofNCompleteColumn())
        self._progress = Progress(*columns, TimeElapsedColumn(), console=console)
        self._acknowledged = self._progress.add_task("acknowledged", total=total)
        self._counted = self._progress.add_task("counted     ", total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def on_acknowledged(self, count: int) -> None:
        self._progress.update(self._acknowledged, completed=count)

    def on_counted(self, count: int) -> None:
        self._progress.update(self._counted, completed=count)


class Quarters:
    """A line when another quarter is acknowledged."""

    def __init__(self, view: View, total: int) -> None:
        self._view, self._total = view, total
        self._quarters = self._counted = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing is left to tidy up."""

    def on_acknowledged(self, count: int) -> None:
        quarters = QUARTERS * count // self._total
        if quarters > self._quarters:
            self._quarters = quarters
            self._view.say(f"{count:,} acknowledged, {self._counted:,} counted by the consumer")

    def on_counted(self, count: int) -> None:
        self._counted = count


def _shown(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) else str(cell)
