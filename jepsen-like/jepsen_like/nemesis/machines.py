"""What the nemesis needs of a cluster: protocols for nodes, links, control pages and roles.

Implemented by real processes, and by a scripted cluster in tests. All methods of `Machines` and
`Links` may block and are called in worker threads, for different nodes at the same time; `View`
answers at once from what it knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from jepsen_like.network.hosts import node_host

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from jepsen_like.network.links import Links


def host_of(node_id: int) -> str:
    """Its name among the hosts of `Links`."""
    return node_host(node_id).name


class Page(Protocol):
    """The control page of a node: live settings of its running process, and of every later one.

    Attributes:
        kill_at_sync: it kills itself at the n-th sync from now; 0: never.
        syncs: that have begun, in all of its processes.
    """

    sync_delay_seconds: float
    fail_syncs: bool
    kill_at_sync: int
    clock_offset_ms: int

    @property
    def syncs(self) -> int: ...


class Machines(Protocol):
    """The nodes: their processes, disks and clocks."""

    @property
    def node_ids(self) -> tuple[int, ...]: ...

    @property
    def links(self) -> Links | None: ...

    @property
    def capabilities(self) -> Mapping[str, str]:
        """Empty: it works; else why it does not."""

    def start(self, node_id: int) -> None: ...

    def kill(self, node_id: int) -> None: ...

    def pause(self, node_id: int) -> None: ...

    def resume(self, node_id: int) -> None: ...

    def freeze(self, node_id: int) -> None: ...

    def thaw(self, node_id: int) -> None: ...

    def is_running(self, node_id: int) -> bool:
        """Whether the process lives; a paused one does."""

    def has_ended(self, node_id: int) -> int | None:
        """The exit status of a process that ended by itself since it was started."""

    def wait_ready(self, node_id: int, timeout_seconds: float) -> bool: ...

    def cut_power(self, node_ids: Sequence[int]) -> None: ...

    def page(self, node_id: int) -> Page: ...

    def stall_disk(self, node_id: int) -> None: ...

    def resume_disk(self, node_id: int) -> None: ...

    def fill_disk(self, node_id: int) -> None: ...

    def free_disk(self, node_id: int) -> None: ...

    def data_directory(self, node_id: int) -> Path: ...

    def preferred_by(self, node_id: int) -> frozenset[tuple[str, int]]:
        """Partitions that the node leads whenever it can; all their replicas are in sync."""

    def read_through(
        self, node_id: int, partitions: Sequence[tuple[str, int]], seconds: float
    ) -> list[str]:
        """Have the node lead them, read them from the beginning, and wait until the cluster is
        healthy; what went wrong."""


class View(Protocol):
    """Which node has which role, as far as is known; may be old."""

    def leaders(self) -> Mapping[str, int]:
        """Of each key that has one."""

    def controller(self) -> int | None: ...

    def coordinators(self) -> Mapping[str, int]:
        """Of each consumer group that has one."""

    def in_sync(self) -> bool:
        """Whether all partitions have all their replicas in sync."""
