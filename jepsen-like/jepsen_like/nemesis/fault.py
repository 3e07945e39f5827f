"""The interface of faults: `begin`, `end`, and the `Scene` (cluster and targets) of each.

Faults run in worker threads; the nemesis locks their nodes, so that no two faults hold the same.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from jepsen_like.nemesis.kinds import Params
    from jepsen_like.nemesis.machines import Machines

Told: TypeAlias = dict[str, Any]  # for the history

T = TypeVar("T")

COMING_UP_SECONDS = 30  # for a node to get ready after a fault; the caretaker takes over then


class Scene(NamedTuple):
    """What a fault is made from.

    Attributes:
        nodes: the targets.
        whom: the role by which they were chosen.
        random: for this fault alone.
        sleep: waits in the thread of the fault.
    """

    machines: Machines
    nodes: tuple[int, ...]
    whom: str
    random: Random
    params: Params
    sleep: Callable[[float], None] = time.sleep

    def running(self) -> list[int]:
        return [node for node in self.nodes if self.machines.is_running(node)]


class RunInThread(Protocol):
    """Waits elsewhere, so that the event loop goes on."""

    async def __call__(self, function: Callable[[], T], /) -> T: ...


class Fault(Protocol):
    """Made from a `Scene`; begins once."""

    def begin(self) -> Told:
        """Do it. What is told adds to what the schedule says of it."""

    def end(self) -> Told:
        """Undo it, as far as it was done, in any state of the nodes. Idempotent, and harmless where
        it did not begin."""


def start_missing(machines: Machines, nodes: tuple[int, ...]) -> None:
    for node in nodes:
        if not machines.is_running(node):
            machines.start(node)


def comes_up(machines: Machines, node: int) -> bool:
    """Whether it gets ready; False at once if it ends instead."""
    for _ in range(COMING_UP_SECONDS):
        if machines.wait_ready(node, 1.0):
            return True
        if machines.has_ended(node) is not None:
            return False
    return False
