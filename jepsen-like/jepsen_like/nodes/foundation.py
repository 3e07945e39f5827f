"""What a cluster stands on: disks, addresses, the freezer, and the janitor that cleans up after it.

Owns the choice between the faults that this machine can inject and the plain substitutes, and says
which is missing and why. A context manager.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol, Self

from jepsen_like.nodes.capabilities import loop_mounts, power_cuts
from jepsen_like.nodes.disk import LoopDisk
from jepsen_like.nodes.environment import packages_environment
from jepsen_like.nodes.freezer import Freezer, choose_hierarchy
from jepsen_like.nodes.settings import Place, Ports
from raftmq.local.plan import HOST
from raftmq.local.ports import keep_any_ports

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from jepsen_like.network.links import Links


class Lab(Protocol):
    """What nodes need of a network that can be broken."""

    @property
    def links(self) -> Links: ...

    def enter_command(self, node_id: int) -> Sequence[str]:
        """What stands before a command that is to run in that node's network."""

    def address(self, node_id: int) -> str: ...


class Foundation:
    """Attributes:
    freezer: None where there is none.
    missing: "" for what works, else why it does not.
    """

    def __init__(self, folder: Path, lab: Lab | None) -> None:
        """`folder`: goes with everything in it, and is mounted nowhere else."""
        self._folder, self._lab = folder, lab
        self._stack = ExitStack()
        self.freezer: Freezer | None = None
        self.missing: dict[str, str] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            hierarchy, no_freezer = choose_hierarchy()
            self.missing = {
                "disks": loop_mounts(),
                "power cuts": power_cuts(),
                "freezer": no_freezer,
            }
            self._start_janitor(stack)
            if hierarchy is not None:
                self.freezer = Freezer(hierarchy)
                stack.callback(self.freezer.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start_janitor(self, stack: ExitStack) -> None:
        """Started first: it outlives this process if that is killed, and cleans up then."""
        arguments = [str(self._folder), str(os.getpid())]
        janitor = subprocess.Popen(
            [sys.executable, "-m", "jepsen_like.nodes.janitor", *arguments],
            stdin=subprocess.PIPE,
            env=packages_environment(),
            cwd="/",
            start_new_session=True,
        )
        stack.enter_context(janitor)  # closes its stdin, and waits
        # Runs before that: after an orderly end nothing is left for the janitor.
        stack.callback(janitor.kill)

    def places(self, node_ids: Sequence[int]) -> dict[int, Place]:
        """Where each listens; on the loopback, ports are kept until the end."""
        if self._lab is not None:
            return {node_id: Place(self._lab.address(node_id)) for node_id in node_ids}
        width = len(Ports._fields)
        ports = self._stack.enter_context(keep_any_ports(width * len(node_ids)))
        return {
            node_id: Place(HOST, Ports(*ports[at * width : (at + 1) * width]))
            for at, node_id in enumerate(node_ids)
        }

    def make_disks(self, node_ids: Sequence[int], disk_mib: int) -> dict[int, LoopDisk]:
        """Mounted and empty; none where there can be none."""
        if self.missing["disks"]:
            return {}
        disks = {node_id: LoopDisk(self._folder / f"n{node_id}") for node_id in node_ids}
        for disk in disks.values():
            disk.make(disk_mib)
        return disks
