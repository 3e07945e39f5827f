"""Tells systemd how a node is (`Type=notify`): ready, stopping, alive, and a line for its status.

Owns the protocol of sd_notify(3): a datagram to the socket that NOTIFY_SOCKET names. Nothing is
sent where there is no such variable, and no failure of it concerns the node.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"


class ServiceManager:
    """Attributes:
    watchdog_seconds: after so long without a sign of life it kills the node; None: it does not.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        # A name that begins with @ is in the abstract namespace.
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        self.watchdog_seconds = _watchdog_seconds(environment)
        self._is_stopping = False

    def tell(self, what: str, *, status: str = "") -> None:
        """Never waits and never fails: the datagram is lost if systemd does not read."""
        self._is_stopping = self._is_stopping or what == STOPPING
        # A node that becomes ready while it stops: systemd would take it for one that serves.
        if what == READY and self._is_stopping:
            return
        lines = [what, *([f"STATUS={status}"] if status else [])]
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
                channel.setblocking(False)
                channel.sendto("\n".join(filter(None, lines)).encode(), self._address)


def _watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    text, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    # Of another process, which has passed its environment on.
    if not text.isdecimal() or pid not in ("", str(os.getpid())):
        return None
    return int(text) / 1_000_000 or None
