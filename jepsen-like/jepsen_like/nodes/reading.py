"""Makes a node lead partitions and reads them whole, so that damage on its disk is detected.

The node becomes leader as it is the preferred replica of those partitions, by an election that is
requested. Blocks the calling thread.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from raftmq.errors import RaftmqError
from raftmq.sync import connect

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from raftmq.sync.client import Client

PAUSE_SECONDS = 0.25  # between attempts
READ_SECONDS_MAX = 20.0  # of one partition


def preferred_by(bootstrap: Sequence[str], node_id: int) -> frozenset[tuple[str, int]]:
    """Partitions that the node leads whenever it can, and that are in sync everywhere."""
    with connect(bootstrap) as mq:
        return frozenset(
            (topic.name, one.partition)
            for topic in mq.admin.list_topics()
            for one in mq.admin.describe_topic(topic.name).partitions
            if one.replicas[0] == node_id and set(one.isr) == set(one.replicas)
        )


def read_through(
    bootstrap: Sequence[str], node_id: int, partitions: Iterable[tuple[str, int]], seconds: float
) -> list[str]:
    """Each from its beginning to its end, the node leading when it begins; then until nothing is
    wrong with the cluster. What went wrong.
    """
    deadline = time.monotonic() + seconds
    problems: list[str] = []
    with connect(bootstrap) as mq:
        for topic, partition in partitions:
            try:
                if _await_lead(mq, node_id, topic, partition, deadline):
                    _read(mq, topic, partition)
                else:
                    problems.append(f"{topic}-{partition}: node {node_id} does not lead it")
            except RaftmqError as error:
                problems.append(f"{topic}-{partition}: {type(error).__name__}: {error}")
        while not (health := mq.admin.health()).is_healthy:
            if time.monotonic() >= deadline:
                problems.append(f"not healthy: {health}")
                break
            time.sleep(PAUSE_SECONDS)
    return problems


def _await_lead(mq: Client, node_id: int, topic: str, partition: int, deadline: float) -> bool:
    while time.monotonic() < deadline:
        if mq.admin.describe_topic(topic).partitions[partition].leader == node_id:
            return True
        mq.admin.elect_leaders(topic, [partition])
        time.sleep(PAUSE_SECONDS)
    return False


def _read(mq: Client, topic: str, partition: int) -> None:
    with mq.consumer(assign=[(topic, partition)], start="earliest") as consumer:
        [end] = consumer.end_offsets().values()
        for _ in consumer.batches(timeout=READ_SECONDS_MAX):
            if (consumer.position(topic, partition) or 0) >= end:
                return
        raise RaftmqError(f"at {consumer.position(topic, partition)} of {end}, and nothing comes")
