"""`raftmq broker --probe`: is the node of these settings alive, or ready? For Kubernetes.

Asks that very node, on its own listener, and no other. Owns what the two words mean: a node that
waits for the cluster, or recovers its logs, is alive and not ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import trio

from raftmq.broker.settings import is_wildcard
from raftmq.cli.nodes.node_settings import failure, settings_of
from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.errors import Disconnected, RaftmqError, Unreachable
from raftmq.rpc.network import TcpNetwork
from raftmq.rpc.trio_channel import TrioConnector
from raftmq.version import SOFTWARE
from raftmq.wire.messages.cluster import DescribeCluster
from raftmq.wire.messages.hello import Hello

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from raftmq.broker.settings import BrokerSettings
    from raftmq.model import Address
    from raftmq.wire.messages.cluster import DescribeClusterReply

LIVE, READY = "live", "ready"
ANSWER_SECONDS_MAX = 5.0  # an event loop that needs longer is ill


def probe_broker(config: Path, overrides: Sequence[str], probe: str) -> int:
    """
    Raises:
        CommandError: exit code 2 for wrong settings, 5 without an answer, 7 if it is not ready.
    """
    settings = None
    try:
        settings, _ = settings_of(config, overrides)
    except RaftmqError as error:
        raise failure([error], settings) from error
    what = trio.run(_probe, settings, probe)
    click.echo(f"{probe}: node {settings.node_id}{what}")
    return ExitCode.OK


async def _probe(settings: BrokerSettings, probe: str) -> str:
    address = _address(settings)
    who = f"node {settings.node_id} at {address}"
    reply = None
    try:
        with trio.move_on_after(ANSWER_SECONDS_MAX):
            reply = await _ask(settings, address)
    except Unreachable as error:
        # Nothing listens yet; that the process exists, Kubernetes knows itself.
        if probe == LIVE and error.was_refused:
            return ", which does not listen yet"
        what = "does not listen" if error.was_refused else "cannot be reached"
        raise CommandError(f"{who} {what}: {error}", ExitCode.UNREACHABLE) from error
    except RaftmqError as error:
        # Its event loop runs, and all places for clients are taken: a restart would move the same
        # clients to the other nodes.
        if probe == LIVE and isinstance(error, Disconnected):
            return ", which turns clients away (limits.connections_max)"
        raise CommandError(f"{who}: {error}", ExitCode.UNREACHABLE) from error
    if reply is None:
        what = f"{who} gave no answer in {ANSWER_SECONDS_MAX:g} s"
        raise CommandError(what, ExitCode.UNREACHABLE)
    if probe == READY and (problem := problem_of(settings.node_id, reply)):
        raise CommandError(f"{who} is not ready: {problem}", ExitCode.UNHEALTHY)
    return ""


async def _ask(settings: BrokerSettings, address: Address) -> DescribeClusterReply:
    hello = Hello(settings.cluster_id, client_id="probe", software=SOFTWARE)
    connector = TrioConnector(TcpNetwork(), lambda: hello)
    async with connector.open(address, name=f"node {settings.node_id}") as channel:
        answer = await channel.request(DescribeCluster(), timeout_seconds=ANSWER_SECONDS_MAX)
        reply: DescribeClusterReply = answer.body
        return reply


def problem_of(node_id: int, reply: DescribeClusterReply) -> str:
    """Why the cluster does not count on it; "" if it does, as far as the node knows."""
    me = next((one for one in reply.brokers if one.broker_id == node_id), None)
    # What the metadata says may be about the process before it, or about the disk before it.
    if me is None or reply.own_epoch not in (None, me.broker_epoch):
        return "it is not registered yet"
    if me.is_fenced:
        return "the cluster does not count on it (fenced)"
    return "it is stopping" if me.in_controlled_shutdown else ""


def _address(settings: BrokerSettings) -> Address:
    """Of its first listener for clients, or of the only one; through the loopback if it is on all
    addresses."""
    listeners = sorted(settings.listeners, key=lambda one: one.is_for_brokers)
    bind = listeners[0].bind
    if not is_wildcard(bind.host):
        return bind
    return bind._replace(host="::1" if ":" in bind.host else "127.0.0.1")
