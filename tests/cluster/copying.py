"""Three brokers, a topic that is written, and processes that copy it exactly once.

Owns who writes and who reads along; what is done to the brokers and copiers is the test's, or the
command's (`copies.py`). The verdict compares the target with the source as they lie in the logs.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING, Any, Self

import trio

import raftmq
from raftmq import sync
from raftmq.errors import RaftmqError
from tests.cluster.broker_cluster import BrokerCluster
from tests.cluster.copier import GROUP, SOURCE, TARGET
from tests.cluster.load_thread import LoadThread
from tests.cluster.node_process import END_SECONDS_MAX, PROJECT, NodeFailed, NodeProcess
from tests.cluster.nodes import Nodes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PAUSE_SECONDS = 0.02
BURST = 10  # records, so that a transaction has batches of several partitions
CONFIG = {"min.insync.replicas": 2}


class Copiers(Nodes[NodeProcess]):
    """Each keeps its number, hence its transactional id, over all of its processes."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._bootstrap = bootstrap

    def start(self, number: int, way: str) -> None:
        words = [way, "--bootstrap", self._bootstrap, "--id", f"copier-{number}"]
        command = [sys.executable, "-m", "tests.cluster.copier", *words]
        self._processes[number] = NodeProcess(
            number, command, hear=lambda _: None, on_end=self._on_news
        )

    def interrupt(self, number: int) -> None:
        """As Ctrl-C does: it leaves its blocks in order."""
        self.expect_end([number])
        self._processes[number].signal(signal.SIGINT)
        self.wait_end(number)


class Traffic(LoadThread):
    """Writes numbers to the source, and reads the target along.

    Attributes:
        sent: how many were acknowledged.
        seen: values of each partition of the target, in the order in which they were handed out.
    """

    def __init__(self, bootstrap: str, partitions: int) -> None:
        super().__init__(is_working=True)
        self._bootstrap, self._partitions = bootstrap, partitions
        self.sent = 0
        self.seen: dict[int, list[tuple[int, int]]] = {each: [] for each in range(partitions)}

    async def _run_load(self) -> None:
        async with raftmq.connect(self._bootstrap) as mq, trio.open_nursery() as nursery:
            nursery.start_soon(self._read_along, mq)
            await self._write(mq)

    async def _write(self, mq: Any) -> None:
        async with mq.producer() as producer:
            for burst in count():
                self._in_flight = 1
                for number in range(burst * BURST, (burst + 1) * BURST):
                    partition = number % self._partitions
                    await producer.enqueue(SOURCE, b"%d" % number, partition=partition)
                await producer.flush()
                self.sent += BURST
                self._in_flight = 0
                await trio.sleep(PAUSE_SECONDS)
                while not self._is_working:  # noqa: ASYNC110  # another thread sets it
                    await trio.sleep(PAUSE_SECONDS)

    async def _read_along(self, mq: Any) -> None:
        partitions = [(TARGET, each) for each in self.seen]
        async with mq.consumer(assign=partitions, start="earliest") as consumer:
            while True:
                try:
                    async for batch in consumer.batches():
                        told = zip(batch.offsets, map(int, batch.values), strict=True)
                        self.seen[batch.partition] += told
                except RaftmqError:
                    await trio.sleep(PAUSE_SECONDS)


