"""What a broker says of the cluster, asked again and again by somebody who trusts no other one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import trio

from raftmq.errors import RaftmqError
from raftmq.rpc.network import TcpNetwork
from raftmq.rpc.trio_channel import open_channel
from raftmq.wire.messages.hello import Hello
from raftmq.wire.messages.metadata import Metadata

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from raftmq.model import Address
    from raftmq.rpc.channel import Channel
    from raftmq.wire.messages.metadata import MetadataReply

LOOK_SECONDS = 0.05
ANSWER_SECONDS_MAX = 1.0


class View(NamedTuple):
    """Of one topic. `asked_at` is of `time.monotonic`; `leaders` and `isrs` by partition."""

    asked_at: float
    controller_id: int
    brokers: frozenset[int]
    leaders: dict[int, int]
    isrs: dict[int, frozenset[int]]

    def is_led_by(self, nodes: frozenset[int]) -> bool:
        return bool(self.leaders) and nodes.issuperset(self.leaders.values())

    def is_whole(self, nodes: frozenset[int]) -> bool:
        """All are in sync everywhere."""
        return self.is_led_by(nodes) and all(isr == nodes for isr in self.isrs.values())


_BLIND = View(0.0, -1, frozenset(), {}, {})  # nobody leads, as far as one can see


class Watch:
    """Attributes:
    view: None while it does not answer.
    changes: who led what, each from `asked_at` on, until the next one.
    """

    def __init__(self, address: Address, topic: str) -> None:
        self._address, self._topic = address, topic
        self.view: View | None = None
        self.changes: list[View] = []
        self._has_looked = trio.Event()

    def led_at(self, nodes: frozenset[int], *, after: float) -> float | None:
        """From when on every partition was led by one of them; None: not yet."""
        changes = list(self.changes)
        ends = [change.asked_at for change in changes[1:]]
        for change, end in zip(changes, [*ends, float("inf")], strict=True):
            if end > after and change.is_led_by(nodes):
                return max(after, change.asked_at)
        return None

    async def wait_brokers(self, wanted: AbstractSet[int]) -> None:
        """Until that broker has heard that all of these are there."""
        while self.view is None or self.view.brokers != wanted:
            await self._has_looked.wait()

    async def run(self) -> None:
        while True:
            try:
                stream = await TcpNetwork().dial(self._address)
                async with open_channel(stream, Hello(client_id="watch")) as channel:
                    await self._look_on(channel)
            except (RaftmqError, OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                self.view = None
                if self.changes and self.changes[-1].leaders:
                    self.changes.append(_BLIND._replace(asked_at=time.monotonic()))
            await trio.sleep(LOOK_SECONDS)

    async def _look_on(self, channel: Channel) -> None:
        while True:
            asked_at, question = time.monotonic(), Metadata((self._topic,))
            answer = await channel.request(question, timeout_seconds=ANSWER_SECONDS_MAX)
            self.view = view = _view_of(answer.body, asked_at)
            if not self.changes or self.changes[-1].leaders != view.leaders:
                self.changes.append(view)
            self._has_looked.set()
            self._has_looked = trio.Event()
            await trio.sleep(LOOK_SECONDS)


def _view_of(reply: MetadataReply, asked_at: float) -> View:
    partitions = [partition for topic in reply.topics for partition in topic.partitions]
    return View(
        asked_at,
        reply.controller_id,
        frozenset(broker.broker_id for broker in reply.brokers),
        {one.partition: one.leader for one in partitions},
        {one.partition: frozenset(one.isr) for one in partitions},
    )
