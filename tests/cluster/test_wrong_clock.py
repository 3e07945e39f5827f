"""One broker's clock is two weeks ahead, in real processes: it follows, and it leads.

Nodes look for what is old every two seconds, and their clocks are the harness's to set.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import pytest

from jepsen_like.nodes.control_page import ControlPage
from jepsen_like.nodes.program import LOOK_SECONDS
from raftmq.sync import connect
from tests.cluster.broker_cluster import VOTERS, BrokerCluster
from tests.cluster.test_admin_commands import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from raftmq.sync import Client

pytestmark = pytest.mark.cluster

WRONG = 3  # the node whose clock it is
AHEAD_MS = 15 * 86_400_000
PARTITIONS = 6
VALUES = {b"%d" % number for number in range(600)}


@pytest.fixture
def pages(tmp_path: Path) -> dict[int, ControlPage]:
    return {node: ControlPage.create(tmp_path / f"page-{node}") for node in VOTERS}


@pytest.fixture
def governed(tmp_path: Path, pages: dict[int, ControlPage]) -> Iterator[BrokerCluster]:
    """Running; each node with the clock that its page says."""

    def program(node: int) -> tuple[str, ...]:
        page, parent = str(tmp_path / f"page-{node}"), str(os.getpid())
        return ("jepsen_like.nodes.program", "--page", page, "--parent", parent, "broker")

    assert len(pages) == len(VOTERS)
    with BrokerCluster(tmp_path, program=program) as cluster:
        cluster.start_all()
        yield cluster


def judge(client: Client) -> None:
    """A few looks later all is there."""
    time.sleep(3 * LOOK_SECONDS)
    assert set(client.admin.offsets("t", "earliest").values()) == {0}


def wait_led_by_others_than(brokers: BrokerCluster, client: Client, killed: int) -> list[int]:
    def leaders() -> list[int]:
        return [one.leader or killed for one in client.admin.describe_topic("t").partitions]

    brokers.wait("other leaders", lambda: killed not in leaders())
    return leaders()


def test_one_wrong_clock_empties_no_copy(
    governed: BrokerCluster, pages: dict[int, ControlPage]
) -> None:
    """All that was acknowledged stays, whoever leads; health says whose clock it is and by how
    much, until it is right again.
    """
    brokers, bootstrap = governed, [str(governed.address(node)) for node in VOTERS]
    with connect(bootstrap) as client:
        client.admin.create_topic("t", partitions=PARTITIONS, replication_factor=3)
        with client.producer() as producer:
            producer.send_many("t", sorted(VALUES), value=lambda one: one, key=lambda one: one)
        run(brokers, "cluster health --wait")
        pages[WRONG].clock_offset_ms = AHEAD_MS
        judge(client)
        [found] = json.loads(run(brokers, "cluster health -o json", status=7))["wrong_clocks"]
        assert found["broker_id"] == WRONG
        assert abs(found["ahead_ms"] - AHEAD_MS) < 10_000
        words = run(brokers, "cluster health", status=7)
        assert f"clocks wrong: broker {WRONG} is 15 days ahead" in words
        for node in (1, 2):
            brokers.kill([node])
            leaders = wait_led_by_others_than(brokers, client, node)
            assert WRONG in leaders
            judge(client)
            brokers.start([node])
            brokers.wait_ready([node])
            # A broker that has just started knows of no wrong clock until its first heartbeat is
            # answered, so which clocks are wrong is a wait of its own.
            brokers.wait("all in sync", lambda: not client.admin.health().under_replicated)
            brokers.wait("the wrong clock again", lambda: bool(client.admin.health().wrong_clocks))
        with client.consumer("t", start="earliest") as consumer:
            read = [record.value for record in consumer.records(timeout=5)]
        assert len(read) == len(VALUES)
        assert set(read) == VALUES
        pages[WRONG].clock_offset_ms = 0
        run(brokers, "cluster health --wait")
