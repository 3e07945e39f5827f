"""The switch as a process, between sockets in place of devices: needs no root."""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from jepsen_like.network.commands import Plan
from jepsen_like.network.lab import open_switch
from jepsen_like.network.links import NetworkError
from tests.jepsen_like.network.processes import switch_ids
from tests.jepsen_like.network.tcp_frames import N1, N2, N3, udp_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jepsen_like.network.links import SwitchLinks

pytestmark = pytest.mark.cluster

HOSTS = (N1, N2, N3)
PATIENCE_SECONDS = 10.0


class Wires:
    """Attributes:
    ends: of each host, by its name: what is sent there, the switch reads, and the reverse.
    ports: the other ends.
    """

    def __init__(self) -> None:
        pairs = {host: socket.socketpair(type=socket.SOCK_DGRAM) for host in HOSTS}
        self.ends = {host.name: end for host, (end, _) in pairs.items()}
        self.ports = [port for _, port in pairs.values()]
        for port in self.ports:
            port.setblocking(False)
        for end in self.ends.values():
            end.settimeout(PATIENCE_SECONDS)

    def close(self) -> None:
        for end in (*self.ends.values(), *self.ports):
            end.close()


@pytest.fixture
def wires() -> Iterator[Wires]:
    wires = Wires()
    yield wires
    wires.close()


@pytest.fixture
def links(wires: Wires) -> Iterator[SwitchLinks]:
    ports = zip(HOSTS, (port.fileno() for port in wires.ports), strict=True)
    with open_switch(Plan(tuple(ports), seed=7)) as links:
        yield links


def test_commands_hold_when_they_return(wires: Wires, links: SwitchLinks) -> None:
    """Cut, send, heal, send, a hundred times without a pause: what was cut never arrives."""
    for number in range(100):
        links.cut("n1", "n2")
        wires.ends["n1"].send(udp_frame(payload=b"lost"))
        _wait_until_read(wires)
        links.heal()
        wires.ends["n1"].send(udp_frame(payload=bytes([number])))
        assert wires.ends["n2"].recv(99)[-1] == number
    assert (links.counts().cut, links.counts().forwarded) == (100, 200)


def test_delay_wakes_the_switch(wires: Wires, links: SwitchLinks) -> None:
    """One frame is delayed, and nothing else happens: it comes by itself."""
    links.shape("n1", "n2", delay_ms=5)
    wires.ends["n1"].send(udp_frame(payload=b"slow"))
    assert wires.ends["n2"].recv(99).endswith(b"slow")
    assert links.counts().delayed == 1


def test_host_that_goes_away(wires: Wires, links: SwitchLinks) -> None:
    """n3 closes its end: what is sent there is stray, the others go on."""
    wires.ends["n3"].close()
    wires.ends["n1"].send(udp_frame(N1, N3))
    wires.ends["n1"].send(udp_frame(N1, N2))
    wires.ends["n2"].recv(99)
    assert (links.counts().stray, links.counts().forwarded) == (1, 1)


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [("n1", "n9", "n1 to n9"), ("clients", "n1", "clients to n1"), ("n1", "n1", "no link")],
)
def test_link_that_is_not_there(links: SwitchLinks, source: str, target: str, said: str) -> None:
    """A host that nobody knows, or a host and itself: the mistake is the caller's."""
    with pytest.raises(AssertionError, match=said):
        links.cut(source, target)


@pytest.mark.parametrize("shape", [{"loss": 20.0}, {"duplicate": -0.1}, {"delay_ms": -1.0}])
def test_shape_that_cannot_be(links: SwitchLinks, shape: dict[str, float]) -> None:
    """A loss in percent, a negative chance, a frame that comes before it was sent."""
    with pytest.raises(AssertionError):
        links.shape("n1", "n2", **shape)


def test_after_the_end(wires: Wires) -> None:
    """The links are used after the switch was closed: no command is taken for done."""
    ports = zip(HOSTS, (port.fileno() for port in wires.ports), strict=True)
    with open_switch(Plan(tuple(ports), seed=7)) as links:
        links.heal()
    with pytest.raises(NetworkError, match="does not do Cut"):
        links.cut("n1", "n2")


def test_interrupt_is_not_for_the_switch(wires: Wires, links: SwitchLinks) -> None:
    """Ctrl-C goes to all processes of a terminal: the network stays until the harness is done."""
    links.counts()  # it runs
    for process_id in switch_ids():
        os.kill(process_id, signal.SIGINT)
    wires.ends["n1"].send(udp_frame(payload=b"still"))
    assert wires.ends["n2"].recv(99).endswith(b"still")


def _wait_until_read(wires: Wires) -> None:
    """n1 sends to n3, and it arrives: the switch has read what n1 sent before."""
    wires.ends["n1"].send(udp_frame(N1, N3))
    wires.ends["n3"].recv(99)
