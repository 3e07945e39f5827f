"""The schedule workload against real brokers in this process, of which one is killed."""

from __future__ import annotations

from random import Random

import pytest
import trio

from jepsen_like.checkers.verdict import OF_SCHEDULES, Result, judge
from jepsen_like.history.event import RUN, Type
from jepsen_like.workloads import schedule_plan
from jepsen_like.workloads.bench import QueueSettings
from jepsen_like.workloads.schedule import ScheduleWorkload
from raftmq.testing import cluster
from tests.jepsen_like.workloads.runs import QUICK, a_recorder, running, wait_more, wait_until

pytestmark = pytest.mark.cluster


async def test_records_come_when_they_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, unless they are cancelled, while a node is killed; then all is judged (A12.2)."""
    monkeypatch.setattr(schedule_plan, "NEAR_SECONDS_MAX", 4.0)
    with cluster(3) as server:
        recorder = a_recorder()
        settings = QueueSettings(**{**QUICK, "rate": 60.0})
        workload = ScheduleWorkload(server.bootstrap, recorder, Random(7), settings)
        recorder.record(RUN, Type.INFO, "phase", "load")
        async with running(workload):
            view = workload.view()
            await wait_more(recorder, "send", "ok", 60)
            await wait_more(recorder, "cancel", "ok", 3)
            node = next(iter(view.leaders().values()))
            await trio.to_thread.run_sync(server.kill_node, node)
            await wait_more(recorder, "send", "ok", 60)
            await trio.to_thread.run_sync(server.start_node, node)
            await wait_until(view.in_sync)
        recorder.record(RUN, Type.INFO, "phase", "final")
        await workload.final()
    verdict = judge(recorder.events)
    assert verdict.result is Result.PASS, str(verdict)
    assert verdict.not_looked_at.isdisjoint(set(OF_SCHEDULES) - {"due-order"})
    assert verdict.figures["scheduled records delivered"] > 50
    assert verdict.figures["scheduled records cancelled"] >= 3
