"""A data directory that lives through one disaster after the other, and the ledger that judges.

Owns the order of a cycle: a writer lives, is killed, the power may be cut, the next life opens.
Lives are numbered, so that each writes other content. The seed decides the load and the moments,
the kernel decides the rest.
"""

from __future__ import annotations

import signal
from itertools import count
from random import Random
from typing import TYPE_CHECKING

import trio

from tests.powercut.check import check
from tests.powercut.child import WriterFailed, WriterProcess
from tests.powercut.events import Acknowledged, Appended, Closed, Ready, Refused, WentOffline
from tests.powercut.ledger import Keeps, Ledger
from tests.powercut.writer import Order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from jepsen_like.nodes.disk import LoopDisk
    from tests.powercut.events import AnyEvent

UNDER_LOAD = 0.8  # of the lives
APPENDS_MAX = 250  # of all partitions, until the kill
SECONDS_MAX = 0.05  # ... and after them


class Rig:
    """One directory through its lives.

    Attributes:
        disk: where it lies; None where only processes are killed.
        promises: acknowledgements heard from writers that were killed later.
        order: what the next life is to do; the rig keeps `life` and `power_cuts` in it.
    """

    def __init__(
        self, root: Path, disk: LoopDisk | None = None, *, seed: int, partitions: int = 4
    ) -> None:
        self.disk, self.random = disk, Random(seed)
        self.ledger = Ledger(partitions)
        self.order = Order(root, seed=seed, partitions=partitions)
        self.promises = 0
        self._kept = Keeps.WRITTEN  # what the last disaster left

    def start(self, *, under: Sequence[str] = ()) -> WriterProcess:
        """The next life, as a process (under `strace ...`, say); `bury` it when it is over."""
        self._next_life()
        return WriterProcess(self.order, under=under)

    def bury(self, writer: WriterProcess) -> None:
        """Kill it if it still lives, and take down what it told."""
        status = writer.kill()
        for event in writer.events:
            self.ledger.record(event, self._kept)
            self.promises += isinstance(event, Acknowledged)
        if status != -signal.SIGKILL and not isinstance(writer.events[-1], Closed | Refused):
            raise WriterFailed(f"ended with status {status}: {writer.stderr()}")
        self._kept = Keeps.WRITTEN

    def cut_power(self, *, loses_unacknowledged: bool = True) -> None:
        assert self.disk is not None
        self.disk.cut_power()
        self.order = self.order._replace(power_cuts=self.disk.power_cuts)
        if loses_unacknowledged:
            self._kept = Keeps.ACKNOWLEDGED

    def live_and_die(self, *, appends: int | None = None, under: Sequence[str] = ()) -> None:
        """A writer is killed at a random moment: mostly under load, else while it recovers."""
        if appends is None:
            appends = self._draw_appends()
        with self.start(under=under) as writer:
            writer.hear_until(lambda event: isinstance(event, Ready))
            if appends:
                writer.hear_until(_appends_or_gives_up(appends))
            writer.hear_for(self.random.uniform(0.0, SECONDS_MAX))
            self.bury(writer)

    def _draw_appends(self) -> int:
        """Counted, not timed, so that a busy machine tests as much as an idle one."""
        return self.random.randint(1, APPENDS_MAX) if self.random.random() < UNDER_LOAD else 0

    def check(self) -> None:
        """Open, read everything back, append, close cleanly."""
        self._next_life()
        trio.run(check, self.order, self.ledger, self._kept)
        self._kept = Keeps.WRITTEN

    def _next_life(self) -> None:
        self.order = self.order._replace(life=self.order.life + 1)


def _appends_or_gives_up(number: int) -> Callable[[AnyEvent], bool]:
    heard = count(1)

    def is_enough(event: AnyEvent) -> bool:
        if isinstance(event, Appended):
            return next(heard) >= number
        return isinstance(event, WentOffline | Refused | Closed)

    return is_enough
