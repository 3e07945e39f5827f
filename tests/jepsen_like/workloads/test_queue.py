"""The queue workload against real brokers in this process, which are killed under it."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import trio

from jepsen_like.checkers.verdict import Result, judge
from jepsen_like.history.event import ACKS_ALL, RUN, WATCH, Type
from jepsen_like.workloads.final import read_everything
from jepsen_like.workloads.generator import BEGINNING, Assign
from jepsen_like.workloads.keys import UNREADABLE
from jepsen_like.workloads.polling import perform_poll
from jepsen_like.workloads.view import LiveView
from jepsen_like.workloads.watcher import Watcher
from jepsen_like.workloads.worker import new_consumer
from raftmq.testing import broker, cluster
from tests.jepsen_like.workloads.runs import (
    a_bench,
    a_queue,
    a_recorder,
    has_more,
    outcomes,
    running,
    wait_more,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jepsen_like.history.event import Event
    from raftmq.testing.server import Server

pytestmark = pytest.mark.cluster
ONE_NODE: dict[str, Any] = {"replication_factor": 1, "min_insync_replicas": 1}


@pytest.fixture
def server() -> Iterator[Server]:
    """One broker."""
    with broker() as started:
        yield started


def completed(events: list[Event], f: str) -> list[Event]:
    return [event for event in events if event.f == f and event.type is not Type.INVOKE]


async def test_a_run_with_a_killed_node_is_judged_well() -> None:
    """Three nodes, of which one is killed and comes back: everything acknowledged is read."""
    with cluster(3) as server:
        recorder = a_recorder()
        workload, view = a_queue(server.bootstrap, recorder), None
        recorder.record(RUN, Type.INFO, "phase", "load")
        async with running(workload):
            view = workload.view()
            await wait_until(view.in_sync)
            await wait_more(recorder, "send", "ok", 60)
            node = next(iter(view.leaders().values()))
            assert view.controller() in server.nodes
            await trio.to_thread.run_sync(server.kill_node, node)
            await wait_until(lambda: not view.in_sync())
            await wait_more(recorder, "send", "ok", 60)
            await trio.to_thread.run_sync(server.start_node, node)
            await wait_until(view.in_sync)
        recorder.record(RUN, Type.INFO, "phase", "final")
        await workload.final()
    verdict = judge(recorder.events)
    assert verdict.result is Result.PASS, str(verdict)
    assert not any(line.startswith("unseen") for line in verdict.not_judged)
    counts = outcomes(recorder.events)
    assert all(counts[f, "ok"] for f in ("send", "poll", "assign", "watermark", "isr"))
    assert not counts["behind", "info"]
    _check_form(recorder.events)


def _check_form(events: list[Event]) -> None:
    """What the words of a history promise."""
    sends = completed(events, "send")
    assert {send.value["acks"] for send in sends} == {ACKS_ALL, 1, 2}
    assert all(len(send.value["offsets"]) == len(send.value["values"]) for send in sends)
    assert all(event.process == WATCH for event in completed(events, "isr"))
    assert [event.value for event in events if event.f == "keeps"] == [{"replicas": 3}]
    marks = [event.value for event in completed(events, "watermark") if event.type is Type.OK]
    assert all(set(mark) == {"key", "epoch", "high_watermark"} for mark in marks)


async def test_after_an_unknown_outcome_a_process_is_no_more() -> None:
    """Two of three nodes die: the third one has records of which nobody learns what they become."""
    recorder = a_recorder()
    # Only an unknown outcome ends a process: one that begins while there is no quorum gets no
    # producer id, and then everything it sends fails for certain.
    few: dict[str, Any] = {"acks": ("all",), "processes": 2, "crash_seconds": 1_000.0}
    with cluster(3) as server:
        workload = a_queue(server.bootstrap, recorder, **few)
        async with running(workload):
            await wait_until(workload.view().in_sync)
            await wait_more(recorder, "send", "ok", 30)
            survivor = next(iter(workload.view().leaders().values()))
            killed = [node for node in server.nodes if node != survivor]
            is_unknown = has_more(recorder, "send", "info", 1)  # some come during the kills
            for node in killed:
                await trio.to_thread.run_sync(server.kill_node, node)
            await wait_until(is_unknown)
            for node in killed:
                await trio.to_thread.run_sync(partial(server.start_node, node, wait=False))
            await wait_more(recorder, "send", "ok", 30)
    last = {event.process: event for event in recorder.events if isinstance(event.process, int)}
    unknown = [event for event in completed(recorder.events, "send") if event.type is Type.INFO]
    assert all(last[event.process] is event for event in unknown)
    assert all(e.value["is_repeated"] != e.value["is_idempotent"] for e in unknown)


async def test_keys_come_and_go(server: Server) -> None:
    """Values of a key are few here: fresh topics are made while the old ones are written to.

    Those of the beginning are used up at once, and then there are more as time goes by.
    """
    recorder = a_recorder()
    few: dict[str, Any] = {"values_per_key_max": 3, "topics_max": 3, "topic_seconds": 0.2}
    workload = a_queue(server.bootstrap, recorder, **few, **ONE_NODE)
    async with running(workload):
        before = len(workload.keys)
        await wait_until(lambda: len(workload.keys) > before + 2)
    await workload.final()
    assert judge(recorder.events).result is Result.PASS


async def test_final_reads_tell_what_they_did_not_reach(server: Server) -> None:
    """The broker is gone for good: each key of which something was acknowledged is behind."""
    bench = a_bench(server.bootstrap, final_seconds=0.5)
    bench.keys.on_made("all-1")
    bench.seen.on_sent("all-1-1", [4])
    server.kill_node(1)
    await read_everything(bench, "reader")
    event = bench.recorder.events[-1]
    assert (event.f, event.type, event.value) == (
        "behind",
        Type.INFO,
        {"keys": [["all-1-1", 0, 5]]},
    )


async def test_what_was_handed_out_before_an_error_counts(server: Server) -> None:
    """A record that nobody of us has written, then a place where the log is not."""
    bench = a_bench(server.bootstrap)
    async with bench.new_client("reader") as client:
        await client.admin.create_topic("all-1", partitions=2)
        async with client.producer() as producer:
            await producer.send_many("all-1", [b"1", b"junk"], partition=0)
        async with new_consumer(client, Assign(("all-1-0",), BEGINNING)) as consumer:
            assert await perform_poll(bench, 5, consumer, seconds=5, records_max=2)
            consumer.seek("all-1", 0, offset=99)
            assert not await perform_poll(bench, 5, consumer, seconds=5)
    _, first, _, second = bench.recorder.events
    assert first.value["records"] == [("all-1-0", [(0, 1), (1, UNREADABLE)])]
    assert first.value["high_watermarks"] == [["all-1-0", 2]]
    assert (second.type, second.value["records"]) == (Type.FAIL, [])
    assert (second.error or "").startswith("OffsetOutOfRange: ")


async def test_a_watcher_whom_nobody_answers(server: Server) -> None:
    """It doubts what it knew, takes down that nobody told of anything, and stops when told."""
    recorder, view, stop = a_recorder(), LiveView(), trio.Event()
    watcher = Watcher(
        server.bootstrap,
        recorder,
        view,
        random=Random(1),
        numbers=iter(range(10)),
        keys=lambda: ("all-1-0",),
    )
    bench = a_bench(server.bootstrap)
    async with bench.new_client("maker") as client:
        await client.admin.create_topic("all-1", partitions=2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watcher.run, stop)
        await wait_more(recorder, "watermark", "ok", 1)
        await wait_until(view.in_sync)
        await trio.to_thread.run_sync(server.kill_node, 1)
        await wait_more(recorder, "watermark", "fail", 1)
        await wait_until(lambda: not view.in_sync())
        await wait_more(recorder, "isr", "fail", 1)
        stop.set()
    assert view.leaders() == {"all-1-0": 1, "all-1-1": 1}
