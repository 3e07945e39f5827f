"""A cluster of the version before, upgraded node by node under load, and a way back (A10.1, A13.3).

Brokers, voters and clients of both versions work together, on directories that each of them wrote.
The wheel of the version before is in `versions/`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from threading import Event
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import pytest

from raftmq import sync
from raftmq.errors import UnsupportedVersion
from tests.cluster.broker_cluster import BrokerCluster
from tests.cluster.group_cluster import GroupCluster
from tests.cluster.group_load import TOPIC as PARCELS
from tests.cluster.group_process import MEMBER
from tests.cluster.node_process import END_SECONDS_MAX, PROJECT, NodeProcess
from tests.cluster.quorum_words import HOST
from tests.cluster.version_before import Versions, unpack
from tests.cluster.version_client import LETTERS, ROW_KEYS, ROWS, key_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.cluster

CLIENT = "tests.cluster.version_client"
ROWS_PER_VISIT = 200
Spot: TypeAlias = tuple[int, int, int]  # partition, offset, number


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("before")
    unpack(folder)
    return folder


@pytest.fixture
def versions(unpacked: Path) -> Versions:
    return Versions(unpacked)


def run(program: Sequence[str], *words: str) -> str:
    """What `python -m` tells; it must be content."""
    done = subprocess.run(
        [sys.executable, "-m", *program, *words],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=END_SECONDS_MAX,
    )
    assert done.returncode == 0, (program, words, done)
    return done.stdout


class Sender(NodeProcess):
    """Attributes:
    acknowledged: what it has sent to LETTERS, in that order.
    """

    def __init__(self, program: Sequence[str], bootstrap: str) -> None:
        self.acknowledged: list[Spot] = []
        self._has_begun = Event()
        command = [sys.executable, "-m", *program, CLIENT, "send", "--bootstrap", bootstrap]
        super().__init__(0, command, hear=self._hear_sent, on_end=self._has_begun.set)

    def __enter__(self) -> Self:
        assert self._has_begun.wait(END_SECONDS_MAX), self.stderr()
        return self

    def __exit__(self, *_: object) -> None:
        self.bury()

    def finish(self) -> None:
        """In order: no `send` has failed."""
        self.say("stop")
        assert self.wait_end() == 0, self.stderr()

    def _hear_sent(self, line: bytes) -> None:
        _topic, *spot = json.loads(line)
        self.acknowledged.append(tuple(spot))
        self._has_begun.set()


class Clients:
    """Programs of either version that come and go.

    Attributes:
    archived: what members of the group have been handed out, one after the other.
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.archived: list[Spot] = []
        self.row_count = 0

    def visit(self, program: Sequence[str]) -> None:
        """What other runs have sent is skipped, and what other members have committed is over."""
        before, self.row_count = self.row_count, self.row_count + ROWS_PER_VISIT
        told = self._run(program, "visit", "--rows", str(self.row_count))
        assert [each[1:] for each in told if each[0] == "skipped"] == [[before]]
        handed_out = [tuple(each[1:]) for each in told if each[0] == LETTERS]
        assert handed_out, "there was something new"
        self.archived += handed_out

    def read(self, program: Sequence[str], topic: str) -> list[Spot]:
        """All of it, by partitions, each in the order in which it came."""
        told = self._run(program, "read", "--topic", topic)
        assert {each[0] for each in told} == {topic}
        return sorted((tuple(each[1:]) for each in told), key=lambda spot: spot[0])

    def _run(self, program: Sequence[str], *words: str) -> list[list[Any]]:
        told = run(program, *words, "--bootstrap", self._bootstrap)
        return [json.loads(line) for line in told.splitlines()]


def check_rows(found: list[Spot], count: int) -> None:
    """Each once, and those of a key in order."""
    assert sorted(number for _, _, number in found) == list(range(count))
    for key in range(1, ROW_KEYS):
        [partition] = {partition for partition, _, row in found if key_of(row) == key}
        rows = [row for at, _, row in found if at == partition and key_of(row) == key]
        assert rows == sorted(rows)


def check_letters(found: list[Spot], sent: Sequence[Spot]) -> None:
    """Each is where it was said to be, once, and nothing else is there."""
    assert found == sorted(sent)


def replace(cluster: GroupCluster, versions: Versions, node_id: int) -> None:
    """As docs/DEPLOYING.md has it: stop, install, start, wait until all is well."""
    at = time.monotonic()
    [ending] = cluster.brokers.terminate([node_id])
    assert "in_order=True" in ending.stderr
    versions.upgraded.add(node_id)
    cluster.restart_broker(node_id, down_since=at)
    run(("raftmq",), "-b", cluster.bootstrap, "cluster", "health", "--wait", "--timeout", "60")


