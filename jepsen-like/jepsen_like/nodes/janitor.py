"""The janitor process: removes mounts, groups and folders of a harness that was killed.

    python -m jepsen_like.nodes.janitor FOLDER PID

Owns nothing while the harness lives: it waits for the end of its stdin, of which the harness alone
holds the other side. Then stalled disks and frozen processes go on, which could not even die, and
disks and folders go away. A harness that cleans up itself leaves it nothing to do.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from jepsen_like.nodes import freezer
from jepsen_like.nodes.disk import remove_folder, thaw, wait_unused
from jepsen_like.nodes.mounts import mounts_below

_SHIELDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # meant for the harness


def main(folder: Path, owner: int) -> None:
    for number in _SHIELDED:
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 1):
        pass
    clean(folder, owner)


def clean(folder: Path, owner: int) -> None:
    """Nodes have got their SIGKILL already: they die with the harness."""
    for mount_point in mounts_below(folder):
        thaw(mount_point)
    for hierarchy in freezer.find_hierarchies(freezer.MOUNTS.read_text()):
        with suppress(OSError):  # it may not be ours to look into
            freezer.remove_all_of(hierarchy, owner)
    wait_unused(folder)
    with suppress(FileNotFoundError):
        remove_folder(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
