"""What a node has said: whether it is ready, and its last words.

Reads the node's log from where its process began; writes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LINES_MAX = 15
_TAIL_BYTES_MAX = 16_384
_CHUNK_BYTES = 1 << 20
_READY = b"ready: node "  # as `raftmq broker` begins its line on stdout


def is_ready(log: Path, position: int) -> bool:
    """Whether the process has said so whose first byte has this position."""
    try:
        with log.open("rb") as file:
            file.seek(position)
            before = b"\n"
            while chunk := file.read(_CHUNK_BYTES):
                text = before + chunk
                if b"\n" + _READY in text:
                    return True
                before = text[-len(_READY) :]
    except FileNotFoundError:
        pass
    return False


def last_lines(log: Path, position: int) -> list[str]:
    """The end of what that process has said."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(position, size - _TAIL_BYTES_MAX))
            data = file.read()
    except FileNotFoundError:
        return []
    return data.decode(errors="replace").splitlines()[-LINES_MAX:]
