"""Reserved ports for nodes on this machine: are they free, and kept while a node does not listen.

Owns the choice of free ports. A client that connects to a stopped node must be refused, and no
other program may get its port meanwhile: a port is reserved by a socket that is bound to it and
never listens, beside which a listener with SO_REUSEADDR may bind, as the network's do. Ephemeral
ports, which the kernel hands out to outgoing connections, are avoided: a node that dials a dead
peer again and again would some day connect to itself.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from random import Random
from shlex import quote
from typing import TYPE_CHECKING

import msgspec

from raftmq.errors import Unreachable
from raftmq.local.neighbours import clusters_on
from raftmq.local.plan import HOST, PORT_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.local.plan import ClusterPlan, NodeEndpoint
    from raftmq.model import Address

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_EPHEMERAL_FROM = 32_768  # Linux's default, where the file cannot be read
_LAST_PORT = 65_535
_LOWEST = 10_000  # above the ports of well-known services
_LOWEST_OF_FEW = 1024  # of unprivileged ports, for systems where almost all are ephemeral
_CHOICE_MIN = 1000  # ports to choose from: several test runs of some 30 ports each on one machine
# Base ports of plans; each needs up to 27 free ports, which a machine full of tests may not have.
_TRIES = 200
_PROBE_SECONDS_MAX = 0.5  # the loopback answers at once, unless a listener's queue is full


def keep_ports(plan: ClusterPlan) -> ExitStack:
    """Reserve the plan's ports until the stack is closed. Listeners with SO_REUSEADDR may bind
    them.

    Raises:
        Unreachable: names every port that is in use, and what it is needed for.
    """
    with ExitStack() as keepers:
        taken = [one for one in plan.endpoints() if not _keep(keepers, one.port, is_new=False)]
        if taken:
            raise Unreachable(_said_of(taken))
        return keepers.pop_all()


def keep_free_ports(plan: ClusterPlan) -> tuple[ClusterPlan, ExitStack]:
    """The plan, moved to ports that are free. Raises Unreachable if none were found."""
    for port in Random().sample(_candidates(width=_LAST_PORT - PORT_MAX + 1), _TRIES):
        moved = msgspec.structs.replace(plan, port=port)
        with ExitStack() as keepers:
            if all(_keep(keepers, one.port, is_new=True) for one in moved.endpoints()):
                return moved, keepers.pop_all()
    raise Unreachable(f"no free ports on {HOST} were found for {plan.brokers} brokers")


def is_listening(address: Address) -> bool:
    """Whether a process of this machine accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(_PROBE_SECONDS_MAX)
        return probe.connect_ex(address) == 0


@contextmanager
def keep_any_ports(count: int) -> Iterator[list[int]]:
    """Free ports, reserved for as long as the body runs.

    Raises:
        Unreachable: there are not so many.
    """
    candidates = _candidates(width=1)
    with ExitStack() as keepers:
        # In random order: several test runs at the same time rarely try the same ports.
        tried = iter(Random().sample(candidates, len(candidates)))
        free = (port for port in tried if _keep(keepers, port, is_new=True))
        kept = list(islice(free, count))
        if len(kept) < count:
            raise Unreachable(f"listen on {HOST}: {len(kept)} ports are free, {count} are needed")
        yield kept


def _candidates(*, width: int) -> range:
    """Where `width` ports may begin, all of them below the ephemeral ones if there is a choice."""
    try:
        end = int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        end = _EPHEMERAL_FROM
    begin = _LOWEST if end - _LOWEST >= _CHOICE_MIN else _LOWEST_OF_FEW
    return range(begin, max(end, begin + _CHOICE_MIN) - width + 1)


def _keep(keepers: ExitStack, port: int, *, is_new: bool) -> bool:
    """Bind the port; False: it is in use. `is_new` also detects sockets that only reserve it.

    Without SO_REUSEADDR a port cannot be bound for a minute after it served a connection
    (TIME_WAIT), which must not keep a cluster from coming back to its own ports.
    """
    keeper = socket.socket()
    try:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, not is_new)
        keeper.bind((HOST, port))
    except OSError:
        keeper.close()
        return False
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)
    keepers.enter_context(keeper)
    return True


def _said_of(taken: list[NodeEndpoint]) -> str:
    wants = ", ".join(
        f"port {one.port} (broker {one.node_id} wants it for {one.purpose})" for one in taken
    )
    others = clusters_on({one.port for one in taken})
    advice = "stop what listens there (`ss -ltnp` names it: another `raftmq dev`?)"
    if others:
        where = " and ".join(map(str, others))
        stop = " and ".join(f"`raftmq dev stop --dir {quote(str(one))}`" for one in others)
        advice = f"the local cluster in {where} listens there: stop it with {stop}"
    return (
        f"in use on {HOST}: {wants}; {advice}, or choose other ports with --port, 0 for free ones"
    )
