"""Reserved ports for the nodes of a local cluster: are they free, and kept until a node listens.

Owns the choice of free ports. Ephemeral ports, which the kernel hands out to outgoing connections,
are avoided: a node that dials a dead peer again and again would some day connect to itself.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import msgspec

from raftmq.errors import Unreachable
from raftmq.local.plan import HOST, PORT_MAX

if TYPE_CHECKING:
    from raftmq.local.plan import ClusterPlan, NodeEndpoint

_HANDED_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000  # above the ports of well-known services
# Base ports; each needs up to 27 free ones, which a machine full of tests may not have.
_TRIES = 200


def keep_ports(plan: ClusterPlan) -> ExitStack:
    """Reserve the plan's ports until the stack is closed. Listeners with SO_REUSEADDR may bind
    them.

    Raises:
        Unreachable: names every port that is in use, and what it is needed for.
    """
    with ExitStack() as keepers:
        taken = [one for one in plan.endpoints() if not _keep(keepers, one, is_new=False)]
        if taken:
            raise Unreachable(_said_of(taken))
        return keepers.pop_all()


def keep_free_ports(plan: ClusterPlan) -> tuple[ClusterPlan, ExitStack]:
    """The plan, moved to ports that are free. Raises Unreachable if none were found."""
    for port in Random().sample(_candidates(), _TRIES):
        moved = msgspec.structs.replace(plan, port=port)
        with ExitStack() as keepers:
            if all(_keep(keepers, one, is_new=True) for one in moved.endpoints()):
                return moved, keepers.pop_all()
    raise Unreachable(f"no free ports on {HOST} were found for {plan.brokers} brokers")


def _candidates() -> range:
    below = int(_HANDED_OUT.read_text().split()[0])
    if below - _LOWEST > 2 * _TRIES:
        # All ports of a plan, up to 28 above its base port, are to lie below the ephemeral ones.
        return range(_LOWEST, min(below - (65_535 - PORT_MAX), PORT_MAX))
    return range(_LOWEST, PORT_MAX)  # nearly all are ephemeral here: better those than none


def _keep(keepers: ExitStack, endpoint: NodeEndpoint, *, is_new: bool) -> bool:
    """Bind the port; False: it is in use. `is_new` also detects sockets that only reserve it.

    Without SO_REUSEADDR a port cannot be bound for a minute after it served a connection
    (TIME_WAIT), which must not keep a cluster from coming back to its own ports.
    """
    keeper = socket.socket()
    try:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, not is_new)
        keeper.bind((HOST, endpoint.port))
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
    return (
        f"in use on {HOST}: {wants}; stop what listens there, or choose other ports with --port,"
        " 0 for free ones"
    )