def test_a_rolling_upgrade(versions: Versions, tmp_path: Path) -> None:
    """Nodes are replaced one by one under clients of both versions: producers, a named producer
    whose runs repeat each other, a group with members of both, and one whose members follow each
    other. No `send` fails, no record comes twice or not at all, and groups go on where they were.
    """
    before, after = versions.before(CLIENT), (CLIENT,)
    with GroupCluster(
        tmp_path,
        seed=1,
        members=4,
        partitions=6,
        program=versions.broker,
        member_program=lambda number: versions.before(*MEMBER) if number % 2 else MEMBER,
    ) as cluster:
        cluster.start()
        clients = Clients(cluster.bootstrap)
        with Sender(versions.before(), cluster.bootstrap) as sender:
            clients.visit(before)
            for node_id, program in zip((1, 2, 3), (after, before, after), strict=True):
                replace(cluster, versions, node_id)
                if node_id == 1:  # the other two are too old to tell sizes: unknown, and no error
                    told = run(("raftmq",), "-b", cluster.bootstrap, "topic", "list", "-o", "json")
                    rows = [json.loads(line) for line in told.splitlines()]
                    assert {row["replica_bytes"] for row in rows} == {None}
                cluster.wait_progress()
                clients.visit(program)
            sender.finish()
        clients.visit(before)
        cluster.end()
        assert not cluster.findings
        assert not cluster.load.failed
        check_letters(sorted(clients.archived), sender.acknowledged)
        parcels = [(*place, number) for place, number in cluster.acknowledged.items()]
        for program in versions.both(CLIENT):
            check_letters(clients.read(program, LETTERS), sender.acknowledged)
            check_letters(clients.read(program, PARCELS), parcels)
            check_rows(clients.read(program, ROWS), clients.row_count)


class Mixed:
    """Three nodes, some of either version, and clients that produce and consume all the while."""

    def __init__(self, brokers: BrokerCluster, versions: Versions) -> None:
        self._brokers, self._versions = brokers, versions

    @property
    def leader(self) -> int:
        """Of the voters."""
        return self._brokers.view().controller_id

    def stop_and_start(self, node_id: int, *, upgraded: bool) -> None:
        self._brokers.terminate([node_id])
        self._start(node_id, upgraded=upgraded)

    def kill_and_start(self, node_id: int) -> None:
        """It comes back as it was, once the others have a leader."""
        self._brokers.kill([node_id])
        assert self.leader != node_id
        self._start(node_id, upgraded=node_id in self._versions.upgraded)

    def _start(self, node_id: int, *, upgraded: bool) -> None:
        (self._versions.upgraded.add if upgraded else self._versions.upgraded.discard)(node_id)
        self._brokers.start([node_id])
        self._brokers.wait_ready([node_id])

    def lead_by(self, nodes: Collection[int]) -> None:
        """Another leader of the voters is killed, until it is one of these."""
        while (leader := self.leader) not in nodes:
            self.kill_and_start(leader)
            self._brokers.wait_whole()

    def work(self) -> None:
        """With all in sync."""
        self._brokers.wait_whole()
        self._brokers.work_until(20)

    def count_voters(self) -> None:
        """As commands of both versions see them."""
        voters = ",".join(f"{HOST}:{self._brokers.ports[node][0]}" for node in (1, 2, 3))
        for program in self._versions.both("raftmq"):
            assert run(program, "-b", voters, "quorum", "status").count("established") >= 3


@pytest.fixture
def mixed(versions: Versions, tmp_path: Path) -> Iterator[Mixed]:
    """All of the version before. In the end the logs of all nodes are compared."""
    with BrokerCluster(tmp_path, program=versions.broker) as cluster:
        cluster.start_all()
        cluster.start_load()
        yield Mixed(cluster, versions)
        cluster.compare()
        assert not cluster.ledger.findings


def test_voters_of_both_versions_and_a_way_back(mixed: Mixed) -> None:
    """An old voter leads two new ones; it is killed, and a new one leads it; that one goes back to
    the version before, on what it wrote as a leader."""
    old = mixed.leader
    first, second = {1, 2, 3} - {old}
    mixed.stop_and_start(first, upgraded=True)
    mixed.work()
    mixed.stop_and_start(second, upgraded=True)
    mixed.lead_by([old])
    mixed.work()
    mixed.count_voters()
    mixed.kill_and_start(old)
    mixed.lead_by([first, second])
    mixed.work()
    mixed.count_voters()
    mixed.stop_and_start(mixed.leader, upgraded=False)
    mixed.work()


BALLADS = "ballads"


