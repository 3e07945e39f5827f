"""Ports on which a node will listen, kept for it while it does not run.

Whoever calls a stopped node must be refused, and nobody else may get its port meanwhile: a port is
kept by a socket that is bound to it and never listens, which lets a listener through that sets
SO_REUSEADDR, as the network's do. Ports that the kernel hands out to whoever connects are left
alone: a node that calls a dead neighbour again and again would some day connect to itself.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from raftmq.errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST = "127.0.0.1"
_HANDED_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
_HANDED_OUT_FROM = 32_768  # unless the system says otherwise
_LOWEST = 10_000
_LOWEST_OF_FEW = 1024  # where almost all are handed out
_ROOM_MIN = 1000


@contextmanager
def keep_ports(count: int) -> Iterator[list[int]]:
    """Free ports, nobody else's for as long as the body runs.

    Raises:
        Unreachable: there are not so many.
    """
    candidates = _candidates()
    with ExitStack() as stack:
        kept: list[int] = []
        for port in Random().sample(candidates, len(candidates)):
            if len(kept) == count:
                break
            keeper = _keep(port)
            if keeper is not None:
                stack.enter_context(keeper)
                kept.append(port)
        if len(kept) < count:
            raise Unreachable(f"listen on {HOST}: {len(kept)} ports are free, {count} are needed")
        yield kept


def _candidates() -> range:
    try:
        end = int(_HANDED_OUT.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        end = _HANDED_OUT_FROM
    begin = _LOWEST if end - _LOWEST >= _ROOM_MIN else _LOWEST_OF_FEW
    return range(begin, max(end, begin + _ROOM_MIN))


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
