"""The retries workload against real brokers in this process, of which one is killed."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from jepsen_like.checkers.verdict import OF_RETRIES, Result, judge
from jepsen_like.history.event import RUN, Type
from jepsen_like.workloads.bench import QueueSettings
from jepsen_like.workloads.retries import RetriesWorkload
from raftmq.testing import cluster
from tests.jepsen_like.workloads.runs import QUICK, a_recorder, running, wait_more, wait_until

if TYPE_CHECKING:
    from jepsen_like.history.recorder import Recorder

pytestmark = pytest.mark.cluster

SETTINGS = {
    "acks": ("all",),
    "processes": 3,
    "rate": 20.0,
    "pulses_max": 1,
    "pulse_seconds": 0.2,
    "request_timeout_ms": 1_500,
    "delivery_timeout_ms": 5_000,
    "final_seconds": 40.0,
}


async def test_each_record_has_its_end() -> None:
    """Done, or among the dead letters, in each group, while a node is killed; then all is judged
    (A12.4, A12.5)."""
    with cluster(3) as server:
        recorder = a_recorder()
        settings = QueueSettings(**{**QUICK, **SETTINGS})
        workload = RetriesWorkload(
            server.bootstrap, recorder, Random(7), settings, life_seconds=12.0
        )
        recorder.record(RUN, Type.INFO, "phase", "load")
        async with running(workload, seconds_max=90):
            view = workload.view()
            await wait_until(lambda: moved(recorder) > 5, seconds_max=30)
            node = next(iter(view.leaders().values()))
            await trio.to_thread.run_sync(server.kill_node, node)
            await wait_more(recorder, "send", "ok", 20)
            await trio.to_thread.run_sync(server.start_node, node)
            await wait_until(view.in_sync)
        recorder.record(RUN, Type.INFO, "phase", "final")
        with trio.fail_after(90):
            await workload.final()
    verdict = judge(recorder.events)
    assert verdict.result is Result.PASS, str(verdict)
    assert verdict.not_looked_at.isdisjoint(OF_RETRIES)
    assert verdict.figures["retries handled"] > 200
    assert verdict.figures["retries returns"] > 5
    assert verdict.figures["retries letters"] > 5


def moved(recorder: Recorder) -> int:
    return sum(
        event.f == "handle" and event.type is Type.INVOKE and event.value["is_back"]
        for event in recorder.events
    )
