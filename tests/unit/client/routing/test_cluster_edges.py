"""What leaves `async with Cluster(...)`: on both event loops, and without a broker."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import anyio
import pytest

from raftmq.client.routing.cluster import Cluster
from raftmq.errors import Closed, Unreachable
from raftmq.model import Address
from tests.producing import produce
from tests.unit.client.backends import on_trio_and_asyncio
from tests.unit.client.world import batch

if TYPE_CHECKING:
    from raftmq.client.network.network import Stream


class Nowhere:
    """A network that raises what it is told to."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def dial(self, _address: Address, /) -> Stream:
        await anyio.lowlevel.checkpoint()
        raise self._error


def cluster_without(error: Exception) -> Cluster:
    return Cluster([Address("b1", 9000)], Nowhere(error), random=Random(0))


@on_trio_and_asyncio
async def test_an_error_of_the_body_comes_out_as_it_is() -> None:
    """With its cause and without a group around it."""
    error = ZeroDivisionError("mine")
    with pytest.raises(ZeroDivisionError) as found:
        async with cluster_without(Unreachable("nobody")):
            raise error
    assert found.value is error
    assert error.__context__ is None


@on_trio_and_asyncio
async def test_a_group_of_the_body_stays_one() -> None:
    """It is the caller's own."""
    with pytest.raises(ExceptionGroup) as found:
        async with cluster_without(Unreachable("nobody")):
            raise ExceptionGroup("mine", [ZeroDivisionError()])
    assert found.value.message == "mine"


@on_trio_and_asyncio
async def test_an_error_of_a_task_comes_out_as_it_is() -> None:
    """A network with a mistake in it: the body is cancelled, and the mistake is told by itself."""
    with pytest.raises(ZeroDivisionError, match="mistake"):
        async with cluster_without(ZeroDivisionError("mistake")) as cluster:
            await cluster.refresh("t", deadline=anyio.current_time() + 30)


@on_trio_and_asyncio
async def test_nobody_is_reached() -> None:
    """The time is over, and nothing was sent."""
    async with cluster_without(Unreachable("nobody at home")) as cluster:
        with pytest.raises(Unreachable, match="nobody at home"):
            await produce(cluster, "t", 0, batch("x"), timeout_seconds=0.05)


@on_trio_and_asyncio
async def test_cancellation_goes_through_at_once() -> None:
    """Whoever waits for a broker that does not answer can be cancelled, and nothing is left."""
    with anyio.move_on_after(0.01) as scope:
        async with cluster_without(Unreachable("nobody")) as cluster:
            await produce(cluster, "t", 0, batch("x"))
    assert scope.cancelled_caught


@on_trio_and_asyncio
async def test_after_the_end_nothing_is_asked() -> None:
    """Whoever keeps the cluster is told, and does not wait."""
    async with cluster_without(Unreachable("nobody")) as cluster:
        pass
    with pytest.raises(Closed, match="the client has been closed"):
        await cluster.refresh("t", deadline=anyio.current_time() + 30)


def test_in_a_program_that_knows_asyncio_only() -> None:
    """Its own timeouts and its own `cancel` work, and tasks that it has made may ask."""

    async def main() -> None:
        async with cluster_without(Unreachable("nobody")) as cluster:
            asking = asyncio.create_task(produce(cluster, "t", 0, batch("x")))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await produce(cluster, "t", 0, batch("x"))
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), cluster_without(Unreachable("nobody")) as cluster:
                await produce(cluster, "t", 0, batch("x"))

    asyncio.run(main())
