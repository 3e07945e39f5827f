"""Observer of the quorum: a broker without a vote that pulls committed entries (Kafka: observer).

Owns the choice of the voter to follow, the next index to fetch, and the download of snapshots. It
fetches (see `net.observer_service`), one request at a time, from any voter: what is committed is
the same on all of them. From a voter that refuses, is silent or hears no leader it moves on to the
next one. Its directory holds the newest snapshot, with which it begins after a restart.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING, Generic

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
    from collections.abc import AsyncIterator, Callable, Mapping
    from random import Random

    from raftmq.disk.thread import RunSync
    from raftmq.metadata.commands import AnyCommand, AnyResult, CommandId
    from raftmq.metadata.delta import MetadataDelta
    from raftmq.metadata.image import MetadataImage
    from raftmq.metadata.raft.net.connection import QuorumConnection, QuorumNetwork
    from raftmq.metadata.raft.net.messages import AnyMessage
    from raftmq.metadata.raft.settings import QuorumSettings
    from raftmq.metadata.raft.snapshot.contents import SnapshotContents
    from raftmq.metadata.raft.snapshot.store import SnapshotInfo
    from raftmq.metadata.raft.state_machine import StateMachine


logger = logging.getLogger("raftmq.metadata")


# -- Snapshot download ----------------------------------------------------------------------------
# Download of a snapshot by an observer: one chunk request at a time over its own connection.
#
# Owns the order of requests and the file on disk; a voter's transfer, which survives changes of
# leader, is in `snapshot.transfer`.


# Wait for one chunk of 1 MiB. Longer than for other answers: the voter reads it from a disk that
# may be busy, and the connection's KeepAlives show that it is alive.
CHUNK_SECONDS_MAX = 30.0


class SnapshotDownload:
    """Downloads into `store`; chunks that came before a connection broke are not fetched again."""

    def __init__(self, store: SnapshotStore, *, run_sync: RunSync) -> None:
        self._store, self._run_sync = store, run_sync

    async def fetch(
        self, connection: QuorumConnection, offer: ObserverOffer, machine: StateMachine
    ) -> tuple[SnapshotInfo, SnapshotContents] | None:
        """The offered snapshot, durable and decoded; None if the voter has replaced it meanwhile.

        Raises:
            RemoteProtocolError: the voter sends something else, or nothing.
            StorageError: the disk failed.
        """
        snapshot = SnapshotId(offer.index, offer.snapshot_term, offer.size_bytes, offer.crc)
        # Opens or resumes the file in a thread.
        incoming = await self._run_sync(lambda: self._store.incoming(snapshot))
        # Resumes where a broken connection has left off.
        while incoming.position < snapshot.size_bytes:
            data = await self._chunk(connection, snapshot, incoming.position)
            if data is None:  # replaced by a newer one, or disconnected
                return None
            await self._run_sync(partial(incoming.write, incoming.position, data))
        # Waits for one read and checksum of the whole file, and its sync.
        info = await self._run_sync(incoming.finish)
        # Seconds for a large image, in a thread.
        contents = await self._run_sync(lambda: read_picture(machine, self._store.read(info)))
        return info, contents

    async def _chunk(
        self, connection: QuorumConnection, snapshot: SnapshotId, offset: int
    ) -> bytes | None:
        request = SnapshotFetch(
            snapshot.index, snapshot.term, snapshot.size_bytes, snapshot.crc, offset
        )
        await connection.send(request)  # waits for room in the send queue
        with trio.move_on_after(CHUNK_SECONDS_MAX):
            # Bounded by CHUNK_SECONDS_MAX.
            return _data_of(await connection.receive(), snapshot, offset)
        raise RemoteProtocolError(f"no chunk of {snapshot} within {CHUNK_SECONDS_MAX} s")


def _data_of(answer: object, snapshot: SnapshotId, offset: int) -> bytes | None:
    match answer:
        case SnapshotChunk(offset=at, data=data) if at == offset and data:
            # More than was offered: it would fill the disk.
            if offset + len(data) > snapshot.size_bytes:
                raise RemoteProtocolError(f"{len(data)} bytes at {offset} of {snapshot}")
            return data
        case SnapshotGone() | None:  # replaced by a newer one, or the connection has ended
            return None
    raise RemoteProtocolError(f"a {type(answer).__name__} in place of a chunk")


# -- Observer -------------------------------------------------------------------------------------


# Pause before the next voter, at random so that observers do not all connect to the same one.
RETRY_SECONDS = (0.1, 0.5)
FAILURE_PAUSE_SECONDS = 5.0  # after the observer's own disk failed: another voter will not help
# A voter answers a long poll after 5 s (`observer_service.ANSWER_SECONDS`) even without new
# entries; three times that is a voter that hangs.
ANSWER_SECONDS_MAX = 15.0
# Answers without a leader before the observer tries another voter. The second one comes after the
# voter has waited for a leader for the whole long poll, so that elections do not count.
LEADERLESS_ANSWERS_MAX = 2
APPLIED_AT_ONCE = 500  # entries, some milliseconds; then other tasks of the event loop run


class ObserverQuorum(Generic[AddressT]):
    """The `MetadataQuorum` of a broker without a vote; it cannot propose, nor give read barriers.

    Attributes:
        commit_index: from the voter's last answer; `image.version` may be behind it.
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
        self._problems: dict[int, str] = {}  # by voter; logged already
        self._published = machine.image.version
        self._leadership = Leadership(0, None, is_leader=False)
        self._changed, self._leadership_changed = trio.Event(), trio.Event()

    async def run(self) -> None:
        """Follow one voter after the other until cancelled; `_follow` returns when one fails."""
        order = sorted(self._voters)
        self._random.shuffle(order)
        while True:
            for voter in order:
                await self._follow(voter)  # until this voter fails, refuses or hears no leader
                await trio.sleep(self._random.uniform(*RETRY_SECONDS))

    async def _follow(self, voter: int) -> None:
        stream = await self._dial(voter)  # bounded by DIAL_SECONDS_MAX
        if stream is None:  # unreachable: the next voter
            return
        try:
            async with open_connection(stream, name=f"voter-{voter}") as connection:
                await self._meet(voter, connection)  # until the connection ends
        # The observer's own disk, not the voter's fault.
        except StorageError as error:
            logger.error("observer=%d event=fetch_failed error=%s", self._node_id, error)
            await trio.sleep(FAILURE_PAUSE_SECONDS)

    async def _dial(self, voter: int) -> trio.abc.Stream | None:
        reason = f"no answer within {DIAL_SECONDS_MAX:g} s"
        try:
            with trio.move_on_after(DIAL_SECONDS_MAX):
                return await self._network.dial(self._voters[voter])
        except (OSError, RaftmqError) as error:  # a voter that is down is normal: try the next
            reason = str(error) or repr(error)
        self._tell(voter, f"unreachable: {reason}")
        return None

    async def _meet(self, voter: int, connection: QuorumConnection) -> None:
        # Bounded by HANDSHAKE_SECONDS_MAX.
        met = await shake_hands(connection, own=self._hello(), judge=partial(self._judge, voter))
        if met.refusal is not None:
            self._tell(voter, f"refused by them: {met.refusal.reason}")
        if met.hello is not None:
            try:
                # Until the voter fails, refuses or hears no leader.
                await self._pull(voter, connection)
            except RemoteProtocolError as error:  # a faulty voter must not end the observer
                connection.close(str(error), is_fault=True)

    def _hello(self) -> NodeHello:
        return NodeHello(PROTOCOL_VERSION, self._cluster_id, Role.OBSERVER, self._node_id)

    def _judge(self, voter: int, hello: NodeHello) -> Refusal | None:
        # Another cluster's image would be taken for this one's.
        if hello.role is Role.VOTER and hello.cluster_id == self._cluster_id:
            return None
        here = f"this observer follows cluster {self._cluster_id!r}"
        self._tell(voter, f"{hello.role.name} of cluster {hello.cluster_id!r} there, {here}")
        return Refusal(here)

    def _tell(self, voter: int, problem: str) -> None:
        """Log a problem with a voter once, not at every attempt."""
        if self._problems.get(voter) != problem:  # once, not at every attempt
            self._problems[voter] = problem
            logger.warning("observer=%d voter=%d problem=%s", self._node_id, voter, problem)

    async def _pull(self, voter: int, connection: QuorumConnection) -> None:
        leaderless = 0
        while leaderless < LEADERLESS_ANSWERS_MAX:
            await connection.send(ObserverFetch(self._next_index, self._quorum_id))
            answer = await self._answer(connection)  # the long poll: up to ANSWER_SECONDS_MAX
            if answer is None:  # the connection has ended
                return
            if isinstance(answer, Refusal):  # too many guests, say: the next voter may accept
                self._tell(voter, f"refused by them: {answer.reason}")
                return
            await self._take(connection, answer)
            self._problems.pop(voter, None)
            leaderless = leaderless + 1 if _is_leaderless(answer) else 0
        connection.close("it hears no leader: others may")

    async def _answer(self, connection: QuorumConnection) -> AnyMessage | None:
        with trio.move_on_after(ANSWER_SECONDS_MAX):
            return await connection.receive()  # bounded by ANSWER_SECONDS_MAX
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
            if index != self._next_index:  # skipping an entry would make the image differ
                raise RemoteProtocolError(f"entry {index} in place of {self._next_index}")
            apply_entry(self._machine, index, entry)
            own = own_entry(entry)
            if own is not None:  # the first one names the quorum
                self._quorum_id = self._quorum_id or own.disk_id  # as in `membership`
            self._next_index = index + 1
            if index % APPLIED_AT_ONCE == 0:  # a far-behind observer must not block the event loop
                self._publish()
                await trio.lowlevel.checkpoint()  # lets other tasks run
        self._publish()
        await trio.lowlevel.checkpoint()  # at least one for each answer

    async def _load(self, connection: QuorumConnection, offer: ObserverOffer) -> None:
        # As long as the voter sends chunks in time.
        loaded = await self._download.fetch(connection, offer, self._machine)
        if loaded is None:  # the voter has a newer one by now
            return  # the next answer offers a newer one
        info, contents = loaded
        if info.index >= self._next_index:  # never back to an older image
            self._machine.install(info.index, contents.decoded)
            self._next_index, self._quorum_id = info.index + 1, contents.quorum_id
            self._publish()

    def _note_leader(self, answer: ObserverEntries) -> None:
        """Take over the voter's leader, unless it is of an older term: voters learn of an election
        one after the other, and the voter before may have known more.
        """
        leadership = Leadership(answer.term, answer.leader_id, is_leader=False)
        if answer.term >= self._leadership.term and leadership != self._leadership:
            self._leadership = leadership
            self._leadership_changed.set()
            self._leadership_changed = trio.Event()

    def _publish(self) -> None:
        if self._published != self.image.version:  # no-ops and enrolments leave the image as it is
            self._published = self.image.version
            self._changed.set()
            self._changed = trio.Event()

    # MetadataQuorum

    @property
    def image(self) -> MetadataImage:
        return self._machine.image

    @property
    def leadership(self) -> Leadership:
        """The leader that the followed voter reported."""
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
            await self._changed.wait()  # set by `_publish`
        await trio.lowlevel.checkpoint_if_cancelled()
        return self.image

    def delta_since(self, seen: int) -> MetadataDelta:
        return self._machine.changes.since(seen, self.image)

    async def wait_leadership_changed(self, seen: Leadership) -> Leadership:
        while self.leadership == seen:
            await self._leadership_changed.wait()  # set by `_note_leader`
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
# Opens an observer: puts its parts together, and takes them down again.
#
# Owns the order of starting: settings, names, lock, snapshot, image, the task that follows a voter.
# It takes the arguments of `open_quorum`, so that simulations open the same code. The directory
# holds the last downloaded snapshot, and nothing that could not be fetched again.


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
    """Follow the voters while the body runs. Exceptions of the body are raised as they are.

    The settings `timing`, `limits` and `sync` have no effect here.

    Raises:
        InvalidConfig: invalid settings, or a directory with other files, a voter's included;
            none of them was changed.
        DirectoryInUse: another process has the directory.
        CorruptJournal: the snapshot is damaged, or of another cluster.
        StorageError: the disk failed.
    """
    check_settings(settings, is_voter=False)
    files, random = files or OsFiles(), random or SystemRandom()
    # Held as long as the observer is open.
    async with hold_own_directory(files, settings.directory, run_sync):
        store = SnapshotStore(files, settings.directory, cluster_id=settings.cluster_id)
        machine = make_machine()
        # Seconds for a large image, in a thread.
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
        async with open_background() as nursery:  # cancels `run` after the body
            nursery.start_soon(observer.run)
            yield observer


def _load(store: SnapshotStore, machine: MetadataMachine) -> tuple[int, bytes]:
    """In a worker thread: install the newest snapshot, if there is one, in `machine`.

    Returns:
        The next index to fetch, and the id of the quorum whose log that is.
    """
    check_no_journal(store.files, store.directory)
    snapshot = store.newest()
    if snapshot is None:  # a new observer: fetch from the first entry on
        return FIRST_ENTRY, b""
    contents = read_picture(machine, store.read(snapshot))
    machine.install(snapshot.index, contents.decoded)
    return snapshot.index + 1, contents.quorum_id
