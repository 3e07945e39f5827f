"""Transactions of the SDK against three brokers on real disks, which are killed meanwhile (A11.3).

The copy that is made exactly once, by processes that are killed, is `test_copies.py`.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

import raftmq
from raftmq import sync, testing
from raftmq.errors import (
    OffsetOutOfRange,
    OutcomeUnknown,
    ProducerFenced,
    TransactionAborted,
)
from tests.cluster.node_process import END_SECONDS_MAX, PROJECT
from tests.unit.client.backends import on_trio_and_asyncio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from raftmq.testing.server import Server

pytestmark = pytest.mark.cluster

PROGRAM = [sys.executable, "-m", "tests.cluster.transaction_program"]
LOOK_SECONDS = 0.05
SEGMENT_BYTES = 1 << 20
PATIENCE_SECONDS = 60
_numbers = count()


RETENTION_CHECK_SECONDS = 0.2


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch, testing.cluster(3) as server:
        module = "raftmq.partition.storage.directory"
        patch.setattr(f"{module}.RETENTION_CHECK_INTERVAL", RETENTION_CHECK_SECONDS)
        yield server


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_numbers)}"


async def create(mq: raftmq.Client, topic: str, partitions: int = 1) -> None:
    config = {"min.insync.replicas": 2}
    await mq.admin.create_topic(topic, partitions=partitions, replication_factor=3, config=config)


async def read(mq: raftmq.Client, topic: str, level: Any = "read_committed") -> list[bytes | None]:
    """All that readers of that level get now, partition by partition."""
    found: list[bytes | None] = []
    for partition, end in (await mq.admin.offsets(topic, "latest", isolation_level=level)).items():
        place = (topic, partition)
        async with mq.consumer(assign=[place], start="earliest", isolation_level=level) as consumer:
            batches = consumer.batches()
            with anyio.fail_after(PATIENCE_SECONDS):
                while (consumer.position(*place) or 0) < (end or 0):
                    with anyio.move_on_after(LOOK_SECONDS):
                        found += (await anext(batches)).values
    return found


async def wait_read(mq: raftmq.Client, topic: str, wanted: list[bytes]) -> None:
    """Until readers of committed records get this."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while (found := await read(mq, topic)) != wanted:
            assert found == wanted[: len(found)], "nothing else"
            await anyio.sleep(LOOK_SECONDS)


async def leader_of(server: Server, topic: str, partition: int = 0) -> int:
    leader = await anyio.to_thread.run_sync(server.leader_of, topic, partition)
    assert leader is not None
    return leader


async def kill(server: Server, node: int) -> None:
    await anyio.to_thread.run_sync(server.kill_node, node)


async def start(server: Server, node: int) -> None:
    await anyio.to_thread.run_sync(server.start_node, node)


@on_trio_and_asyncio
async def test_all_or_nothing(server: Server, topic: str) -> None:
    """Of what is sent in a transaction over two topics in every way (T1, T2)."""
    other = f"{topic}-too"
    async with raftmq.connect(server.bootstrap) as mq:
        await create(mq, topic, 2)
        await create(mq, other)
        async with mq.producer(transaction_id=topic) as producer:
            async with producer.transaction() as tx:
                await tx.send(topic, b"a", partition=0)
                await tx.abort()
            assert (tx.state, tx.outcome) == ("aborted", "aborted")
            with suppress(ZeroDivisionError):
                async with producer.transaction() as tx:
                    await tx.send(topic, b"b", partition=0)
                    await tx.send(other, b"b")
                    raise ZeroDivisionError
            async with producer.transaction(wait_visible=True) as tx:
                await tx.send(topic, b"c", partition=0)
                await tx.enqueue(topic, b"d", partition=1)
                tx.send_nowait(topic, b"e", partition=1)
                await tx.send_many(other, [b"f", b"g"])
                await tx.send_columns(other, values=[b"h"])
                assert await read(mq, topic) == []
            assert tx.outcome == "committed"
            assert await read(mq, topic) == [b"c", b"d", b"e"]
            assert await read(mq, other) == [b"f", b"g", b"h"]
        assert await read(mq, topic, "read_uncommitted") == [b"a", b"b", b"c", b"d", b"e"]


