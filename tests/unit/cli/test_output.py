"""Rows for people and for programs, whatever bytes are in them."""

from __future__ import annotations

import json

import pytest

from raftmq.cli.terminal.output import (
    BLOCK_ROWS,
    Row,
    fit_names,
    put_bytes,
    row_blocks,
    show_time,
    shown,
    write_json,
    write_notes,
    write_prose,
    write_table,
)


def test_columns_are_aligned_and_numbers_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    """Missing values are a dash, and nothing trails."""
    write_table(
        ("name", "size", "note"), [("a", 5, None), ("long name", 1234, "x"), ("b", None, "")]
    )
    assert capsys.readouterr().out.splitlines() == [
        "name       size  note",
        "a             5  -",
        "long name  1234  x",
        "b             -  -",
    ]


def test_a_long_table_keeps_one_heading_and_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows are written in blocks; later ones line up with the first."""
    write_table(("n", "m"), [(1000, 1)] * BLOCK_ROWS + [(2, 3)])
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("   n  m", "   2  3", BLOCK_ROWS + 2)


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ("80", "orders-of-the-north"),
        ("24", "orders-of-the-north"),
        ("20", "orders-…he-north"),
        ("16", "order…-north"),
        ("15", "orders-of-the-north"),  # too narrow to help
        ("0", "orders-of-the-north"),  # unknown
    ],
)
def test_names_in_a_narrow_terminal(
    columns: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lose their middle where the lines fit then; the other columns, and short names, stay."""
    titles, rows = ("name", "n"), [("orders-of-the-north", 12), ("b", 7)]
    monkeypatch.setenv("COLUMNS", columns)
    assert fit_names(titles, rows) == rows
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert fit_names(titles, rows) == [(name, 12), ("b", 7)]
    assert fit_names(titles, []) == []


def test_an_empty_table_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Not even a heading."""
    write_table(("n",), [])
    assert capsys.readouterr().out == ""


def test_json_is_one_ascii_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Any terminal and any pipe takes it."""
    rows: list[Row] = [{"n": number, "text": "ü"} for number in range(BLOCK_ROWS + 1)]
    write_json(rows)
    out = capsys.readouterr().out
    assert out.isascii()
    assert [json.loads(line) for line in out.splitlines()] == rows


def test_rows_that_come_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    """They are written in blocks, so that no more than one block is kept."""
    with row_blocks(write_json) as add:
        for number in range(BLOCK_ROWS + 1):
            add({"n": number})
        assert len(capsys.readouterr().out.splitlines()) == BLOCK_ROWS
    assert capsys.readouterr().out == f'{{"n": {BLOCK_ROWS}}}\n'


@pytest.mark.parametrize(
    ("value", "row"),
    [
        (b"caf\xc3\xa9", {"key": "café"}),
        (b"", {"key": ""}),
        ("café", {"key": "café"}),
        (b"\xff\x00", {"key_base64": "/wA="}),
        (None, {"key": None}),
        (-7, {"key": -7}),
    ],
)
def test_bytes_in_json_are_text_or_base64_under_another_name(
    value: bytes | str | int | None, row: Row
) -> None:
    """So that no value is ambiguous."""
    put: Row = {}
    put_bytes(put, "key", value)
    assert put == row


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (42, "42"),
        (b"plain", "plain"),
        (b"\xff\xfe", "\\xff\\xfe"),
        (b"a\nb\x1b[", "a\\nb\\x1b["),
        (b"0123456789abcdef", "01234567…"),
        ("ü" * 9, "ü" * 9),
        (b"\x00" * 1000, "\\x00\\x00…"),
    ],
)
def test_values_in_tables_are_printable_and_short(value: bytes | str | int, text: str) -> None:
    """A record must not move anybody's cursor."""
    assert shown(value, 9) == text


PROSE = "as long as it takes to tell /a/path/that-stays-in-one-piece and the way out"


def test_prose_is_one_line_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """Not a terminal: `grep` finds the whole of it."""
    write_notes(("file", "what"), [("x", PROSE), ("longer", None)])
    write_prose(PROSE)
    assert capsys.readouterr().out.splitlines() == [
        "file    what", f"x       {PROSE}", "longer  -", PROSE,
    ]  # fmt: skip


def test_prose_is_broken_into_lines_for_people(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal of 40 columns words stay whole, and lines begin below their title."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    write_notes(("file", "what"), [("x", PROSE)])
    write_prose("short")
    assert capsys.readouterr().out.splitlines() == [
        "file  what",
        "x     as long as it takes to tell",
        "      /a/path/that-stays-in-one-piece",
        "      and the way out",
        "short",
    ]


@pytest.mark.parametrize(
    ("timestamp", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        (-1, "-"),
        ((1 << 63) - 1, "9223372036854775807"),
    ],
)
def test_timestamps_are_dates_where_there_is_one(timestamp: int, text: str) -> None:
    """Anybody may write any 64 bits there."""
    assert show_time(timestamp) == text
