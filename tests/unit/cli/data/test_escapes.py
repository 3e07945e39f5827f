"""Bytes as people type them."""

from __future__ import annotations

import pytest

from raftmq.cli.data.record_format import unescape


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", b""),
        (r"a\tb\n", b"a\tb\n"),
        (r"\x00\xfF\0\r", b"\0\xff\0\r"),
        (r"\\n", rb"\n"),
        ("ä", "ä".encode()),
        ("\udcff", b"\xff"),  # a byte of the command line that is no UTF-8
    ],
)
def test_what_it_means(text: str, expected: bytes) -> None:
    """Escapes become bytes, everything else stays what the shell has handed over."""
    assert unescape(text) == expected


@pytest.mark.parametrize("text", [r"\q", r"\x1", "a\\", r"\xzz"])
def test_no_escape(text: str) -> None:
    """The message shows what was typed, and what there is."""
    with pytest.raises(ValueError, match=r"\\.* is no escape: there are \\n"):
        unescape(text)
