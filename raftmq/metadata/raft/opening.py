"""Opens a voter: wires journal, snapshots, transport and Raft node together (`open_quorum`).

Owns the order of starting (settings, names, lock, snapshot, journal, image, node, tasks) and of
stopping. The random source and the threads are arguments, so that simulations open the same code.

    open_quorum
    └── nursery
        ├── Driver.run         messages in, tick, journal to disk, messages out
        ├── Driver.remove_segments   deletes segments that the journal no longer needs
        ├── Transport.run      one connection for each peer, and those of guests
        └── Snapshotter.run    snapshots: taken, sent and received
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING, Any

import trio

from raftmq.disk.files import Files, OsFiles
from raftmq.errors import CorruptJournal
from raftmq.metadata.machine import MetadataMachine
from raftmq.metadata.raft.background import (
    JOURNAL_FOLDER,
    Threads,
    check_not_retired,
    hold_own_directory,
    open_background,
    open_threads,
    retire,
)
from raftmq.metadata.raft.engine.node import RaftNode
from raftmq.metadata.raft.engine.voter_disks import VoterMembership
from raftmq.metadata.raft.journal.journal import Journal, start_journal
from raftmq.metadata.raft.journal.segments import segment_numbers
from raftmq.metadata.raft.net.messages import PROTOCOL_VERSION, NodeHello, Refusal, Role, Standing
from raftmq.metadata.raft.net.observer_service import ObserverService
from raftmq.metadata.raft.net.transport import Transport, VoterLinks
from raftmq.metadata.raft.quorum import Driver, DriverTurns, RaftQuorum
from raftmq.metadata.raft.settings import QuorumSettings, check_settings
from raftmq.metadata.raft.snapshot.contents import SnapshotContents, read_picture
from raftmq.metadata.raft.snapshot.snapshotter import Snapshotter
from raftmq.metadata.raft.snapshot.store import SnapshotInfo, SnapshotStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path
    from random import Random

    from raftmq.disk.files import Files
    from raftmq.disk.thread import RunSync
    from raftmq.metadata.raft.net.connection import AddressT, QuorumNetwork


logger = logging.getLogger("raftmq.metadata")


# -- Opening --------------------------------------------------------------------------------------


__all__ = ["QuorumSettings", "open_quorum"]

WAY_OUT = (
    "While the other voters have a majority, move the directory away (keep it) and start with an"
    " empty one and `-o quorum.replace=true`; everything will be fetched from them"
)
REPLACED = (
    "quorum.replace is on, and {} is not empty: take it out of the settings. With it, a copy of"
    " them that is started on an empty directory while this voter is down takes its seat for good"
)


@asynccontextmanager
async def open_quorum(
    settings: QuorumSettings[AddressT],
    network: QuorumNetwork[AddressT],
    *,
    files: Files | None = None,
    random: Random | None = None,
    run_sync: RunSync | None = None,
    make_machine: Callable[[], MetadataMachine] = MetadataMachine,
) -> AsyncIterator[RaftQuorum]:
    """Run a voter while the body runs. Exceptions of the body are raised as they are.

    Raises:
        InvalidConfig: invalid settings, or a directory with other files; nothing was written.
        DirectoryInUse: another process has the directory.
        CorruptJournal: journal or snapshot are damaged, another node's, or an older copy.
        StorageError: the disk failed; if it does so later, the body is cancelled.
    """
    check_settings(settings, is_voter=True)
    files, random = files or OsFiles(), random or SystemRandom()
    load = partial(_load, files, settings, random, make_machine)
    with open_threads(run_sync) as threads:
        # Held until the journal is closed.
        async with hold_own_directory(files, settings.directory, threads.run_sync):
            found = await threads.run_sync(load)  # seconds for a large image, in a thread
            voter = _Voter(settings, network, found, random, threads)
            try:
                async with _run(voter) as quorum:
                    yield quorum
            finally:
                found.journal.close()
                if voter.refused:  # an older copy: later starts must fail, see `retire`
                    note = partial(retire, files, settings.directory, voter.refused)
                    with trio.CancelScope(shield=True):
                        await threads.run_sync(note)  # shielded: later starts depend on the file


@asynccontextmanager
async def _run(voter: _Voter) -> AsyncIterator[RaftQuorum]:
    async with open_background() as nursery:  # cancels all tasks after the body
        await nursery.start(voter.transport.run)  # until it listens
        for task in (voter.snapshotter.run, voter.driver.run, voter.quorum.run):
            nursery.start_soon(task)
        nursery.start_soon(voter.driver.remove_segments)
        try:
            yield voter.quorum
        finally:
            voter.quorum.close()


@dataclass
class _Found:
    """What was read from the directory."""

    store: SnapshotStore
    snapshot: SnapshotInfo | None
    journal: Journal
    machine: MetadataMachine
    contents: SnapshotContents | None


def _load(
    files: Files,
    settings: QuorumSettings[Any],
    random: Random,
    make_machine: Callable[[], MetadataMachine],
) -> _Found:
    """Read the directory. In a worker thread: it takes seconds for a large image."""
    directory = settings.directory
    check_not_retired(files, directory)
    store = SnapshotStore(files, directory, cluster_id=settings.cluster_id)
    snapshot = store.newest()
    _check_not_lost(files, directory, snapshot)
    journal = start_journal(
        files,
        directory / JOURNAL_FOLDER,
        cluster_id=settings.cluster_id,
        node_id=settings.node_id,
        new_disk_id=random.randbytes(16),
        voters=settings.voters,
        sync=settings.sync,
    )
    _check_pair(directory, snapshot, journal)
    machine = make_machine()
    if snapshot is None:  # a new voter, or one with few entries
        return _Found(store, None, journal, machine, None)
    contents = read_picture(machine, store.read(snapshot))
    machine.install(snapshot.index, contents.decoded)
    return _Found(store, snapshot, journal, machine, contents)


def _check_not_lost(files: Files, directory: Path, snapshot: SnapshotInfo | None) -> None:
    """A snapshot without a journal: votes and entries were lost. Checked before a new journal is
    begun, which the next start could not tell from the lost one.
    """
    if snapshot and not segment_numbers(files.names(directory / JOURNAL_FOLDER)):
        raise CorruptJournal(
            f"{directory}: there is a snapshot, but the journal beside it is gone, or an observer"
            f" has been here. {WAY_OUT}"
        )


def _check_pair(directory: Path, snapshot: SnapshotInfo | None, journal: Journal) -> None:
    """Invariant: the journal begins at or before the snapshot's end, so no entry is missing."""
    end = snapshot.index if snapshot else 1  # every log begins with entry 1
    if journal.first_index > end:
        raise CorruptJournal(
            f"{directory}: the journal begins behind entry {journal.first_index}, the snapshot ends"
            f" with entry {end}: the snapshot that belongs to it is gone. {WAY_OUT}"
        )