def test_plain_code(server: Server, topic: str) -> None:
    """The same from a thread, with offsets of a group."""
    with sync.connect(server.bootstrap) as mq:
        mq.admin.create_topic(topic, partitions=1, replication_factor=3)
        with mq.producer(transaction_id=topic) as producer:
            with suppress(ZeroDivisionError), producer.transaction() as tx:
                tx.send(topic, b"a")
                tx.commit_offsets({(topic, 0): 1}, group=topic)
                raise ZeroDivisionError
            with producer.transaction(wait_visible=True) as tx:
                for number in range(100):
                    tx.enqueue(topic, b"%d" % number)
                tx.commit_offsets({(topic, 0): 2}, group=topic)
        with mq.consumer(topic, start="earliest") as consumer:
            values = [record.value for record in consumer.records(timeout=1)]
        assert values == [b"%d" % number for number in range(100)]
        assert mq.admin.group_offsets(topic)[topic, 0].offset == 2


async def test_a_program_that_is_killed_holds_nobody_up(server: Server, topic: str) -> None:
    """kill -9 in the middle of a transaction: readers go on once its time is over (T6)."""
    async with raftmq.connect(server.bootstrap) as mq:
        await create(mq, topic)
        command = [*PROGRAM, "hold", "--bootstrap", server.bootstrap, "--topic", topic]
        async with await anyio.open_process(command, cwd=PROJECT, stderr=None) as program:
            assert program.stdout is not None
            assert await program.stdout.receive() == b"sent\n"
            program.kill()
        async with mq.producer() as producer:
            await producer.send(topic, b"behind")
        assert [each.first_offset for each in await mq.admin.open_transactions(topic)] == [0]
        await wait_read(mq, topic, [b"behind"])
        assert await mq.admin.open_transactions(topic) == ()


async def test_a_second_owner_fences_the_first(server: Server, topic: str) -> None:
    """What the first has sent is aborted at once, and nothing more of it is taken (T3)."""
    async with raftmq.connect(server.bootstrap) as mq, raftmq.connect(server.bootstrap) as other:
        await create(mq, topic)
        async with mq.producer(transaction_id=topic) as first:
            zombie = first.transaction()
            await zombie.__aenter__()
            await zombie.send(topic, b"old")
            async with other.producer(transaction_id=topic) as second:
                async with second.transaction(wait_visible=True) as tx:
                    await tx.send(topic, b"new")
                with pytest.raises((ProducerFenced, TransactionAborted)):
                    await zombie.send(topic, b"late")
                with pytest.raises(ProducerFenced):
                    await zombie.__aexit__(None, None, None)
            with pytest.raises(ProducerFenced):
                async with first.transaction():
                    pass
        assert await read(mq, topic) == [b"new"]


def load_versions(server: Server, topic: str, end: int) -> list[str]:
    """What one process tells of them."""
    words = ["load", "--bootstrap", server.bootstrap, "--topic", topic, "--versions", str(end)]
    done = subprocess.run(
        [*PROGRAM, *words], cwd=PROJECT, stdout=subprocess.PIPE, check=True, timeout=END_SECONDS_MAX
    )
    return done.stdout.decode().splitlines()


def test_versions_over_processes(server: Server, topic: str) -> None:
    """Each is committed once, however many processes try it (T5)."""
    with sync.connect(server.bootstrap) as mq:
        mq.admin.create_topic(topic, partitions=1, replication_factor=3)
        assert load_versions(server, topic, 2) == ["0 False", "1 False"]
        assert load_versions(server, topic, 3) == ["0 True", "1 True", "2 False"]
        with mq.consumer(topic, start="earliest") as consumer:
            assert [each.value for each in consumer.records(timeout=1)] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("delay", [0.0, 0.005, 0.02])
