"""Progress reports to one leader: how far its followers here hold the log, as soon as they do.

Owns which partitions have something to report; one message carries all of them: a fetch that is
about to leave, or else a ReplicaProgress. Acknowledgements wait for it, so it is never delayed.

Invariant: nothing is reported about a partition before the fetch that asks for what comes after it
on the same connection; the leader would not believe it, and it would not be reported again.
Nothing at all is reported of replicas in a copy lane: a leader would wait for them (decision 0044).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NoReturn

import trio

from raftmq.errors import RaftmqError
from raftmq.wire.messages.replicate import PartitionProgress, ReplicaProgress

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.broker.replication.followed_partition import FollowedPartition
    from raftmq.rpc.peers import Peers

PARTITIONS_TOLD_MAX = 5000  # of one message, which must fit into `header_bytes_max`

logger = logging.getLogger("raftmq.broker")


class ProgressReports:
    """Reports nothing before `open` and after `close`.

    Attributes:
        is_held_back: the present step calls `tell` at its end, so no task needs to be woken.
    """

    def __init__(
        self, broker_id: int, leader_id: int, peers: Peers, *, is_silent: bool = False
    ) -> None:
        """`is_silent`: of a copy lane."""
        self._broker_id, self._leader_id, self._peers = broker_id, leader_id, peers
        self._is_silent = is_silent
        self._broker_epoch: int | None = None
        self._marked: dict[FollowedPartition, None] = {}
        self.is_held_back = False
        self._woken = trio.Event()

    def open(self, broker_epoch: int) -> None:
        """The leader has answered: there is a connection and a session."""
        self._broker_epoch = broker_epoch
        if not self.is_held_back:
            self._wake()

    def close(self) -> None:
        self._broker_epoch = None
        self._marked.clear()

    def mark(self, followed: FollowedPartition) -> None:
        """The follower may hold more than was reported."""
        if self._is_silent:
            return
        self._marked[followed] = None
        if not self.is_held_back:
            self._wake()

    def on_asking(self, asked: Iterable[FollowedPartition]) -> tuple[PartitionProgress, ...]:
        """A fetch is about to leave: returns the progress that travels with it."""
        if self._is_silent:
            return ()
        for followed in asked:
            followed.on_asked()
            self._marked[followed] = None  # what it holds may travel with this fetch
        # No session yet: the leader would refuse it, and the marks stay.
        if self._broker_epoch is None:
            return ()
        some, telling = self._gather()
        self._note_told(some, telling)
        return _said(telling)

    async def run(self) -> NoReturn:
        while True:
            # Until a follower is marked outside of a step, such as after a flush.
            await self._woken.wait()
            self._woken = trio.Event()
            self.tell()

    def tell(self) -> None:
        """Report everything that is marked."""
        while self._marked and self._broker_epoch is not None:
            if not self._report_some(
                self._broker_epoch
            ):  # no room on the connection: the marks stay
                break

    def _wake(self) -> None:
        # Nothing to report, or no session.
        if self._marked and self._broker_epoch is not None:
            self._woken.set()

    def _report_some(self, broker_epoch: int) -> bool:
        """False if nothing can be sent now."""
        some, telling = self._gather()
        # The connection is full or gone: the marks stay for the next step or session.
        if telling and not self._send(broker_epoch, telling):
            return False
        self._note_told(some, telling)
        return True

    def _gather(self) -> tuple[list[FollowedPartition], dict[FollowedPartition, int]]:
        some = list(self._marked)[:PARTITIONS_TOLD_MAX]
        held = {followed: followed.held_to_tell() for followed in some}
        return some, {followed: end for followed, end in held.items() if end is not None}

    def _note_told(
        self, some: list[FollowedPartition], telling: dict[FollowedPartition, int]
    ) -> None:
        for followed in some:
            del self._marked[followed]
        for followed, held in telling.items():
            followed.told_held = held

    def _send(self, broker_epoch: int, telling: dict[FollowedPartition, int]) -> bool:
        body = ReplicaProgress(self._broker_id, broker_epoch, _said(telling))
        try:
            return self._peers.send_one_way(self._leader_id, body)
        except RaftmqError as error:  # an older leader, for example; the next session reports again
            logger.warning("progress not sent: leader=%d reason=%s", self._leader_id, error)
            return False


def _said(telling: dict[FollowedPartition, int]) -> tuple[PartitionProgress, ...]:
    return tuple(
        PartitionProgress(*followed.key, followed.part.leader_epoch, held)
        for followed, held in telling.items()
    )
