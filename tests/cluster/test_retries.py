"""Retries on real brokers: exactly once while workers and brokers are killed, and what a group that
has done all of it shows (A12.4, A12.5).
"""

from __future__ import annotations

import json
import time
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import raftmq
from raftmq import testing
from raftmq.cli.main import main
from raftmq.client.dead_letters.letters import read_letter
from raftmq.sync import connect
from tests.cluster.dead_letter_worker import results_of
from tests.cluster.test_dead_letters import told, worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.client.consumer.record import ConsumerRecord
    from raftmq.sync import Client
    from raftmq.testing.server import Server

pytestmark = pytest.mark.cluster

SECONDS_MAX = 90.0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with testing.cluster(3) as server:
        yield server


@pytest.fixture
def mq(server: Server) -> Iterator[Client]:
    with connect(server.bootstrap) as client:
        yield client


def read_all(mq: Client, topic: str) -> list[ConsumerRecord]:
    """Of committed transactions."""
    if not mq.admin.list_topics([topic]):
        return []
    with mq.consumer(topic, start="earliest") as consumer:
        return list(consumer.records(timeout=2))


def dlq(server: Server, line: str) -> list[dict[str, Any]]:
    arguments = ["-b", server.bootstrap, "dlq", *line.split(), "-o", "json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(each) for each in result.stdout.splitlines()]


def test_exactly_once_over_kills(server: Server, mq: Client) -> None:
    """Workers, the leader of the topic of retries and the group's coordinator are killed with -9:
    each record has its result once, or its dead letter once, after exactly so many attempts."""
    topic, count = "once", 100
    names = [f"{number:03}" for number in range(count)]
    for name in (topic, results_of(topic)):
        mq.admin.create_topic(name, partitions=2)
    with mq.producer() as producer:
        producer.send_many(topic, names)
    random, deadline = Random(5), time.monotonic() + SECONDS_MAX
    retries = f"__retry.{topic}"

    def strike(victim: int | None) -> None:
        assert victim is not None, "there was no leader"
        server.kill_node(victim)
        time.sleep(0.5)
        server.start_node(victim)

    for number in range(4):
        way = "retry_blocking" if number % 2 else "retry"
        with worker(server, way, topic) as process:
            assert told(process) == "open"
            time.sleep(random.uniform(0.5, 2.5))  # it does some of its work
            if number == 1 and mq.admin.list_topics([retries]):
                strike(server.leader_of(retries, 0))
            elif number == 2:
                strike(mq.admin.describe_group(topic).coordinator)
    dead = [name for name in names if name.endswith("7")]
    with worker(server, "retry_blocking", topic):
        while len(read_all(mq, f"__dead.{topic}")) < len(dead) or len(
            read_all(mq, results_of(topic))
        ) < count - len(dead):
            assert time.monotonic() < deadline, "records are left"
        time.sleep(3)  # what comes twice comes now
    results = sorted(record.text() for record in read_all(mq, results_of(topic)))
    assert results == [name for name in names if name not in dead]
    letters = read_all(mq, f"__dead.{topic}")
    assert sorted(letter.text() for letter in letters) == dead
    assert {read_letter(letter.headers).attempts for letter in letters} == {3}
    assert {letter.origin.topic for letter in letters} == {topic}
    # Each was moved as often as it has failed before the last time.
    moved = sorted(record.text() for record in read_all(mq, retries))
    assert moved == sorted([*(name for name in names if name.endswith("3")), *dead, *dead])


def test_a_group_that_has_done_all(server: Server, mq: Client) -> None:
    """No lag in either topic, and dead letters tell of all attempts, and go back to where they
    stood first."""
    topic = "calm"
    mq.admin.create_topic(topic, partitions=1)
    with mq.producer() as producer:
        producer.send_many(topic, ["a", "b", "c"], tags=lambda value: [value])
    policy = raftmq.RetryPolicy(attempts=3, backoff=raftmq.Exponential(0.3))
    seen: list[tuple[str, str, int | None]] = []
    options: dict[str, Any] = {"group": topic, "start": "earliest", "retry": policy}
    with mq.consumer(topic, tags="a | b", **options) as consumer:
        for record in consumer.records(timeout=20):
            letter = read_letter(record.headers)
            seen.append((record.text(), record.topic, letter.attempts))
            if record.text() == "b" and consumer.retry(record, "no").topic == f"__dead.{topic}":
                break
    assert seen == [
        ("a", topic, None),
        ("b", topic, None),
        ("b", f"__retry.{topic}", 1),
        ("b", f"__retry.{topic}", 2),
    ]
    lags = {(lag.topic, lag.lag) for lag in mq.admin.group_lag(topic)}
    assert lags == {(topic, 0), (f"__retry.{topic}", 0)}
    [shown] = dlq(server, f"show {topic}")
    assert (shown["value"], shown["attempts"], shown["tags"]) == ("b", 3, ["b"])
    assert shown["origin"]["topic"] == topic
    assert dlq(server, f"redrive {topic}") == [{"group": topic, "topic": topic, "sent": 1}]
    [*_, last] = read_all(mq, topic)
    assert (last.text(), last.headers) == ("b", (("raftmq.redriven", b"1"),))
    # A new life of the record: it is tried as often again.
    with mq.consumer(topic, tags="a | b", **options) as consumer:
        for record in consumer.records(timeout=20):
            if consumer.retry(record, "no").topic == f"__dead.{topic}":
                break
    [shown] = dlq(server, f"show {topic}")
    assert shown["attempts"] == 3
