"""Whole brokers, one of which is lost for good with the only replicas of a topic."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.client.client import Client
from raftmq.model import Address
from tests.simulation.client_network import ClientNetwork
from tests.simulation.groups.whole_brokers import CLIENTS, NODES, whole_brokers
from tests.unit.storage.batches import NOW_MS

if TYPE_CHECKING:
    from trio.testing import MockClock


@pytest.mark.parametrize("is_back", [False, True])
async def test_a_topic_goes_on_without_its_lost_broker(
    autojump_clock: MockClock, *, is_back: bool
) -> None:
    """The operator starts the lost partitions empty: producers and consumers go on, the partitions
    of other brokers keep their records, and the lost broker changes nothing when it is back.
    """
    async with whole_brokers() as whole:
        addresses = [Address(f"n{number}", CLIENTS) for number in NODES]
        network = ClientNetwork(whole.network.node("program"))
        async with Client(
            addresses, network=network, random=Random(3), now_ms=lambda: NOW_MS
        ) as client:
            await client.admin.create_topic("t", partitions=6, replication_factor=1)
            details = await client.admin.describe_topic("t")
            lost = [one.partition for one in details.partitions if one.leader == 3]
            assert lost
            async with client.producer() as producer:
                for number in range(6):
                    await producer.send("t", b"before", partition=number)
            whole.nodes[3].kill()
            await trio.sleep(60)
            outcomes = await client.admin.restart_empty("t")
            assert {one.partition for one in outcomes if one.outcome == "elected"} == set(lost)
            kept = {one.outcome for one in outcomes if one.partition not in lost}
            assert kept == {"led already"}
            async with client.producer() as producer:
                for number in range(6):
                    await producer.send("t", b"after", partition=number)
            if is_back:
                whole.nodes[3].start()
                await trio.sleep(60)
            ends = await client.admin.offsets("t", "latest")
            assert ends == {number: 1 if number in lost else 2 for number in range(6)}
            async with client.consumer("t", start="earliest") as consumer:
                found = [await anext(consumer) for _ in range(sum(ends.values()))]
            for number in lost:
                assert [one.value for one in found if one.partition == number] == [b"after"]
