"""`meta.json` of a data directory: cluster, node, directory id, broker epoch, clean-shutdown mark.

Owns that file. The directory id is made once and stays; the broker epoch proves to the controller
that this is the disk of the registered process, and the clean mark that the process shut down in
order (decision 0013). Written whole or not at all. The caller holds the lock of the directory.

Invariants: nothing is remembered in memory that is not durable; the mark is only ever set for an
epoch under which this very process was registered. (Kafka: meta.properties)
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
from raftmq.partition.storage.inspect import CHECKPOINTS_FOLDER, TOPICS_FOLDER
from raftmq.partition.storage.recovery import CLEAN_MARK

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from raftmq.disk.files import Files
    from raftmq.disk.thread import RunSync


logger = logging.getLogger("raftmq.broker")


FILE_NAME = "meta.json"
FORMAT_VERSION = 1  # a node refuses a newer one
Epoch = Annotated[int, msgspec.Meta(ge=NO_EPOCH)]


class _Format(msgspec.Struct):
    """The one field that every version of the file has."""

    format_version: int


class DirectoryMeta(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes:
    broker_epoch: of the last process that was registered; -1: there was none.
    clean_shutdown_epoch: of the last process, if it shut down cleanly; -1 once another registered.
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
    """Read the file; write a new one where there is none.

    Args:
        owner: cluster id and node id.
        random: the source of a new directory's id.

    Raises:
        InvalidConfig: it belongs to another node or cluster.
        StorageError: the disk failed, or the file is not readable.
    """
    path = directory / FILE_NAME
    # Disk reads and writes in a thread: the quorum's tasks already run on the loop.
    data = await run_sync(partial(read_file, files, path))
    if data is not None:  # not the first start
        return MetaFile(files, path, run_sync, check_owner(path, data, owner))
    cluster_id, node_id = owner
    directory_id = UUID(bytes=random.randbytes(16), version=4)
    meta = DirectoryMeta(cluster_id=cluster_id, node_id=node_id, directory_id=directory_id)
    file = MetaFile(files, path, run_sync, meta)
    await file.write(meta)  # durable before the directory is used
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

        A process that was never registered must not mark: the one before it may have lost what this
        one did not notice. Raises StorageError.
        """
        if self._was_registered:
            # Durable: the mark vouches for what was flushed before.
            await self.write(replace(self.meta, clean_shutdown_epoch=self.meta.broker_epoch))

    async def write(self, meta: DirectoryMeta) -> None:
        data = msgspec.json.format(msgspec.json.encode(meta), indent=2) + b"\n"
        # In memory only after it is on disk.
        await self._run_sync(partial(replace_file, self._files, self._path, data))
        self.meta = meta


def check_owner(path: Path, data: bytes, owner: tuple[str, int]) -> DirectoryMeta:
    """The contents, if they are this owner's. Raises what `open_meta` raises."""
    meta = _decoded(path, data)
    # A copied configuration or a moved disk: two nodes with one identity would lose records.
    if (meta.cluster_id, meta.node_id) != owner:
        cluster_id, node_id = owner
        raise InvalidConfig(
            [
                f"node.directory = {path.parent}: belongs to node {meta.node_id} of cluster"
                f" {meta.cluster_id!r}, this is node {node_id} of {cluster_id!r}: correct"
                " node.id or node.cluster_id, or give each node a directory of its own"
            ]
        )
    return meta


def _decoded(path: Path, data: bytes) -> DirectoryMeta:
    """Decode the format version first: a newer format may differ in everything else."""
    try:
        found = msgspec.json.decode(data, type=_Format).format_version
        if found > FORMAT_VERSION:  # written by a newer version: guessing could destroy it
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
# Whether a node may use a directory, checked before anything in it is touched.
#
# Owns the list of what a node keeps there. Changes nothing: a user who named the wrong directory
# finds it as it was. `meta.json` is read again by `open_meta`, under the lock.


QUORUM_FOLDER = "quorum"
# What a start that was killed early leaves behind, and what a node keeps apart from its identity: a
# directory without `meta.json` is one of a node that lost its disk, which the cluster judges.
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
MOUNTED = frozenset({"lost+found"})  # of a fresh file system
NAMED_MAX = 3  # of foreign files in one error line


def check_directory(files: Files, directory: Path, owner: tuple[str, int]) -> None:
    """
    Args:
        owner: cluster id and node id.

    Raises:
        InvalidConfig: it is no directory, belongs to another node, or holds other things.
        StorageError: the disk failed, or `meta.json` is not readable.
    """
    names = _names(files, directory)
    # A node was here before: its identity decides, other files do not matter.
    if FILE_NAME in names:
        path = directory / FILE_NAME
        check_owner(path, read_file(files, path) or b"", owner)
        return
    foreign = [name for name in names if name not in OURS | MOUNTED]
    if foreign:  # a home directory, for example: leave it alone
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
        # The path names a file: the user's mistake, not the disk's.
        if not isinstance(error.__cause__, NotADirectoryError):
            raise
        what = "is no directory; name one, or a path where there is nothing yet"
        raise InvalidConfig([f"node.directory = {directory}: {what}"]) from error
