"""The way to a group's coordinator while no broker answers."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import anyio
import pytest

from raftmq.client.group.coordinator import CoordinatorLookup
from raftmq.client.routing.cluster import Cluster
from raftmq.errors import Unreachable
from raftmq.model import Address
from raftmq.wire.messages.groups import DescribeGroups

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.client.network.network import Stream


class SilentNetwork:
    """Connections that are never established, and never refused."""

    async def dial(self, _address: Address, /) -> Stream:
        await anyio.sleep_forever()
        raise AssertionError("only cancellation ends that")


async def test_no_broker_answers_before_the_deadline(autojump_clock: MockClock) -> None:
    """The first request of a client is about a group, and its bootstrap address hangs. The error
    says so; it is no IndexError for want of a broker."""
    addresses = [Address("127.0.0.1", 1)]
    async with Cluster(addresses, SilentNetwork(), random=Random(1), client_id="x") as cluster:
        lookup = CoordinatorLookup(cluster, "billing")
        # Before an attempt at the address ends by itself: the caller's deadline is what strikes.
        with pytest.raises(Unreachable, match="no broker has answered"):
            await lookup.ask_once(DescribeGroups(("billing",)), deadline=anyio.current_time() + 2)
