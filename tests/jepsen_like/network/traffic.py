"""Sockets on the hosts of a lab, all in one process: a socket belongs to where it was made."""

from __future__ import annotations

import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

from jepsen_like.network.hosts import CLIENTS, node_host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jepsen_like.network.lab import Lab

T = TypeVar("T")

PORT = 7000
PATIENCE_SECONDS = 10.0


class Traffic:
    """Made by `open_traffic`, which closes all sockets. Hosts are "n1" and so on, or "clients"."""

    def __init__(self, lab: Lab, stack: ExitStack) -> None:
        self._lab, self._stack = lab, stack

    def datagrams(self, host: str) -> socket.socket:
        return self._make(host, lambda: _datagrams(_address(host)))

    def listener(self, host: str) -> socket.socket:
        return self._make(host, lambda: socket.create_server((_address(host), PORT)))

    def connect(self, source: str, listener: socket.socket) -> tuple[socket.socket, socket.socket]:
        """Both ends of a connection: the one at `source`, and the one of the listener."""
        near = self.dial(source, listener)
        far = self._stack.enter_context(listener.accept()[0])
        far.settimeout(PATIENCE_SECONDS)
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return near, far

    def dial(self, source: str, listener: socket.socket) -> socket.socket:
        address = listener.getsockname()
        near = self._make(source, lambda: socket.create_connection(address, PATIENCE_SECONDS))
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return near

    def _make(self, host: str, function: Callable[[], socket.socket]) -> socket.socket:
        is_here = host == CLIENTS.name
        made = function() if is_here else self._lab.run_at(int(host[1:]), function)
        return self._stack.enter_context(made)


@contextmanager
def open_traffic(lab: Lab) -> Iterator[Traffic]:
    with ExitStack() as stack:
        yield Traffic(lab, stack)


def send_to(sender: socket.socket, receiver: socket.socket, data: bytes) -> None:
    sender.sendto(data, receiver.getsockname())


def echo(near: socket.socket, far: socket.socket, data: bytes = b"ping") -> str:
    """There and back: what came back."""
    near.sendall(data)
    far.sendall(far.recv(len(data)))
    return near.recv(len(data)).decode()


def name_of_error(function: Callable[[], object]) -> str:
    try:
        function()
    except OSError as error:
        return type(error).__name__
    return ""


def _address(host: str) -> str:
    return CLIENTS.address if host == CLIENTS.name else node_host(int(host[1:])).address


def _datagrams(address: str) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((address, PORT))
    made.settimeout(PATIENCE_SECONDS)
    return made