class Copying:
    """Attributes:
    brokers, copiers: whatever is to be done to them.
    """

    def __init__(self, root: Path, *, partitions: int = 3) -> None:
        self.partitions = partitions
        self.brokers = BrokerCluster(root)
        self.bootstrap = ",".join(map(str, map(self.brokers.address, self.brokers.nodes)))
        self.copiers = Copiers(self.bootstrap)
        self.traffic = Traffic(self.bootstrap, partitions)
        self._closing = ExitStack()
        self.mq: sync.Client

    def __enter__(self) -> Self:
        with self._closing:
            self._closing.enter_context(self.brokers)
            self.brokers.start(self.brokers.nodes, "groups.initial_rebalance_delay_ms=100")
            self.brokers.wait_ready(self.brokers.nodes)
            self.mq = self._closing.enter_context(sync.connect(self.bootstrap))
            for topic in (SOURCE, TARGET):
                self.mq.admin.create_topic(
                    topic, partitions=self.partitions, replication_factor=3, config=CONFIG
                )
            self._closing.callback(self.traffic.stop)
            self._closing.enter_context(self.copiers)
            self.traffic.start()
            self._closing = self._closing.pop_all()
        return self

    def __exit__(self, *details: object) -> None:
        self._closing.close()

    def wait(self, what: str, is_so: Callable[[], bool]) -> None:
        """Nobody may end meanwhile who is not expected to."""

        def looked() -> bool:
            if self.traffic.failure:
                raise NodeFailed(f"the traffic has ended: {self.traffic.failure}")
            self.brokers._check_alive()
            return is_so()

        self.copiers.wait(what, looked)

    def wait_progress(self) -> None:
        """Until what is written from now on is read by everybody in each partition."""
        already = self.traffic.sent
        self.wait("writes", lambda: self.traffic.sent > already + 2 * self.partitions)
        self.wait("copies", lambda: all(self._newest(each) > already for each in self.traffic.seen))

    def _newest(self, partition: int) -> int:
        seen = self.traffic.seen[partition]
        return seen[-1][1] if seen else -1

    def coordinator(self) -> int:
        return self.mq.admin.describe_group(GROUP).coordinator

    def leader(self, topic: str, partition: int) -> int | None:
        return self.mq.admin.describe_topic(topic).partitions[partition].leader

    # The verdict

    def findings(self) -> list[str]:
        """Once the writer rests and all is copied: what is wrong."""
        self.traffic.rest()
        self.wait("the writer to rest", lambda: self.traffic.is_at_rest)
        source = self.read(SOURCE)
        deadline = time.monotonic() + 60
        seen = self.traffic.seen
        while any(len(seen[each]) < len(source[each]) for each in source):
            self.copiers._check_alive()
            if time.monotonic() > deadline:
                break
            time.sleep(PAUSE_SECONDS)
        time.sleep(0.5)  # what comes too often comes now
        target = self.read(TARGET)
        found = list[str]()
        for partition, rows in source.items():
            wanted = [value for _, value in rows]
            if (got := [value for _, value in target[partition]]) != wanted:
                found.append(f"target-{partition}: {differences(wanted, got)}")
            if seen[partition] != target[partition]:
                found.append(
                    f"target-{partition}, read along: "
                    f"{differences(target[partition], seen[partition])}"
                )
        committed = self._committed()
        ends = self.mq.admin.offsets(SOURCE, "latest")
        if committed != ends:
            found.append(f"the group has committed {committed} of {ends}")
        return found

    def disk_findings(self) -> list[str]:
        """At the very end: what `raftmq log verify` finds once all have stopped in order."""
        self.copiers.kill(self.copiers.running)
        self.traffic.stop()
        self.brokers.terminate(self.brokers.running)
        found = list[str]()
        for node_id in self.brokers.nodes:
            words = ["log", "verify", str(self.brokers.directory(node_id)), "-o", "json"]
            done = subprocess.run(
                [sys.executable, "-m", "raftmq", *words],
                cwd=PROJECT,
                capture_output=True,
                text=True,
                check=False,
                timeout=END_SECONDS_MAX,
            )
            told = done.stdout.splitlines()
            assert told, done.stderr
            found += [line for line in told if json.loads(line)["type"] == "finding"]
        return found

    def _committed(self) -> dict[int, int]:
        told = self.mq.admin.group_offsets(GROUP)
        return {partition: each.offset for (_, partition), each in told.items()}

    def read(self, topic: str) -> dict[int, list[tuple[int, int]]]:
        """Offsets and numbers, by partition: all that committed readers get."""
        found: dict[int, list[tuple[int, int]]] = {each: [] for each in range(self.partitions)}
        with self.mq.consumer(assign=[(topic, each) for each in found], start="earliest") as reader:
            for record in reader.records(timeout=1.5):
                assert record.value is not None
                found[record.partition].append((record.offset, int(record.value)))
        return found


def differences(wanted: list[Any], got: list[Any]) -> str:
    """In a few words: what is lost, what is doubled, and where the order first differs."""
    lost = sorted(set(wanted) - set(got))
    surplus = sorted(set(got) - set(wanted))
    doubled = sorted({each for each in got if got.count(each) > 1})
    pairs = zip(wanted, got, strict=False)
    first = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
    return (
        f"{len(got)} of {len(wanted)}, lost {lost[:20]}, surplus {surplus[:20]}, "
        f"doubled {doubled[:20]}, differs from number {first} on"
    )
