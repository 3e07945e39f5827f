"""What commands print: tables for people, JSON lines for programs, and questions before a deletion.

Owns how bytes, times and columns look. Everything is written to stdout in blocks, so that long
answers begin at once and cost no memory. JSON is one object per line, in ASCII.
"""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING

import rich_click as click

from raftmq.cli.terminal.exits import CommandError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


BLOCK_ROWS = 500  # aligned and written together: long answers begin at once, memory is bounded
PROSE_WIDTH_MIN = 30  # columns; in a narrower terminal prose rather runs over the edge
NAME_WIDTH_MIN = 12  # characters of a name that are still to be recognised
NOTHING = "-"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Row = dict[str, object]


def write_json(rows: Iterable[Row]) -> None:
    rows = iter(rows)
    while block := list(islice(rows, BLOCK_ROWS)):
        sys.stdout.write("".join(f"{json.dumps(row)}\n" for row in block))
    sys.stdout.flush()


def write_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Nothing without rows."""
    table, rows = Table(titles), iter(rows)
    while block := list(islice(rows, BLOCK_ROWS)):
        table.write(block)


class Table:
    """Columns as wide as the rows so far need; numbers to the right."""

    def __init__(self, titles: Sequence[str]) -> None:
        self._titles, self._widths = titles, [0] * len(titles)

    def write(self, rows: Iterable[Sequence[object]]) -> None:
        """A block: the first one has the titles above it."""
        block = [[_cell(value) for value in row] for row in rows]
        if not block:
            return
        right = [_is_numeric(column) for column in zip(*block, strict=True)]
        if not any(self._widths):
            block.insert(0, list(self._titles))
        longest = [max(map(len, column)) for column in zip(*block, strict=True)]
        self._widths = list(map(max, self._widths, longest))
        sys.stdout.write("".join(_line(row, self._widths, right) for row in block))
        sys.stdout.flush()


@contextmanager
def row_blocks(write: Callable[[list[Row]], None]) -> Iterator[Callable[[Row], None]]:
    """For rows that come one by one: they are written in blocks, the last one at the end."""
    block: list[Row] = []

    def add(row: Row) -> None:
        block.append(row)
        if len(block) == BLOCK_ROWS:
            write(block)
            block.clear()

    yield add
    write(block)


def table_width(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> int:
    """Characters of the longest line that `write_table` may write of them."""
    table = [titles, *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return sum(widths) + 2 * (len(widths) - 1)


def fit_names(
    titles: Sequence[str], rows: Sequence[Sequence[object]]
) -> Sequence[Sequence[object]]:
    """The rows of a table; on a terminal with names, the first column, that let its lines fit.

    They are left whole in a pipe, where the terminal has no known width, and where it would not
    help.
    """
    columns = get_terminal_size((0, 0)).columns if is_terminal("stdout") else 0
    over = table_width(titles, rows) - columns
    width = max((len(str(row[0])) for row in rows), default=0) - over
    if not columns or over <= 0 or width < max(NAME_WIDTH_MIN, len(titles[0])):
        return rows
    return [(_without_middle(str(name), width), *rest) for name, *rest in rows]


def _without_middle(text: str, width: int) -> str:
    """Names of one family differ at their ends."""
    end = len(text) - width // 2
    return text if len(text) <= width else f"{text[: width - width // 2 - 1]}…{text[end:]}"


def write_notes(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table whose last column is prose: broken into lines on a terminal.

    A program, and `grep`, get one line for each row.
    """
    table = [list(titles), *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)][:-1]
    indent = sum(widths) + 2 * len(widths)
    for *cells, prose in table:
        first = "".join(f"{text.ljust(width)}  " for text, width in zip(cells, widths, strict=True))
        lines = _lines_of(prose, indent)
        sys.stdout.write(first + f"\n{' ' * indent}".join(lines) + "\n")
    sys.stdout.flush()


def write_prose(text: str) -> None:
    sys.stdout.write("\n".join(_lines_of(text, 0)) + "\n")
    sys.stdout.flush()


