"""A snapshot on its way to an observer: one request at a time over its own connection.

Owns the order of requests and the place on disk; a voter's transfer, which survives changes of
leader, is in `snapshot_transfer`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from raftmq.errors import RemoteProtocolError
from raftmq.metadata.raft.messages import SnapshotChunk, SnapshotFetch, SnapshotGone
from raftmq.metadata.raft.picture import read_picture
from raftmq.metadata.raft.snapshot_transfer import SnapshotId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from raftmq.metadata.raft.connection import Connection
    from raftmq.metadata.raft.messages import ObserverOffer
    from raftmq.metadata.raft.picture import Picture
    from raftmq.metadata.raft.snapshots import SnapshotInfo, SnapshotStore
    from raftmq.metadata.raft.state_machine import StateMachine

CHUNK_SECONDS_MAX = 30.0


class SnapshotDownload:
    """Into `store`; what was fetched before a connection broke is not fetched again."""

    def __init__(
        self, store: SnapshotStore, *, run_sync: Callable[[Callable[[], Any]], Awaitable[Any]]
    ) -> None:
        self._store, self._run_sync = store, run_sync

    async def fetch(
        self, connection: Connection, offer: ObserverOffer, machine: StateMachine
    ) -> tuple[SnapshotInfo, Picture] | None:
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
        self, connection: Connection, snapshot: SnapshotId, offset: int
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
