"""Tables of words: widths, sides, and Markdown that a column cannot break."""

from __future__ import annotations

from jepsen_like.report.tables import Table

TABLE = Table(["kind", "n"], [["kill", "3"], ["x", "1,200"]], ["all", "1,203"])


def test_text_is_aligned() -> None:
    """Words stand at the left, numbers at the right, totals below a line."""
    assert TABLE.as_text("  ") == "\n".join(
        [
            "  kind      n",
            "  ----  -----",
            "  kill      3",
            "  x     1,200",
            "  ----  -----",
            "  all   1,203",
        ]
    )


def test_markdown() -> None:
    """A bar in a cell does not begin another one."""
    table = Table(["what", "took"], [["a|b", "1.50 s"], ["c", "never"], ["d", "-"]])
    assert table.as_markdown() == "\n".join(
        [
            "| what | took |",
            "| --- | ---: |",
            "| a\\|b | 1.50 s |",
            "| c | never |",
            "| d | - |",
        ]
    )


def test_no_rows() -> None:
    """The header alone."""
    assert Table(["a", "bc"], []).as_text() == "a  bc\n-  --"
