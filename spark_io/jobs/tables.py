"""What jobs print: columns as wide as they have to be, numbers to the right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NOTHING, CUT = "-", 60


def write_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Nothing without rows."""
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        return
    right = [all(map(_is_number, column)) for column in zip(*cells, strict=True)]
    lines = [list(titles), *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        places = zip(line, widths, right, strict=True)
        texts = [text.rjust(width) if is_right else text.ljust(width)
                 for text, width, is_right in places]  # fmt: skip
        click.echo("  ".join(texts).rstrip())


def shown(value: object) -> str:
    """Of a row: printable, on one line, cut where it is long."""
    if isinstance(value, (bytes, bytearray)):
        value = bytes(value[: 4 * CUT]).decode(errors="backslashreplace")
    text = NOTHING if value is None else str(value)
    text = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[: 2 * CUT])
    return text if len(text) <= CUT else f"{text[: CUT - 1]}…"


def _cell(value: object) -> str:
    return NOTHING if value is None or value == "" else str(value)


def _is_number(text: str) -> bool:
    return text == NOTHING or text.isdigit()
