"""Deleting the folder of a partition so that no crash leaves half a log.

Owns the order: the folder gets a name that no log has, durably; then its files go, then itself.
What a crash leaves is found by its name and removed at the next start. Waits for the disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq.disk.files import Files

DELETED_SUFFIX = ".deleted"


def delete_folder(files: Files, folder: Path) -> None:
    """
    Raises:
        StorageError: some of it is still there; if it was renamed, `remove_deleted` will find it.
    """
    doomed = folder.with_name(folder.name + DELETED_SUFFIX)
    if files.names(doomed):  # of an earlier one, which was not finished
        _remove(files, doomed)
    files.rename(folder, doomed)
    files.sync_directory(folder.parent)
    _remove(files, doomed)


def remove_deleted(files: Files, topics: Path) -> None:
    """Finish what crashes have interrupted, below the folder of all topics."""
    for topic in files.names(topics):
        for name in files.names(topics / topic):
            if name.endswith(DELETED_SUFFIX):
                _remove(files, topics / topic / name)


def _remove(files: Files, doomed: Path) -> None:
    for name in files.names(doomed):
        files.remove(doomed / name)
    files.remove_directory(doomed)
    if not files.names(doomed.parent):
        files.remove_directory(doomed.parent)
