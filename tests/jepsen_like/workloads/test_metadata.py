"""The metadata workload, and the requests that it consists of, against brokers in this process."""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from jepsen_like.checkers.verdict import Result, judge
from jepsen_like.history.event import Type
from jepsen_like.workloads import metadata, registers
from jepsen_like.workloads.metadata import MetadataWorkload
from jepsen_like.workloads.watcher import new_cluster
from raftmq.errors import TopicAlreadyExists, UnknownTopicId
from raftmq.testing import broker, cluster
from tests.jepsen_like.workloads.runs import (
    a_recorder,
    outcomes,
    running,
    wait_more,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from jepsen_like.history.event import Event
    from raftmq.client.routing.cluster import Cluster
    from raftmq.testing.server import Server

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One broker; each test has a register of its own."""
    with broker() as started:
        yield started


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[Cluster]:
    with trio.fail_after(10):
        async with new_cluster(server.bootstrap, "test", Random(1)) as found:
            yield found


def deadline() -> float:
    return trio.current_time() + 5


async def create(at: Cluster, name: str, value: int) -> None:
    await registers.create(at, name, value, replication_factor=1, deadline=deadline())


async def found(at: Cluster, name: str) -> registers.Found:
    seen = await registers.look(at, name, deadline=deadline())
    assert seen is not None
    return seen


async def test_a_register_is_changed_as_it_was_read(server: Server) -> None:
    """Of two who read the same, the second finds that it has changed; a third confirms."""
    async with connected(server) as at:
        await create(at, "changed", 1)
        first = await found(at, "changed")
        assert first.value == 1
        assert await registers.swap(at, first, 2, deadline=deadline())
        assert not await registers.swap(at, first, 3, deadline=deadline())
        second = await found(at, "changed")
        assert second.value == 2
        assert await registers.swap(at, second, 2, deadline=deadline())
        assert await found(at, "changed") == second


async def test_a_register_that_was_not_seen_changing_is_not_confirmed(server: Server) -> None:
    """Setting the same value again says no where another one was set meanwhile."""
    async with connected(server) as at:
        await create(at, "stale", 1)
        before = await found(at, "stale")
        assert await registers.swap(at, before, 2, deadline=deadline())
        assert not await registers.swap(at, before, before.value, deadline=deadline())


async def test_a_register_is_deleted_once(server: Server) -> None:
    """Then it is not there, and neither a change nor a second deletion finds it."""
    async with connected(server) as at:
        await create(at, "deleted", 1)
        seen = await found(at, "deleted")
        await registers.delete(at, seen, deadline=deadline())
        assert await registers.look(at, "deleted", deadline=deadline()) is None
        with pytest.raises(UnknownTopicId):
            await registers.delete(at, seen, deadline=deadline())
        with pytest.raises(UnknownTopicId):
            await registers.swap(at, seen, 2, deadline=deadline())


async def test_the_second_maker_is_refused(server: Server) -> None:
    """It learns that somebody was first, and not who."""
    async with connected(server) as at:
        await create(at, "made", 1)
        with pytest.raises(TopicAlreadyExists) as caught:
            await create(at, "made", 2)
        assert caught.value.definite
        assert (await found(at, "made")).value == 1


def a_workload(server: Server) -> tuple[MetadataWorkload, list[Event]]:
    recorder = a_recorder()
    workload = MetadataWorkload(
        server.bootstrap, recorder, Random(3), processes=1, replication_factor=1
    )
    return workload, recorder.events


async def test_a_register_that_vanished_before_the_last_look_is_found(server: Server) -> None:
    """No broker knows of it, which alone may be stale: whoever can make it anew proves it."""
    workload, events = a_workload(server)
    await workload.prepare()
    async with connected(server) as at:
        seen = await found(at, "register-2")
        await registers.delete(at, seen, deadline=deadline())
    await workload.final()
    (finding,) = judge(events).failures
    assert (finding.name, finding.count) == ("not-linearizable", 1)
    assert "register-2" in finding.examples[0]


async def test_registers_that_nobody_could_confirm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker is gone at the end: each of them is told."""
    monkeypatch.setattr(metadata, "FINAL_SECONDS_MAX", 0.5)
    with broker() as server:
        workload, events = a_workload(server)
        await workload.prepare()
        server.kill_node(1)
        await workload.final()
    assert (events[-1].f, events[-1].type) == ("behind", Type.INFO)
    assert events[-1].value == {"keys": [[f"register-{number}"] for number in range(1, 5)]}
    assert judge(events).result is Result.UNKNOWN


async def test_a_run_with_a_killed_controller_is_judged_well() -> None:
    """Three nodes, of which the one that leads the quorum is killed and comes back."""
    with cluster(3) as server:
        recorder = a_recorder()
        workload = MetadataWorkload(server.bootstrap, recorder, Random(3), rate=100.0)
        async with running(workload):
            view = workload.view()
            await wait_until(view.in_sync)
            await wait_more(recorder, "cas", "ok", 15)
            node = view.controller()
            assert node is not None
            await trio.to_thread.run_sync(server.kill_node, node)
            await wait_more(recorder, "cas", "ok", 30)
            await trio.to_thread.run_sync(server.start_node, node)
            await wait_more(recorder, "read", "ok", 30)
        await workload.final()
    verdict = judge(recorder.events)
    assert verdict.result is Result.PASS, str(verdict)
    counts = outcomes(recorder.events)
    assert counts["stale-read", "ok"]
    assert all(
        set(event.value) == {"key", "value", "expected"}
        for event in recorder.events
        if event.f == "cas"
    )
    reads = [event for event in recorder.events if event.f == "read" and event.type is Type.OK]
    assert all(event.value["value"] is not None for event in reads)