async def test_the_coordinator_dies_while_it_is_asked(
    server: Server, topic: str, delay: float
) -> None:
    """The commit is carried out or not, the program learns which, and readers see the same (T4)."""
    async with raftmq.connect(server.bootstrap) as mq:
        await create(mq, topic, 3)
        options: dict[str, Any] = {"transaction_id": topic, "transaction_timeout_ms": 20_000}
        async with mq.producer(**options) as producer:
            tx = producer.transaction()
            await tx.__aenter__()
            for partition in range(3):
                await tx.send(topic, b"first", partition=partition)
            coordinator = await coordinator_of(mq, topic)
            tx.commit_offsets({(topic, 0): 7}, group=topic)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(end, tx)
                await anyio.sleep(delay)
                await kill(server, coordinator)
            assert tx.outcome is not None
            async with producer.transaction() as after:
                await after.send(topic, b"second", partition=0)
        await start(server, coordinator)
        is_committed = tx.outcome == "committed"
        wanted = [b"first", b"second", b"first", b"first"] if is_committed else [b"second"]
        await wait_read(mq, topic, wanted)
        offsets = await mq.admin.group_offsets(topic)
        assert offsets[topic, 0].offset == (7 if is_committed else 0)


async def coordinator_of(mq: raftmq.Client, name: str) -> int:
    """Groups and transactions of one name have the same."""
    await mq.admin.alter_group_offsets(name, {(name, 0): 0})
    return (await mq.admin.describe_group(name)).coordinator


async def end(tx: Any) -> None:
    try:
        await tx.__aexit__(None, None, None)
    except OutcomeUnknown:
        with anyio.fail_after(PATIENCE_SECONDS):
            while tx.outcome is None:
                with suppress(OutcomeUnknown):
                    await tx.resolve()
    except TransactionAborted:
        pass


@pytest.mark.parametrize("is_killed", [False, True])
async def test_brokers_restart_under_open_transactions(
    server: Server, topic: str, *, is_killed: bool
) -> None:
    """One after the other: what was aborted stays out of sight, what is open stays open, and is
    committed in the end.
    """
    stop = server.kill_node if is_killed else server.stop_node
    async with raftmq.connect(server.bootstrap) as mq:
        await create(mq, topic)
        async with (
            mq.producer(transaction_id=f"{topic}-a") as aborting,
            mq.producer(transaction_id=f"{topic}-b") as holding,
            holding.transaction(wait_visible=True) as tx,
        ):
            await sent_and_aborted(aborting, topic, b"x")
            first = (await tx.send(topic, b"0")).offset
            for number, node in enumerate(server.nodes, 1):
                await anyio.to_thread.run_sync(stop, node)
                await sent_and_aborted(aborting, topic, b"y")
                await start(server, node)
                await tx.send(topic, b"%d" % number)
                await wait_in_sync(mq, topic, 3)
                assert await read(mq, topic) == []
                [found] = await mq.admin.open_transactions(topic)
                assert (found.transaction_id, found.first_offset) == (f"{topic}-b", first)
        await wait_read(mq, topic, [b"0", b"1", b"2", b"3"])


async def sent_and_aborted(producer: Any, topic: str, value: bytes) -> None:
    async with producer.transaction() as tx:
        await tx.send(topic, value)
        await tx.abort()


async def wait_in_sync(mq: raftmq.Client, topic: str, number: int) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        while True:
            partitions = (await mq.admin.describe_topic(topic)).partitions
            if all(len(each.isr) == number for each in partitions):
                return
            await anyio.sleep(LOOK_SECONDS)


async def test_all_brokers_are_killed_at_once(server: Server, topic: str) -> None:
    """With aborted, committed and open transactions on their disks: readers see the same after it,
    and what was open can be committed.
    """
    async with raftmq.connect(server.bootstrap) as mq:
        await create(mq, topic)
        async with mq.producer(transaction_id=topic) as producer:
            await sent_and_aborted(producer, topic, b"x")
            async with producer.transaction():
                await producer.send(topic, b"0")
            async with producer.transaction() as tx:
                await tx.send(topic, b"1")
                for node in server.nodes:
                    await kill(server, node)
                for node in server.nodes:
                    await anyio.to_thread.run_sync(begin, server, node)
                await anyio.to_thread.run_sync(server.wait_ready)
                await wait_read(mq, topic, [b"0"])
                await tx.send(topic, b"2")
        await wait_read(mq, topic, [b"0", b"1", b"2"])


