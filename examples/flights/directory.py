"""A directory that is removed with the process that made it, however that ends.

A small process waits for the end of its stdin, which comes when the maker closes it or is no more,
and then removes the directory. It imports nothing but the standard library.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TRIES_MAX = 100
PAUSE_SECONDS = 0.1  # brokers that have lost their owner end at once, but may not have ended yet


@contextmanager
def new_directory(parent: Path, *, is_kept: bool) -> Iterator[Path]:
    """One of its own under `parent`, which is made if need be, and stays."""
    parent.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="flights-", dir=parent)).resolve()
    if is_kept:
        yield root
        return
    command = [sys.executable, "-I", "-S", __file__, str(root)]
    remover = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    assert remover.stdin is not None
    try:
        yield root
    finally:
        remover.stdin.close()
        remover.wait()


def remove_later(root: Path) -> None:
    """Once stdin has ended."""
    sys.stdin.buffer.read()
    for _ in range(TRIES_MAX):
        shutil.rmtree(root, ignore_errors=True)
        if not root.exists():
            return
        time.sleep(PAUSE_SECONDS)
    sys.stderr.write(f"{root} could not be removed\n")


if __name__ == "__main__":
    remove_later(Path(sys.argv[1]))
