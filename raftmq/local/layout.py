"""What lies where in the directory of a local cluster.

    cluster.json    the plan; says that the directory is ours
    running.json    which processes there are, and whose they are
    .lock           held by whoever starts the cluster, as long as the processes are bound to it
    .running-lock   held while running.json is changed
    node-1.toml     settings of node 1, written anew at each start of the cluster
    node-1.log      what it said on stdout and stderr, of all its processes
    node-1/         its data

Pure: nothing is read or written here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class Layout(NamedTuple):
    root: Path

    @property
    def plan(self) -> Path:
        return self.root / "cluster.json"

    @property
    def running(self) -> Path:
        return self.root / "running.json"

    @property
    def lock(self) -> Path:
        return self.root / ".lock"

    @property
    def running_lock(self) -> Path:
        return self.root / ".running-lock"

    def settings(self, node_id: int) -> Path:
        return self.root / f"node-{node_id}.toml"

    def log(self, node_id: int) -> Path:
        return self.root / f"node-{node_id}.log"

    def data(self, node_id: int) -> Path:
        return self.root / f"node-{node_id}"
