"""The one task that moves a voter: messages in, a tick, the journal to disk, messages out.

Owns the order that everything rests on:

    inbox -> guard -> engine -> journal.prepare ─ worker: write, fdatasync ─ complete -> flush
               proposals ──┘        (more of both pile up meanwhile: group commit)

Nothing that depends on the journal leaves before it is synced: not a vote, not an entry, not an
answer. A journal that cannot be written ends the task, and with it the node.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import trio

from raftmq.errors import RemoteProtocolError, StorageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from raftmq.metadata.raft.journal import Journal
    from raftmq.metadata.raft.messages import AnyMessage
    from raftmq.metadata.raft.node import RaftNode
    from raftmq.metadata.raft.snapshotter import Snapshotter
    from raftmq.metadata.raft.transport import Transport

logger = logging.getLogger(__name__)


class Driver:
    """Attributes:
    on_turn: called in order after every turn, when what it changed is durable.
    """

    def __init__(
        self,
        node: RaftNode,
        journal: Journal,
        transport: Transport[Any],
        snapshotter: Snapshotter,
        *,
        write_journal: Callable[[Callable[[], None]], Awaitable[None]],
        run_sync: Callable[[Callable[[], None]], Awaitable[None]],
        tick_seconds: float,
        stuck_seconds: float,
    ) -> None:
        self._node, self._journal, self._transport = node, journal, transport
        self._snapshotter = snapshotter
        self._write_journal, self._run_sync = write_journal, run_sync
        self._tick_seconds, self._stuck_seconds = tick_seconds, stuck_seconds
        self._turn_began = trio.current_time()
        self._event, self._removals = trio.Event(), trio.Event()
        self._error: Exception | None = None
        self.on_turn: list[Callable[[], None]] = []

    def wake(self) -> None:
        """There is something to do before the next tick."""
        self._event.set()

    def fail(self, error: Exception) -> None:
        """This voter must not go on: end its task with `error`, in the next turn."""
        self._error = error
        self.wake()

    @property
    def is_stuck(self) -> bool:
        """Whether the turn that runs has waited for the disk so long that nobody follows us."""
        return trio.current_time() - self._turn_began > self._stuck_seconds

    async def run(self) -> None:
        while True:
            await self._wait()
            self._turn_began = trio.current_time()
            if self._error is not None:
                raise self._error
            self._snapshotter.maybe_install()
            self._take_messages()
            self._node.maybe_establish()
            self._node.tick()
            self._snapshotter.maybe_take()
            await self._sync()
            self._node.after_sync()
            self._transport.flush()
            for tell in self.on_turn:
                tell()
            if self._journal.has_removals:
                self._removals.set()

    async def _wait(self) -> None:
        """Until there is work, or the clock wants a tick. Always lets others run."""
        if self._node.has_work:
            self._event.set()
        with trio.move_on_after(self._node.seconds_to_wake(self._tick_seconds)):
            await self._event.wait()
        self._event = trio.Event()

    def _take_messages(self) -> None:
        for peer, message in self._transport.take_inbox():
            try:
                self._receive(peer, message)
            except RemoteProtocolError as error:
                logger.warning("peer=%s event=protocol_error error=%s", peer, error)
                self._transport.disconnect(peer, str(error))

    def _receive(self, peer: int, message: AnyMessage) -> None:
        if self._transport.is_connected(peer) and not self._snapshotter.take_message(peer, message):
            self._node.receive(peer, message)

    async def _sync(self) -> None:
        batch = self._journal.prepare()
        if batch is not None:
            began = trio.current_time()
            await self._write_journal(batch.write)
            self._node.on_synced(trio.current_time() - began)
            self._journal.complete(batch)

    async def remove_segments(self) -> None:
        """A task beside `run`: no turn waits for segments that nothing needs any more."""
        while True:
            await self._removals.wait()
            self._removals = trio.Event()
            removal = self._journal.prepare_removal()
            if removal is not None:
                try:
                    await self._run_sync(removal.run)
                except StorageError as error:  # they stay; the next start tries again
                    logger.warning("event=segments_left error=%s", error)
                    return
                self._journal.removed(removal)
