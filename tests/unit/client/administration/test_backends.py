"""`Admin` on both event loops, over TCP."""

from __future__ import annotations

from random import Random

from raftmq.client.administration.admin import Admin
from raftmq.client.network.network import AnyioTcpNetwork
from raftmq.client.routing.cluster import Cluster
from tests.unit.client.administration.served import serve_bureau
from tests.unit.client.backends import on_trio_and_asyncio


@on_trio_and_asyncio
async def test_a_life_of_a_topic() -> None:
    """Made, described, changed, emptied, listed and deleted."""
    with serve_bureau() as (_, address):
        async with Cluster([address], AnyioTcpNetwork(), random=Random(1)) as cluster:
            admin = Admin(cluster, timeout_seconds=10)
            await admin.create_topic("u", partitions=3, config={"retention.ms": 5})
            assert len((await admin.describe_topic("u")).partitions) == 3
            await admin.alter_config("u", {"retention.ms": None})
            assert (await admin.describe_config("u"))["retention.ms"].is_default
            assert await admin.delete_records("u", {0: "latest", 2: 0}) == {0: 0, 2: 0}
            assert [topic.name for topic in await admin.list_topics()] == ["t", "u"]
            assert (await admin.health()).is_healthy
            await admin.delete_topic("u")
            assert [topic.name for topic in await admin.list_topics()] == ["t"]
