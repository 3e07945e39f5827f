"""Records as text: kcat's format strings, JSON lines, and printable text for a terminal. Pure.

A format is compiled once. Then each column of a batch is turned into bytes as a whole, and the
columns are interleaved: only the letters that the format uses are decoded, or cost anything.
"""

from __future__ import annotations

import json
import os
import re
from itertools import chain, repeat
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from raftmq.cli.terminal.output import Row, put_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from raftmq.client.consumer.batch import ConsumedBatch
    from raftmq.wire.batch.columns import Key, Value
    from raftmq.wire.batch.record_headers import Headers


# -- Escapes --------------------------------------------------------------------------------------
# Bytes as people type them: `\n`, `\t`, `\x1f`. Pure.
#
# Other characters are the bytes that the shell has handed over, in any encoding.


KNOWN = r"\n \r \t \0 \\ \xNN"
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)
_SIMPLE = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"0": b"\0", b"\\": b"\\"}


def unescape(text: str) -> bytes:
    """Raises ValueError: an escape that there is not."""
    return _ESCAPE.sub(_meaning, os.fsencode(text))


def _meaning(found: re.Match[bytes]) -> bytes:
    escape = found[1]
    # `\xNN`: the only escape of three characters.
    if len(escape) == 3:
        return bytes.fromhex(escape[1:].decode())
    if escape not in _SIMPLE:
        shown = ascii(os.fsdecode(escape))[1:-1]
        raise ValueError(f"\\{shown} is no escape: there are {KNOWN}")
    return _SIMPLE[escape]


# -- Record format --------------------------------------------------------------------------------


LETTERS = "%t %p %o %k %s %h %T %K %S %R %%"
ABSENT_LENGTH = -1  # of a null key or value, as kcat prints it

Format: TypeAlias = "Callable[[ConsumedBatch, slice], bytes]"
Column: TypeAlias = "Callable[[ConsumedBatch, slice], Iterable[bytes]]"

_PART = re.compile(r"%(.?)|((?:[^%\\]|\\.?)+)", re.DOTALL)


def compile_format(text: str) -> Format:
    r"""`"%t-%p@%o %k: %s\n"`.

    Raises:
        ValueError: a letter, or an escape, that there is not.
    """
    columns = [_column(part[1], part[2]) for part in _PART.finditer(text)]

    def write(batch: ConsumedBatch, rows: slice) -> bytes:
        found = [column(batch, rows) for column in columns]
        return b"".join(chain.from_iterable(zip(*found, strict=False)))

    has_letters = any(part[1] and part[1] != "%" for part in _PART.finditer(text))
    return write if has_letters else _literal_format(columns)


def _literal_format(columns: list[Column]) -> Format:
    """A format without letters: literal columns never end, and neither would `zip` over them."""

    def write(batch: ConsumedBatch, rows: slice) -> bytes:
        count = len(batch.offsets[rows])
        return b"".join(next(iter(column(batch, rows))) for column in columns) * count

    return write


def _column(letter: str | None, literal: str | None) -> Column:
    if literal is not None:
        return _literal(unescape(literal))
    if letter == "%":
        return _literal(b"%")
    if letter not in _COLUMNS:
        raise ValueError(f"%{letter} means nothing: there are {LETTERS}")
    return _COLUMNS[letter]


def _literal(text: bytes) -> Column:
    return lambda _batch, _rows: repeat(text)


def _bytes(item: Key | Value) -> bytes:
    if item is None:
        return b""
    if isinstance(item, str):
        return item.encode()
    return item if isinstance(item, bytes) else b"%d" % item


def _length(item: Key | Value) -> int:
    return ABSENT_LENGTH if item is None else len(_bytes(item))


def _headers(headers: Headers) -> bytes:
    return b",".join(
        [name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in headers]
    )


def _numbers(numbers: Iterable[int]) -> list[bytes]:
    return [b"%d" % number for number in numbers]


_COLUMNS: dict[str | None, Column] = {
    "t": lambda batch, _rows: repeat(batch.topic.encode()),
    "p": lambda batch, _rows: repeat(b"%d" % batch.partition),
    "o": lambda batch, rows: _numbers(batch.offsets[rows]),
    "k": lambda batch, rows: map(_bytes, batch.keys[rows]),
    "s": lambda batch, rows: [value or b"" for value in batch.values[rows]],
    "h": lambda batch, rows: map(_headers, batch.headers[rows]),
    "T": lambda batch, rows: _numbers(batch.timestamps[rows]),
    "K": lambda batch, rows: _numbers(map(_length, batch.keys[rows])),
    "S": lambda batch, rows: _numbers(map(_length, batch.values[rows])),
    "R": lambda batch, rows: [
        _length(value).to_bytes(4, "big", signed=True) for value in batch.values[rows]
    ],
}


# -- without a format string -------------------------------------------------------------------


def write_values(batch: ConsumedBatch, rows: slice) -> bytes:
    r"""As `"%s\n"`."""
    values = [value or b"" for value in batch.values[rows]]
    return b"\n".join([*values, b""])


def write_readable(batch: ConsumedBatch, rows: slice) -> bytes:
    """Values for a terminal: control characters are escaped, so that no record moves the cursor."""
    return "".join([f"{_readable(value or b'')}\n" for value in batch.values[rows]]).encode()


def _readable(value: bytes) -> str:
    text = value.decode(errors="backslashreplace")
    # Most values are: no need to look at each character.
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text])


_encode_lines = msgspec.json.Encoder().encode_lines
_encode_ascii = json.JSONEncoder(separators=(",", ":")).encode


def write_json_lines(batch: ConsumedBatch, rows: slice) -> bytes:
    columns = (
        batch.offsets[rows], batch.timestamps[rows], batch.keys[rows], batch.values[rows],
        batch.headers[rows], batch.tags[rows],
    )  # fmt: skip
    objects = [_object(batch, *row) for row in zip(*columns, strict=True)]
    due_times = batch.due[rows]
    if any(due_times):  # few records were scheduled
        made = batch.scheduled_at[rows]
        for row, scheduled_at, due in zip(objects, made, due_times, strict=True):
            if due is not None:
                row |= {"scheduled_at": scheduled_at, "due": due}
    lines = _encode_lines(objects)
    if lines.isascii():
        return lines
    # ASCII only, as every other JSON output of the command line; the encoder that can is slower.
    return "\n".join([*map(_encode_ascii, objects), ""]).encode()


def _object(
    batch: ConsumedBatch,
    offset: int,
    timestamp: int,
    key: Key,
    value: Value,
    headers: Headers,
    tags: Iterable[str],
) -> Row:
    row: Row = {
        "topic": batch.topic, "partition": batch.partition, "offset": offset,
        "timestamp": timestamp,
    }  # fmt: skip
    put_bytes(row, "key", key)
    put_bytes(row, "value", value)
    row["headers"] = [_header_object(*header) for header in headers] if headers else []
    row["tags"] = list(tags)
    return row


def _header_object(name: str, value: bytes | None) -> Row:
    row: Row = {"name": name}
    put_bytes(row, "value", value)
    return row
