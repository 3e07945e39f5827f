"""Partitions that move while records are produced, with real processes (A10.2).

The commands are those of docs/DEPLOYING.md, "Moving replicas".
"""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from raftmq import sync
from tests.cluster.broker_cluster import VOTERS, BrokerCluster
from tests.cluster.test_deploying import ask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.cluster

NODES = (*VOTERS, 4, 5)
FILLING, VALUE_BYTES = 4_000, 2_000
FIRST = {0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]}
SLOW = "reassignment.bytes_per_second=1000000"  # so that a copy of 3 MB takes three seconds
SECONDS_MAX = 60.0
ACKNOWLEDGED_SECONDS_MAX = 4.0  # half of a copy, for which nothing would be acknowledged else


class Moving:
    """Five brokers, a topic on some of them, and a program that sends to it all the while.

    Attributes:
        longest_wait: between two acknowledgements, in seconds.
    """

    def __init__(self, brokers: BrokerCluster, mq: sync.Client) -> None:
        self.brokers, self._mq = brokers, mq
        self.sent, self.longest_wait = 0, 0.0
        self._stops, self._error = threading.Event(), list[BaseException]()
        self._thread = threading.Thread(target=self._send)

    def begin(self, first: dict[int, list[int]]) -> None:
        self._mq.admin.create_topic(
            "orders", partitions=len(first), replication_factor=len(first[0])
        )
        self._mq.admin.move_partitions({("orders", at): first[at] for at in first})
        self.wait_replicas(first)
        with self._mq.producer() as producer:
            producer.send_many("orders", (b"%08d" % n + bytes(VALUE_BYTES) for n in range(FILLING)))
        self.sent = FILLING
        self._thread.start()

    def _send(self) -> None:
        """Each is acknowledged before the next one is sent."""
        try:
            with self._mq.producer() as producer:
                acknowledged_at = monotonic()
                while not self._stops.wait(0.005):
                    producer.send("orders", b"%08d" % self.sent)
                    self.sent += 1
                    before, acknowledged_at = acknowledged_at, monotonic()
                    self.longest_wait = max(self.longest_wait, acknowledged_at - before)
        except BaseException as error:
            self._error.append(error)
            raise

    def end(self) -> None:
        self._stops.set()
        if self._thread.is_alive():
            self._thread.join(SECONDS_MAX)
        assert not self._error, self._error

    @property
    def bootstrap(self) -> str:
        return ",".join(str(self.brokers.address(node)) for node in NODES)

    def ask(self, *words: str) -> str:
        return ask("-b", self.bootstrap, *words)

    def moves(self) -> list[dict[str, Any]]:
        return [
            json.loads(line) for line in self.ask("cluster", "moves", "-o", "json").splitlines()
        ]

    def controller(self) -> int:
        found = self._mq.admin.describe_cluster().controller_id
        assert found is not None, "there is none"
        return found

    def replicas(self) -> dict[int, list[int]]:
        details = self._mq.admin.describe_topic("orders")
        return {one.partition: list(one.replicas) for one in details.partitions}

    def in_sync(self) -> dict[int, set[int]]:
        details = self._mq.admin.describe_topic("orders")
        return {one.partition: set(one.isr) for one in details.partitions}

    def wait_replicas(self, wanted: dict[int, list[int]]) -> None:
        def are_there() -> bool:
            return self.replicas() == wanted and self.in_sync() == {
                partition: set(replicas) for partition, replicas in wanted.items()
            }

        self.brokers.wait(f"replicas {wanted}", are_there)
        assert self.moves() == []

    def strike(self, node: int) -> None:
        """kill -9, and it comes back."""
        self.brokers.kill([node])
        self.brokers.start([node], SLOW)
        self.brokers.wait_ready([node])

    def judge(self) -> None:
        """Nothing that was acknowledged is missing, and nothing is there twice."""
        self.end()
        found = list[int]()
        with self._mq.consumer("orders", start="earliest") as consumer:
            for record in consumer.records(timeout=5):
                found.append(int(record.value[:8]))
        assert sorted(found) == list(range(self.sent))

    def folders(self) -> dict[int, set[int]]:
        """Partitions that have files, by node."""
        return {
            node: {
                int(folder.name.rpartition("-")[2])
                for folder in self.brokers.directory(node).glob("topics/orders-*/Partition-*")
            }
            for node in NODES
        }


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Moving]:
    with ExitStack() as stack:
        brokers = stack.enter_context(BrokerCluster(tmp_path, nodes=NODES))
        brokers.start(NODES, SLOW)
        brokers.wait_ready(NODES)
        addresses = ",".join(str(brokers.address(node)) for node in NODES)
        moving = Moving(brokers, stack.enter_context(sync.connect(addresses)))
        stack.callback(moving.end)
        yield moving


@pytest.fixture
def moving(idle: Moving) -> Moving:
    idle.begin(FIRST)
    return idle


def test_partitions_move_while_brokers_die(moving: Moving) -> None:
    """All three to new brokers; one of these, and the controller, are killed halfway."""
    moving.ask("topic", "move", "orders", "0", "--to", "4,5,1")
    moving.ask("topic", "move", "orders", "1", "2", "--to", "5,4,2")
    assert {one["partition"] for one in moving.moves()} >= {1, 2}
    moving.strike(4)
    controller = moving.controller()
    moving.strike(controller)
    moving.wait_replicas({0: [4, 5, 1], 1: [5, 4, 2], 2: [5, 4, 2]})
    moving.judge()
    assert moving.folders() == {1: {0}, 2: {1, 2}, 3: set(), 4: {0, 1, 2}, 5: {0, 1, 2}}


def test_another_factor_and_a_cancel(moving: Moving) -> None:
    """A move that is taken back leaves the replicas that there were; then fewer, then more."""
    before = moving.replicas()
    moving.ask("topic", "move", "orders", "0", "--to", "4,5")
    moving.brokers.wait("the copy begins", lambda: 4 in moving.replicas()[0])
    moving.ask("cluster", "moves", "--cancel", "orders", "0")
    moving.wait_replicas(before)
    moving.ask("topic", "alter", "orders", "--replication-factor", "2", "--wait")
    assert {len(replicas) for replicas in moving.replicas().values()} == {2}
    moving.ask("topic", "alter", "orders", "--replication-factor", "3", "--wait", "--timeout", "60")
    after = moving.replicas()
    assert {len(replicas) for replicas in after.values()} == {3}
    moving.wait_replicas(after)
    moving.judge()


@pytest.mark.parametrize("target", [[1, 2, 3], [4]])
def test_a_single_replica_goes_on_while_others_copy(idle: Moving, target: list[int]) -> None:
    """To three of which two have to be in sync, and to another one: what is sent meanwhile is
    acknowledged at once, though nothing else has it before the copy is complete.

    A10.2.
    """
    idle.begin({0: [1]})
    idle.ask("topic", "move", "orders", "0", "--to", ",".join(map(str, target)))
    idle.brokers.wait("the copy begins", lambda: len(idle.replicas()[0]) > 1)
    before = idle.sent
    idle.wait_replicas({0: target})
    assert idle.sent > before
    idle.judge()
    assert idle.longest_wait < ACKNOWLEDGED_SECONDS_MAX
