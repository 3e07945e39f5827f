"""Records out of a stream of bytes: cut at a delimiter, each line into key and value. Pure.

Nothing is stripped and nothing decoded: an empty line is an empty record, and what stands after the
last delimiter is a record, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import MessageTooLarge

if TYPE_CHECKING:
    from collections.abc import Iterable

LINE_BYTES_MAX = 32 << 20  # no producer sends more, and an endless line must not fill the memory

Row = tuple[bytes | None, bytes | None]  # key and value


class Splitter:
    """Of one stream."""

    def __init__(self, delimiter: bytes = b"\n") -> None:
        assert delimiter, "nothing to split at"
        self._delimiter = delimiter
        self._pieces: list[bytes] = []  # of the line that has not ended yet
        self._size = 0

    def feed(self, block: bytes) -> list[bytes]:
        """Lines that are complete now.

        Raises:
            MessageTooLarge: one does not end.
        """
        lines: list[bytes] = []
        self._pieces.append(block)
        self._size += len(block)
        if self._delimiter[-1] in block:  # else none ends in it
            *lines, rest = b"".join(self._pieces).split(self._delimiter)
            self._pieces, self._size = [rest], len(rest)
        if self._size > LINE_BYTES_MAX:
            raise MessageTooLarge(
                f"a record of more than {LINE_BYTES_MAX} bytes: no {self._delimiter!r} has come;"
                " -D says what ends a record"
            )
        return lines

    def end(self) -> list[bytes]:
        """The last line, if the stream has not ended with a delimiter."""
        rest = b"".join(self._pieces)
        self._pieces, self._size = [], 0
        return [rest] if rest else []


class Shape(NamedTuple):
    """What a line means.

    Attributes:
        key: of all records; where there is a delimiter, of those that have none in their line.
        is_null: an empty value, and an empty key before the delimiter, are none at all.
    """

    key: bytes | None = None
    key_delimiter: bytes | None = None
    is_null: bool = False

    @property
    def has_key(self) -> bool:
        return self.key is not None or self.key_delimiter is not None

    def rows(self, lines: Iterable[bytes]) -> list[Row]:
        if self.key_delimiter is None:
            rows: list[Row] = [(self.key, line) for line in lines]
        else:
            parts = [line.partition(self.key_delimiter) for line in lines]
            rows = [(key, value) if found else (self.key, key) for key, found, value in parts]
        if not self.is_null:
            return rows
        return [(key or None, value or None) for key, value in rows]