def write_items(texts: Iterable[str]) -> None:
    """Indented lines of prose; what follows in a further line of the terminal is indented more."""
    for text in texts:
        sys.stdout.write("  " + "\n    ".join(_lines_of(text, 4)) + "\n")
    sys.stdout.flush()


def _lines_of(text: str, indent: int) -> list[str]:
    """Whole words; what is longer than a line, like a path, stays in one piece."""
    if not sys.stdout.isatty():
        return [text]
    width = max(get_terminal_size().columns - indent, PROSE_WIDTH_MIN)
    return wrap(text, width, break_long_words=False, break_on_hyphens=False) or [text]


def _cell(value: object) -> str:
    return NOTHING if value is None or value == "" else str(value)


def _is_numeric(column: Sequence[str]) -> bool:
    return all(text == NOTHING or text.isdigit() for text in column)


def _line(row: list[str], widths: list[int], right: list[bool]) -> str:
    cells = [
        text.rjust(width) if to_the_right else text.ljust(width)
        for text, width, to_the_right in zip(row, widths, right, strict=True)
    ]
    return "  ".join(cells).rstrip() + "\n"


def put_bytes(row: Row, name: str, value: bytes | str | int | None) -> None:
    """UTF-8 as text under `name`, other bytes under `<name>_base64`; all else as such."""
    if not isinstance(value, bytes):
        row[name] = value
        return
    try:
        row[name] = value.decode()
    except UnicodeDecodeError:
        row[f"{name}_base64"] = b64encode(value).decode()


def shown(value: bytes | str | int | None, length_max: int) -> str:
    """For a table: printable, on one line, cut where it is longer than `length_max`."""
    if value is None:
        return NOTHING
    if isinstance(value, bytes):
        value = value[: 4 * length_max].decode(errors="backslashreplace")
    text = str(value)
    if not text.isprintable():  # a record must not move the cursor of the terminal
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: 2 * length_max])
    return text if len(text) <= length_max else f"{text[: length_max - 1]}…"


def show_time(timestamp: int) -> str:
    """Milliseconds since 1970 as a date; as they are where there is no such date."""
    if timestamp < 0:
        return NOTHING
    try:
        date = _EPOCH + timedelta(milliseconds=timestamp)
    # Producers set timestamps freely: one may lie after the year 9999.
    except OverflowError:
        return str(timestamp)
    return f"{date:%Y-%m-%dT%H:%M:%S}.{timestamp % 1000:03d}Z"


def one_line(error: Exception) -> str:
    """Its text, in a row of a table or in JSON."""
    return " ".join(str(error).split())


def show_partitions(partitions: Sequence[tuple[str, int]]) -> str:
    """`orders 0-2, 5; returns 0`"""
    topics = groupby(sorted(partitions), key=lambda one: one[0])
    return "; ".join(f"{topic} {_runs(number for _, number in each)}" for topic, each in topics)


def _runs(numbers: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        # The next number of a range: `0-2`, in place of `0,1,2`.
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def is_terminal(name: str) -> bool:
    """Of `stdin`, `stdout` or `stderr`; one that is closed is none."""
    stream = getattr(sys, name)
    return stream is not None and bool(stream.isatty())


# -- Confirm --------------------------------------------------------------------------------------
# Asking before something is deleted.
#
# Without a terminal there is no person to answer: then a command refuses, rather than do what
# cannot be undone or wait for ever. `--yes` is the answer of a script.


def check_can_ask(what: str, *, is_sure: bool) -> None:
    """Called before anything is looked up: a script learns at once that it must say --yes."""
    if not is_sure and not is_terminal("stdin"):
        raise CommandError(
            f"{what}: this asks first, and there is no terminal to ask at: add --yes",
            ExitCode.USAGE,
        )


def confirm(question: str, *, is_sure: bool) -> None:
    """
    Raises:
        CommandError: no was the answer.
    """
    if is_sure or click.confirm(question, err=True):
        return
    raise CommandError("nothing was changed", ExitCode.FAILED)
