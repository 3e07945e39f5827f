"""Tables as text for a terminal and as Markdown. Pure.

Owns widths and alignment: texts that look like numbers are aligned to the right.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

NUMBER = re.compile(r"[-+<>≥≤]*\d[\d.,]*( ?(%|s|ms))?|never|-|")


class Table(NamedTuple):
    """Attributes:
    rows: each as long as `header`.
    footer: shown after a line, such as totals; may be empty.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    footer: Sequence[str] = ()

    def as_text(self, indent: str = "") -> str:
        widths = self._widths()
        line = "  ".join("-" * width for width in widths)
        body = [self._text_row(row, widths) for row in self.rows]
        foot = [line, self._text_row(self.footer, widths)] if self.footer else []
        lines = [self._text_row(self.header, widths), line, *body, *foot]
        return "\n".join(indent + line.rstrip() for line in lines)

    def as_markdown(self) -> str:
        rule = ["---:" if is_right else "---" for is_right in self._rights()]
        every = [self.header, rule, *self.rows, *([self.footer] if self.footer else [])]
        return "\n".join("| " + " | ".join(map(_escaped, row)) + " |" for row in every)

    def _text_row(self, row: Sequence[str], widths: Sequence[int]) -> str:
        cells = zip(row, widths, self._rights(), strict=True)
        return "  ".join(c.rjust(width) if right else c.ljust(width) for c, width, right in cells)

    def _widths(self) -> list[int]:
        return [max(map(len, column)) for column in self._columns(self.header)]

    def _rights(self) -> list[bool]:
        columns = [column[1:] for column in self._columns(self.header)]
        return [bool(column) and all(map(NUMBER.fullmatch, column)) for column in columns]

    def _columns(self, header: Sequence[str]) -> list[tuple[str, ...]]:
        every = [header, *self.rows, *([self.footer] if self.footer else [])]
        return list(zip(*every, strict=True))


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
