"""Which partition folders a DIR argument means, and the message where it is none.

Owns the messages about a wrong DIR; every command that takes one asks here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.partition.storage.inspect import find_partition_folders, list_segments

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq.disk.files import Files

NAMED_MAX = 8  # folders in a message: enough to copy the right one, short enough for a line
SHAPE = "a partition folder is named .../<topic>/Partition-<n> and holds *.log files"


def find_partitions(files: Files, path: Path) -> list[Path]:
    """The partition folder `path`, or all that lie below it."""
    if not files.exists(path):
        raise CommandError(f"{path} does not exist; {SHAPE}", ExitCode.NOT_FOUND)
    if not path.is_dir():
        what = f"{path} is a file; give the partition folder that it lies in: {path.parent}"
        raise CommandError(what, ExitCode.USAGE)
    folders = find_partition_folders(files, path)
    if not folders or (folders == [path] and not files.names(path)):
        raise CommandError(f"{path} holds no log; {SHAPE}", ExitCode.NOT_FOUND)
    return folders


def find_one_partition(files: Files, path: Path) -> Path:
    """`path`, which must be a partition folder with a log in it."""
    folders = find_partitions(files, path)
    if folders != [path]:
        named = ", ".join(map(str, folders[:NAMED_MAX]))
        more = f" and {len(folders) - NAMED_MAX} more" if len(folders) > NAMED_MAX else ""
        what = f"{path} is not a partition folder; below it are {named}{more}"
        raise CommandError(what, ExitCode.USAGE)
    if not list_segments(files, path):
        raise CommandError(f"{path} holds no log; {SHAPE}", ExitCode.NOT_FOUND)
    return path
