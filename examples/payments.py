"""Payments that are made once: `python examples/payments.py [--kills 9]`.

It starts three brokers of its own. Two workers read transfers, and book each of them in two topics:
what leaves an account in one, what comes to another account in the other. Meanwhile workers, the
leader of a partition, and the coordinator of the workers' group are killed with SIGKILL, in turn.
In the end every transfer stands once in both topics, and the sum over all accounts is what it was:
exit code 0. Anything else is exit code 1.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import trio

import raftmq
from raftmq.errors import GroupIdNotFound, RaftmqError
from raftmq.local.cluster import LocalCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Literal, TypeAlias

    Level: TypeAlias = Literal["read_committed", "read_uncommitted"]

TRANSFERS, DEBITS, CREDITS, GROUP = "transfers", "debits", "credits", "bookkeepers"
PARTITIONS, ACCOUNTS, WORKERS = 3, 20, 2
TRANSFERS_AT_ONCE, EVERY_SECONDS = 10, 0.05
PAUSE_SECONDS = 1.0  # between a kill and the next thing: work goes on meanwhile
SECONDS_MAX = 120.0  # for each: a broker that comes back, and the work that is left in the end
SEED = 20  # of the transfers: the same in each run


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


# -- A worker: a process that books transfers ------------------------------------------------------


async def work(bootstrap: str) -> None:
    """Until its stdin ends: it is stopped so, and ends so if the bank is no more."""

    async def book(batch: raftmq.ConsumedBatch, tx: raftmq.Transaction) -> None:
        for value in batch.values:
            transfer = json.loads(value)
            number, cents = transfer["number"], transfer["cents"]
            debit = json.dumps({"number": number, "account": transfer["from"], "cents": -cents})
            credit = json.dumps({"number": number, "account": transfer["to"], "cents": cents})
            await tx.enqueue(DEBITS, debit, key=transfer["from"])
            await tx.enqueue(CREDITS, credit, key=transfer["to"])

    async with raftmq.connect(bootstrap) as mq, trio.open_nursery() as nursery:

        async def watch() -> None:
            await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        options = {"start": "earliest", "delivery": "exactly_once", "session_timeout_ms": 6_000}
        async with mq.consumer(TRANSFERS, group=GROUP, **options) as consumer:
            await raftmq.exactly_once(mq, consumer, book, max_records=50)


class Workers:
    """The processes; one that was killed is replaced at once."""

    def __init__(self, bootstrap: str, log: Path) -> None:
        self._command = [sys.executable, __file__, "--worker", bootstrap]
        self._log = log.open("ab")
        self._processes = [self._start() for _ in range(WORKERS)]

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stdin=subprocess.PIPE, stderr=self._log)

    def kill_one(self) -> int:
        victim = self._processes.pop(0)
        victim.kill()
        victim.communicate()
        self._processes.append(self._start())
        return victim.pid

    def stop(self) -> None:
        for process in self._processes:
            process.communicate()  # ends its stdin, and waits for its end
        self._log.close()


# -- The bank: what is to be done, and what becomes of it ------------------------------------------


class Audit(NamedTuple):
    """What readers get of a topic of bookings.

    Attributes:
        counts: how often each transfer stands there.
        sum_cents: of all bookings.
    """

    counts: Counter[int]
    sum_cents: int


class Bank:
    """One run on a cluster without topics."""

    def __init__(self, cluster: LocalCluster, mq: raftmq.Client, workers: Workers) -> None:
        self._cluster, self._mq, self._workers = cluster, mq, workers
        self._random = random.Random(SEED)
        self._count, self._is_closing = 0, False

    async def run(self, kills: int) -> list[str]:
        """What is wrong in the end."""
        steps = (self.kill_worker, self.kill_leader, self.kill_coordinator)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask_for_transfers)
            await self._wait_at_work()
            for number in range(kills):
                await trio.sleep(PAUSE_SECONDS)
                await steps[number % len(steps)]()
            await trio.sleep(PAUSE_SECONDS)
            self._is_closing = True
        say(f"{self._count} transfers were asked for; waiting for the workers")
        await self._wait_done()
        return await self._judge()

    async def _ask_for_transfers(self) -> None:
        """A few after the other, so that something is under way whenever something is killed."""
        async with self._mq.producer() as producer:
            while not self._is_closing:
                numbers = range(self._count, self._count + TRANSFERS_AT_ONCE)
                await producer.send_many(TRANSFERS, map(self._transfer, numbers), key=crc32)
                self._count = numbers.stop
                await trio.sleep(EVERY_SECONDS)

    def _transfer(self, number: int) -> bytes:
        payer, payee = self._random.sample(range(ACCOUNTS), 2)
        cents = self._random.randint(1, 100_000)
        return json.dumps(
            {"number": number, "from": f"account-{payer}", "to": f"account-{payee}", "cents": cents}
        ).encode()

    # -- kill -9 ---------------------------------------------------------------------------

    async def kill_worker(self) -> None:
        pid = await trio.to_thread.run_sync(self._workers.kill_one)
        say(f"kill -9 of worker {pid}; another one takes its place")

    async def kill_leader(self) -> None:
        topic = await self._mq.admin.describe_topic(DEBITS)
        leader = topic.partitions[0].leader
        assert leader is not None, "all brokers were in sync"
        await self._kill_broker(leader, f"it led {DEBITS}-0")

    async def kill_coordinator(self) -> None:
        group = await self._mq.admin.describe_group(GROUP)
        await self._kill_broker(group.coordinator, f"it coordinated the group {GROUP}")

    async def _kill_broker(self, broker_id: int, what: str) -> None:
        await trio.to_thread.run_sync(self._cluster.kill, broker_id)
        say(f"kill -9 of broker {broker_id}: {what}")
        await trio.sleep(PAUSE_SECONDS)
        await trio.to_thread.run_sync(self._cluster.start, broker_id)
        # The next kill is to hit a cluster that can bear it.
        with trio.fail_after(SECONDS_MAX):
            while True:
                if await self._is_healthy():
                    break
                await trio.sleep(PAUSE_SECONDS)
        say(f"   broker {broker_id} is back, and in sync")

    async def _is_healthy(self) -> bool:
        try:
            return (await self._mq.admin.health()).is_healthy
        except RaftmqError:  # the quorum elects a leader
            return False

    async def _wait_at_work(self) -> None:
        with trio.fail_after(SECONDS_MAX):
            while True:
                try:
                    group = await self._mq.admin.describe_group(GROUP)
                    if group.state == "Stable" and len(group.members) == WORKERS:
                        return
                except GroupIdNotFound:  # none has joined yet
                    pass
                await trio.sleep(PAUSE_SECONDS)

    # -- the end ---------------------------------------------------------------------------

    async def _wait_done(self) -> None:
        with trio.fail_after(SECONDS_MAX):
            while True:
                lags = await self._mq.admin.group_lag(GROUP)
                if [each.lag for each in lags] == [0] * PARTITIONS:
                    break
                await trio.sleep(PAUSE_SECONDS)
            # What a killed worker had open is aborted when its time is over, after 10 s; until then
            # readers get nothing that is behind it.
            while True:
                found = [await self._mq.admin.open_transactions(each) for each in (DEBITS, CREDITS)]
                if not any(found):
                    return
                await trio.sleep(PAUSE_SECONDS)

    async def _judge(self) -> list[str]:
        problems: list[str] = []
        total = 0
        for topic in (DEBITS, CREDITS):
            audit = await self._audit(topic, "read_committed")
            total += audit.sum_cents
            problems += compare(topic, audit.counts, self._count)
            every = (await self._audit(topic, "read_uncommitted")).counts.total()
            aborted = every - audit.counts.total()
            say(
                f"{topic}: {audit.counts.total()} bookings of {len(audit.counts)} transfers,"
                f" {audit.sum_cents / 100:+,.2f}; {aborted} more were aborted, and never read"
            )
        say(f"sum over all accounts: {total / 100:,.2f}, as before")
        if total:
            problems.append(f"the sum has changed by {total / 100:+,.2f}")
        return problems

    async def _audit(self, topic: str, level: Level) -> Audit:
        counts = Counter[int]()
        cents = 0
        async for booking in self._bookings(topic, level):
            counts[booking["number"]] += 1
            cents += booking["cents"]
        return Audit(counts, cents)

    async def _bookings(self, topic: str, level: Level) -> AsyncIterator[dict[str, int]]:
        """All that there are now."""
        async with self._mq.consumer(topic, start="earliest", isolation_level=level) as consumer:
            ends = await consumer.end_offsets()
            while any(consumer.position(*place) < end for place, end in ends.items()):
                async for batch in consumer.batches():
                    for value in batch.values:
                        yield json.loads(value)
                    break


def compare(topic: str, counts: Counter[int], count: int) -> list[str]:
    lost = [number for number in range(count) if not counts[number]]
    twice = [number for number, times in counts.items() if times > 1]
    found = []
    if lost:
        found.append(f"{topic}: {len(lost)} transfers are missing, as number {lost[0]}")
    if twice:
        found.append(f"{topic}: {len(twice)} transfers stand there twice, as number {twice[0]}")
    return found


async def run_bank(cluster: LocalCluster, log: Path, kills: int) -> list[str]:
    async with raftmq.connect(cluster.bootstrap) as mq:
        for topic in (TRANSFERS, DEBITS, CREDITS):
            await mq.admin.create_topic(topic, partitions=PARTITIONS)
        say(f"three brokers, {WORKERS} workers, {ACCOUNTS} accounts")
        workers = Workers(cluster.bootstrap, log)
        try:
            return await Bank(cluster, mq, workers).run(kills)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(workers.stop)


def main() -> int:
    parser = argparse.ArgumentParser(description="Transfers that are booked once, whoever dies.")
    parser.add_argument("--kills", type=int, default=9, help="how often kill -9 (9)")
    parser.add_argument("--worker", metavar="HOST:PORT", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        trio.run(work, given.worker)
        return 0
    # What clients log of brokers that were killed is no surprise here.
    logging.getLogger("raftmq").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory(prefix="payments-") as folder:
        root = Path(folder)
        with LocalCluster.open(root / "cluster", brokers=3, port=0) as cluster:
            problems = trio.run(run_bank, cluster, root / "workers.log", given.kills)
            cluster.kill()  # in order would only take longer
    for problem in problems:
        say(f"WRONG: {problem}")
    say("this is not what was promised" if problems else "every transfer was booked once")
    return 1 if problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RaftmqError as error:
        sys.exit(f"{type(error).__name__}: {error}")
