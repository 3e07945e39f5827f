"""One broker of three that reaches no quorum: what clients that come now can still do (A6.4)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.broker.requests.producer_ids import LOW_COUNT
from raftmq.client.client import Client
from raftmq.errors import ErrorCode
from raftmq.model import Address
from raftmq.wire.messages.producers import InitProducerId
from tests.simulation.client_network import ClientNetwork
from tests.simulation.groups.whole_brokers import CLIENTS, NODES, Whole, whole_brokers
from tests.unit.storage.batches import NOW_MS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from trio.testing import MockClock

COUNT = 20  # records before and after
SOON_SECONDS = 10.0  # a client may ask one of the others first, and wait for it


@asynccontextmanager
async def client_of(
    whole: Whole, name: str, nodes: Collection[int] = NODES
) -> AsyncIterator[Client]:
    addresses = [Address(f"n{number}", CLIENTS) for number in nodes]
    network = ClientNetwork(whole.network.node(name))
    async with Client(
        addresses, network=network, random=Random(name), now_ms=lambda: NOW_MS
    ) as client:
        yield client


async def leading(client: Client, broker_id: int) -> int:
    """A partition that it leads."""
    topic = await client.admin.describe_topic("orders")
    return next(each.partition for each in topic.partitions if each.leader == broker_id)


@pytest.mark.parametrize(
    ("left", "is_cut_off"),
    [
        (2, True),
        (3, False),
        *(
            pytest.param(*case, marks=pytest.mark.teeth)
            for case in ((1, False), (1, True), (2, False), (3, True))
        ),
    ],
)
async def test_a_new_client_of_a_broker_without_a_quorum(
    left: int, is_cut_off: bool, autojump_clock: MockClock
) -> None:
    """Two of three are killed, or the third is cut off with a client: it still leads what it led.
    A client that has never been there sends with acks=1, as one of hundreds of new producers, and
    reads what is committed."""
    async with whole_brokers() as whole:
        async with client_of(whole, "early") as client:
            await client.admin.create_topic("orders", partitions=6)
            partition = await leading(client, left)
            async with client.producer() as producer:
                for number in range(COUNT):
                    await producer.send("orders", b"%d" % number, partition=partition)
        await trio.sleep(10.0)
        if is_cut_off:
            others = [f"n{number}" for number in NODES if number != left]
            whole.network.partition([*others, "early"], [f"n{left}", "late", "members"])
        else:
            for number in NODES:
                if number != left:
                    whole.nodes[number].kill()
        await trio.sleep(30.0)  # no leader is elected, and it is not fenced in its own view
        async with client_of(whole, "late", [left]) as client:
            with trio.fail_after(SOON_SECONDS):
                async with client.producer(acks=1) as producer:
                    sent = await producer.send("orders", b"late", partition=partition)
            assert sent.offset == COUNT
            assigned = [("orders", partition)]
            async with client.consumer(assign=assigned, start="earliest") as consumer:
                with trio.fail_after(SOON_SECONDS):
                    read = [(await anext(aiter(consumer))).value for _ in range(COUNT)]
            assert read == [b"%d" % number for number in range(COUNT)]
        ids = set[int]()
        for _ in range(LOW_COUNT - 1):
            reply = await whole.ask(left, InitProducerId(1000))
            assert reply.error == ErrorCode.NONE
            ids.add(reply.producer_id)
        assert len(ids) == LOW_COUNT - 1
