"""Word to the controller of replicas that cannot be used, until it has taken it.

Owns what is to be told: many partitions by one command, again and again, under whatever
registration holds by then. Whoever tells waits until the answer is there: from that version of the
metadata on the replica leads nothing that another one can lead, and is in no in-sync set, unless it
has lost nothing and may have to lead. Who gives up waiting has nothing to tell any more.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NoReturn, Protocol

import trio

from raftmq.errors import RaftmqError
from raftmq.metadata.commands import NO_EPOCH, Done, Loss, ReportDamage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from raftmq.metadata.commands import AnyCommand, AnyResult
    from raftmq.partition.around import PartitionKey

TOLD_MAX = 500  # partitions of one command: it blocks every node while it is applied
PAUSE_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Link(Protocol):
    async def propose(self, command: AnyCommand) -> AnyResult:
        """On whichever node leads the quorum; raises RaftmqError."""


class DamageReports:
    """Tells nothing before `run`."""

    def __init__(
        self,
        broker_id: int,
        link: Link,
        *,
        broker_epoch: Callable[[], int],
        catch_up: Callable[[], Awaitable[None]],
    ) -> None:
        """`catch_up()` returns once this node's image shows what was applied before the call."""
        self._broker_id, self._link, self._broker_epoch = broker_id, link, broker_epoch
        self._catch_up = catch_up
        self._waiting: dict[tuple[Loss, PartitionKey], trio.Event] = {}
        self._woken = trio.Event()

    async def tell(self, key: PartitionKey, loss: Loss) -> None:
        """Return once the quorum has applied it, and this node's image shows that."""
        told = self._waiting.setdefault((loss, key), trio.Event())
        self._woken.set()
        try:
            await told.wait()
        finally:
            if not told.statistics().tasks_waiting:
                self._forget(key, loss, told)

    def _forget(self, key: PartitionKey, loss: Loss, told: trio.Event) -> None:
        """The same may have been said anew since: that is told by another command."""
        if self._waiting.get((loss, key)) is told:
            del self._waiting[loss, key]

    async def run(self) -> NoReturn:
        while True:
            await self._woken.wait()
            self._woken = trio.Event()
            while self._waiting:
                problem = await self._tell_some()
                if problem:
                    logger.warning("damage not reported yet: reason=%s", problem)
                    await trio.sleep(PAUSE_SECONDS)

    async def _until_caught_up(self) -> None:
        """An image from before the report may name a leader that has been replaced."""
        while True:
            try:
                await self._catch_up()
            except RaftmqError as error:
                logger.warning("not known what became of a report: reason=%s", error)
                await trio.sleep(PAUSE_SECONDS)
            else:
                return

    async def _tell_some(self) -> str:
        """What is the matter; empty: it was applied. The gravest first."""
        loss = max(loss for loss, _ in self._waiting)
        keys = sorted(key for other, key in self._waiting if other is loss)[:TOLD_MAX]
        broker_epoch = self._broker_epoch()
        if broker_epoch == NO_EPOCH:
            return "this broker is not registered"
        command = ReportDamage(self._broker_id, broker_epoch, tuple(keys), loss)
        told = [self._waiting[loss, key] for key in keys]
        try:
            result = await self._link.propose(command)
        except RaftmqError as error:
            return str(error)
        if not isinstance(result, Done):
            return f"{result}"  # registered anew meanwhile: again, under that epoch
        await self._until_caught_up()
        for key, event in zip(keys, told, strict=True):
            self._forget(key, loss, event)
            event.set()
        return ""
