"""The judge of log start offsets: only committed records are deleted, and never come back.

Checks single replicas continuously, and from one process of a broker to its next. Deletions that
clients were told of hold on every leader from then on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import trio

from raftmq.metadata.commands import PartitionId
from tests.simulation.raft.checks import demand

if TYPE_CHECKING:
    from tests.simulation.brokers.hosts import BrokerHost
    from tests.simulation.brokers.world import World

LOOK_SECONDS = 0.25  # between checks of all replicas


class PromisedStarts:
    """Starts that were answered, by partition: each holds in its leader epoch, and from then on."""

    def __init__(self) -> None:
        self._starts: dict[PartitionId, list[tuple[int, int]]] = {}

    def promise(self, key: PartitionId, leader_epoch: int, start: int) -> None:
        self._starts.setdefault(key, []).append((leader_epoch, start))

    def judge(self, host: BrokerHost) -> None:
        """A deposed leader that does not know it may show what its successor has deleted."""
        for replica in host.broker.replicas.all() if host.broker else ():
            leader, log = replica.leader, replica.log
            if leader is None or not log.is_sound:
                continue
            for epoch, start in self._starts.get(PartitionId(*replica.key), ()):
                demand(
                    log.log_start_offset >= start or leader.leader_epoch < epoch,
                    f"{host.name}: {log.name} starts at {log.log_start_offset} in epoch"
                    f" {leader.leader_epoch}, {start} was promised in {epoch}",
                )


async def watch_log_starts(world: World) -> NoReturn:
    while True:
        await trio.sleep(LOOK_SECONDS)
        for host in world.hosts:
            judge_committed(host)
            world.promised_starts.judge(host)


def judge_committed(host: BrokerHost) -> None:
    """A log never starts behind what its replica knows to be committed, unless it begins anew just
    now, or has failed to.
    """
    broker = host.broker
    for replica in broker.replicas.all() if broker else ():
        start, committed = replica.log.log_start_offset, replica.high_watermark
        demand(
            start <= committed or not replica.log.is_sound or replica.log.is_being_cut,
            f"{host.name}: {replica.log.name} starts at {start}, committed is up to {committed}",
        )


def log_starts(host: BrokerHost) -> dict[str, int]:
    """Of all logs without faults: start offsets are durable before they are visible."""
    if host.broker is None:
        return {}
    return {
        replica.log.name: replica.log.log_start_offset
        for replica in host.broker.replicas.all()
        if replica.log.is_sound and not replica.log.is_being_cut
    }


def judge_log_starts(host: BrokerHost, before: dict[str, int]) -> None:
    """After a start: of logs that nothing has happened to since."""
    assert host.broker is not None, "it was opened"
    for name, log in host.broker._directory.logs.items():
        start = log.log_start_offset
        is_untouched = log.is_sound and not log.changes
        demand(
            not is_untouched or start >= before.get(name, 0),
            f"{host.name}: {name} started at {before.get(name)}, and at {start} after a restart",
        )
