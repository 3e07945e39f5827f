"""`process` under kill -9 of workers and brokers: each record ends done or dead, where it is tried
again in place in the order of each key, and where it is moved without holding up others (A11.2,
A12.4, A12.5).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import pytest

from raftmq import sync
from raftmq.client.dead_letters.letters import dead_letter_topic, read_letter, retry_topic
from tests.cluster.broker_cluster import BrokerCluster
from tests.cluster.node_process import PROJECT
from tests.cluster.work_hand import (
    ATTEMPTS,
    DEAD,
    GROUP,
    KEYS,
    TOPIC,
    UNDECODABLE,
    fate,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.cluster

PARTITIONS, BURST = 4, 300
WAYS = ("loop", "loop", "blocking")
SECONDS_MAX, DOWN_SECONDS = 90.0, 0.5


class Line(NamedTuple):
    """Of the diary."""

    process_id: int
    what: str
    number: int


class Works:
    """Brokers, workers, and what these have done."""

    def __init__(
        self, brokers: BrokerCluster, diary: Path, mq: sync.Client, more: Sequence[str]
    ) -> None:
        self._brokers, self._diary, self._mq, self._more = brokers, diary, mq, more
        self._bootstrap = bootstrap_of(brokers)
        self._workers: list[subprocess.Popen[bytes]] = []
        self.sent = 0

    def start(self, way: str) -> None:
        given = ["--bootstrap", self._bootstrap, "--diary", str(self._diary), *self._more]
        command = [sys.executable, "-m", "tests.cluster.work_hand", way, *given]
        self._workers.append(subprocess.Popen(command, cwd=PROJECT))

    def kill(self, at: int = 0) -> None:
        """-9."""
        worker = self._workers.pop(at)
        assert worker.poll() is None, "it has ended by itself"
        worker.kill()
        worker.wait()

    def leader(self, topic: str = TOPIC) -> int | None:
        return self._mq.admin.describe_topic(topic).partitions[0].leader

    def coordinator(self) -> int:
        return self._mq.admin.describe_group(GROUP).coordinator

    def strike(self, victim: int | None) -> None:
        """kill -9, and it comes back."""
        assert victim is not None, "there was no leader"
        self._brokers.kill([victim])
        time.sleep(DOWN_SECONDS)
        self._brokers.start([victim])
        self._brokers.wait_ready([victim])

    def close(self) -> None:
        while self._workers:
            self.kill()

    def send(self) -> None:
        numbers = range(self.sent, self.sent + BURST)
        with self._mq.producer() as producer:
            producer.send_many(TOPIC, numbers, value=str, key=lambda row: row % KEYS)
        self.sent += BURST

    def has_topic(self, name: str) -> bool:
        return bool(self._mq.admin.list_topics([name]))

    def done(self) -> set[int]:
        return {line.number for line in self.lines() if line.what == "done"}

    def lines(self) -> list[Line]:
        found = [line.split() for line in self._diary.read_text().splitlines()]
        return [Line(int(one), what, int(number)) for one, what, number in found]

    def wait_progress(self) -> None:
        """Some more is done than there was when this was called."""
        before = len(self.lines())
        self.wait("nothing goes on", lambda: len(self.lines()) > before + BURST // 3)

    def wait_finished(self) -> None:
        """All of the topic is committed."""

        def is_finished() -> bool:
            lags = self._mq.admin.group_lag(GROUP)
            return all(lag.lag == 0 for lag in lags if lag.topic == TOPIC)

        self.wait("not all is finished", is_finished)

    def wait(self, what: str, is_so: object) -> None:
        assert callable(is_so)
        deadline = time.monotonic() + SECONDS_MAX
        while not is_so():
            assert time.monotonic() < deadline, what
            time.sleep(0.1)

    def letters(self) -> dict[int, set[int]]:
        """By number, the attempts that its dead letters tell."""
        topic = dead_letter_topic(GROUP)
        if not self.has_topic(topic):
            return {}
        left = sum(offset or 0 for offset in self._mq.admin.offsets(topic, "latest").values())
        found = defaultdict[int, set[int]](set)
        if not left:
            return {}
        with self._mq.consumer(topic, start="earliest") as consumer:
            for record in consumer.records(timeout=SECONDS_MAX):
                found[int(record.text())].add(read_letter(record.headers).attempts)
                if record.offset == left - 1:
                    break
        return dict(found)


@pytest.fixture
def works(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Works]:
    diary = tmp_path / "diary"
    diary.touch()
    with ExitStack() as stack:
        brokers = stack.enter_context(BrokerCluster(tmp_path))
        brokers.start(brokers.nodes, "groups.initial_rebalance_delay_ms=100")
        brokers.wait_ready(brokers.nodes)
        mq = stack.enter_context(sync.connect(bootstrap_of(brokers)))
        mq.admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        works = Works(brokers, diary, mq, getattr(request, "param", ()))
        try:
            for way in WAYS:
                works.start(way)
            yield works
        finally:
            works.close()


def bootstrap_of(brokers: BrokerCluster) -> str:
    return ",".join(str(brokers.address(node)) for node in brokers.nodes)


def test_done_or_dead(works: Works) -> None:
    """kill -9 of a worker, of the leader of a partition, and of the group's coordinator together
    with a worker, while one record of ten fails in one of three ways."""
    works.send()
    works.wait_progress()
    works.kill()
    works.start("blocking")
    works.send()
    works.wait_progress()
    works.strike(works.leader())
    works.send()
    works.wait_progress()
    works.kill()
    works.strike(works.coordinator())
    works.start("loop")
    works.send()
    works.wait_finished()
    judge(works)


def judge(works: Works) -> None:
    lines, letters, numbers = works.lines(), works.letters(), set(range(works.sent))
    done = works.done()
    dead = {number for number in numbers if fate(number) in (DEAD, UNDECODABLE)}
    assert set(letters) == dead
    assert done == numbers - dead
    # Each life of a record counts its attempts from the first on.
    for number, attempts in letters.items():
        assert attempts == {1 if fate(number) == UNDECODABLE else ATTEMPTS}
    begun = defaultdict[int, list[int]](list)
    for line in lines:
        if line.what == "begin" and line.number not in begun[line.number % KEYS]:
            begun[line.number % KEYS].append(line.number)
    assert len(begun) == KEYS
    for of_key in begun.values():  # what comes again comes before what was not there yet
        assert of_key == sorted(of_key)


@pytest.mark.parametrize("works", [("--moving",)], indirect=True)
def test_done_or_dead_with_retries(works: Works) -> None:
    """The same where what fails is moved aside, and the leader of the topic of retries is killed,
    too: none is lost, each dead letter has had all of its attempts, and the topic itself is done
    while retries wait."""
    works.send()
    works.wait_progress()
    works.kill()
    works.start("blocking")
    works.send()
    works.wait_progress()
    works.strike(works.leader())
    works.send()
    works.wait_progress()
    works.wait("nothing was moved", lambda: works.has_topic(retry_topic(GROUP)))
    works.strike(works.leader(retry_topic(GROUP)))
    works.kill()
    works.strike(works.coordinator())
    works.start("loop")
    works.send()
    works.wait_finished()
    numbers = set(range(works.sent))
    dead = {number for number in numbers if fate(number) in (DEAD, UNDECODABLE)}
    assert len(works.letters()) < len(dead), "the topic has waited for retries"
    works.wait("retries are left", lambda: works.letters().keys() == dead)
    works.wait("some are not done", lambda: works.done() == numbers - dead)
    assert {attempts for found in works.letters().values() for attempts in found} == {ATTEMPTS}
