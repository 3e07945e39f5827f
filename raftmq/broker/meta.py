"""Whose a data directory is, and what its last processes were: `meta.json`.

Owns that file. The directory id is made once and stays; the broker epoch is what proves to the
controller that this is the disk of the registered process, and the clean mark that the process shut
down in order (decision 0013). Written whole or not at all. Whoever opens it holds the directory.

Invariants: nothing is remembered in memory that is not durable; the mark is only ever set for an
epoch under which this very process was registered.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import msgspec
from msgspec.structs import replace

from raftmq.disk.checkpoint import TEMPORARY_SUFFIX, read_file, replace_file
from raftmq.errors import InvalidConfig, StorageError
from raftmq.metadata.commands import NO_EPOCH
from raftmq.partition.storage.directory import TOPICS_FOLDER
from raftmq.partition.storage.recovery import CHECKPOINTS_FOLDER, CLEAN_MARK

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from raftmq.disk.files import Files
    from raftmq.partition.storage.flusher import RunSync


logger = logging.getLogger("raftmq.broker")


FILE_NAME = "meta.json"
FORMAT_VERSION = 1
Epoch = Annotated[int, msgspec.Meta(ge=NO_EPOCH)]


class _Format(msgspec.Struct):
    """The part of the file that every version of it has."""

    format_version: int


class DirectoryMeta(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes:
    broker_epoch: of the last process that was registered; -1: none ever was.
    clean_shutdown_epoch: of the process that was shut down cleanly last, if no other came since.
    """

    format_version: int = FORMAT_VERSION
    cluster_id: str
    node_id: int
    directory_id: UUID
    broker_epoch: Epoch = NO_EPOCH
    clean_shutdown_epoch: Epoch = NO_EPOCH


async def open_meta(
    files: Files, directory: Path, owner: tuple[str, int], *, random: Random, run_sync: RunSync
) -> MetaFile:
    """What the directory says of itself; written if it says nothing yet.

    Args:
        owner: cluster id and node id.
        random: the source of a new directory's id.

    Raises:
        InvalidConfig: it belongs to another node or cluster.
        StorageError: the disk refused, or the file is not readable.
    """
    path = directory / FILE_NAME
    data = await run_sync(partial(read_file, files, path))
    if data is not None:
        return MetaFile(files, path, run_sync, check_owner(path, data, owner))
    cluster_id, node_id = owner
    directory_id = UUID(bytes=random.randbytes(16), version=4)
    meta = DirectoryMeta(cluster_id=cluster_id, node_id=node_id, directory_id=directory_id)
    file = MetaFile(files, path, run_sync, meta)
    await file.write(meta)
    logger.info("new data directory: path=%s id=%s", directory, directory_id)
    return file


class MetaFile:
    """Made by `open_meta`.

    Attributes:
        meta: what is on the disk.
    """

    def __init__(self, files: Files, path: Path, run_sync: RunSync, meta: DirectoryMeta) -> None:
        self._files, self._path, self._run_sync = files, path, run_sync
        self.meta = meta
        self._was_registered = False  # by this process

    async def write_epoch(self, broker_epoch: int) -> None:
        """This process is registered: durable when it returns. Raises StorageError."""
        await self.write(
            replace(self.meta, broker_epoch=broker_epoch, clean_shutdown_epoch=NO_EPOCH)
        )
        self._was_registered = True

    async def mark_clean(self) -> None:
        """Everything that this process wrote is durable, and it writes no more.

        One that was never registered says nothing of the process before it, which may have lost
        what this one did not miss. Raises StorageError.
        """
        if self._was_registered:
            await self.write(replace(self.meta, clean_shutdown_epoch=self.meta.broker_epoch))

    async def write(self, meta: DirectoryMeta) -> None:
        data = msgspec.json.format(msgspec.json.encode(meta), indent=2) + b"\n"
        await self._run_sync(partial(replace_file, self._files, self._path, data))
        self.meta = meta


def check_owner(path: Path, data: bytes, owner: tuple[str, int]) -> DirectoryMeta:
    """What the file says, if it is this owner's. Raises what `open_meta` does."""
    meta = _decoded(path, data)
    if (meta.cluster_id, meta.node_id) != owner:
        cluster_id, node_id = owner
        raise InvalidConfig(
            [
                f"node.directory = {path.parent}: belongs to node {meta.node_id} of cluster"
                f" {meta.cluster_id!r}, this is node {node_id} of {cluster_id!r}: give each node"
                " a directory of its own"
            ]
        )
    return meta


def _decoded(path: Path, data: bytes) -> DirectoryMeta:
    """First the format: what else is there may look like anything."""
    try:
        found = msgspec.json.decode(data, type=_Format).format_version
        if found > FORMAT_VERSION:
            raise StorageError(
                f"{path} has format {found}, this node knows {FORMAT_VERSION}: upgrade it"
            )
        return msgspec.json.decode(data, type=DirectoryMeta)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise StorageError(
            f"{path} is not readable: {error}: restore it, or remove it: then the broker is taken"
            " for one that has lost all records"
        ) from error


# -- Data directory -------------------------------------------------------------------------------
# Whether a node may begin to use a directory: looked at before anything in it is touched.
#
# Owns the list of what a node keeps there. Changes nothing: whoever has named the wrong directory
# finds it as it was. `meta.json` is read again by `open_meta`, under the lock.


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