def begin(server: Server, node: int) -> None:
    server.start_node(node, wait=False)


async def test_records_of_what_is_open_are_not_deleted(server: Server, topic: str) -> None:
    """Neither in numbers nor as "latest", which is where the oldest of them begins."""
    async with raftmq.connect(server.bootstrap) as mq:
        await create(mq, topic)
        async with mq.producer() as plain:
            await plain.send(topic, b"before")
        async with mq.producer(transaction_id=topic) as producer:
            async with producer.transaction(wait_visible=True) as tx:
                await tx.send(topic, b"0")
                await tx.send(topic, b"1")
                with pytest.raises(OffsetOutOfRange, match="transaction"):
                    await mq.admin.delete_records(topic, {0: 2})
                assert await mq.admin.delete_records(topic, {0: "latest"}) == {0: 1}
            assert await read(mq, topic) == [b"0", b"1"]
            [end] = (await mq.admin.offsets(topic, "latest")).values()
            assert await mq.admin.delete_records(topic, {0: "latest"}) == {0: end}


async def test_retention_keeps_what_is_open(server: Server, topic: str) -> None:
    """Segments behind the beginning of an open transaction stay, until it has ended."""
    limits = {"retention.bytes": 0, "segment.bytes": SEGMENT_BYTES}
    async with raftmq.connect(server.bootstrap) as mq:
        await mq.admin.create_topic(topic, partitions=1, replication_factor=3, config=limits)
        async with mq.producer() as plain, mq.producer(transaction_id=topic) as producer:
            await send_segments(plain, topic)
            async with producer.transaction() as tx:
                first = (await tx.send(topic, b"0")).offset
                await send_segments(plain, topic)
                await wait_start(mq, topic, lambda start: start > 0)
                await anyio.sleep(3 * RETENTION_CHECK_SECONDS)
                [start] = (await mq.admin.offsets(topic, "earliest")).values()
                assert start is not None
                assert start <= first
            await wait_start(mq, topic, lambda start: start > first)


async def send_segments(producer: Any, topic: str) -> None:
    for _ in range(4):
        await producer.send(topic, b"x" * (SEGMENT_BYTES // 2))


async def wait_start(mq: raftmq.Client, topic: str, is_so: Callable[[int], bool]) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        while not is_so((await mq.admin.offsets(topic, "earliest"))[0] or 0):  # noqa: ASYNC110  # it is asked
            await anyio.sleep(LOOK_SECONDS)


async def test_leaders_change_under_an_open_transaction(server: Server, topic: str) -> None:
    """To others by a kill, and back by an election: all of it is committed in the end."""
    async with raftmq.connect(server.bootstrap) as mq:
        await create(mq, topic, 3)
        async with mq.producer(transaction_id=topic) as producer, producer.transaction() as tx:
            for partition in range(3):
                await tx.send(topic, b"0", partition=partition)
            leader = await leader_of(server, topic)
            await kill(server, leader)
            await tx.send(topic, b"1", partition=0)
            await start(server, leader)
            await wait_in_sync(mq, topic, 3)
            await mq.admin.elect_leaders(topic)
            await tx.send(topic, b"2", partition=0)
            assert await read(mq, topic) == []
        await wait_read(mq, topic, [b"0", b"1", b"2", b"0", b"0"])


async def test_a_topic_is_deleted_in_mid_transaction(server: Server, topic: str) -> None:
    """Its part is gone, and the rest is committed; a new topic of the same name takes nothing of
    it.
    """
    gone = f"{topic}-gone"
    async with raftmq.connect(server.bootstrap) as mq:
        await create(mq, topic)
        await create(mq, gone)
        async with mq.producer(transaction_id=topic) as producer:
            async with producer.transaction(wait_visible=True) as tx:
                await tx.send(topic, b"0")
                await tx.send(gone, b"0")
                await mq.admin.delete_topic(gone)
            assert tx.outcome == "committed"
            await create(mq, gone)
            async with producer.transaction(wait_visible=True) as tx:
                await tx.send(topic, b"1")
                await tx.send(gone, b"1")
        assert await read(mq, topic) == [b"0", b"1"]
        assert await read(mq, gone) == [b"1"]