class _Voter:
    """The parts of one voter, wired together.

    Attributes:
        refused: why this directory must not be used again, if another voter has said so.
    """

    def __init__(
        self,
        settings: QuorumSettings[Any],
        network: QuorumNetwork[Any],
        found: _Found,
        random: Random,
        threads: Threads,
    ) -> None:
        self._settings, self._journal = settings, found.journal
        self.refused = ""
        self._nonce = random.randbytes(8)
        self._clock = trio.current_time
        identity = self._synced_identity = found.journal.identity
        # The option is for empty directories, and dangerous in copied settings (decision 0028).
        if settings.is_replacement and identity.standing is Standing.ESTABLISHED:
            logger.warning("%s", REPLACED.format(settings.directory))
        self._membership = VoterMembership(
            settings.node_id,
            settings.voters,
            disk_id=identity.disk_id,
            standing=identity.standing,
        )
        # Node and snapshots send and wake, but transport and driver, which call them, are made
        # last: what both sides share comes first.
        links = VoterLinks()
        self._turns = DriverTurns(stuck_seconds=settings.timing.fallback_seconds)
        self._node = self._make_node(found, random, links)
        self.snapshotter = Snapshotter(
            self._node,
            found.store,
            found.snapshot,
            send=links.send,
            wake=self._turns.wake,
            run_sync=threads.run_sync,
            clock=self._clock,
            limits=settings.limits,
        )
        hosting = ObserverService(self._node, self.snapshotter, settings)
        self.transport = Transport(
            settings.node_id,
            settings.voters,
            network,
            links,
            make_hello=self._make_hello,
            check_hello=self._check_hello,
            on_connected=self._node.on_connected,
            on_disconnected=self._node.on_disconnected,
            on_refused=self._on_refused,
            serve_guest=hosting.serve,
            wake=self._turns.wake,
            random=random,
        )
        self.quorum = RaftQuorum(
            self._node,
            found.machine,
            self._turns,
            proposals_waiting=settings.limits.proposals_waiting,
        )
        self.driver = Driver(
            self._node,
            found.journal,
            self.transport,
            self.snapshotter,
            self._turns,
            on_turn=(self.quorum.publish, self._note_identity, hosting.on_turn),
            write_journal=threads.write_journal,
            run_sync=threads.run_sync,
            tick_seconds=settings.timing.tick_seconds,
        )

    def _make_node(self, found: _Found, random: Random, links: VoterLinks) -> RaftNode:
        snapshot = found.snapshot
        node = RaftNode(
            self._membership,
            found.journal,
            found.machine,
            applied_index=snapshot.index if snapshot else found.journal.first_index,
            send=links.send,
            clock=self._clock,
            random=random,
            timing=self._settings.timing,
            limits=self._settings.limits,
        )
        if snapshot and found.contents:  # the image is installed; the node must know what it covers
            node.begin_after(snapshot.index, snapshot.term, found.contents)
        return node

    def _note_identity(self) -> None:
        """The Hello may only contain what is synced: a crash must not take back what peers know."""
        self._synced_identity = self._journal.identity

    def _check_hello(self, hello: NodeHello) -> Refusal | None:
        return self._membership.check_hello(hello, term=self._node.term)

    def _make_hello(self) -> NodeHello:
        identity = self._synced_identity
        return NodeHello(
            protocol_version=PROTOCOL_VERSION,
            cluster_id=identity.cluster_id,
            role=Role.VOTER,
            node_id=identity.node_id,
            disk_id=identity.disk_id,
            start_count=identity.start_count,
            nonce=self._nonce,
            voters=identity.voters,
            standing=identity.standing,
            enrolled_index=identity.enrolled_index,
            term=self._node.term,
            is_replacement=self._settings.is_replacement,
        )

    def _on_refused(self, peer: int, refusal: Refusal) -> None:
        if refusal.must_stop:  # this directory is an older copy (decision 0012)
            self.refused = refusal.reason
            self._turns.fail(CorruptJournal(f"{self._settings.directory}: {refusal.reason}"))
