"""Snapshots of a running voter: takes, sends, receives and installs them.

Owns the tasks that wait for the disk, so that the driver never does; the rules of a transfer are in
`transfer`. The node is changed only within the driver's turn (`maybe_take`, `maybe_install`), never
during a tick.
"""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import trio

from raftmq.errors import RemoteProtocolError, StorageError
from raftmq.metadata.raft.net.messages import (
    SnapshotChunk,
    SnapshotFetch,
    SnapshotGone,
    SnapshotOffer,
)
from raftmq.metadata.raft.snapshot.contents import read_picture, take_picture
from raftmq.metadata.raft.snapshot.transfer import (
    Discard,
    FetchChunk,
    Finish,
    Install,
    SendChunk,
    SnapshotId,
    SnapshotReceiver,
    SnapshotSender,
    WriteChunk,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from raftmq.disk.thread import RunSync
    from raftmq.metadata.raft.engine.node import RaftNode
    from raftmq.metadata.raft.engine.timing import QuorumLimits
    from raftmq.metadata.raft.net.messages import AnyMessage
    from raftmq.metadata.raft.snapshot.contents import SnapshotContents
    from raftmq.metadata.raft.snapshot.store import SnapshotInfo, SnapshotReader, SnapshotStore
    from raftmq.metadata.raft.snapshot.transfer import ReceiverEffect

# Back-off after a snapshot that could not be written: each attempt writes the whole image, and
# nothing is lost by waiting, as the journal keeps every entry meanwhile.
RETRY_SECONDS = 10.0
RECEIVER_TICK_SECONDS = 0.5  # period of timeout checks; the timeouts are of seconds

logger = logging.getLogger("raftmq.metadata")


class _Due(NamedTuple):
    """A snapshot to be written, of all entries up to `last_index`."""

    last_index: int
    last_term: int
    slices: Callable[[], Iterator[bytes]]


class _Decoded(NamedTuple):
    """A received and decoded snapshot that waits for the driver's next turn."""

    info: SnapshotInfo
    contents: SnapshotContents
    done: trio.Event


class Snapshotter:
    """One for each voter; `run` it beside the driver."""

    def __init__(
        self,
        node: RaftNode,
        store: SnapshotStore,
        newest: SnapshotInfo | None,
        *,
        send: Callable[[int, AnyMessage], bool],
        wake: Callable[[], None],
        run_sync: RunSync,
        clock: Callable[[], float],
        limits: QuorumLimits,
    ) -> None:
        self._node, self._store, self._limits = node, store, limits
        self._send, self._wake, self._run_sync, self._clock = send, wake, run_sync, clock
        self._sender, self._receiver = SnapshotSender(), SnapshotReceiver()
        self._readers: dict[SnapshotId, SnapshotReader] = {}
        self._queued: set[tuple[int, SnapshotId, int]] = set()  # peer, snapshot, offset
        self._due: _Due | None = None
        self._is_due = trio.Event()
        self._retry_at = -math.inf
        self._decoded: _Decoded | None = None
        # Unbounded channels are safe: `_queued` holds each request once, and the receiver has at
        # most two chunks in flight or to be written.
        self._requests = trio.open_memory_channel[SendChunk](math.inf)
        self._effects = trio.open_memory_channel["ReceiverEffect"](math.inf)
        self._newest_at_start = newest
        if newest:
            node.replication.snapshot = newest.id  # offered from now on, before `run` opens it

    async def run(self) -> None:
        if self._newest_at_start is not None:  # open it for sending before peers ask
            await self._publish(self._newest_at_start)
        # Until cancelled, or until one fails: then the voter stops.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._take_snapshots)
            nursery.start_soon(self._answer_requests)
            nursery.start_soon(self._perform_effects)
            nursery.start_soon(self._tick)

    # Called by the driver, in its turn

    def maybe_take(self) -> None:
        """Begin a snapshot of what is applied now, if enough was applied since the last one."""
        node, limits = self._node, self._limits
        is_enough = (
            node.applied_since_snapshot >= limits.snapshot_entries
            or node.applied_bytes_since_snapshot >= limits.snapshot_bytes
        )
        # One at a time, and not at once again after a failure.
        if is_enough and self._due is None and self._clock() >= self._retry_at:
            index = node.last_applied
            slices = take_picture(node.machine, node.membership.enrolled, node.membership.quorum_id)
            self._due = _Due(index, node.term_at(index), slices)
            node.applied_since_snapshot = node.applied_bytes_since_snapshot = 0
            self._is_due.set()

    def maybe_install(self) -> None:
        """Install the received snapshot, unless this node has applied more meanwhile."""
        if self._decoded is None:  # no snapshot was received
            return
        (info, contents, done), self._decoded = self._decoded, None
        if info.index > self._node.last_applied:  # else entries have overtaken the snapshot
            self._node.install_snapshot(info.index, info.term, contents)
            self._node.replication.snapshot = info.id  # its log may begin behind older ones
            logger.info("node=%d index=%d event=installed", self._node.node_id, info.index)
        done.set()

    def take_message(self, peer: int, message: AnyMessage) -> bool:
        """Handle a message about snapshots; False for others. RemoteProtocolError as in `Guard`."""
        match message:
            case SnapshotFetch():
                self._on_fetch(peer, message)
            case SnapshotChunk():
                snapshot = _id_of(message)
                now = self._clock()
                self._perform(self._receiver.on_chunk(snapshot, message.offset, message.data, now))
            case SnapshotGone():
                self._receiver.on_gone(peer, _id_of(message))
            case _:
                return False
        return True

    # Taking

    async def _take_snapshots(self) -> None:
        while True:  # one snapshot at a time
            await self._is_due.wait()  # set by `maybe_take` in the driver's turn
            self._is_due = trio.Event()
            assert self._due is not None
            await self._take(self._due)  # until written and synced
            self._due = None

    async def _take(self, due: _Due) -> None:
        write = partial(
            self._store.write, index=due.last_index, term=due.last_term, slices=due.slices()
        )
        try:
            info = await self._run_sync(write)  # seconds for a large image, in a thread
            # A received one may have replaced it meanwhile: `_install` publishes that.
            if info.index == due.last_index:
                await self._publish(info)
        except StorageError as error:  # a full disk does not stop the voter: it tries again later
            logger.error("node=%d event=snapshot_failed error=%s", self._node.node_id, error)
            self._retry_at = self._clock() + RETRY_SECONDS
            self._node.applied_since_snapshot += self._limits.snapshot_entries  # due after that

    async def _publish(self, info: SnapshotInfo) -> None:
        """The snapshot is durable and applied: offer it to peers, and compact the log below it."""
        reader = await self._run_sync(partial(self._store.open_reader, info))
        if reader is not None:  # else a newer one has replaced it
            self._offer_from(reader)
            self._node.on_snapshot(info.id, trailing=self._limits.trailing_entries)
            self._wake()

    def _offer_from(self, reader: SnapshotReader) -> None:
        self._readers[reader.info.id] = reader
        for closed in self._sender.on_newest(reader.info.id, self._clock()):
            del self._readers[closed.snapshot]

    # Sending

    def _on_fetch(self, peer: int, message: SnapshotFetch) -> None:
        snapshot = _id_of(message)
        answer = self._sender.on_fetch(peer, snapshot, message.offset, self._clock())
        if not isinstance(answer, SendChunk):  # a snapshot that is not open any more
            self._send(peer, _gone(snapshot))
            return
        request = (peer, snapshot, message.offset)
        if request not in self._queued:  # while the disk is slow, the peer repeats its request
            self._queued.add(request)
            self._requests[0].send_nowait(answer)

    async def _answer_requests(self) -> None:
        async for request in self._requests[1]:  # ends only by cancellation
            self._send(request.peer, await self._read(request))
            self._queued.discard((request.peer, request.snapshot, request.offset))
            self._wake()

    async def read_chunk(self, guest: int, message: SnapshotFetch) -> AnyMessage:
        """For an observer. Its id is made negative for the sender: any process may claim the id of
        a voter here, and must not touch that voter's transfer.
        """
        snapshot = _id_of(message)
        answer = self._sender.on_fetch(-1 - guest, snapshot, message.offset, self._clock())
        return await self._read(answer) if isinstance(answer, SendChunk) else _gone(snapshot)

    def offer_to(self, guest: int) -> SnapshotId | None:
        return self._sender.offer(-1 - guest, self._clock())

    async def _read(self, request: SendChunk) -> AnyMessage:
        reader, snapshot = self._readers.get(request.snapshot), request.snapshot
        if reader is None:  # closed while the request was waiting
            return _gone(snapshot)
        # In a thread: reads up to 1 MiB.
        data = await self._run_sync(lambda: reader.read(request.offset, request.length))
        return SnapshotChunk(
            snapshot.index, snapshot.term, snapshot.size_bytes, snapshot.crc, request.offset, data
        )

    # Fetching

    def on_offer(self, peer: int, offer: SnapshotOffer) -> None:
        """Raises RemoteProtocolError: there can be no such snapshot."""
        now, snapshot = self._clock(), _id_of(offer)
        self._perform(self._receiver.on_caught_up(self._node.commit_index))
        self._perform(self._receiver.on_offer(offer.term, peer, snapshot, now))

    def _perform(self, effects: list[ReceiverEffect]) -> None:
        """Requests are sent at once; disk operations are queued, and performed one at a time."""
        for effect in effects:
            if isinstance(effect, FetchChunk):  # sending needs no disk
                snapshot = effect.snapshot
                fetch = SnapshotFetch(
                    snapshot.index, snapshot.term, snapshot.size_bytes, snapshot.crc, effect.offset
                )
                self._send(effect.leader, fetch)
            else:
                self._effects[0].send_nowait(effect)

    async def _perform_effects(self) -> None:
        async for effect in self._effects[1]:  # ends only by cancellation
            match effect:
                case WriteChunk():
                    # Until written: the receiver then requests the next chunk.
                    await self._write_chunk(effect)
                case Finish():
                    await self._finish(effect)  # until the whole file is verified and synced
                case Install():
                    await self._install(effect)  # until the driver has installed it
                case Discard():
                    await self._run_sync(self._store.discard_incoming)
            self._wake()

    async def _write_chunk(self, effect: WriteChunk) -> None:
        def write() -> None:
            self._store.incoming(effect.snapshot).write(effect.offset, effect.data)

        try:
            await self._run_sync(write)
        except StorageError as error:  # the receiver begins again after a pause
            self._on_failure(effect.snapshot, error)
        else:
            self._perform(self._receiver.on_written(effect.snapshot, self._clock()))

    async def _finish(self, effect: Finish) -> None:
        def finish() -> SnapshotInfo:
            return self._store.incoming(effect.snapshot).finish()

        try:
            await self._run_sync(finish)
        except (StorageError, RemoteProtocolError) as error:
            self._on_failure(effect.snapshot, error)
        else:
            self._perform(self._receiver.on_verified(effect.snapshot))

    async def _install(self, effect: Install) -> None:
        """Install the newest snapshot: this node's own may be newer than the received one."""
        # Seconds for a large image, in a thread. An error ends the voter, unlike one before: the
        # file is in its place, and the next start would begin with it.
        info, contents = await self._run_sync(self._read_newest)
        decoded = self._decoded = _Decoded(info, contents, trio.Event())
        self._wake()
        await decoded.done.wait()  # until `maybe_install`, in the driver's next turn
        await self._publish(info)
        self._receiver.on_installed(effect.snapshot)

    def _read_newest(self) -> tuple[SnapshotInfo, SnapshotContents]:
        """In a worker thread, while another one may replace the file by a newer snapshot."""
        while True:
            info = self._store.newest_info()
            try:
                return info, read_picture(self._node.machine, self._store.read(info))
            except StorageError:  # if it was replaced meanwhile, its file is gone: read the new one
                if info == self._store.newest_info():
                    raise

    def _on_failure(self, snapshot: SnapshotId, error: Exception) -> None:
        logger.error("node=%d event=fetch_failed error=%s", self._node.node_id, error)
        self._perform(self._receiver.on_failed(snapshot, self._clock()))

    async def _tick(self) -> None:
        """Repeat requests that were not answered; close readers of old snapshots without use."""
        while True:
            await trio.sleep(RECEIVER_TICK_SECONDS)
            self._perform(self._receiver.on_caught_up(self._node.commit_index))
            self._perform(self._receiver.on_tick(self._clock()))
            for closed in self._sender.on_tick(self._clock()):
                del self._readers[closed.snapshot]


def _id_of(message: SnapshotOffer | SnapshotFetch | SnapshotChunk | SnapshotGone) -> SnapshotId:
    return SnapshotId(message.index, message.snapshot_term, message.size_bytes, message.crc)


def _gone(snapshot: SnapshotId) -> SnapshotGone:
    return SnapshotGone(snapshot.index, snapshot.term, snapshot.size_bytes, snapshot.crc)
