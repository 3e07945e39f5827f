"""`process` on a cluster whose coordinators are the real ones, in virtual time.

Logs are lists, as in `tests/unit/client/group/grouped.py`; programs may run on several machines.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from raftmq.client.client import Client
from raftmq.client.dead_letters.letters import read_letter
from raftmq.metadata.commands import FeatureLevel
from raftmq.wire.batch.records import RecordBatch
from tests.simulation.client_network import ClientNetwork
from tests.unit.client.administration.bureau import Bureau
from tests.unit.client.group.grouped import GROUP, MEMBER, grouped, until
from tests.unit.client.producer.shell import NOW_MS
from tests.unit.client.scheduler import deliver_due

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from raftmq.client.consumer.record import ConsumerRecord
    from tests.unit.client.group.grouped import Grouped
    from tests.unit.client.world import World

DEAD, RETRY = f"__dead.{GROUP}", f"__retry.{GROUP}"


def now_ms() -> int:
    return NOW_MS + int(trio.current_time() * 1000)


class Mill:
    """Attributes:
    bureau: makes topics.
    handled: values in the order in which a handler has returned from them.
    begun: values in the order in which a handler got them, as often as it did.
    deaths: values of which a program has died.
    """

    def __init__(self, here: Grouped, bureau: Bureau) -> None:
        self.here, self.bureau = here, bureau
        self.handled: list[str] = []
        self.begun: list[str] = []
        self.deaths: list[str] = []

    @asynccontextmanager
    async def client(self, name: str = "program") -> AsyncIterator[Client]:
        addresses = [broker.address for broker in self.here.world.brokers.values()]
        network = ClientNetwork(self.here.world.network.node(name))
        seed = Random(name)
        async with Client(addresses, network=network, random=seed, now_ms=now_ms) as mq:
            yield mq

    async def send(self, *values: str, partition: int = 0, key: Any = None) -> None:
        async with self.client("sender") as mq, mq.producer() as producer:
            for value in values:
                chosen = key(value) if callable(key) else key
                await producer.enqueue("orders", value, partition=partition, key=chosen)

    async def run(self, handler: Any, name: str = "program", **options: Any) -> None:
        """Until it ends."""

        async def noting(record: ConsumerRecord) -> None:
            self.begun.append(record.text())
            await handler(record)
            self.handled.append(record.text())

        async with self.client(name) as mq:
            await mq.process("orders", handler=noting, **{**MEMBER, **options})

    @asynccontextmanager
    async def running(self, handler: Any, name: str = "program", **options: Any) -> Any:
        """While the block lasts."""
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                await self.run(handler, name, **options)

            nursery.start_soon(run)
            yield
            nursery.cancel_scope.cancel()

    async def live(
        self, name: str, handler: Any, deadly: Callable[[ConsumerRecord], bool], **options: Any
    ) -> None:
        """On a machine of that name, until it is cancelled, or dies: nothing of it is heard any
        more once it has a deadly record.
        """

        async def handle(record: ConsumerRecord) -> None:
            if deadly(record):
                self.deaths.append(record.text())
                self.here.world.network.isolate(name)
                life.cancel()
                await trio.sleep_forever()  # the end of its process
            await handler(record)

        with trio.CancelScope() as life:
            await self.run(handle, name, **options)

    async def live_again(self, handler: Any, deadly: Any, name: str = "w", **options: Any) -> None:
        """As often as it dies, as a supervisor has it; until cancelled."""
        for number in count():
            await self.live(f"{name}{number}", handler, deadly, **options)

    async def until_committed(self, *offsets: int) -> None:
        await until(lambda: [self.here.committed(n) for n in range(len(offsets))] == [*offsets])

    def letters(self) -> list[tuple[str, int, str]]:
        """Of each dead letter the value, the attempts and the error."""
        if DEAD not in self.here.world.topics:
            return []
        batches = self.here.world.topics[DEAD].partitions[0].batches
        found = []
        for one in (RecordBatch.decode(data) for _, _, data in batches):
            for value, headers in zip(one.values, one.headers, strict=True):
                read = read_letter(headers)
                found.append((bytes(value or b"").decode(), read.attempts, read.error))
        return found


@asynccontextmanager
async def mill(partitions: int = 1, *, level: int = FeatureLevel.FIRST) -> AsyncIterator[Mill]:
    """At a level from which crashes are counted the metadata know the topic, too."""
    bureaus: list[Bureau] = []

    def prepare(world: World) -> None:
        bureaus.append(Bureau(world))

    async with grouped(partitions, prepare=prepare, level=level) as here:
        here.nursery.start_soon(deliver_due, here.world, NOW_MS)
        if level >= FeatureLevel.SCHEDULED:
            await here.tell_metadata("orders")
        yield Mill(here, bureaus[0])


def numbers(count: int, start: int = 0) -> list[str]:
    return [f"{number:03}" for number in range(start, start + count)]
