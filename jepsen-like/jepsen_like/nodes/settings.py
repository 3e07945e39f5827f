"""The settings file of a node, and the addresses where it listens. Pure.

A node that has a network of its own listens on ports that are the same for all; on this machine's
loopback, each has ports of its own, which the foundation reserves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CLUSTER_ID = "jepsen-like"


class Ports(NamedTuple):
    clients: int = 9292
    quorum: int = 9293
    brokers: int = 9294


class Place(NamedTuple):
    host: str
    ports: Ports = Ports()

    @property
    def for_clients(self) -> str:
        return f"{self.host}:{self.ports.clients}"


def settings_of(node_id: int, directory: Path, places: Mapping[int, Place]) -> str:
    """All of `places` vote."""
    host, ports = places[node_id]
    lines = [
        "[node]",
        f"id = {node_id}",
        f'cluster_id = "{CLUSTER_ID}"',
        f'directory = "{directory}"',
        "[quorum.voters]",
        *(f'{voter} = "{place.host}:{place.ports.quorum}"' for voter, place in places.items()),
    ]
    for name, port in (("clients", ports.clients), ("brokers", ports.brokers)):
        lines += ["[[listeners]]", f'name = "{name}"', f'bind = "{host}:{port}"']
    lines += ["[log]", 'level = "debug"']  # a line for each partition that a node leads
    return "\n".join([*lines, ""])
