"""Ports for the nodes: whether they are free, and that they stay so until somebody listens.

Owns the choice of free ports. Those that the kernel hands out to whoever connects are left alone: a
node that dials a dead neighbour again and again would some day connect to itself.
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
_LOWEST = 10_000
_TRIES = 200


def keep_ports(plan: ClusterPlan) -> ExitStack:
    """Whatever keeps them, until it is closed; listeners with SO_REUSEADDR are let through.

    Raises:
        Unreachable: names every port that is in use, and what for it is wanted.
    """
    with ExitStack() as keepers:
        taken = [one for one in plan.endpoints() if not _keep(keepers, one, is_new=False)]
        if taken:
            raise Unreachable(_said_of(taken))
        return keepers.pop_all()


def keep_free_ports(plan: ClusterPlan) -> tuple[ClusterPlan, ExitStack]:
    """The plan on ports of which nobody knows yet. Raises Unreachable if there are none."""
    for port in Random().sample(_candidates(), _TRIES):
        moved = msgspec.structs.replace(plan, port=port)
        with ExitStack() as keepers:
            if all(_keep(keepers, one, is_new=True) for one in moved.endpoints()):
                return moved, keepers.pop_all()
    raise Unreachable(f"no free ports on {HOST} were found for {plan.brokers} brokers")


def _candidates() -> range:
    below = int(_HANDED_OUT.read_text().split()[0])
    if below - _LOWEST > 2 * _TRIES:
        return range(_LOWEST, min(below - (65_535 - PORT_MAX), PORT_MAX))
    return range(_LOWEST, PORT_MAX)  # the kernel leaves no room: better those than none


def _keep(keepers: ExitStack, endpoint: NodeEndpoint, *, is_new: bool) -> bool:
    """Whether the port could be had: `is_new` also finds out others who only keep it.

    Without SO_REUSEADDR it cannot be had for a minute after it served a connection, which is no
    reason not to come back to it.
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
