"""What nodes say in their output, as events of a history: who leads, what they have installed.

Owns the position up to which each file was read; each line becomes one event. A line without its
end is left for the next time. Lines from before the reader was made are of other clusters.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from jepsen_like.nodes.logs.names import key_of_log
from jepsen_like.nodes.logs.node_event import NodeEvent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_INSTALLED = re.compile(rb" node=[0-9]+ index=[0-9]+ event=installed$")
_LEADS = re.compile(rb" leads: log=(?P<log>\S+) epoch=(?P<epoch>[0-9]+)$")


class LeadsReader:
    def __init__(self, paths: Mapping[int, Path]) -> None:
        self._paths = paths
        self._positions = {
            node_id: path.stat().st_size if path.exists() else 0 for node_id, path in paths.items()
        }

    def read_new(self) -> list[NodeEvent]:
        """Of all nodes; those of one node in the order in which it wrote them."""
        return [event for node_id in self._paths for event in self._read(node_id)]

    def _read(self, node_id: int) -> Iterator[NodeEvent]:
        path = self._paths[node_id]
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._positions[node_id])
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._positions[node_id] += len(line)
                event = leads_of(node_id, line) or installed_of(node_id, line)
                if event is not None:
                    yield event


def leads_of(node_id: int, line: bytes) -> NodeEvent | None:
    found = _LEADS.search(line.rstrip(b"\n"))
    key = None if found is None else key_of_log(found["log"].decode(errors="replace"))
    if found is None or key is None:
        return None
    return NodeEvent(node_id, "leads", {"key": key, "epoch": int(found["epoch"])})


def installed_of(node_id: int, line: bytes) -> NodeEvent | None:
    """A snapshot of the quorum in place of a part of its log."""
    return NodeEvent(node_id, "installed", {}) if _INSTALLED.search(line.rstrip(b"\n")) else None
