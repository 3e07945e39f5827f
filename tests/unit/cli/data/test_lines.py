"""Lines out of blocks, and keys out of lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.cli.data import record_lines
from raftmq.cli.data.record_lines import LineShape, Splitter
from raftmq.errors import MessageTooLarge


@given(
    st.lists(st.text("ab;,\n", max_size=6).map(str.encode), max_size=8),
    st.sampled_from([b"\n", b";,", b"aa", b"\0"]),
)
def test_wherever_the_blocks_end(blocks: list[bytes], delimiter: bytes) -> None:
    """The lines are those of the whole stream; an end without a delimiter is one, too."""
    splitter = Splitter(delimiter)
    found = [line for block in blocks for line in splitter.feed(block)] + splitter.end()
    *expected, rest = b"".join(blocks).split(delimiter)
    assert found == [*expected, *([rest] if rest else [])]


def test_an_endless_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before it fills the memory; the message says what was waited for."""
    monkeypatch.setattr(record_lines, "LINE_BYTES_MAX", 10)
    splitter = Splitter(b"\0")
    assert splitter.feed(b"12345\0" * 10) == [b"12345"] * 10
    assert splitter.feed(b"12345") == splitter.feed(b"12345") == []
    with pytest.raises(MessageTooLarge, match=r"more than 10 bytes: no b'\\x00' has come; -D says"):
        splitter.feed(b"1")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (LineShape(), [(None, b"k:v:w"), (None, b"x"), (None, b":"), (None, b"")]),
        (LineShape(b"z"), [(b"z", b"k:v:w"), (b"z", b"x"), (b"z", b":"), (b"z", b"")]),
        (LineShape(None, b":"), [("k", b"v:w"), (None, b"x"), ("", b""), (None, b"")]),
        (LineShape(b"z", b":"), [("k", b"v:w"), (b"z", b"x"), ("", b""), (b"z", b"")]),
        (LineShape(None, b":", True), [("k", b"v:w"), (None, b"x"), (None, None), (None, None)]),
    ],
)
def test_keys(shape: LineShape, expected: list[record_lines.Row]) -> None:
    """The first delimiter of a line ends its key; a line without any has the key of all."""
    assert shape.rows([b"k:v:w", b"x", b":", b""]) == expected
    assert shape.has_key == any(key is not None for key, _ in expected)
