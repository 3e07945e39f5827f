"""Shared transactions against three brokers on real disks, which are killed meanwhile (A11.3).

Readers of committed records get those of the members that were listed, each once, and nothing else.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

import raftmq
from raftmq import sync, testing
from raftmq.errors import TransactionAborted
from tests.cluster.node_process import PROJECT
from tests.cluster.test_transactions import (
    LOOK_SECONDS,
    PATIENCE_SECONDS,
    PROGRAM,
    coordinator_of,
    create,
    kill,
    leader_of,
    read,
    start,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.testing.server import Server

pytestmark = pytest.mark.cluster

PARTITIONS, TASKS, ROWS = 3, 6, 200
_numbers = count()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with testing.cluster(3) as server:
        yield server


@pytest.fixture
def topic() -> str:
    return f"shared-{next(_numbers)}"


def values_of(task: str) -> list[bytes]:
    return [b"%s %d" % (task.encode(), row) for row in range(ROWS)]


async def written(version: raftmq.SharedVersion, topic: str, task: str) -> raftmq.Receipt:
    """By one member, to all partitions."""
    async with version.join(batch_size=1024) as member:
        partitions = [row % PARTITIONS for row in range(ROWS)]
        await member.send_columns(topic, values=values_of(task), partitions=partitions)
    assert member.receipt.count == ROWS
    assert len(member.receipt.partitions) == PARTITIONS
    return member.receipt


async def wait_read(mq: raftmq.Client, topic: str, *tasks: str) -> None:
    """Until readers of committed records get what these have written."""
    wanted = sorted(value for task in tasks for value in values_of(task))
    with anyio.fail_after(PATIENCE_SECONDS):
        while (found := sorted(value or b"" for value in await read(mq, topic))) != wanted:
            assert set(found) <= set(wanted), "nothing else"
            assert len(found) < len(wanted), "each once"
            await anyio.sleep(LOOK_SECONDS)


async def wait_free(mq: raftmq.Client, topic: str) -> None:
    """Until nothing holds up readers."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while True:
            if not await mq.admin.open_transactions(topic):
                return
            await anyio.sleep(LOOK_SECONDS)


def test_tasks_in_threads(server: Server, topic: str) -> None:
    """Each with a client of its own, and each written twice: the driver lists one of both, and is
    told the same when it comes again."""

    def attempt(task: int) -> raftmq.Receipt:
        with sync.connect(server.bootstrap) as mq:
            version = mq.shared_transaction(topic, lineage="a").version(7)
            with version.join() as member:
                for value in values_of(f"task {task % TASKS}"):
                    member.enqueue(topic, value, key=value)
            return member.receipt

    with sync.connect(server.bootstrap) as mq:
        mq.admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
        with ThreadPoolExecutor(4) as pool:
            receipts = list(pool.map(attempt, range(2 * TASKS)))
        assert len({one.number for one in receipts}) == 2 * TASKS
        assert len({one.block for one in receipts}) == 1
        listed = [receipts[task + TASKS * (task % 2)] for task in range(TASKS)]
        version = mq.shared_transaction(topic, lineage="a").version(7)
        done = version.commit(listed, wait_visible=True)
        assert done == raftmq.CommittedVersion(is_repeated=False, count=TASKS * ROWS)
        assert version.commit(listed).is_repeated
        with mq.consumer(topic, start="earliest") as consumer:
            found = [record.value or b"" for record in consumer.records(timeout=1)]
        wanted = [value for task in range(TASKS) for value in values_of(f"task {task}")]
        assert sorted(found) == sorted(wanted)


