"""A record that ends each process which handles it, with workers that a supervisor starts again: it
is set aside, and nothing else is (A12.5).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from raftmq import sync
from raftmq.client.dead_letters.letters import dead_letter_topic, read_letter
from tests.cluster.broker_cluster import BrokerCluster
from tests.cluster.node_process import PROJECT
from tests.cluster.poison_hand import ATTEMPTS, GROUP, POISON, TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.cluster

PARTITIONS, BURST = 4, 400
WAYS = ("loop", "loop", "blocking")
SECONDS_MAX = 150.0
LOOK_SECONDS = 0.2


class Shift:
    """Three workers, each of which is started again when it has died."""

    def __init__(self, brokers: BrokerCluster, diary: Path, mq: sync.Client) -> None:
        self.brokers, self._diary, self.mq = brokers, diary, mq
        self._bootstrap = ",".join(str(brokers.address(node)) for node in brokers.nodes)
        self._workers: dict[subprocess.Popen[bytes], str] = {}

    def start(self, way: str) -> None:
        given = ["--bootstrap", self._bootstrap, "--diary", str(self._diary)]
        command = [sys.executable, "-m", "tests.cluster.poison_hand", way, *given]
        self._workers[subprocess.Popen(command, cwd=PROJECT)] = way

    def send(self, values: list[str], partition: int) -> None:
        with self.mq.producer() as producer:
            for value in values:
                producer.send(TOPIC, value, partition=partition, key=value)

    def supervise(self) -> None:
        """Whoever has died is back."""
        for worker in [worker for worker in self._workers if worker.poll() is not None]:
            self.start(self._workers.pop(worker))

    def until_finished(self) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while any(lag.lag for lag in self.mq.admin.group_lag(GROUP)):
            assert time.monotonic() < deadline, self.counts("dies")
            self.supervise()
            time.sleep(LOOK_SECONDS)

    def until_deaths(self, count: int) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while self.counts("dies").total() < count:
            assert time.monotonic() < deadline, self.counts("dies")
            self.supervise()
            time.sleep(LOOK_SECONDS)

    def strike_coordinator(self) -> None:
        """kill -9, and it comes back."""
        victim = self.mq.admin.describe_group(GROUP).coordinator
        self.brokers.kill([victim])
        self.brokers.start([victim])
        self.brokers.wait_ready([victim])

    def counts(self, what: str) -> Counter[str]:
        """How often a worker has said that of a value."""
        lines = (line.split() for line in self._diary.read_text().splitlines())
        return Counter(value for _, said, value in lines if said == what)

    def letters(self) -> list[tuple[str, int, str]]:
        """Of each dead letter the value, the attempts and the error."""
        topic = dead_letter_topic(GROUP)
        left = sum(offset or 0 for offset in self.mq.admin.offsets(topic, "latest").values())
        found = []
        with self.mq.consumer(topic, start="earliest") as consumer:
            for record in consumer.records(timeout=SECONDS_MAX):
                letter = read_letter(record.headers)
                found.append((record.text(), letter.attempts, letter.error))
                if record.offset == left - 1:
                    break
        return found

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()


@pytest.fixture
def shift(tmp_path: Path) -> Iterator[Shift]:
    diary = tmp_path / "diary"
    diary.touch()
    with ExitStack() as stack:
        brokers = stack.enter_context(BrokerCluster(tmp_path))
        brokers.start(brokers.nodes, "groups.initial_rebalance_delay_ms=100")
        brokers.wait_ready(brokers.nodes)
        bootstrap = ",".join(str(brokers.address(node)) for node in brokers.nodes)
        mq = stack.enter_context(sync.connect(bootstrap))
        mq.admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        shift = Shift(brokers, diary, mq)
        try:
            yield shift
        finally:
            shift.close()


def values_of(partition: int) -> list[str]:
    return [f"{partition}/{number}" for number in range(BURST // PARTITIONS)]


def test_one_record_kills(shift: Shift) -> None:
    """After exactly as many deaths as the policy has attempts; the coordinator dies after the
    second one."""
    shift.send([POISON, *values_of(0)], 0)
    for partition in range(1, PARTITIONS):
        shift.send(values_of(partition), partition)
    for way in WAYS:
        shift.start(way)
    shift.until_deaths(2)
    shift.strike_coordinator()
    shift.until_finished()
    assert shift.letters() == [(POISON, ATTEMPTS, f"its process died {ATTEMPTS} times")]
    assert shift.counts("dies") == Counter({POISON: ATTEMPTS})
    all_others = {value for partition in range(PARTITIONS) for value in values_of(partition)}
    assert set(shift.counts("done")) == all_others


def test_in_the_midst_of_others(shift: Shift) -> None:
    """Two more deaths at the most, until it is the first that is not committed; those around it,
    and a neighbour's, are not blamed."""
    poisons = {f"{POISON}-{partition}" for partition in range(2)}
    for partition in range(PARTITIONS):
        values = values_of(partition)
        values[30:30] = sorted(one for one in poisons if one.endswith(f"-{partition}"))
        shift.send(values, partition)
    for way in WAYS:
        shift.start(way)
    shift.until_deaths(1)
    shift.until_finished()
    assert {value for value, *_ in shift.letters()} == poisons
    deaths = shift.counts("dies")
    assert all(ATTEMPTS <= deaths[one] <= ATTEMPTS + 3 for one in poisons), deaths
    all_others = {value for partition in range(PARTITIONS) for value in values_of(partition)}
    assert set(shift.counts("done")) == all_others
