"""Records out of a stream of bytes: cut at a delimiter, each line into key and value. Pure.

Nothing is stripped and nothing decoded: an empty line is an empty record, and the bytes after the
last delimiter are a record, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import MessageTooLarge

if TYPE_CHECKING:
    from collections.abc import Iterable

# The largest `max.message.bytes` of a topic (decision 0005): no producer sends more, and a stream
# without delimiters must not fill the memory.
LINE_BYTES_MAX = 32 << 20

Key = str | bytes | None  # text where it is UTF-8: other programs then read it as text
Row = tuple[Key, bytes | None]  # key and value


class Splitter:
    """Cuts one stream of bytes into lines, across the blocks in which it is read."""

    def __init__(self, delimiter: bytes = b"\n") -> None:
        assert delimiter, "nothing to split at"
        self._delimiter = delimiter
        self._pieces: list[bytes] = []  # of the line that has not ended yet
        self._size = 0

    def feed(self, block: bytes) -> list[bytes]:
        """The lines that this block completes.

        Raises:
            MessageTooLarge: a line goes on beyond the limit.
        """
        lines: list[bytes] = []
        self._pieces.append(block)
        self._size += len(block)
        # Without the delimiter's last byte no line ends here. Joining the pieces only when one may
        # end keeps the cost of a long line linear.
        if self._delimiter[-1] in block:
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


class LineShape(NamedTuple):
    """How a line is read as key and value.

    Attributes:
        key: of all records; with a delimiter, of the lines that do not contain it.
        is_null: an empty value, and an empty key before the delimiter, are sent as null.
    """

    key: Key = None
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
            rows = [
                (text_of(key), value) if found else (self.key, key) for key, found, value in parts
            ]
        if not self.is_null:
            return rows
        return [(key or None, value or None) for key, value in rows]


def text_of(key: bytes) -> str | bytes:
    """As text, if it is UTF-8."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key
