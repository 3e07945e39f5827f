"""The virtual network of a run: a namespace per host, wired to one switch process.

Owns the namespaces and the switch. Each node is at 10.77.0.<its id>, the harness itself at
10.77.0.254. Everything is held by descriptors of this process and the switch, and the switch ends
with this process: a harness that was killed leaves nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from jepsen_like.network.commands import Plan, encode_plan
from jepsen_like.network.devices import list_up, make_tap, remember_neighbours
from jepsen_like.network.hosts import CLIENTS, Host, node_host
from jepsen_like.network.links import NetworkError, SwitchLinks
from jepsen_like.network.namespaces import in_namespace, make_namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")

DEVICE = "eth0"
PATIENCE_SECONDS = 5.0  # for the switch to end once its pipes are closed; then it is killed
SOURCES = Path(__file__).parents[2]


class Lab:
    """Made by `Lab.open`.

    Attributes:
    links: what one may do to the network.
    """

    def __init__(self, namespaces: dict[int, int], links: SwitchLinks) -> None:
        self._namespaces = namespaces
        self.links = links

    @classmethod
    @contextmanager
    def open(cls, node_ids: Sequence[int], seed: int) -> Iterator[Lab]:
        """Needs a process that has called `unshare_here`. `seed`: of losses, jitter and so on.

        Raises:
            NetworkError: what this machine refused.
        """
        with ExitStack() as stack:
            try:
                lab = cls._build(stack, node_ids, seed)
            except OSError as error:
                raise NetworkError(f"no network of namespaces: {error}") from error
            yield lab

    @classmethod
    def _build(cls, stack: ExitStack, node_ids: Sequence[int], seed: int) -> Lab:
        _check_own_network()
        hosts = [*(node_host(node_id) for node_id in node_ids), CLIENTS]
        namespaces = {host.number: _keep(stack, make_namespace()) for host in hosts[:-1]}
        with ExitStack() as until_switched:
            ports = [
                (host, _keep(until_switched, _plug_in(host, hosts, namespaces))) for host in hosts
            ]
            links = stack.enter_context(open_switch(Plan(tuple(ports), seed)))
        return cls(namespaces, links)

    def address(self, node_id: int) -> str:
        assert node_id in self._namespaces, f"no node {node_id} in this lab"
        return node_host(node_id).address

    def enter_command(self, node_id: int) -> list[str]:
        """What to put before a command to run it on that host.

        `nsenter` changes the namespace and then becomes the command, so the process that was
        started is the command itself, with the mounts of this process. This needs no code between
        fork and exec, and so it is safe from any thread.
        """
        return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self._namespaces[node_id]}"]

    def run_at(self, node_id: int, function: Callable[[], T]) -> T:
        """Call it on that host, in a thread: a socket that it returns stays there."""
        return in_namespace(self._namespaces[node_id], function)


def _check_own_network() -> None:
    others = [name for name in list_up() if name != "lo"]
    if others:
        raise NetworkError(
            f"this process is on a network with {', '.join(others)}, which is not its own; "
            "call unshare_here() at its start"
        )


def _plug_in(host: Host, hosts: Sequence[Host], namespaces: dict[int, int]) -> int:
    make = partial(_plug_in_here, host, hosts)
    return make() if host is CLIENTS else in_namespace(namespaces[host.number], make)


def _plug_in_here(host: Host, hosts: Sequence[Host]) -> int:
    descriptor = make_tap(DEVICE, host)
    remember_neighbours(DEVICE, (other for other in hosts if other is not host))
    return descriptor


def _keep(stack: ExitStack, descriptor: int) -> int:
    stack.callback(os.close, descriptor)
    return descriptor


@contextmanager
def open_switch(plan: Plan) -> Iterator[SwitchLinks]:
    """The process between the hosts, which gets copies of the descriptors in `plan`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "jepsen_like.network.switch", encode_plan(plan)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[descriptor for _, descriptor in plan.ports],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        names = (host.name for host, _ in plan.ports)
        links = SwitchLinks(names, commands=process.stdin, answers=process.stdout)
        links.counts()  # answered once it runs
        yield links
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with process:  # closes the pipes, which tells it to end
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
