"""The transactions workload against real brokers in this process, of which one is killed."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from jepsen_like.checkers.verdict import OF_TRANSACTIONS, Result, judge
from jepsen_like.history.event import RUN, Type
from jepsen_like.workloads.bench import QueueSettings
from jepsen_like.workloads.transactions import TransactionsWorkload
from raftmq.testing import cluster
from tests.jepsen_like.workloads.runs import QUICK, a_recorder, outcomes, running, wait_until

if TYPE_CHECKING:
    from jepsen_like.history.event import Event

pytestmark = pytest.mark.cluster

# A record that is given up while another broker takes over aborts its whole transaction.
PATIENT = {
    "processes": 6,
    "rate": 40.0,
    "pulses_max": 1,
    "request_timeout_ms": 1_500,
    "delivery_timeout_ms": 5_000,
}


async def test_owners_that_are_broken_off_and_replaced_tear_nothing() -> None:
    """A node is killed while transactions are committed, aborted and copied; then all is judged."""
    with cluster(3) as server:
        recorder = a_recorder()
        settings = QueueSettings(**{**QUICK, **PATIENT})
        workload = TransactionsWorkload(server.bootstrap, recorder, Random(7), settings)
        recorder.record(RUN, Type.INFO, "phase", "load")
        async with running(workload, seconds_max=90):
            view = workload.view()
            # Both owners that copy may be broken off first: their sessions end after five seconds.
            await wait_until(lambda: has_all(recorder.events), seconds_max=30)
            node = next(iter(view.leaders().values()))
            await trio.to_thread.run_sync(server.kill_node, node)
            begun_at = len(recorder.events)
            await wait_until(lambda: has_committed(recorder.events[begun_at:]))
            await trio.to_thread.run_sync(server.start_node, node)
            await wait_until(view.in_sync)
        recorder.record(RUN, Type.INFO, "phase", "final")
        with trio.fail_after(30):
            await workload.final()
    verdict = judge(recorder.events)
    assert verdict.result is Result.PASS, str(verdict)
    assert verdict.not_looked_at.isdisjoint(OF_TRANSACTIONS)
    assert verdict.figures["decisions"] > verdict.figures["aborts"] > 0
    (effects,) = (found for found in verdict.findings if found.name == "duplicate-effect")
    assert effects.figures["results seen"] > 0
    assert verdict.figures["members of versions"] > verdict.figures["versions done"] > 0


def has_all(events: list[Event]) -> bool:
    """Something was aborted, a version and results were committed: those of a block that is only on
    its way are lost with the node.
    """
    copying: set[int | str] = set()  # processes whose present block has sent results
    found: set[tuple[str, bool]] = set()
    for event in events:
        value = event.value or {}
        if event.f == "begin":
            copying.discard(event.process)
        elif event.f == "send" and value.get("of"):
            copying.add(event.process)
        elif event.f == "end" and "outcome" in value:
            found.add((value["outcome"], event.process in copying))
    is_aborted = any(outcome == "aborted" for outcome, _ in found)
    has_version = outcomes(events)["commit-version", "ok"] > 0
    return ("committed", True) in found and is_aborted and has_version


def has_committed(events: list[Event]) -> bool:
    return outcomes(events)["end", "ok"] > 3
