r"""Bytes as people type them: `\n`, `\t`, `\x1f`. Pure.

Other characters are the bytes that the shell has handed over, whatever their encoding.
"""

from __future__ import annotations

import os
import re

KNOWN = r"\n \r \t \0 \\ \xNN"
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)
_SIMPLE = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"0": b"\0", b"\\": b"\\"}


def unescape(text: str) -> bytes:
    """Raises ValueError: an escape that there is not."""
    return _ESCAPE.sub(_meaning, os.fsencode(text))


def _meaning(found: re.Match[bytes]) -> bytes:
    escape = found[1]
    if len(escape) == 3:
        return bytes.fromhex(escape[1:].decode())
    if escape not in _SIMPLE:
        shown = ascii(os.fsdecode(escape))[1:-1]
        raise ValueError(f"\\{shown} is no escape: there are {KNOWN}")
    return _SIMPLE[escape]
