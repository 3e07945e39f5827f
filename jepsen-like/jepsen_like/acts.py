"""The phases of a run: quiet load, faults, healing, final reads, and reading the nodes' disks.

Owns their order, and how long each may take. Knows neither how a fault is done nor what is
promised: everything that happens is in the history.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import trio

from jepsen_like.history.event import NODE, RUN, Type
from jepsen_like.nemesis.kinds import COORDINATOR, parts
from jepsen_like.nemesis.nemesis import Nemesis
from jepsen_like.nemesis.schedule import every_kind, schedule

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from jepsen_like.history.recorder import Recorder
    from jepsen_like.nemesis.schedule import FaultEvent
    from jepsen_like.nodes.cluster import NodeCluster
    from jepsen_like.nodes.logs.node_event import NodeEvent
    from jepsen_like.settings import RunSettings
    from jepsen_like.workloads.workload import Workload

QUIET_SECONDS = 4.0  # of load before the first fault, so that its effect can be told from the start
WHOLE_SECONDS_MAX = 60.0  # for all replicas to be in sync after healing; the history shows if not
# In sync once more after this: a broker that was silent may be fenced just then.
SETTLE_SECONDS = 2.0
LOOK_SECONDS = 0.1  # between checks for that
# After healing: members that were cut off join again when their sessions, of six seconds, are over.
JOIN_SECONDS = 12.0
WITH_COORDINATORS = ("groups", "transactions", "retries")  # workloads that say who coordinates
NEWS_SECONDS = 0.5  # between reads of the nodes' logs for new leaders


class Acts:
    """One run of a workload on a cluster that has been entered."""

    def __init__(
        self,
        settings: RunSettings,
        kinds: Sequence[str],
        cluster: NodeCluster,
        workload: Workload,
        recorder: Recorder,
    ) -> None:
        """`kinds`: of those in the settings, what this machine can do."""
        self._settings, self._kinds = settings, kinds
        self._cluster, self._workload, self._recorder = cluster, workload, recorder

    async def play(self) -> None:
        await trio.to_thread.run_sync(self._cluster.start_all)
        self._begin("prepare")
        await self._workload.prepare()
        await self._use_and_break()
        self._record(self._cluster.leads_events())
        self._record(await trio.to_thread.run_sync(self._replicas))
        self._begin("end")

    async def _use_and_break(self) -> None:
        """Nodes that end by themselves are restarted until the final reads are over."""
        stop, nemesis = trio.Event(), self._make_nemesis()
        async with trio.open_nursery() as carers:
            carers.start_soon(nemesis.caretaker.run)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hear_nodes, stop)
                self._begin("load")
                nursery.start_soon(self._workload.run, stop)
                await trio.sleep(QUIET_SECONDS)
                self._begin("faults")
                await self._break(nemesis)
                self._begin("heal")
                healed_at = trio.current_time()
                await nemesis.caretaker.wait_nobody_awaited()
                await self._wait_whole()
                if self._workload.name in WITH_COORDINATORS:
                    await trio.sleep_until(healed_at + JOIN_SECONDS)
                stop.set()
            self._begin("final")
            await self._workload.final()
            carers.cancel_scope.cancel()

    def _make_nemesis(self) -> Nemesis:
        view, seed = self._workload.view(), self._settings.seed
        return Nemesis(self._cluster, view, self._recorder, seed=seed)

    async def _break(self, nemesis: Nemesis) -> None:
        """Also without any fault it takes its time. So many faults of each kind take theirs."""
        settings = self._settings
        if self._kinds:
            limit = math.inf if settings.fault_events else settings.time_limit
            await nemesis.strike(self._fault_events(), seconds=limit)
        else:
            await trio.sleep(settings.time_limit)

    def _fault_events(self) -> list[FaultEvent]:
        settings, kinds = self._settings, self._kinds
        draw = partial(every_kind, settings.fault_events)
        if not settings.fault_events:
            draw = partial(schedule, seconds=settings.time_limit)
        return draw(
            seed=settings.seed,
            kinds=kinds,
            node_count=settings.nodes,
            pace=settings.pace,
            nobody=self._nobody(),
        )

    def _nobody(self) -> set[str]:
        """Parts that are not there, or are not to be hit."""
        wanted = self._settings.whom
        spared = {
            whom for typed, whom in parts(self._kinds).items() if wanted and typed not in wanted
        }
        return spared if self._workload.name in WITH_COORDINATORS else {*spared, COORDINATOR}

    async def _wait_whole(self) -> None:
        """And still in sync a little later: a broker that was silent may be fenced just then. If it
        never is, the history shows it.
        """
        view, is_settled = self._workload.view(), False
        with trio.move_on_after(WHOLE_SECONDS_MAX):
            while not is_settled:
                while not view.in_sync():  # noqa: ASYNC110  # the view is a snapshot
                    await trio.sleep(LOOK_SECONDS)
                await trio.sleep(SETTLE_SECONDS)
                is_settled = view.in_sync()

    # What the nodes say

    async def _hear_nodes(self, stop: trio.Event) -> None:
        while not stop.is_set():
            with trio.move_on_after(NEWS_SECONDS):
                await stop.wait()
            self._record(self._cluster.leads_events())

    def _replicas(self) -> list[NodeEvent]:
        return self._cluster.read_replicas(self._keys())

    def _keys(self) -> Collection[str]:
        sends = (event for event in self._recorder.events if event.f == "send")
        return dict.fromkeys(event.value["key"] for event in sends)

    def _record(self, told: Iterable[NodeEvent]) -> None:
        for node_id, f, value in told:
            kind = Type.OK if f == "replica" else Type.INFO
            self._recorder.record(NODE, kind, f, value, node=node_id)

    def _begin(self, phase: str) -> None:
        self._recorder.record(RUN, Type.INFO, "phase", phase)
