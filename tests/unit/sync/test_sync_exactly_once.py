"""`raftmq.sync.exactly_once`: the program's thread transforms, the loop commits (A11.3)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import trio

from raftmq.client.client import Client as AsyncClient
from raftmq.client.consumer.consumer import Consumer as AsyncConsumer
from raftmq.errors import InvalidConfig, InvalidTransaction
from raftmq.model import AbortReason
from raftmq.sync.client import Client
from raftmq.sync.consumer import Consumer
from raftmq.sync.exactly_once import exactly_once
from tests.simulation.client_network import ClientNetwork
from tests.unit.client.group.grouped import GROUP, MEMBER, grouped, until
from tests.unit.client.producer.shell import NOW_MS
from tests.unit.client.transactions.coordinator import Coordinator, committed_in
from tests.unit.sync.loop_here import LoopHere, threaded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from raftmq.client.consumer.batch import AnyBatch
    from tests.unit.client.group.grouped import Grouped

INPUT = [f"{number:02}" for number in range(20)]


class EnoughError(KeyboardInterrupt):
    """Ends the program's thread, as Ctrl-C does."""


class Plant(NamedTuple):
    here: Grouped
    coordinator: Coordinator
    loop: LoopHere
    mq: Client
    consumer: Consumer

    def results(self) -> list[str]:
        return committed_in(self.coordinator, self.here.world, topic="results")

    def abort_all(self) -> None:
        """As an operator does."""
        for row in self.coordinator.rows.values():
            self.coordinator.decide(row, is_committed=False, reason=AbortReason.OPERATOR)

    def maybe_end(self) -> None:
        """In the program's thread, once all results are there."""
        if self.loop.ask(lambda: sorted(self.results()) == INPUT):
            raise EnoughError

    async def run(self, transform: Any) -> None:
        """Until all results are there, and one record more has come."""

        def program() -> None:
            with pytest.raises(EnoughError):
                exactly_once(self.mq, self.consumer, transform, max_records=3)

        async def wake() -> None:
            await until(lambda: sorted(self.results()) == INPUT)
            await trio.sleep(1)
            self.here.append(0, "99")

        async with trio.open_nursery() as tasks:
            tasks.start_soon(wake)
            await self.loop.run(program)
        assert sorted(self.results()) == INPUT


@asynccontextmanager
async def plant() -> AsyncIterator[Plant]:
    coordinator = Coordinator()
    async with (
        grouped(2, prepare=coordinator.install, results=1) as here,
        here.connected("reader") as cluster,
        trio.open_nursery() as nursery,
    ):
        addresses = [broker.address for broker in here.world.brokers.values()]
        network = ClientNetwork(here.world.network.node("program"))
        inner = AsyncClient(addresses, network=network, random=Random(1), now_ms=lambda: NOW_MS)
        options = {**MEMBER, "delivery": "exactly_once"}
        reader = AsyncConsumer(cluster, ("orders",), options, random=Random(2))
        loop = LoopHere(nursery)
        async with inner:
            mq = Client(inner)
            mq._loop = loop
            for number, value in enumerate(INPUT):
                here.append(number % 2, value)
            yield Plant(here, coordinator, loop, mq, Consumer(loop, reader, set()))
        nursery.cancel_scope.cancel()


async def test_each_record_has_one_result(autojump_clock: MockClock) -> None:
    """With every call that a transaction has; some are ended by an operator while they are on, and
    come again. Ctrl-C ends it, and commits nothing that is not done."""
    async with plant() as here:
        random = Random(4)

        def transform(batch: AnyBatch, tx: Any) -> None:
            here.maybe_end()
            values = list(batch.values)
            tx.send("results", values[0])
            tx.send_many("results", iter(values[1:2]))
            for value in values[2:]:
                tx.enqueue("results", value)
            if random.random() < 0.3:
                here.loop.ask(here.abort_all)

        await here.run(transform)
        assert here.coordinator.offsets == {GROUP: {0: 10, 1: 10}}
        assert not all(here.coordinator.decided.values())


async def test_a_transform_that_goes_on_in_vain(autojump_clock: MockClock) -> None:
    """The transaction before was aborted while it works: what it sends then is refused, and all
    comes again."""
    async with plant() as here:
        refused, seen = list[InvalidTransaction](), list[bytes]()

        def transform(batch: AnyBatch, tx: Any) -> None:
            here.maybe_end()
            seen.append(batch.values[0])
            try:
                if len(seen) == 2:
                    here.loop.sleep(30)  # meanwhile the end of the first is answered
                    tx.enqueue("results", "never")
                for value in batch.values:
                    tx.enqueue("results", value)
            except InvalidTransaction as error:
                refused.append(error)
                raise
            if len(seen) == 1:
                here.loop.ask(here.abort_all)

        await here.run(transform)
        assert len(refused) == 1


async def test_errors_of_the_program(autojump_clock: MockClock) -> None:
    """Of `transform`, at its last attempt, with where it was; and bad arguments."""
    async with plant() as here:

        def transform(batch: AnyBatch, tx: Any) -> None:
            raise ValueError("none of these")

        async def other(batch: AnyBatch, tx: Any) -> None:
            pass

        def program() -> None:
            with pytest.raises(InvalidConfig, match="no `async def`"):
                exactly_once(here.mq, here.consumer, other)
            with pytest.raises(InvalidConfig, match="max_records"):
                exactly_once(here.mq, here.consumer, transform, max_records=0)
            with pytest.raises(ValueError, match="none of these") as caught:
                exactly_once(here.mq, here.consumer, transform)
            assert "transform has failed 3 times" in str(caught.value.__notes__)

        await here.loop.run(program)
        assert here.results() == []
        assert not any(here.coordinator.decided.values())


async def test_once_more_with_the_same_consumer(autojump_clock: MockClock) -> None:
    """Ctrl-C has found it with records in hand, which reading has passed over: it is refused."""
    async with plant() as here:

        def transform(batch: AnyBatch, tx: Any) -> None:
            raise EnoughError

        def program() -> None:
            with pytest.raises(EnoughError):
                exactly_once(here.mq, here.consumer, transform)
            with pytest.raises(InvalidTransaction, match="open the consumer anew"):
                exactly_once(here.mq, here.consumer, transform)

        await here.loop.run(program)


async def test_no_member(autojump_clock: MockClock) -> None:
    """A consumer that chooses its partitions itself."""
    async with plant() as here:
        options = {"assign": [("orders", 0)], "delivery": "exactly_once"}
        async with threaded(here.here, "other", **options) as (loop, consumer):

            def program() -> None:
                with pytest.raises(InvalidConfig, match="name topics instead"):
                    exactly_once(here.mq, consumer, lambda batch, tx: None)

            await loop.run(program)
        assert not here.coordinator.rows
