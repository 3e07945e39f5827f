"""Word to one leader of what its followers here hold, as soon as they hold it.

Owns who has something to say; one message says it for all of them. Acknowledgements wait for it, so
it waits neither for the next fetch nor for an answer.

Invariant: nothing is told of a partition before the fetch that asks for what comes after it has
left on the same connection; the leader would not believe it, and not hear it again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NoReturn, Protocol

import trio

from raftmq.errors import RaftmqError
from raftmq.wire.messages.replicate import PartitionProgress, ReplicaProgress

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.broker.followed import Followed
    from raftmq.wire.bodies import Request

PARTITIONS_TOLD_MAX = 5000  # by one message

logger = logging.getLogger(__name__)


class Telling(Protocol):
    """The way to the leaders, see `rpc.peers.Peers`."""

    def send_one_way(self, broker_id: int, body: Request) -> bool: ...


class HeldReports:
    """Says nothing before `open`, nor after `close`."""

    def __init__(self, broker_id: int, leader_id: int, peers: Telling) -> None:
        self._broker_id, self._leader_id, self._peers = broker_id, leader_id, peers
        self._broker_epoch: int | None = None
        self._marked: dict[Followed, None] = {}
        self._woken = trio.Event()

    def open(self, broker_epoch: int) -> None:
        """The leader has answered: there is a connection, and a session."""
        self._broker_epoch = broker_epoch
        self._wake()

    def close(self) -> None:
        self._broker_epoch = None
        self._marked.clear()

    def mark(self, followed: Followed) -> None:
        """It may hold more now."""
        self._marked[followed] = None
        self._wake()

    def on_asked(self, asked: Iterable[Followed]) -> None:
        """A request leaves before this task runs: the leader can be told that much."""
        for followed in asked:
            followed.on_asked()
            if followed.held_to_tell() is not None:
                self.mark(followed)

    def retry(self) -> None:
        """What could not be sent may be by now."""
        self._wake()

    async def run(self) -> NoReturn:
        while True:
            await self._woken.wait()
            self._woken = trio.Event()
            while self._marked and self._broker_epoch is not None:
                if not self._tell(self._broker_epoch):
                    break

    def _wake(self) -> None:
        if self._marked and self._broker_epoch is not None:
            self._woken.set()

    def _tell(self, broker_epoch: int) -> bool:
        """Whether there is any sense in going on."""
        some = list(self._marked)[:PARTITIONS_TOLD_MAX]
        telling = {
            followed: held for followed in some if (held := followed.held_to_tell()) is not None
        }
        if telling and not self._send(broker_epoch, telling):
            return False
        for followed in some:
            del self._marked[followed]
        for followed, held in telling.items():
            followed.told_held = held
        return True

    def _send(self, broker_epoch: int, telling: dict[Followed, int]) -> bool:
        said = tuple(
            PartitionProgress(*followed.key, followed.part.leader_epoch, held)
            for followed, held in telling.items()
        )
        body = ReplicaProgress(self._broker_id, broker_epoch, said)
        try:
            return self._peers.send_one_way(self._leader_id, body)
        except RaftmqError as error:
            logger.warning("progress not sent: leader=%d reason=%s", self._leader_id, error)
            return False
