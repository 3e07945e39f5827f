"""Whole data directories: emptied, copied, put back, durably.

Each function syncs before it returns: a loss of power afterwards must not show a mixture of before
and after, which no operator could bring about. No process may use the directory meanwhile.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from jepsen_like.nodes.disk import sync_path

if TYPE_CHECKING:
    from pathlib import Path

KEPT = frozenset({"lost+found"})  # of the file system, not of the node


def empty(directory: Path) -> None:
    """Take away everything in it; it stays, as something may be mounted there."""
    for path in sorted(directory.iterdir()):
        if path.name in KEPT:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    sync_path(directory)


def copy(source: Path, target: Path) -> None:
    """Copy all that is in `source` into `target`, which exists and is empty."""
    for path in sorted(source.iterdir()):
        if path.name in KEPT:
            continue
        if path.is_dir():
            shutil.copytree(path, target / path.name)
        else:
            shutil.copy2(path, target / path.name)
    for folder, _, names in os.walk(target, topdown=False):
        for name in names:
            sync_path(f"{folder}/{name}")
        sync_path(folder)
