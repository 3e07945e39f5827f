"""The log of a node says what changes in the cluster: once, on the right node, and briefly."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio
import trio.testing

from raftmq.broker.cluster_event_log import PAUSE_SECONDS, ClusterEventLog
from raftmq.metadata.commands import AssignSlot, CreateTopic, DeleteTopic
from tests.unit.broker.asking import NODE, cluster_of, said

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest
    from trio.testing import MockClock

    from tests.simulation.quorum_fake import FakeCluster


@asynccontextmanager
async def telling(cluster: FakeCluster, *, is_controller: bool) -> AsyncIterator[None]:
    log = ClusterEventLog(NODE, cluster.nodes[NODE], lambda: is_controller)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        await trio.testing.wait_all_tasks_blocked()
        yield
        await trio.sleep(3 * PAUSE_SECONDS)
        nursery.cancel_scope.cancel()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.message for one in caplog.records if one.name == "raftmq.broker"]


async def make_topics(cluster: FakeCluster, count: int) -> None:
    for number in range(count):
        await said(cluster, CreateTopic(number.to_bytes(16, "big"), f"t{number}", ((1,),)))


async def test_the_controller_tells_of_topics(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Two are made at once: a line for each; what was there before is no news."""
    caplog.set_level(logging.INFO)
    cluster = await cluster_of(None, None)
    async with telling(cluster, is_controller=True):
        await make_topics(cluster, 2)
    assert lines(caplog) == [
        "topic created: topic=t0 partitions=1 replicas=1",
        "topic created: topic=t1 partitions=1 replicas=1",
    ]


async def test_a_topic_that_lives_for_a_moment(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Both lines are there, although it is gone before the pause for partitions is over."""
    caplog.set_level(logging.INFO)
    cluster = await cluster_of(None, None)
    async with telling(cluster, is_controller=True):
        await make_topics(cluster, 1)
        await trio.sleep(PAUSE_SECONDS / 10)
        await said(cluster, DeleteTopic(bytes(16)))
    assert lines(caplog) == [
        "topic created: topic=t0 partitions=1 replicas=1",
        "topic deleted: topic=t0 partitions=1",
    ]


async def test_other_nodes_tell_of_their_slots_alone(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Sixty-four slots come and half of them go again: a line each time, and none of topics."""
    caplog.set_level(logging.INFO)
    cluster = await cluster_of(None, None)
    async with telling(cluster, is_controller=False):
        await make_topics(cluster, 1)
        for slot in range(64):
            await said(cluster, AssignSlot(slot, 0, NODE))
        await trio.sleep(3 * PAUSE_SECONDS)
        for slot in range(32):
            await said(cluster, AssignSlot(slot, 1, NODE - 1))
    assert lines(caplog) == [
        "coordinator slots: held=64 taken=64 let_go=0",
        "coordinator slots: held=32 taken=0 let_go=32",
    ]
