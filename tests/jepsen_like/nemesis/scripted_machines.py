"""A cluster that only keeps accounts: for tests of whoever breaks it.

It stands at the border to the processes of a machine. Directories are real where a test wants to
damage them; nodes get ready when they are started, unless the test says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from jepsen_like.nemesis.fault import Scene
from jepsen_like.nemesis.kinds import KINDS
from jepsen_like.nemesis.targets import Roles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NOBODY = Roles({}, None)


@dataclass
class PageInMemory:
    sync_delay_seconds: float = 0.0
    fail_syncs: bool = False
    kill_at_sync: int = 0
    clock_offset_ms: int = 0
    syncs: int = 0


@dataclass
class ScriptedLinks:
    """Attributes:
    cuts, shapes: that hold now.
    """

    hosts: tuple[str, ...]
    calls: list[str]
    cuts: set[tuple[str, str]] = field(default_factory=set)
    shapes: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)

    def cut(self, source: str, target: str) -> None:
        self.calls.append(f"cut {source}>{target}")
        self.cuts.add((source, target))

    def shape(
        self,
        source: str,
        target: str,
        *,
        delay_ms: float = 0.0,
        jitter_ms: float = 0.0,
        loss: float = 0.0,
        duplicate: float = 0.0,
    ) -> None:
        shape = {
            "delay_ms": delay_ms,
            "jitter_ms": jitter_ms,
            "loss": loss,
            "duplicate": duplicate,
        }
        self.shapes[source, target] = {name: value for name, value in shape.items() if value}

    def reset(self, one: str, other: str) -> None:
        self.calls.append(f"reset {one}-{other}")

    def heal(self) -> None:
        self.calls.append("heal")
        self.cuts.clear()
        self.shapes.clear()


class ScriptedMachines:
    """Attributes:
    calls: what was asked for, in order.
    running, paused, frozen, stalled, full: nodes in that state.
    statuses: of processes that ended by themselves.
    never_ready: nodes that run and do not serve.
    broken: calls (`"start 2"`) that fail.
    on_start: called with a node that starts, and may end it.
    preferred: partitions that every node leads whenever it can.
    on_read: called with those that are read through; what went wrong.
    """

    def __init__(self, count: int = 3, root: Path = Path("/nowhere")) -> None:
        self.node_ids = tuple(range(1, count + 1))
        self.calls: list[str] = []
        hosts = (*(f"n{node}" for node in self.node_ids), "clients")
        self.links: ScriptedLinks | None = ScriptedLinks(hosts, self.calls)
        self.capabilities = {"network": "", "disks": "", "power cuts": "", "freezer": ""}
        self.running = set(self.node_ids)
        self.paused: set[int] = set()
        self.frozen: set[int] = set()
        self.stalled: set[int] = set()
        self.full: set[int] = set()
        self.statuses: dict[int, int] = {}
        self.never_ready: set[int] = set()
        self.broken: set[str] = set()
        self.on_start: Callable[[int], None] = lambda node: None
        self.pages = {node: PageInMemory() for node in self.node_ids}
        self._root = root
        self.preferred: frozenset[tuple[str, int]] = frozenset()
        self.on_read: Callable[[Sequence[tuple[str, int]]], list[str]] = lambda partitions: []

    def end_by_itself(self, node: int, status: int = 1) -> None:
        self.running.discard(node)
        self.statuses[node] = status

    def start(self, node_id: int) -> None:
        self._note("start", node_id)
        assert node_id not in self.running, f"node {node_id} runs"
        self.statuses.pop(node_id, None)
        self.running.add(node_id)
        self.on_start(node_id)

    def kill(self, node_id: int) -> None:
        self._note("kill", node_id)
        self._gone(node_id)

    def _gone(self, node_id: int) -> None:
        for state in (self.running, self.paused, self.frozen):
            state.discard(node_id)
        self.statuses.pop(node_id, None)

    def pause(self, node_id: int) -> None:
        self._note("pause", node_id)
        self.paused.add(node_id)

    def resume(self, node_id: int) -> None:
        self._note("resume", node_id)
        self.paused.discard(node_id)

    def freeze(self, node_id: int) -> None:
        self._note("freeze", node_id)
        self.frozen.add(node_id)

    def thaw(self, node_id: int) -> None:
        self._note("thaw", node_id)
        self.frozen.discard(node_id)

    def is_running(self, node_id: int) -> bool:
        return node_id in self.running

    def has_ended(self, node_id: int) -> int | None:
        return self.statuses.get(node_id)

    def wait_ready(self, node_id: int, timeout_seconds: float) -> bool:
        return node_id in self.running and node_id not in self.never_ready

    def cut_power(self, node_ids: Sequence[int]) -> None:
        for node_id in node_ids:
            self._note("cut power", node_id)
            self._gone(node_id)
            self.stalled.discard(node_id)

    def page(self, node_id: int) -> PageInMemory:
        return self.pages[node_id]

    def stall_disk(self, node_id: int) -> None:
        self._note("stall", node_id)
        self.stalled.add(node_id)

    def resume_disk(self, node_id: int) -> None:
        self._note("resume disk", node_id)
        self.stalled.discard(node_id)

    def fill_disk(self, node_id: int) -> None:
        self._note("fill", node_id)
        self.full.add(node_id)

    def free_disk(self, node_id: int) -> None:
        self._note("free", node_id)
        self.full.discard(node_id)

    def data_directory(self, node_id: int) -> Path:
        return self._root / f"n{node_id}"

    def preferred_by(self, node_id: int) -> frozenset[tuple[str, int]]:
        assert node_id in self.running, f"node {node_id} leads nothing"
        return self.preferred

    def read_through(
        self, node_id: int, partitions: Sequence[tuple[str, int]], seconds: float
    ) -> list[str]:
        self._note("read", node_id)
        return self.on_read(partitions)

    def _note(self, what: str, node_id: int) -> None:
        self.calls.append(f"{what} {node_id}")
        if f"{what} {node_id}" in self.broken:
            raise OSError(f"{what} does not work on node {node_id}")

    def is_well(self) -> bool:
        """Everybody runs, and nothing is broken."""
        links = self.links
        return (
            self.running == set(self.node_ids)
            and not (self.paused | self.frozen | self.stalled | self.full)
            and all(page == PageInMemory() for page in self.pages.values())
            and (links is None or not (links.cuts or links.shapes))
        )


@dataclass
class ScriptedView:
    """Says what it is told to say."""

    led: dict[str, int] = field(default_factory=dict)
    controlled_by: int | None = None
    is_in_sync: bool = True
    coordinated_by: dict[str, int] = field(default_factory=dict)

    def leaders(self) -> dict[str, int]:
        return self.led

    def controller(self) -> int | None:
        return self.controlled_by

    def coordinators(self) -> dict[str, int]:
        return self.coordinated_by

    def in_sync(self) -> bool:
        return self.is_in_sync


def scene(
    machines: ScriptedMachines,
    *nodes: int,
    whom: str = "one",
    kind: str = "kill",
    seed: int = 0,
    **params: Any,
) -> Scene:
    """Of a fault of this kind, with what is drawn for it where `params` do not say otherwise."""
    random = Random(seed)
    drawn = KINDS[kind].draw(random) | params
    return Scene(machines, nodes, whom, random, drawn, sleep=lambda seconds: None)
