"""The nemesis at work: injects the faults of a schedule in their lanes, and undoes them.

Owns what is broken at any moment. Each lane is a task; a fault begins and ends in a worker thread.
Nodes that a fault holds down are locked, so that no two faults, nor the caretaker, act on one node.

Invariants: a fault that has begun is ended, also after errors; a disk loses data only while all
replicas are in sync; a fault that needs a healthy network has it to itself.
"""

from __future__ import annotations

import math
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import trio

from jepsen_like.history.event import Type
from jepsen_like.nemesis.caretaker import Caretaker
from jepsen_like.nemesis.fault import Scene
from jepsen_like.nemesis.healing import undo_all
from jepsen_like.nemesis.kinds import KINDS, NETWORK, ROLLING
from jepsen_like.nemesis.registry import FAULTS
from jepsen_like.nemesis.schedule import ALONE
from jepsen_like.nemesis.targets import read_roles, resolve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from jepsen_like.history.recorder import Recorder
    from jepsen_like.nemesis.fault import Fault, RunInThread, Told
    from jepsen_like.nemesis.kinds import Kind
    from jepsen_like.nemesis.machines import Machines, View
    from jepsen_like.nemesis.schedule import FaultEvent

T = TypeVar("T")

REST_SECONDS = 1.0  # between faults of a lane that is behind schedule: time to do some work
LOOK_SECONDS = 0.25  # between checks whether a fault may begin
# A data fault waits that long for all replicas to be in sync, then is skipped.
PATIENCE_SECONDS = 15.0
SETTLED_SECONDS = 2.0  # in sync for so long: what the watcher reports is up to a second old
# A voter that got an empty disk must be enrolled before another one may lose data: else a majority
# might have forgotten.
ENROLLED_SECONDS = 10.0
WHOLE_SECONDS = 60.0  # a fault that must be alone waits that long for the cluster to recover
ROLLING_READY_SECONDS = 10.0  # for one node of a rolling restart, before the next one is hit


async def in_thread(function: Callable[[], T], /) -> T:
    return await trio.to_thread.run_sync(function)


class UnderWay(NamedTuple):
    """A fault that has begun, or tried to."""

    event: FaultEvent
    fault: Fault
    value: dict[str, Any]


