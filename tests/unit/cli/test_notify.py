"""What systemd hears of a node, by a socket of our own in its place."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from raftmq.cli.nodes.notify import ALIVE, READY, STOPPING, ServiceManager

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """With the value of NOTIFY_SOCKET: a path, or a name that begins with @."""
    path = str(tmp_path / "notify")
    name = path if request.param == "path" else f"@raftmq-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(name.replace("@", "\0"))
        heard.setblocking(False)
        yield heard, name


def test_what_is_sent(manager: tuple[socket.socket, str]) -> None:
    """One datagram each, as sd_notify(3) has it."""
    heard, name = manager
    service = ServiceManager({"NOTIFY_SOCKET": name})
    service.tell(READY, status="in service")
    service.tell(ALIVE)
    assert heard.recv(100) == b"READY=1\nSTATUS=in service"
    assert heard.recv(100) == b"WATCHDOG=1"


def test_a_node_that_stops_is_never_ready_again(manager: tuple[socket.socket, str]) -> None:
    """It was stopped while it still waited for the cluster, and would be called ready later."""
    heard, name = manager
    service = ServiceManager({"NOTIFY_SOCKET": name})
    service.tell(STOPPING, status="flushes its logs")
    service.tell(READY, status="in service")
    service.tell(ALIVE)
    assert heard.recv(100) == b"STOPPING=1\nSTATUS=flushes its logs"
    assert heard.recv(100) == b"WATCHDOG=1"


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": "/no/such/socket"}])
def test_nobody_hears(environment: dict[str, str]) -> None:
    """Started by hand, or systemd is gone: the node does not care."""
    ServiceManager(environment).tell(READY)


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "often"}, None),
    ],
)
def test_how_often(environment: dict[str, str], seconds: float | None) -> None:
    """As systemd says, and only where it says so to this very process."""
    assert ServiceManager(environment).watchdog_seconds == seconds
