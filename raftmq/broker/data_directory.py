"""Whether a node may begin to use a directory: looked at before anything in it is touched.

Owns the list of what a node keeps there. Changes nothing: whoever has named the wrong directory
finds it as it was. `meta.json` is read again by `open_meta`, under the lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.broker.meta import FILE_NAME, check_owner
from raftmq.disk.checkpoint import TEMPORARY_SUFFIX, read_file
from raftmq.errors import InvalidConfig, StorageError
from raftmq.partition.storage.directory import TOPICS_FOLDER
from raftmq.partition.storage.recovery import CHECKPOINTS_FOLDER, CLEAN_MARK

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq.disk.files import Files

QUORUM_FOLDER = "quorum"
# What a start that was killed early has left behind, and what a node keeps without its identity:
# then it is one that has lost its disk, which is for the cluster to judge.
OURS = frozenset(
    {
        ".lock",
        FILE_NAME,
        FILE_NAME + TEMPORARY_SUFFIX,
        QUORUM_FOLDER,
        TOPICS_FOLDER,
        CHECKPOINTS_FOLDER,
        CLEAN_MARK,
        CLEAN_MARK + TEMPORARY_SUFFIX,
    }
)
MOUNTED = frozenset({"lost+found"})  # in a file system that is new
NAMED_MAX = 3


def check_directory(files: Files, directory: Path, owner: tuple[str, int]) -> None:
    """
    Args:
        owner: cluster id and node id.

    Raises:
        InvalidConfig: it is no directory, somebody else's, or holds other things.
        StorageError: the disk refused, or `meta.json` is not readable.
    """
    names = _names(files, directory)
    if FILE_NAME in names:
        path = directory / FILE_NAME
        check_owner(path, read_file(files, path) or b"", owner)
        return
    foreign = [name for name in names if name not in OURS | MOUNTED]
    if foreign:
        rest = len(foreign) - NAMED_MAX
        named = ", ".join(foreign[:NAMED_MAX]) + (f" and {rest} more" if rest > 0 else "")
        raise InvalidConfig(
            [
                f"node.directory = {directory}: is not empty, and no node's data directory (it has"
                f" no {FILE_NAME}): found {named}; name an empty directory, or one that does not"
                " exist yet"
            ]
        )


def _names(files: Files, directory: Path) -> list[str]:
    try:
        return files.names(directory)
    except StorageError as error:
        if not isinstance(error.__cause__, NotADirectoryError):
            raise
        what = "is no directory; name one, or a path where there is nothing yet"
        raise InvalidConfig([f"node.directory = {directory}: {what}"]) from error
