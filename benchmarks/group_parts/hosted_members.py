"""The members of groups in this process: they join, read, tell what happens to them, and leave."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.client.client import Client
    from raftmq.client.consumer.consumer import Consumer
    from raftmq.client.group.effects import Rebalance


class Hosted:
    """Attributes:
    scope: of its reading; cancelled, the member leaves in order.
    """

    def __init__(self, consumer: Consumer) -> None:
        self.consumer, self.scope = consumer, trio.CancelScope()
        self.has_left = trio.Event()


class HostedMembers:
    """By name. `tell` is for events."""

    def __init__(self, client: Client, nursery: trio.Nursery, tell: Callable[..., None]) -> None:
        self._client, self._nursery, self._tell = client, nursery, tell
        self._members: dict[str, Hosted] = {}

    def consumers(self) -> list[Consumer]:
        return [member.consumer for member in self._members.values()]

    # -- what can be asked -----------------------------------------------------------------

    async def join(
        self, names: list[str], topic: str, *, reads: bool, options: dict[str, Any]
    ) -> dict[str, Any]:
        """Each in the group that `options` name. Returns once their consumers are open.

        `reads`: ask for records all the time; without, somebody else does.
        """
        async with trio.open_nursery() as starting:
            for name in names:
                run = partial(self._run, name, topic, reads, options)
                starting.start_soon(self._nursery.start, run)
        return {}

    async def leave(self, names: list[str]) -> dict[str, Any]:
        """When it began."""
        at = time.monotonic()
        members = [self._members[name] for name in names]
        for member in members:
            member.scope.cancel()
        for member in members:
            await member.has_left.wait()
        return {"at": at}

    async def session_end(self, name: str) -> dict[str, Any]:
        """When the coordinator puts it out if it is silent from now on; told to nobody else."""
        participation = self._members[name].consumer._group("session_end")._member
        left_seconds = participation.membership.held_until - trio.current_time()
        return {"at": time.monotonic() + left_seconds}

    # -- one member ------------------------------------------------------------------------

    async def _run(
        self,
        name: str,
        topic: str,
        reads: bool,
        options: dict[str, Any],
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        on_rebalance = partial(self._on_rebalance, name)
        async with self._client.consumer(
            topic, start="earliest", commit="manual", on_rebalance=on_rebalance, **options
        ) as consumer:
            member = self._members[name] = Hosted(consumer)
            task_status.started()
            with member.scope:
                if reads:
                    await self._read(name, consumer)
                await trio.sleep_forever()
        del self._members[name]
        member.has_left.set()

    async def _read(self, name: str, consumer: Consumer) -> None:
        """Nothing is committed, so that each new owner is handed out each record."""
        async for record in consumer:
            self._tell(event="record", member=name, partition=record.partition, at=time.monotonic())

    def _on_rebalance(self, name: str, rebalance: Rebalance) -> None:
        self._tell(
            event="rebalance",
            member=name,
            assigned=[partition for _, partition in rebalance.assigned],
            gone=[partition for _, partition in (*rebalance.revoked, *rebalance.lost)],
            at=time.monotonic(),
        )
