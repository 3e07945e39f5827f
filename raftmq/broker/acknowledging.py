"""One request that waits until what it appended is held: the last acknowledgement answers it.

Owns the waiting. No task of its own does so, as thousands of requests may wait.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from raftmq.rpc.reply import PendingReply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from raftmq.errors import RaftmqError
    from raftmq.partition.acknowledgements import Waiter
    from raftmq.partition.replica import Replica
    from raftmq.rpc.reply import Reply


class Awaited(Protocol):
    """In a log, and perhaps not held by enough replicas yet."""

    @property
    def replica(self) -> Replica: ...
    @property
    def leader_epoch(self) -> int:
        """In which it was appended."""

    @property
    def end_offset(self) -> int: ...


class Acknowledging:
    """`answer` is given the errors, by place in the request; whatever has none is held as `acks`
    demands.

    Attributes:
        pending: the answer.
    """

    def __init__(
        self,
        awaited: Iterable[tuple[int, Awaited]],
        answer: Callable[[dict[int, RaftmqError]], Reply],
        *,
        acks: int,
        deadline: float,
    ) -> None:
        self.pending = PendingReply(self._abandon)
        self._answer = answer
        self._errors: dict[int, RaftmqError] = {}
        self._waiters: list[Waiter] = []
        self._missing = 1  # whoever is told at once does not answer before all have been asked
        for at, one in awaited:
            self._wait(at, one, acks, deadline)
        self._count_down()

    def _wait(self, at: int, one: Awaited, acks: int, deadline: float) -> None:
        self._missing += 1
        waiter = one.replica.on_acks(
            one.end_offset,
            partial(self._on_end, at),
            acks=acks,
            leader_epoch=one.leader_epoch,
            deadline=deadline,
        )
        if waiter is not None:
            self._waiters.append(waiter)

    def _on_end(self, at: int, error: RaftmqError | None) -> None:
        if error is not None:
            self._errors[at] = error
        self._count_down()

    def _count_down(self) -> None:
        self._missing -= 1
        if not self._missing:
            self.pending.settle(self._answer(self._errors))

    def _abandon(self) -> None:
        for waiter in self._waiters:
            waiter.abandon()
