"""Calls about groups on both event loops, over TCP; and what brokers and this side agree on."""

from __future__ import annotations

from random import Random

from raftmq.client.administration.admin import Admin
from raftmq.client.administration.groups.committed import COMMITS_MAX
from raftmq.client.network.network import AnyioTcpNetwork
from raftmq.client.routing.cluster import Cluster
from raftmq.metadata.apply.limits import EXPECTED_COMMITS_MAX
from tests.unit.client.administration.groups.registry import Registry, prepared
from tests.unit.client.administration.served import serve_bureau
from tests.unit.client.backends import on_trio_and_asyncio


@on_trio_and_asyncio
async def test_a_life_of_a_group() -> None:
    """Made by its first offset, listed, described, reset, deleted."""
    made: list[Registry] = []
    with serve_bureau(lambda bureau: made.append(prepared(bureau))) as (_, address):
        made[0].add("g")
        async with Cluster([address], AnyioTcpNetwork(), random=Random(1)) as cluster:
            admin = Admin(cluster, timeout_seconds=10)
            await admin.alter_group_offsets("g", {("u", 0): 4})
            assert [one.name for one in await admin.list_groups()] == ["g"]
            assert (await admin.describe_group("g")).members == ()
            assert [row.lag for row in await admin.group_lag("g")] == [6, 5]
            await admin.reset_group_offsets("g", to="latest")
            assert (await admin.group_offsets("g"))["u", 0].offset == 10
            await admin.delete_group_offsets("g", [("u", 0)])
            assert await admin.group_offsets("g") == {}
            await admin.delete_group("g")
            assert await admin.list_groups() == ()


def test_brokers_have_the_same_limits() -> None:
    """What is refused here would be refused there; what is sent at once fits into one step."""
    assert COMMITS_MAX <= EXPECTED_COMMITS_MAX