class Singers:
    """Clients of both versions on one topic, where the newer ones know of transactions.

    Attributes:
        plain: what was sent outside of transactions, or committed: all that is to be read.
        everything: the aborted records, too.
    """

    def __init__(self, cluster: BrokerCluster, versions: Versions) -> None:
        self._cluster, self._versions = cluster, versions
        self.bootstrap = ",".join(map(str, map(cluster.address, cluster.nodes)))
        self.plain: list[int] = []
        self.everything: list[int] = []

    def move(self, node_id: int, *, upgraded: bool) -> None:
        """Stop it, start it in the other version, and wait until all is well."""
        self._cluster.terminate([node_id])
        (self._versions.upgraded.add if upgraded else self._versions.upgraded.discard)(node_id)
        self._cluster.start([node_id])
        self._cluster.wait_ready([node_id])
        run(("raftmq",), "-b", self.bootstrap, "cluster", "health", "--wait", "--timeout", "60")

    def make(self) -> None:
        with sync.connect(self.bootstrap) as mq:
            mq.admin.create_topic(BALLADS, partitions=1, replication_factor=3)

    def sing(self) -> None:
        """Without transactions, by a producer of this version."""
        with sync.connect(self.bootstrap) as mq, mq.producer() as producer:
            for _ in range(3):
                producer.send(BALLADS, self._next())
        self._keep(3)

    def _next(self) -> bytes:
        self.everything.append(len(self.everything))
        return b"%d" % self.everything[-1]

    def _keep(self, count: int) -> None:
        self.plain += self.everything[-count:]

    def sing_in_transactions(self) -> None:
        """One is aborted, the other one committed."""
        with (
            sync.connect(self.bootstrap) as mq,
            mq.producer(transaction_id="bard") as producer,
        ):
            with producer.transaction() as tx:
                tx.send(BALLADS, self._next())
                tx.abort()
            with producer.transaction(wait_visible=True) as tx:
                tx.send(BALLADS, self._next())
                tx.send(BALLADS, self._next())
                self._keep(2)

    def check_refused(self) -> None:
        """Below the level of transactions nothing is sent, and words say why."""
        with (
            sync.connect(self.bootstrap) as mq,
            pytest.raises(UnsupportedVersion, match="upgrade"),
            mq.producer(transaction_id="bard"),
        ):
            pass

    def check_read(self) -> None:
        """This version reads what counts, and the one before reads all there is."""
        with (
            sync.connect(self.bootstrap) as mq,
            mq.consumer(BALLADS, start="earliest") as consumer,
        ):
            found = [int(record.value or b"") for record in consumer.records(timeout=1)]
        assert found == self.plain
        words = ("read", "--topic", BALLADS, "--bootstrap", self.bootstrap)
        told = run(self._versions.before(CLIENT), *words).splitlines()
        assert [json.loads(line)[3] for line in told] == self.everything


def test_transactions_come_with_the_last_upgrade(versions: Versions, tmp_path: Path) -> None:
    """Until then they are refused with words, and nodes go back to the version before on files
    that this one wrote; then clients of the version before work beside them, and see everything
    (A11.3).
    """
    with BrokerCluster(tmp_path, program=versions.broker) as cluster:
        cluster.start_all()
        singers = Singers(cluster, versions)
        singers.make()
        for node_id in (1, 2):
            singers.sing()
            singers.check_refused()
            singers.check_read()
            singers.move(node_id, upgraded=True)
        singers.sing()
        singers.check_refused()
        singers.move(1, upgraded=False)
        singers.sing()
        singers.check_read()
        for node_id in (1, 3):
            singers.move(node_id, upgraded=True)
        singers.sing_in_transactions()
        singers.sing()
        with Sender(versions.before(), singers.bootstrap) as sender:
            singers.sing_in_transactions()
            sender.finish()
        assert sender.acknowledged
        singers.check_read()


def test_filters_by_tags_during_an_upgrade(versions: Versions, tmp_path: Path) -> None:
    """Leaders of the version before send all records, and the client filters: the same comes from
    them and from those of this version (A12.1).
    """
    told: list[list[str]] = [["eu"], ["us"], [], ["eu", "us"], ["us"]]
    with BrokerCluster(tmp_path, program=versions.broker) as cluster:
        cluster.start_all()
        singers = Singers(cluster, versions)
        with sync.connect(singers.bootstrap) as mq:
            mq.admin.create_topic("tagged", partitions=3, replication_factor=3)
            for node_id in (0, 1, 2):
                if node_id:
                    singers.move(node_id, upgraded=True)
                with mq.producer() as producer:
                    for partition in (0, 1, 2):
                        values = [" ".join(tags) for tags in told]
                        where = [partition] * len(told)
                        producer.send_columns("tagged", values=values, tags=told, partitions=where)
                with mq.consumer("tagged", start="earliest", tags="eu & !us | !us") as consumer:
                    found = [(one.partition, one.text()) for one in consumer.records(timeout=2)]
                    assert sorted(found) == sorted(
                        (partition, text)
                        for partition in (0, 1, 2)
                        for text in ("eu", "") * (node_id + 1)
                    )
                    ends = consumer.end_offsets()
                    assert {key: consumer.position(*key) for key in ends} == ends
