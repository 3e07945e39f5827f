"""Plain tests of plain code: `raftmq.sync`, and a broker that is stopped in the middle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import raftmq
from raftmq import testing

if TYPE_CHECKING:
    from raftmq import sync


def test_a_record_comes_back(blocking_mq: sync.Client, raftmq_topic: str) -> None:
    blocking_mq.admin.create_topic(raftmq_topic)
    with blocking_mq.producer() as producer:
        producer.send(raftmq_topic, b"two apples")
    with blocking_mq.consumer(raftmq_topic, start="earliest") as consumer:
        assert [record.value for record in consumer.records(timeout=1)] == [b"two apples"]


def test_an_order_survives_its_leader() -> None:
    """Brokers of its own, so that no other test meets the rest of them."""
    with testing.cluster(3) as server, raftmq.sync.connect(server.bootstrap) as mq:
        mq.admin.create_topic("orders", partitions=1)
        with mq.producer() as producer:
            producer.send("orders", b"a plum")
            server.kill_node(server.leader_of("orders", 0) or 0)
            producer.send("orders", b"a pear")
        with mq.consumer("orders", start="earliest") as consumer:
            records = consumer.records(timeout=10)
            assert [next(records).value for _ in range(2)] == [b"a plum", b"a pear"]
