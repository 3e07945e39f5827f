"""An observer from its directory and its network: everything put together, and taken apart again.

Owns the order of starting: settings, names, lock, snapshot, image, the task that follows a voter.
Takes what `open_quorum` takes, so that a simulation opens the very same thing. The directory holds
the last snapshot that was fetched, and nothing that could not be fetched again.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING

from raftmq.disk.files import Files, OsFiles
from raftmq.metadata.machine import MetadataMachine
from raftmq.metadata.raft.background import open_background, run_in_thread
from raftmq.metadata.raft.directory_names import check_no_journal, hold_own_directory
from raftmq.metadata.raft.hosting import FIRST_ENTRY
from raftmq.metadata.raft.observer import ObserverQuorum
from raftmq.metadata.raft.picture import read_picture
from raftmq.metadata.raft.settings import check_settings
from raftmq.metadata.raft.snapshot_download import SnapshotDownload
from raftmq.metadata.raft.snapshots import SnapshotStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from random import Random

    from raftmq.metadata.raft.background import RunSync
    from raftmq.metadata.raft.network_protocol import AddressT, Network
    from raftmq.metadata.raft.settings import QuorumSettings


@asynccontextmanager
async def open_observer(
    settings: QuorumSettings[AddressT],
    network: Network[AddressT],
    *,
    files: Files | None = None,
    random: Random | None = None,
    run_sync: RunSync = run_in_thread,
    make_machine: Callable[[], MetadataMachine] = MetadataMachine,
) -> AsyncIterator[ObserverQuorum[AddressT]]:
    """Follow the voters for as long as the body runs. What the body raises comes out as it is.

    Of the settings `timing`, `limits` and `sync` mean nothing here.

    Raises:
        InvalidConfig: settings that cannot be, or a directory with files of others, a voter's
            included; nothing of theirs was changed.
        DirectoryInUse: another process has the directory.
        CorruptJournal: the snapshot is damaged, or another cluster's.
        StorageError: the disk refused.
    """
    check_settings(settings, is_voter=False)
    files, random = files or OsFiles(), random or SystemRandom()
    async with hold_own_directory(files, settings.directory, run_sync):
        store = SnapshotStore(files, settings.directory, cluster_id=settings.cluster_id)
        machine = make_machine()
        next_index, quorum_id = await run_sync(partial(_load, store, machine))
        observer = ObserverQuorum(
            settings.node_id,
            settings.cluster_id,
            settings.voters,
            network,
            machine,
            SnapshotDownload(store, run_sync=run_sync),
            next_index=next_index,
            quorum_id=quorum_id,
            random=random,
        )
        async with open_background() as nursery:
            nursery.start_soon(observer.run)
            yield observer


def _load(store: SnapshotStore, machine: MetadataMachine) -> tuple[int, bytes]:
    """In a worker thread: show the newest snapshot, if there is one and it is this observer's.

    Returns:
        The index of the entry that comes next, and the quorum whose history that is.
    """
    check_no_journal(store.files, store.directory)
    snapshot = store.newest()
    if snapshot is None:
        return FIRST_ENTRY, b""
    picture = read_picture(machine, store.read(snapshot))
    machine.install(snapshot.index, picture.decoded)
    return snapshot.index + 1, picture.quorum_id
