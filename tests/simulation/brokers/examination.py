"""The final examination of simulated brokers: logs, roles and tasks after everything is repaired.

`what_is_missing` says why a cluster is not whole yet; the rest judges one that is, and idle.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import trio

from raftmq.wire.messages.fetch import Fetch
from raftmq.wire.messages.replicate import ReplicaFetch
from tests.log_reading import read_slice
from tests.simulation.brokers.hosts import NAME
from tests.simulation.brokers.ledger import Found, Spot, records_in
from tests.simulation.raft.checks import demand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.partition.replica import Replica
    from tests.simulation.brokers.hosts import BrokerHost
    from tests.simulation.brokers.world import World

TASKS_MAX = 150  # of one idle broker: more are leaked ones
READ_BYTES = 1 << 20  # of one read: a whole log of a world


def what_is_missing(world: World, *, is_busy: bool = False) -> str:
    """Empty: all brokers serve, every partition is led and has all its replicas in sync. While
    clients work, replicas are never quite even.
    """
    problems = [_unfit(world, host) for host in world.hosts]
    if not any(problems):
        problems = [_incomplete(world, spot, is_busy=is_busy) for spot in world.spots()]
    return next(filter(None, problems), "")


def _unfit(world: World, host: BrokerHost) -> str:
    image = world.newest_image()
    if host.broker is None or host.end:
        return f"{host.name} is down"
    if host.has_failed_logs:
        return f"{host.name} has logs offline"
    if not image.is_active(host.node_id):
        return f"{host.name} is not active: {image.brokers.get(host.node_id)}"
    if image.brokers[host.node_id].broker_epoch != host.broker.lifetime.broker_epoch:
        return f"{host.name} is known as it was before it was started again"
    is_behind = host.broker.quorum.image.version != image.version
    return f"{host.name} is behind" if is_behind else ""


def _incomplete(world: World, spot: Spot, *, is_busy: bool) -> str:
    state = world.state_of(spot)
    if state is None:
        return f"{spot} is not known"
    if state.leader < 0 or set(state.isr) != set(state.replicas):
        return f"{spot}: {state}"
    unsound = [
        name for name, replica in replicas_of(world, spot).items() if not replica.log.is_whole
    ]
    if unsound:
        return f"{spot}: not repaired are the logs of {unsound}"
    return "" if is_busy else _uneven(world, spot)


def _uneven(world: World, spot: Spot) -> str:
    """Which replica does not hold what its leader holds."""
    replicas = replicas_of(world, spot)
    ends = {
        name: (replica.log.log_end_offset, replica.high_watermark)
        for name, replica in replicas.items()
    }
    leaders = [name for name, replica in replicas.items() if replica.leader is not None]
    if len(leaders) != 1:
        return f"{spot} is led by {leaders}"
    leader = replicas[leaders[0]]
    is_even = set(ends.values()) == {(leader.log.log_end_offset,) * 2}
    return "" if is_even else f"{spot}: ends and high watermarks {ends}, {leaders[0]} leads"


def replicas_of(world: World, spot: Spot) -> dict[str, Replica]:
    state, topic_id = world.state_of(spot), world.topic_id_of(spot.topic)
    if state is None or topic_id is None:
        return {}
    return {
        host.name: replica
        for host in world.hosts
        if host.broker is not None and host.node_id in state.replicas
        for replica in host.broker.replicas.all()
        if tuple(replica.key) == (topic_id, spot.partition)
    }


def judge_logs(world: World) -> None:
    for spot in world.spots():
        replicas = replicas_of(world, spot)
        state = world.state_of(spot)
        assert state is not None
        demand(len(replicas) == len(state.replicas), f"{spot}: {sorted(replicas)} host {state}")
        leader = next(replica for replica in replicas.values() if replica.leader is not None)
        _judge_equal(spot, replicas)
        start, epochs = leader.log.log_start_offset, leader.log.epochs
        data = content_of(leader, start)
        records: list[Found] = [found for found in records_in(data) if found.offset >= start]
        world.ledger.judge_log(spot, records, start=start, latest_epoch=epochs.latest)


def _judge_equal(spot: Spot, replicas: dict[str, Replica]) -> None:
    """Byte for byte, from where all of them begin."""
    start = max(replica.log.log_start_offset for replica in replicas.values())
    contents = {name: content_of(replica, start) for name, replica in replicas.items()}
    same = len(set(contents.values())) == 1
    demand(same, f"{spot}: logs differ from {start}: { {n: len(c) for n, c in contents.items()} }")


def content_of(replica: Replica, start: int) -> bytes:
    """Whole batches, up to the high watermark; the first one may begin before `start`."""
    return b"".join(_pieces(replica, start))


def _pieces(replica: Replica, start: int) -> Iterator[bytes]:
    offset, end = start, replica.high_watermark
    while offset < end:
        found = read_slice(replica.log, offset, bytes_max=READ_BYTES, end_offset=end)
        yield bytes(found.bytes.read())
        offset = found.end_offset


# Memory


def judge_rest(world: World) -> None:
    """Nothing is left of what clients did."""
    tasks = _tasks()
    for host in world.hosts:
        _judge_broker(host, connections_max=8 * (len(world.client_names) + len(world.hosts)))
        demand(tasks[host.name] < TASKS_MAX, f"{host.name} has {tasks[host.name]} tasks")


def _judge_broker(host: BrokerHost, *, connections_max: int) -> None:
    broker, name = host.broker, host.name
    assert broker is not None, f"{name} is down"
    waiting = {
        replica.log.name: found
        for replica in broker.replicas.all()
        if (found := sum(map(len, replica._acks._waiters.values())))
    }
    demand(not waiting, f"{name}: producers wait for ever: {waiting}")
    unsettled = broker._proposals._unsettled
    demand(not unsettled, f"{name}: proposals without an end: {unsettled}")
    connections = broker._server.connections
    demand(connections <= connections_max, f"{name}: {connections} connections")
    handlers = broker._server._service._handlers
    for kind in (Fetch, ReplicaFetch):
        sessions = len(handlers[kind].__self__.sessions)  # type: ignore[attr-defined]
        demand(sessions <= connections_max, f"{name}: {sessions} sessions of {kind.__name__}")
    node = getattr(broker.quorum, "_node", None)
    if node is not None:
        demand(not len(node.proposals), f"{name}: {len(node.proposals)} proposals of the quorum")


def _tasks() -> Counter[str]:
    """How many tasks live on each machine."""
    found: Counter[str] = Counter()
    root = trio.lowlevel.current_root_task()
    waiting = [root] if root else []
    while waiting:
        task = waiting.pop()
        found[task.context.get(NAME, "-")] += 1
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return found
