"""Ports on which nobody listens and nobody will.

A port is kept by a socket that is bound to it and never listens, which lets a listener through
that sets SO_REUSEADDR, as trio's do. Ports that the kernel hands out to whoever connects are left
alone: a node that dials a dead neighbour again and again would some day connect to itself.
"""

from __future__ import annotations

import socket
from pathlib import Path
from random import Random

from tests.cluster.quorum_words import HOST

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000


def keep_ports(count: int) -> list[socket.socket]:
    """Sockets that keep one port each until they are closed."""
    below = int(_EPHEMERAL.read_text().split()[0])
    assert below > _LOWEST + 1000, f"the kernel hands out ports from {below} on: no room below"
    kept: list[socket.socket] = []
    for port in Random().sample(range(_LOWEST, below), 500):
        keeper = _keep(port)
        if keeper is not None:
            kept.append(keeper)
        if len(kept) == count:
            return kept
    raise OSError(f"no {count} free ports between {_LOWEST} and {below}")


def _keep(port: int) -> socket.socket | None:
    """Bound without SO_REUSEADDR, which finds out other keepers; then it is set for listeners."""
    keeper = socket.socket()
    try:
        keeper.bind((HOST, port))
    except OSError:
        keeper.close()
        return None
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return keeper
