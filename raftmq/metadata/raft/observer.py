"""A broker that does not vote: it follows the committed entries and sees the same images.

Owns the way from voter to voter, the index to ask for next, and the loading of snapshots. It
pulls (see `hosting`), one request at a time, from any voter: what is committed is the same on all
of them. A voter that refuses, is silent or hears no leader is left for the next one. Keeps a
snapshot on disk only to decode it; after a restart it begins with the newest.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Generic

import trio

from raftmq.disk.files import Files, OsFiles
from raftmq.errors import NotController, RaftmqError, RemoteProtocolError, StorageError
from raftmq.metadata.machine import MetadataMachine
from raftmq.metadata.quorum import PROPOSE_SECONDS_MAX, Leadership
from raftmq.metadata.raft.background import (
    check_no_journal,
    hold_own_directory,
    open_background,
    run_in_thread,
)
from raftmq.metadata.raft.engine.replication import apply_entry, own_entry
from raftmq.metadata.raft.net.connection import AddressT, open_connection, shake_hands
from raftmq.metadata.raft.net.messages import (
    PROTOCOL_VERSION,
    NodeHello,
    ObserverEntries,
    ObserverFetch,
    ObserverOffer,
    Refusal,
    Role,
    SnapshotChunk,
    SnapshotFetch,
    SnapshotGone,
)
from raftmq.metadata.raft.net.observer_service import FIRST_ENTRY
from raftmq.metadata.raft.net.transport import DIAL_SECONDS_MAX
from raftmq.metadata.raft.settings import check_settings
from raftmq.metadata.raft.snapshot.contents import read_picture
from raftmq.metadata.raft.snapshot.store import SnapshotStore
from raftmq.metadata.raft.snapshot.transfer import SnapshotId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from random import Random

    from raftmq.metadata.commands import AnyCommand, AnyResult, CommandId
    from raftmq.metadata.delta import MetadataDelta
    from raftmq.metadata.image import MetadataImage
    from raftmq.metadata.raft.background import RunSync
    from raftmq.metadata.raft.net.connection import QuorumConnection, QuorumNetwork
    from raftmq.metadata.raft.net.messages import AnyMessage
    from raftmq.metadata.raft.settings import QuorumSettings
    from raftmq.metadata.raft.snapshot.contents import SnapshotContents
    from raftmq.metadata.raft.snapshot.store import SnapshotInfo
    from raftmq.metadata.raft.state_machine import StateMachine


logger = logging.getLogger("raftmq.metadata")


# -- Snapshot download ----------------------------------------------------------------------------
# A snapshot on its way to an observer: one request at a time over its own connection.
#
# Owns the order of requests and the place on disk; a voter's transfer, which survives changes of
# leader, is in `snapshot_transfer`.


CHUNK_SECONDS_MAX = 30.0


class SnapshotDownload:
    """Into `store`; what was fetched before a connection broke is not fetched again."""

    def __init__(
        self, store: SnapshotStore, *, run_sync: Callable[[Callable[[], Any]], Awaitable[Any]]
    ) -> None:
        self._store, self._run_sync = store, run_sync

    async def fetch(
        self, connection: QuorumConnection, offer: ObserverOffer, machine: StateMachine
    ) -> tuple[SnapshotInfo, SnapshotContents] | None:
        """The snapshot that was offered, durable and decoded; None if it is gone by now.

        Raises:
            RemoteProtocolError: the voter sends something else, or nothing.
            StorageError: the disk refused.
        """
        snapshot = SnapshotId(offer.index, offer.snapshot_term, offer.size_bytes, offer.crc)
        incoming = await self._run_sync(lambda: self._store.incoming(snapshot))
        while incoming.position < snapshot.size_bytes:
            data = await self._chunk(connection, snapshot, incoming.position)
            if data is None:
                return None
            await self._run_sync(partial(incoming.write, incoming.position, data))
        info = await self._run_sync(incoming.finish)
        picture = await self._run_sync(lambda: read_picture(machine, self._store.read(info)))
        return info, picture

    async def _chunk(
        self, connection: QuorumConnection, snapshot: SnapshotId, offset: int
    ) -> bytes | None:
        request = SnapshotFetch(
            snapshot.index, snapshot.term, snapshot.size_bytes, snapshot.crc, offset
        )
        await connection.send(request)
        with trio.move_on_after(CHUNK_SECONDS_MAX):
            return _data_of(await connection.receive(), snapshot, offset)
        raise RemoteProtocolError(f"no chunk of {snapshot} within {CHUNK_SECONDS_MAX} s")


def _data_of(answer: object, snapshot: SnapshotId, offset: int) -> bytes | None:
    match answer:
        case SnapshotChunk(offset=at, data=data) if at == offset and data:
            if offset + len(data) > snapshot.size_bytes:
                raise RemoteProtocolError(f"{len(data)} bytes at {offset} of {snapshot}")
            return data
        case SnapshotGone() | None:
            return None
    raise RemoteProtocolError(f"a {type(answer).__name__} in place of a chunk")


# -- Observer -------------------------------------------------------------------------------------


RETRY_SECONDS = (0.1, 0.5)
FAILURE_PAUSE_SECONDS = 5.0  # after the own disk refused
ANSWER_SECONDS_MAX = 15.0  # a voter that lives answers within a third of it
LEADERLESS_ANSWERS_MAX = 2  # the second comes after the voter has waited for a leader
APPLIED_AT_ONCE = 500  # entries; then others get their turn


class ObserverQuorum(Generic[AddressT]):
    """The `MetadataQuorum` of a broker that does not vote: everything but proposing and barriers.

    Attributes:
        commit_index: as the voter said with its last answer; `image.version` may be behind it.
    """

    def __init__(
        self,
        node_id: int,
        cluster_id: str,
        voters: Mapping[int, AddressT],
        network: QuorumNetwork[AddressT],
        machine: MetadataMachine,
        download: SnapshotDownload,
        *,
        next_index: int,
        quorum_id: bytes,
        random: Random,
    ) -> None:
        self._node_id, self._cluster_id = node_id, cluster_id
        self._voters, self._network = dict(voters), network
        self._machine, self._download, self._random = machine, download, random
        self._next_index, self._quorum_id = next_index, quorum_id
        self.commit_index = 0
        self._problems: dict[int, str] = {}  # of voters, told already
        self._published = machine.image.version
        self._leadership = Leadership(0, None, is_leader=False)
        self._changed, self._leadership_changed = trio.Event(), trio.Event()

    async def run(self) -> None:
        """Follow one voter after the other until cancelled."""
        order = sorted(self._voters)
        self._random.shuffle(order)
        while True:
            for voter in order:
                await self._follow(voter)
                await trio.sleep(self._random.uniform(*RETRY_SECONDS))

    async def _follow(self, voter: int) -> None:
        stream = await self._dial(voter)
        if stream is None:
            return
        try:
            async with open_connection(stream, name=f"voter-{voter}") as connection:
                await self._meet(voter, connection)
        except StorageError as error:
            logger.error("observer=%d event=fetch_failed error=%s", self._node_id, error)
            await trio.sleep(FAILURE_PAUSE_SECONDS)

    async def _dial(self, voter: int) -> trio.abc.Stream | None:
        reason = f"no answer within {DIAL_SECONDS_MAX:g} s"
        try:
            with trio.move_on_after(DIAL_SECONDS_MAX):
                return await self._network.dial(self._voters[voter])
        except (OSError, RaftmqError) as error:
            reason = str(error) or repr(error)
        self._tell(voter, f"unreachable: {reason}")
        return None

    async def _meet(self, voter: int, connection: QuorumConnection) -> None:
        met = await shake_hands(connection, own=self._hello(), judge=partial(self._judge, voter))
        if met.refusal is not None:
            self._tell(voter, f"refused by them: {met.refusal.reason}")
        if met.hello is not None:
            try:
                await self._pull(voter, connection)
            except RemoteProtocolError as error:
                connection.close(str(error), is_fault=True)

    def _hello(self) -> NodeHello:
        return NodeHello(PROTOCOL_VERSION, self._cluster_id, Role.OBSERVER, self._node_id)

    def _judge(self, voter: int, hello: NodeHello) -> Refusal | None:
        if hello.role is Role.VOTER and hello.cluster_id == self._cluster_id:
            return None
        here = f"this observer follows cluster {self._cluster_id!r}"
        self._tell(voter, f"{hello.role.name} of cluster {hello.cluster_id!r} there, {here}")
        return Refusal(here)

    def _tell(self, voter: int, problem: str) -> None:
        """Once, not at every attempt."""
        if self._problems.get(voter) != problem:
            self._problems[voter] = problem
            logger.warning("observer=%d voter=%d problem=%s", self._node_id, voter, problem)

    async def _pull(self, voter: int, connection: QuorumConnection) -> None:
        leaderless = 0
        while leaderless < LEADERLESS_ANSWERS_MAX:
            await connection.send(ObserverFetch(self._next_index, self._quorum_id))
            answer = await self._answer(connection)
            if answer is None:
                return
            if isinstance(answer, Refusal):  # too many guests, say: the next voter may serve us
                self._tell(voter, f"refused by them: {answer.reason}")
                return
            await self._take(connection, answer)
            self._problems.pop(voter, None)
            leaderless = leaderless + 1 if _is_leaderless(answer) else 0
        connection.close("it hears no leader: others may")

    async def _answer(self, connection: QuorumConnection) -> AnyMessage | None:
        with trio.move_on_after(ANSWER_SECONDS_MAX):
            return await connection.receive()
        raise RemoteProtocolError(f"no answer within {ANSWER_SECONDS_MAX:g} s")

    async def _take(self, connection: QuorumConnection, answer: AnyMessage) -> None:
        match answer:
            case ObserverEntries():
                await self._apply(answer)
                self._note_leader(answer)
            case ObserverOffer():
                await self._load(connection, answer)
            case _:
                raise RemoteProtocolError(f"a {type(answer).__name__} to an observer")

    async def _apply(self, answer: ObserverEntries) -> None:
        self.commit_index = answer.commit_index
        for entry, index, _ in answer.entries:
            if index != self._next_index:
                raise RemoteProtocolError(f"entry {index} in place of {self._next_index}")
            apply_entry(self._machine, index, entry)
            own = own_entry(entry)
            if own is not None:
                self._quorum_id = self._quorum_id or own.disk_id  # as in `membership`
            self._next_index = index + 1
            if index % APPLIED_AT_ONCE == 0:
                self._publish()
                await trio.lowlevel.checkpoint()
        self._publish()
        await trio.lowlevel.checkpoint()

    async def _load(self, connection: QuorumConnection, offer: ObserverOffer) -> None:
        loaded = await self._download.fetch(connection, offer, self._machine)
        if loaded is None:
            return  # a newer one will be offered
        info, picture = loaded
        if info.index >= self._next_index:
            self._machine.install(info.index, picture.decoded)
            self._next_index, self._quorum_id = info.index + 1, picture.quorum_id
            self._publish()

    def _note_leader(self, answer: ObserverEntries) -> None:
        """Unless it is older news than ours: voters hear of an election one after the other."""
        leadership = Leadership(answer.term, answer.leader_id, is_leader=False)
        if answer.term >= self._leadership.term and leadership != self._leadership:
            self._leadership = leadership
            self._leadership_changed.set()
            self._leadership_changed = trio.Event()

    def _publish(self) -> None:
        if self._published != self.image.version:
            self._published = self.image.version
            self._changed.set()
            self._changed = trio.Event()

    # MetadataQuorum

    @property
    def image(self) -> MetadataImage:
        return self._machine.image

    @property
    def leadership(self) -> Leadership:
        """As the voter said that it follows."""
        return self._leadership

    async def propose(
        self,
        command: AnyCommand,
        *,
        command_id: CommandId | None = None,
        timeout: float = PROPOSE_SECONDS_MAX,  # noqa: ASYNC109  # as in the protocol
    ) -> AnyResult:
        raise self._not_a_voter()

    async def wait_changed(self, seen: int) -> MetadataImage:
        while self.image.version <= seen:
            await self._changed.wait()
        await trio.lowlevel.checkpoint_if_cancelled()
        return self.image

    def delta_since(self, seen: int) -> MetadataDelta:
        return self._machine.changes.since(seen, self.image)

    async def wait_leadership_changed(self, seen: Leadership) -> Leadership:
        while self.leadership == seen:
            await self._leadership_changed.wait()
        await trio.lowlevel.checkpoint_if_cancelled()
        return self.leadership

    async def read_barrier(self) -> MetadataImage:
        raise self._not_a_voter()

    def _not_a_voter(self) -> NotController:
        what = f"node {self._node_id} observes the metadata quorum, it has no vote"
        return NotController(what, self._leadership.leader_id)


def _is_leaderless(answer: AnyMessage) -> bool:
    return isinstance(answer, ObserverEntries) and not answer.entries and answer.leader_id is None


# -- Observing ------------------------------------------------------------------------------------
# An observer from its directory and its network: everything put together, and taken apart again.
#
# Owns the order of starting: settings, names, lock, snapshot, image, the task that follows a voter.
# Takes what `open_quorum` takes, so that a simulation opens the very same thing. The directory
# holds the last snapshot that was fetched, and nothing that could not be fetched again.


@asynccontextmanager
async def open_observer(
    settings: QuorumSettings[AddressT],
    network: QuorumNetwork[AddressT],
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