async def test_the_coordinator_dies_between_join_and_commit(server: Server, topic: str) -> None:
    """What has joined stays so: the next coordinator takes more members, and the commit."""
    async with raftmq.connect(server.bootstrap) as mq, raftmq.connect(server.bootstrap) as other:
        await create(mq, topic, PARTITIONS)
        version, there = [
            one.shared_transaction(topic, lineage="").version(1) for one in (mq, other)
        ]
        await written(there, topic, "copy")
        receipts = [await written(version, topic, "first")]
        async with there.join() as during:
            coordinator = await coordinator_of(mq, topic)
            await kill(server, coordinator)
            await during.send_columns(topic, values=values_of("second"))
        receipts += [during.receipt, await written(there, topic, "third")]
        done = await version.commit(receipts, wait_visible=True)
        assert done == raftmq.CommittedVersion(is_repeated=False, count=3 * ROWS)
        await start(server, coordinator)
        assert (await there.commit(receipts)).is_repeated
        await wait_read(mq, topic, "first", "second", "third")


@pytest.mark.parametrize("delay", [0.0, 0.005, 0.02])
async def test_the_coordinator_dies_while_it_is_asked(
    server: Server, topic: str, delay: float
) -> None:
    """The commit is asked again of the next one, and is carried out once."""
    async with raftmq.connect(server.bootstrap) as mq:
        await create(mq, topic, PARTITIONS)
        version = mq.shared_transaction(topic, lineage="").version(1)
        await written(version, topic, "copy")
        receipts = [await written(version, topic, "first"), await written(version, topic, "second")]
        coordinator = await coordinator_of(mq, topic)
        outcomes = list[raftmq.CommittedVersion]()

        async def commit() -> None:
            outcomes.append(await version.commit(receipts))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit)
            await anyio.sleep(delay)
            await kill(server, coordinator)
        assert outcomes[0].count == 2 * ROWS
        await start(server, coordinator)
        await wait_read(mq, topic, "first", "second")


async def test_a_leader_dies_between_two_members(server: Server, topic: str) -> None:
    """The next one marks what it finds open; members that write meanwhile go on."""
    async with raftmq.connect(server.bootstrap) as mq:
        await create(mq, topic, PARTITIONS)
        version = mq.shared_transaction(topic, lineage="").version(1)
        receipts = [await written(version, topic, "first")]
        await written(version, topic, "copy")
        async with version.join() as during:
            await during.send_columns(topic, values=values_of("second")[: ROWS // 2])
            leader = await leader_of(server, topic)
            await kill(server, leader)
            await during.send_columns(topic, values=values_of("second")[ROWS // 2 :])
        await version.commit([*receipts, during.receipt], wait_visible=True)
        await wait_read(mq, topic, "first", "second")
        await start(server, leader)
        await wait_read(mq, topic, "first", "second")


async def test_a_worker_that_is_killed(server: Server, topic: str) -> None:
    """kill -9 in the middle of its task: the commit aborts what it has written, and no reader waits
    for the time of the version."""
    async with raftmq.connect(server.bootstrap) as mq:
        await create(mq, topic, PARTITIONS)
        command = [*PROGRAM, "join", "--bootstrap", server.bootstrap, "--topic", topic]
        async with await anyio.open_process(command, cwd=PROJECT, stderr=None) as program:
            assert program.stdout is not None
            assert await program.stdout.receive() == b"sent\n"
            program.kill()
        version = mq.shared_transaction(topic, lineage="").version(1)
        receipt = await written(version, topic, "again")
        assert receipt.number == 1
        await version.commit([receipt], wait_visible=True)
        await wait_free(mq, topic)
        await wait_read(mq, topic, "again")


async def test_a_driver_that_never_commits(server: Server, topic: str) -> None:
    """Readers go on once the version's time is over; what was written before does not count, and
    all of it may be written anew."""
    async with raftmq.connect(server.bootstrap) as mq:
        await create(mq, topic, PARTITIONS)
        shared = mq.shared_transaction(topic, lineage="", transaction_timeout_ms=2_000)
        version = shared.version(1)
        receipt = await written(version, topic, "first")
        await wait_free(mq, topic)
        with pytest.raises(TransactionAborted) as caught:
            await version.commit([receipt])
        assert caught.value.reason == "timeout"
        await version.commit([await written(version, topic, "again")])
        await wait_read(mq, topic, "again")