class Nemesis:
    """Attributes:
    caretaker: restarts nodes that no fault holds; to be run beside the schedule, and as long
        afterwards as the nodes are used.
    """

    def __init__(
        self,
        machines: Machines,
        view: View,
        recorder: Recorder,
        *,
        seed: int | str,
        run_in_thread: RunInThread = in_thread,
    ) -> None:
        self._machines, self._view, self._recorder, self._seed = machines, view, recorder, seed
        self._in_thread = run_in_thread
        self._locks = {node: trio.Lock() for node in machines.node_ids}
        self._network = trio.Lock()
        self._under_way: list[UnderWay] = []
        self.caretaker = Caretaker(
            machines, recorder, self._locks, run_in_thread, self._kinds_under_way
        )

    async def strike(self, schedule: Sequence[FaultEvent], *, seconds: float = math.inf) -> None:
        """All faults, or as many as fall within `seconds`; then everything is undone."""
        lanes: dict[str, list[tuple[int, FaultEvent]]] = {}
        for number, event in enumerate(schedule):
            lanes.setdefault(event.lane, []).append((number, event))
        try:
            with trio.move_on_after(seconds):
                async with trio.open_nursery() as nursery:
                    for events in lanes.values():
                        nursery.start_soon(self._run_lane, events, trio.current_time())
        finally:
            with trio.CancelScope(shield=True):
                await self.heal_all()

    async def heal_all(self) -> None:
        """Undo all faults, and start all nodes."""
        for under_way in list(self._under_way):
            await self._end(under_way)
        problems = await undo_all(self._machines, self._locks, self._in_thread)
        self.caretaker.await_ready(self._machines.node_ids)
        if problems:
            self._recorder.fault(Type.INFO, "heal", {"nodes": [], "problems": problems})

    # -- faults --------------------------------------------------------------------------------

    async def _run_lane(self, events: list[tuple[int, FaultEvent]], began_at: float) -> None:
        rested_at = began_at
        for number, event in events:
            await trio.sleep_until(max(began_at + event.at, rested_at))
            if event.lane == ALONE:
                with trio.move_on_after(WHOLE_SECONDS):
                    await self._wait_settled()
            await self._strike(event, Random(f"{self._seed}/{number}"))
            rested_at = trio.current_time() + REST_SECONDS

    async def _strike(self, event: FaultEvent, random: Random) -> None:
        kind = KINDS[event.kind]
        async with self._moment(kind) as reason:
            roles = read_roles(self._view)  # not before: to wait for the moment may take long
            target = resolve(event.whom, roles, self._machines.node_ids, random)
            told = {"whom": event.whom, **target.told(), **event.params}
            if reason:
                self._skip(event, {"nodes": list(target.groups[0]), **told}, reason)
                return
            for group in target.groups:
                async with self._held(kind, group):
                    scene = Scene(self._machines, group, event.whom, random, event.params)
                    fault = FAULTS[event.kind](scene)
                    under_way = UnderWay(event, fault, {"nodes": list(group), **told})
                    await self._hit(under_way, event.seconds / len(target.groups))
                if event.whom == ROLLING:
                    await self.caretaker.wait_ready(group, ROLLING_READY_SECONDS)

    def _skip(self, event: FaultEvent, value: dict[str, Any], reason: str) -> None:
        self._recorder.fault(Type.INVOKE, event.kind, value)
        self._recorder.fault(Type.INFO, event.kind, {**value, "skipped": reason})

    async def _hit(self, under_way: UnderWay, seconds: float) -> None:
        """End it before its nodes are unlocked, also when time is over: else the caretaker would
        start one while the fault is being undone."""
        self._recorder.fault(Type.INVOKE, under_way.event.kind, dict(under_way.value))
        try:
            await self._begin(under_way)
            await trio.sleep(seconds)
        finally:
            await self._end(under_way)

    async def _begin(self, under_way: UnderWay) -> None:
        self._under_way.append(under_way)
        told = await self._try(under_way.fault.begin)
        under_way.value.update(told)

    async def _end(self, under_way: UnderWay) -> None:
        """Once: if ending it fails, `healing` undoes what is left."""
        if under_way not in self._under_way:
            return
        with trio.CancelScope(shield=True):
            told = await self._try(under_way.fault.end)
            self._under_way.remove(under_way)
        under_way.value.update(told)
        if told.get("emptied"):
            self.caretaker.emptied_at = trio.current_time()
        self._recorder.fault(Type.INFO, under_way.event.kind, under_way.value)
        nodes = under_way.value["nodes"]
        self.caretaker.await_ready(nodes)
        if under_way.event.kind == "old-directory":
            self.caretaker.restored.update(nodes)

    async def _try(self, action: Callable[[], Told]) -> Told:
        """An error of a machine is part of the history, and no reason to stop."""
        try:
            return await self._in_thread(action)
        except AssertionError:
            raise
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _kinds_under_way(self) -> list[str]:
        return [under_way.event.kind for under_way in self._under_way]

    # -- who must not meet ---------------------------------------------------------------------

    @asynccontextmanager
    async def _held(self, kind: Kind, group: tuple[int, ...]) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for node in sorted(group) if kind.holds_nodes else ():
                await stack.enter_async_context(self._locks[node])
            yield

    @asynccontextmanager
    async def _moment(self, kind: Kind) -> AsyncIterator[str]:
        """Wait until the fault may begin, and lock as long as it lasts; or say why it may not."""
        async with AsyncExitStack() as stack:
            if kind.lane == NETWORK:
                await stack.enter_async_context(self._network)
            yield await self._wait_moment(kind, stack) if kind.is_data_fault else ""

    async def _wait_moment(self, kind: Kind, stack: AsyncExitStack) -> str:
        """Until all replicas are in sync, so that this fault does not destroy a last copy."""
        reason = "the network was broken all the time"
        with trio.move_on_after(PATIENCE_SECONDS):
            if kind.wants_network:
                await stack.enter_async_context(self._network)
            reason = "replicas were not in sync"
            await self._wait_settled()
            return ""
        return reason

    async def _wait_settled(self) -> None:
        since = trio.current_time()
        while True:
            now = trio.current_time()
            if not self._view.in_sync():
                since = now
            elif now >= max(since + SETTLED_SECONDS, self.caretaker.emptied_at + ENROLLED_SECONDS):
                return
            await trio.sleep(LOOK_SECONDS)
