"""The frame of a simulated world: seed, trace, virtual time, network, repair, replay.

Owns the lines that are traced, with the log of the code under test, the repair of machines and
links, and more time for a world in which little happened. Promises are judged in the worlds.
"""

from __future__ import annotations

import gc
import logging
from contextlib import contextmanager, nullcontext
from hashlib import sha256
from random import Random
from threading import get_ident
from typing import TYPE_CHECKING, ClassVar, Protocol

import trio

from tests.simulation.deterministic import run
from tests.simulation.network import SimulatedNetwork

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from tests.simulation.nemesis import Nemesis
    from tests.simulation.network_pipe import Latency
    from tests.simulation.raft.hosts import Host

SILENCE_SECONDS_MAX = 8.0  # until an end of a silent connection notices that it is broken
PROLONGATIONS_MAX = 4  # of a world in which little happened; then it counts as idle


class WorldPlan(Protocol):
    """What every plan says."""

    @property
    def seconds(self) -> float: ...
    @property
    def kinds(self) -> tuple[str, ...]: ...
    @property
    def gap_seconds(self) -> float: ...
    @property
    def pace(self) -> float: ...
    @property
    def at_once(self) -> int: ...
    @property
    def latency(self) -> Latency: ...
    @property
    def disk_seconds(self) -> tuple[float, float]: ...


class SimulatedWorld:
    """Attributes:
    module: the command that plays a world of this kind.
    logger: its lines are part of the trace.
    seed: everything else follows from it, and from the faults, if they are not drawn.
    is_closing: clients finish what they do, and begin nothing.
    heal_seconds: from the repairs until all was as it should be.
    """

    module: ClassVar[str]
    logger: ClassVar[logging.Logger]
    hosts: Sequence[Host]
    nemesis: Nemesis
    nursery: trio.Nursery  # for as long as the world is

    def __init__(self, seed: int, plan: WorldPlan, *, wanted: tuple[str, ...]) -> None:
        """`wanted`: the faults, if they were chosen."""
        self.seed, self.plan, self._wanted = seed, plan, wanted
        self.lines: list[str] = []
        self.network = SimulatedNetwork(
            Random(f"{seed}/network"),
            latency=plan.latency,
            silence_seconds_max=SILENCE_SECONDS_MAX,
            trace=self.lines.append,
        )
        self.is_closing = False
        self.heal_seconds = 0.0

    # Telling

    def trace(self, what: str) -> None:
        self.lines.append(f"{trio.current_time():.6f} {what}")

    def on_struck(self, kind: str, what: object) -> None:
        """A fault of this kind was injected, into what."""
        self.trace(f"fault {kind} {what}")

    def fault_span(self) -> AbstractContextManager[None]:
        """Faults that begin within are over at its end."""
        return nullcontext()

    def on_log(self, record: logging.LogRecord) -> None:
        """Raises Violation for what must never be said."""
        raise NotImplementedError

    @property
    def command(self) -> str:
        """That shows this world once more."""
        options = f"--seed {self.seed} --seconds {self.plan.seconds:g}"
        faults = f" --kinds {','.join(self._wanted)}" if self._wanted else ""
        return f"python -m {self.module} {options}{faults}"

    @property
    def digest(self) -> str:
        return sha256("\n".join(self.lines).encode()).hexdigest()

    # Playing

    def play(self) -> None:
        """
        Raises:
            Violation: a promise was broken; or any error of the code under test.
            TooLittle: what happened proves nothing.
        """
        try:
            with _logged(self), self.tuned():
                run(f"{self.seed}", self.main)
        finally:
            gc.unfreeze()  # voters freeze what they load, which is over with this world

    def tuned(self) -> AbstractContextManager[None]:
        """The sizes and times of a short world."""
        raise NotImplementedError

    async def main(self) -> None:
        raise NotImplementedError

    async def prolong(self, faults: trio.CancelScope) -> None:
        """Where the quorum was down most of the time, or luck was kind, go on for a while."""
        for _ in range(PROLONGATIONS_MAX):
            await trio.sleep_until(faults.deadline - 0.01)
            if not self.has_done_enough():
                faults.deadline += self.plan.seconds
                self.nemesis.ease *= 3.0 if not self.is_busy() else 0.5

    @property
    def is_calm(self) -> bool:
        """All nodes are up, whole and connected."""
        raise NotImplementedError

    def is_busy(self) -> bool:
        """Whether clients got something done."""
        raise NotImplementedError

    def has_done_enough(self) -> bool:
        """Whether this world proves anything: one whose quorum was down all the time does not."""
        raise NotImplementedError

    def mend(self) -> None:
        """Links and machines; machines that are down stay down."""
        self.trace("repair")
        self.network.heal()
        for host in self.hosts:
            for other in self.hosts:
                if host is not other:
                    self.network.slow(host.name, other.name, self.plan.latency)
            host.disk_seconds = self.plan.disk_seconds
            host.disarm()
            if host.is_up and host.is_paused:
                host.resume()


@contextmanager
def _logged(world: SimulatedWorld) -> Iterator[None]:
    handler, logger = _Trace(world), world.logger
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)  # each replica that leads has a line of this level
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


class _Trace(logging.Handler):
    """What the code under test logs is part of the trace. What other threads log comes from brokers
    that are real, and that tests have started beside the world.
    """

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__()
        self._world, self._thread_id = world, get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread_id:
            self._world.on_log(record)


def failure_of(world: SimulatedWorld) -> str | None:
    """What goes wrong in one world, with the command that shows it again. One that proves nothing
    is no success, either.
    """
    try:
        world.play()
    except Exception as error:
        return f"seed {world.seed}: {error!r}\nreplay it: {world.command} --trace"
    return None
