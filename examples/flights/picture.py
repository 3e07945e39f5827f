"""How the cluster is: its brokers, what each leads, and how many replicas are in sync."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq import Client
    from raftmq.client.administration.results import PartitionDetails
    from raftmq.local.cluster import LocalCluster

TITLES = ("broker", "process", "state", "leads partitions", "in sync for")


class BrokerPicture(NamedTuple):
    """Attributes:
    pid: None: it does not run.
    leads: numbers of partitions.
    in_sync: how many partitions count it into their in-sync set.
    """

    broker_id: int
    pid: int | None
    state: str
    leads: tuple[int, ...]
    in_sync: int


class Picture(NamedTuple):
    """Attributes:
    controller_id: the broker that leads the metadata quorum; None: none is known.
    """

    controller_id: int | None
    brokers: tuple[BrokerPicture, ...]
    partitions: tuple[PartitionDetails, ...]

    def leads(self, broker_id: int) -> tuple[int, ...]:
        """The partitions that it leads."""
        return led_by(broker_id, self.partitions)

    @property
    def impaired_count(self) -> int:
        """Partitions that have no leader, or a replica that is not in sync."""
        return sum(
            one.leader is None or set(one.isr) != set(one.replicas) for one in self.partitions
        )

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """For a table under `TITLES`."""
        return [
            (
                f"{one.broker_id}{', controller' if one.broker_id == self.controller_id else ''}",
                "none" if one.pid is None else str(one.pid),
                one.state,
                " ".join(map(str, one.leads)) or "none",
                f"{one.in_sync} of {len(self.partitions)}",
            )
            for one in self.brokers
        ]

    @property
    def in_sync_sets(self) -> str:
        """In words, the most frequent ones first."""
        sets = Counter(" ".join(map(str, sorted(one.isr))) for one in self.partitions)
        return "; ".join(
            f"brokers {members} for {count} partitions" for members, count in sets.most_common()
        )


async def take_picture(client: Client, cluster: LocalCluster, topic: str) -> Picture:
    """The metadata as brokers have it now, and the processes as the system reports them."""
    details = await client.admin.describe_cluster()
    partitions = (await client.admin.describe_topic(topic)).partitions
    processes = {one.node_id: one.pid for one in cluster.status()}
    brokers = tuple(
        BrokerPicture(
            broker_id=one.broker_id,
            pid=processes.get(one.broker_id),
            state=one.state,
            leads=led_by(one.broker_id, partitions),
            in_sync=sum(one.broker_id in partition.isr for partition in partitions),
        )
        for one in details.brokers
    )
    return Picture(details.controller_id, brokers, partitions)


def led_by(broker_id: int, partitions: Iterable[PartitionDetails]) -> tuple[int, ...]:
    return tuple(one.partition for one in partitions if one.leader == broker_id)
