"""`NodeCluster`: real brokers, each with its own disk and network where the machine allows it.

Owns the nodes and everything under them, from entering to leaving; then only the processes' logs
are left. Every method blocks until it is done. Two threads may use it at once for different nodes.
A node that has ended by itself is no error here: see `has_ended`.
"""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from jepsen_like.nodes.control_page import ControlPage
from jepsen_like.nodes.disk import disk_folder
from jepsen_like.nodes.foundation import Foundation
from jepsen_like.nodes.logs.leads import LeadsReader
from jepsen_like.nodes.logs.replicas import read_replicas
from jepsen_like.nodes.node import Belongings, Node
from jepsen_like.nodes.process import NodeFailed
from jepsen_like.nodes.reading import preferred_by, read_through
from jepsen_like.nodes.settings import settings_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from jepsen_like.network.links import Links
    from jepsen_like.nodes.disk import LoopDisk
    from jepsen_like.nodes.foundation import Lab
    from jepsen_like.nodes.logs.node_event import NodeEvent
    from jepsen_like.nodes.settings import Place

READY_SECONDS_MAX = 60.0  # seconds on an idle machine; the first start on a busy one is slow


class CapabilityMissing(Exception):
    """This cluster cannot inject that fault: which, and why."""


class NodeCluster:
    """A context manager; nothing runs before `start`.

    Attributes:
        node_ids: all of them vote.
        links: what may be done to the network, if the nodes have one of their own.
        bootstrap: where clients find the nodes.
        capabilities: "" for what works here, else why it does not.
    """

    def __init__(
        self,
        logs: Path,
        *,
        node_ids: Sequence[int] = (1, 2, 3),
        lab: Lab | None = None,
        no_lab: str = "no lab was asked for",
        wants_disks: bool = True,
        disk_mib: int = 256,
        bug: str = "",
    ) -> None:
        """
        Args:
            logs: where the nodes' logs stay, `n1.log` and so on.
            no_lab: why there is no `lab`, if there is none.
            bug: of `planted/real.py`, in every node.
        """
        self.node_ids = tuple(node_ids)
        self.links: Links | None = None if lab is None else lab.links
        self.bootstrap: list[str] = []
        self._logs, self._lab, self._bug, self._disk_mib = logs, lab, bug, disk_mib
        self._wants_disks = wants_disks
        self.capabilities = {"network": "" if lab else no_lab}
        self._nodes: dict[int, Node] = {}
        self._leads = LeadsReader({node_id: self.log_path(node_id) for node_id in node_ids})
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._logs.mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(disk_folder())
            foundation = stack.enter_context(Foundation(folder, self._lab))
            self._starter = stack.enter_context(ThreadPoolExecutor(1, "starts nodes"))
            places = foundation.places(self.node_ids)
            disks = (
                foundation.make_disks(self.node_ids, self._disk_mib) if self._wants_disks else {}
            )
            for node_id in self.node_ids:
                self._nodes[node_id] = self._make_node(node_id, folder, foundation, places, disks)
            unwanted = {"disks": "no disks were asked for", "power cuts": "no disks were asked for"}
            self.capabilities |= foundation.missing | ({} if self._wants_disks else unwanted)
            self.bootstrap = [place.for_clients for place in places.values()]
            stack.callback(self._end)
            self._closing = stack.pop_all()
        return self

    def _make_node(
        self,
        node_id: int,
        folder: Path,
        foundation: Foundation,
        places: dict[int, Place],
        disks: dict[int, LoopDisk],
    ) -> Node:
        disk = disks.get(node_id)
        directory = folder / f"n{node_id}" / "data" if disk is None else disk.mount_point
        config, page_path = folder / f"n{node_id}.toml", folder / f"n{node_id}.page"
        config.write_text(settings_of(node_id, directory, places))
        own = Belongings(
            directory,
            config,
            page_path,
            self.log_path(node_id),
            [] if self._lab is None else self._lab.enter_command(node_id),
            disk,
            foundation.freezer,
        )
        return Node(node_id, own, ControlPage.create(page_path), bug=self._bug)

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _end(self) -> None:
        self._kill_all(self.node_ids)

    def describe(self) -> dict[str, Any]:
        """What a report says of the machine under test."""
        return {
            "nodes": list(self.node_ids),
            "bootstrap": self.bootstrap,
            "disk_mib": 0 if self.capabilities["disks"] else self._disk_mib,
            "bug": self._bug,
            "kernel": os.uname().release,
            "missing": {name: reason for name, reason in self.capabilities.items() if reason},
        }

    # Processes

    def start(self, node_id: int) -> None:
        """Begin its next life; see `wait_ready`."""
        self._nodes[node_id].start(self._starter)

    def start_all(self) -> None:
        """All that do not run, until they are ready. Raises NodeFailed."""
        stopped = [node_id for node_id in self.node_ids if not self.is_running(node_id)]
        for node_id in stopped:
            self.start(node_id)
        deadline = time.monotonic() + READY_SECONDS_MAX
        for node_id in stopped:
            if not self.wait_ready(node_id, max(0.0, deadline - time.monotonic())):
                raise NodeFailed(f"node {node_id} did not start, see {self.log_path(node_id)}")

    def wait_ready(self, node_id: int, timeout_seconds: float) -> bool:
        """Whether it serves; False if it has ended, or takes longer."""
        process = self._nodes[node_id].process
        return process is not None and process.wait_ready(timeout_seconds)

    def kill(self, node_id: int) -> None:
        """SIGKILL, also of a paused or frozen process; returns when nothing of it is left."""
        self._kill_all([node_id])

    def stop(self, node_id: int) -> int | None:
        """SIGTERM, until it has ended in order: its exit status. Raises NodeFailed."""
        self.resume(node_id)
        self._nodes[node_id].signal(signal.SIGTERM)
        return self._nodes[node_id].end()

    def _kill_all(self, node_ids: Iterable[int]) -> None:
        nodes = [self._nodes[node_id] for node_id in node_ids]
        for node in nodes:
            node.begin_kill()
        for node in nodes:
            node.end()

    def pause(self, node_id: int) -> None:
        self._nodes[node_id].signal(signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        self._nodes[node_id].signal(signal.SIGCONT)

    def freeze(self, node_id: int) -> None:
        """Like a pause, by the freezer: it cannot tell, and no signal reaches it."""
        self._demand("freezer")
        self._nodes[node_id].freeze()

    def thaw(self, node_id: int) -> None:
        self._nodes[node_id].thaw()

    def is_running(self, node_id: int) -> bool:
        """A paused or frozen one does."""
        return self._nodes[node_id].is_running

    def has_ended(self, node_id: int) -> int | None:
        """The exit status of a process that has ended by itself, until the next start or kill."""
        process = self._nodes[node_id].process
        return None if process is None else process.status

    def pid(self, node_id: int) -> int | None:
        process = self._nodes[node_id].process
        return None if process is None else process.pid

    # Disks and clocks

    def page(self, node_id: int) -> ControlPage:
        """The settings of its syncs and its clock, from now on and through restarts."""
        return self._nodes[node_id].page

    def cut_power(self, node_ids: Collection[int]) -> None:
        """Kill them, and drop what they had not synced; their disks neither stall nor fail then."""
        self._demand("power cuts")
        self._kill_all(node_ids)
        nodes = [self._nodes[node_id] for node_id in node_ids]
        with ThreadPoolExecutor(max(1, len(nodes)), "cuts power") as threads:
            list(threads.map(Node.cut_power, nodes))

    def stall_disk(self, node_id: int) -> None:
        """Its writes and syncs wait, reads do not."""
        self._disk(node_id).stall()

    def resume_disk(self, node_id: int) -> None:
        self._disk(node_id).resume()

    def fill_disk(self, node_id: int) -> None:
        """Until nothing more fits."""
        self._disk(node_id).fill()

    def free_disk(self, node_id: int) -> None:
        self._disk(node_id).free()

    def _disk(self, node_id: int) -> LoopDisk:
        self._demand("disks")
        disk = self._nodes[node_id].own.disk
        assert disk is not None
        return disk

    def _demand(self, capability: str) -> None:
        if self.capabilities[capability]:
            raise CapabilityMissing(f"no {capability}: {self.capabilities[capability]}")

    # What clients do there

    def preferred_by(self, node_id: int) -> frozenset[tuple[str, int]]:
        return preferred_by(self.bootstrap, node_id)

    def read_through(
        self, node_id: int, partitions: Sequence[tuple[str, int]], seconds: float
    ) -> list[str]:
        return read_through(self.bootstrap, node_id, partitions, seconds)

    # What the nodes leave

    def data_directory(self, node_id: int) -> Path:
        return self._nodes[node_id].own.directory

    def log_path(self, node_id: int) -> Path:
        """The output of all its processes."""
        return self._logs / f"n{node_id}.log"

    def leads_events(self) -> list[NodeEvent]:
        """`leads`, as the nodes' logs say: those since the last call."""
        return self._leads.read_new()

    def read_replicas(self, keys: Collection[str]) -> list[NodeEvent]:
        """`replica`, of each node that has a log of the key."""
        return [
            event
            for node_id in self.node_ids
            for event in read_replicas(self.data_directory(node_id), node_id, keys)
        ]
