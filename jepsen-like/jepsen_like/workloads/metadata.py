"""The metadata workload: topics as registers, which few processes read, replace, make and delete.

Owns the processes of a run and their pace; their operations are in `register_process.py`, the
choice of the register in `slots.py`.
"""

from __future__ import annotations

from itertools import count
from random import Random
from typing import TYPE_CHECKING

import trio

from jepsen_like.history.event import Type
from jepsen_like.workloads.bench import Pace
from jepsen_like.workloads.register_process import RegisterProcess
from jepsen_like.workloads.slots import Slots
from jepsen_like.workloads.view import LiveView
from jepsen_like.workloads.watcher import Watcher, new_cluster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jepsen_like.history.recorder import Recorder
    from jepsen_like.nemesis.machines import View
    from jepsen_like.workloads.bench import Stop
    from raftmq.client.routing.cluster import Cluster

PROCESSES_MAX = 5  # more at one register would make its history hard to judge
REGISTERS = 4  # few, so that processes meet at them
FINAL_SECONDS_MAX = 30.0  # for each process to confirm all registers
PAUSE_SECONDS = 0.5  # before a register that could not be confirmed is tried again


class MetadataWorkload:
    name = "metadata"

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        recorder: Recorder,
        random: Random,
        *,
        processes: int = PROCESSES_MAX,
        rate: float = 30.0,
        replication_factor: int = 3,
    ) -> None:
        """`rate`: operations a second of all processes together."""
        self._bootstrap, self._recorder = bootstrap, recorder
        self._random = Random(random.getrandbits(64))
        self._processes = min(processes, PROCESSES_MAX)
        self._seconds_between = self._processes / rate
        self._replication_factor = replication_factor
        self._numbers, self._view = count(), LiveView()
        self._slots = Slots(Random(self._random.getrandbits(64)), count=REGISTERS)

    def view(self) -> View:
        return self._view

    async def prepare(self) -> None:
        """Make all registers; one that cannot be made now is made later."""
        async with self._new_cluster() as cluster:
            process = self._new_process(cluster)
            for name in self._slots.current:
                await process.step(name)

    async def run(self, stop: Stop) -> None:
        watcher = Watcher(
            self._bootstrap,
            self._recorder,
            self._view,
            random=self._new_random(),
            numbers=self._numbers,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watcher.run, stop)
            for _ in range(self._processes):
                nursery.start_soon(self._run_process, stop)

    async def final(self) -> None:
        """Each process confirms what every register is."""
        async with trio.open_nursery() as nursery:
            for _ in range(self._processes):
                nursery.start_soon(self._confirm_all)

    async def _run_process(self, stop: Stop) -> None:
        pace = Pace(self._new_random(), self._seconds_between)
        while not stop.is_set():
            async with self._new_cluster() as cluster:
                process = self._new_process(cluster)
                while not stop.is_set() and not process.is_over:
                    await pace.wait()
                    await process.step(self._slots.choose())

    async def _confirm_all(self) -> None:
        deadline = trio.current_time() + FINAL_SECONDS_MAX
        async with self._new_cluster() as cluster:
            names = [*self._slots.gone, *self._slots.current]
            unsure = [name for name in names if not await self._confirms(cluster, name, deadline)]
        if unsure:
            process, told = next(self._numbers), {"keys": [[name] for name in unsure]}
            self._recorder.invoke(process, "behind", told)
            self._recorder.record(process, Type.INFO, "behind", told, error="not confirmed")

    async def _confirms(self, cluster: Cluster, name: str, deadline: float) -> bool:
        while trio.current_time() < deadline:
            if await self._new_process(cluster).confirm(name):
                return True
            await trio.sleep(PAUSE_SECONDS)
        return False

    def _new_process(self, cluster: Cluster) -> RegisterProcess:
        return RegisterProcess(
            cluster,
            self._recorder,
            self._slots,
            next(self._numbers),
            replication_factor=self._replication_factor,
        )

    def _new_cluster(self) -> Cluster:
        return new_cluster(self._bootstrap, "metadata", self._new_random())

    def _new_random(self) -> Random:
        return Random(self._random.getrandbits(64))
