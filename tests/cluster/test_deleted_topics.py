"""The disks of real brokers get back what deleted topics had: soon, and after a broker was down."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import raftmq.sync

if TYPE_CHECKING:
    from raftmq.sync import Client
    from tests.cluster.broker_cluster import BrokerCluster

pytestmark = pytest.mark.cluster

TOPICS, PARTITIONS = 3, 4
RECORDS, VALUE = 8_000, b"x" * 1024
SEGMENT_BYTES = 1 << 20
# Of whatever was sent when the topic went. Before, there were some thirty, for as long as nobody
# collected garbage.
REMOVED_OPEN_MAX = 2


def connected(brokers: BrokerCluster) -> Client:
    addresses = map(brokers.address, brokers.nodes)
    return raftmq.sync.connect(",".join(f"{host}:{port}" for host, port in addresses))


def fill(client: Client, topic: str) -> None:
    config = {"segment.bytes": SEGMENT_BYTES}
    client.admin.create_topic(topic, partitions=PARTITIONS, config=config)
    with client.producer() as producer:
        producer.send_many(topic, [VALUE] * RECORDS)


def removed_open(pid: int) -> list[str]:
    """Files without a name that a process keeps open."""
    links = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(str(descriptor.readlink()))
        except FileNotFoundError:  # closed meanwhile
            continue
    return [link for link in links if link.endswith(" (deleted)") and "/topics/" in link]


def folders(brokers: BrokerCluster, node_id: int) -> list[str]:
    return [path.name for path in (brokers.directory(node_id) / "topics").iterdir()]


def test_removed_files_do_not_stay_open(brokers: BrokerCluster) -> None:
    """Written with acks=all, copied and read: nobody has to collect garbage."""
    with connected(brokers) as client:
        names = [f"topic-{number}" for number in range(TOPICS)]
        for name in names:
            fill(client, name)
        with client.consumer(*names, start="earliest") as consumer:
            for _ in range(100):
                next(iter(consumer))
            for name in names:
                client.admin.delete_topic(name)
        brokers.wait("all folders to go", lambda: not any(folders(brokers, n) for n in (1, 2, 3)))

        def are_closed() -> bool:
            found = [removed_open(brokers.pid(node)) for node in brokers.nodes]
            return all(len(files) <= REMOVED_OPEN_MAX for files in found)

        brokers.wait("removed files to be closed", are_closed)


def test_a_topic_that_goes_while_a_broker_is_down(brokers: BrokerCluster) -> None:
    """Its folders are removed when the broker is back; those of the other topic stay."""
    with connected(brokers) as client:
        for name in ("stays", "goes"):
            fill(client, name)
        brokers.kill([3])
        client.admin.delete_topic("goes")
        assert len(folders(brokers, 3)) == 2
        brokers.start([3])
        brokers.wait_ready([3])
        brokers.wait("the folder to go", lambda: len(folders(brokers, 3)) == 1)
        assert folders(brokers, 3)[0].startswith("stays-")
