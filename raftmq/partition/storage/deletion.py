"""Deleting the folder of a partition so that no crash leaves half a log.

Owns the order: the folder gets a name that no log has, durably; then its files go, then itself,
which takes long where there is much to give back. What a crash leaves is found by its name and
removed at the next start. Waits for the disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq.disk.files import Files

DELETED_SUFFIX = ".deleted"


def set_aside(files: Files, folder: Path) -> Path | None:
    """Durably: no log has this folder any more. Returns what it is now, for `remove_folder`; None
    where there is no such folder.

    Raises:
        StorageError: if it was renamed, `remove_deleted` will find it; else nothing has changed.
    """
    if not files.exists(folder):
        return None
    doomed = folder.with_name(folder.name + DELETED_SUFFIX)
    if files.exists(doomed):  # of an earlier one, which was not finished
        remove_folder(files, doomed)
    files.rename(folder, doomed)
    files.sync_directory(folder.parent)
    return doomed


def remove_deleted(files: Files, topics: Path) -> None:
    """Finish what crashes have interrupted, below the folder of all topics."""
    for topic in files.names(topics):
        for name in files.names(topics / topic):
            if name.endswith(DELETED_SUFFIX):
                remove_folder(files, topics / topic / name)


def remove_folder(files: Files, doomed: Path) -> None:
    """
    Raises:
        StorageError: some of it is still there, and `remove_deleted` will find it.
    """
    for name in files.names(doomed):
        files.remove(doomed / name)
    files.remove_directory(doomed)
    if not files.names(doomed.parent):
        files.remove_directory(doomed.parent)
