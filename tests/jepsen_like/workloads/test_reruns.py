"""The reruns workload against real brokers in this process, of which one is killed."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from jepsen_like.checkers.verdict import OF_NAMES, Result, judge
from jepsen_like.history.event import RUN, Type
from jepsen_like.workloads.bench import QueueSettings
from jepsen_like.workloads.reruns import RerunsWorkload
from raftmq.testing import cluster
from tests.jepsen_like.workloads.runs import QUICK, a_recorder, running, wait_until

if TYPE_CHECKING:
    from jepsen_like.history.recorder import Recorder

pytestmark = pytest.mark.cluster


async def test_rows_that_are_sent_again_stand_there_once() -> None:
    """Runs are broken off and overtaken while a node is killed; then all is read and judged."""
    with cluster(3) as server:
        recorder = a_recorder()
        settings = QueueSettings(**QUICK)
        workload = RerunsWorkload(server.bootstrap, recorder, Random(7), settings)
        recorder.record(RUN, Type.INFO, "phase", "load")
        async with running(workload):
            view = workload.view()
            await _wait_ended(recorder, Type.OK, Type.INFO)
            node = next(iter(view.leaders().values()))
            await trio.to_thread.run_sync(server.kill_node, node)
            await _wait_ended(recorder, Type.OK)
            await trio.to_thread.run_sync(server.start_node, node)
            await wait_until(view.in_sync)
        recorder.record(RUN, Type.INFO, "phase", "final")
        await workload.final()
    verdict = judge(recorder.events)
    assert verdict.result is Result.PASS, str(verdict)
    assert verdict.not_looked_at.isdisjoint(OF_NAMES)
    assert verdict.figures["generations finished"] > 1
    assert verdict.figures["run info"] > 0


async def _wait_ended(recorder: Recorder, *kinds: Type) -> None:
    """Of each kind one run that begins from now on."""
    begun_at = len(recorder.events)

    def is_so() -> bool:
        events = recorder.events[begun_at:]
        named = [event for event in events if event.f == "send" and "name" in event.value]
        begun = {event.process for event in named if event.type is Type.INVOKE}
        ended = {event.type for event in named if event.process in begun}
        return ended.issuperset(kinds)

    await wait_until(is_so)
