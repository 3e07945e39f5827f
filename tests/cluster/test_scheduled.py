"""Scheduled records on processes that are killed: each comes once, not early, or is cancelled."""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import pytest
import trio

import raftmq
from raftmq.errors import CannotCancel, RaftmqError

if TYPE_CHECKING:
    from collections.abc import Collection

    from raftmq import ConsumerRecord, ScheduleHandle
    from tests.cluster.broker_cluster import BrokerCluster

pytestmark = pytest.mark.cluster

PARTITIONS, COUNT = 4, 400
DELAY_SECONDS_MAX = 8.0
QUIET_SECONDS = 3.0  # behind the last due time nothing comes any more


def bootstrap(brokers: BrokerCluster, nodes: Collection[int] = ()) -> str:
    return ",".join(str(brokers.address(node)) for node in nodes or brokers.nodes)


async def leader_of(mq: raftmq.Client, topic: str, partition: int = 0) -> int:
    with trio.fail_after(30):
        while True:
            leader = (await mq.admin.describe_topic(topic)).partitions[partition].leader
            if leader is not None:
                return leader
            await trio.sleep(0.1)


async def read_until_quiet(mq: raftmq.Client, topic: str) -> list[ConsumerRecord]:
    """All that is there, and what comes until nothing has come for a while."""
    found: list[ConsumerRecord] = []
    async with mq.consumer(topic, start="earliest") as consumer:
        while True:
            with trio.move_on_after(QUIET_SECONDS) as scope:
                found.append(await anext(consumer))
            if scope.cancelled_caught:
                return found


class Sent(NamedTuple):
    value: bytes
    handle: ScheduleHandle


async def send_all(mq: raftmq.Client, topic: str, sent: list[Sent], random: Random) -> None:
    """Over some seconds, singly and together; a fifth at once."""
    async with mq.producer() as producer:
        for number in range(COUNT):
            value = b"%d" % number
            delay = random.choice([0.0, random.uniform(0.5, DELAY_SECONDS_MAX), 2.0, 2.0, 5.0])
            metadata = await producer.send(topic, value, key=number % 17, delay=delay)
            assert metadata.schedule_handle is not None
            sent.append(Sent(value, metadata.schedule_handle))
            if random.random() < 0.2:
                await trio.sleep(0.05)


async def cancel_some(
    mq: raftmq.Client, sent: list[Sent], cancelled: set[bytes], doubtful: set[bytes], random: Random
) -> None:
    """Until it is cancelled itself."""
    while True:
        await trio.sleep(0.1)
        if not sent:
            continue
        one = random.choice(sent[-50:])
        doubtful.add(one.value)
        try:
            await mq.admin.cancel_scheduled(one.handle)
            cancelled.add(one.value)
        except CannotCancel as error:
            if error.reason != "cancelled":  # by an earlier turn of this loop
                doubtful.discard(one.value)
        except RaftmqError:
            continue  # it may be cancelled, or not


async def kill_leaders(brokers: BrokerCluster, mq: raftmq.Client, topic: str) -> None:
    for partition in (0, 1):
        await trio.sleep(2)
        leader = await leader_of(mq, topic, partition)
        brokers.kill([leader])
        await trio.sleep(3)
        brokers.start([leader])
        await trio.to_thread.run_sync(partial(brokers.wait_ready, [leader]))


async def test_leaders_are_killed_while_records_wait(brokers: BrokerCluster) -> None:
    """Whoever leads next delivers what is pending, and nothing that the one before has delivered
    (D1, D2; A12.2, A12.3)."""
    topic, random = "later", Random(20)
    sent: list[Sent] = []
    cancelled, doubtful = set[bytes](), set[bytes]()
    async with raftmq.connect(bootstrap(brokers)) as mq:
        await mq.admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_some, mq, sent, cancelled, doubtful, Random(21))
            async with trio.open_nursery() as both:
                both.start_soon(send_all, mq, topic, sent, random)
                both.start_soon(kill_leaders, brokers, mq, topic)
            await trio.sleep(DELAY_SECONDS_MAX)
            nursery.cancel_scope.cancel()
        with trio.fail_after(60):
            while (await mq.admin.scheduled(topic, limit=0)).batch_count:  # noqa: ASYNC110  # it is asked
                await trio.sleep(0.2)
        found = await read_until_quiet(mq, topic)
        assert len(sent) == COUNT
        counts = Counter(record.value for record in found)
        assert [value for value, count in counts.items() if count > 1] == []
        assert not cancelled & counts.keys()
        missing = {one.value for one in sent} - counts.keys()
        assert missing <= doubtful
        assert len(cancelled) > 10
        for record in found:
            assert record.due is not None
            assert record.timestamp >= record.due


async def test_an_outage(brokers: BrokerCluster) -> None:
    """All nodes die with -9. What fell due meanwhile comes at once, by due time, and what was
    cancelled does not; what is not due yet waits on."""
    topic = "outage"
    async with raftmq.connect(bootstrap(brokers)) as mq:
        await mq.admin.create_topic(topic, replication_factor=3)
        async with mq.producer() as producer:
            handles = {
                delay: (await producer.send(topic, b"%d" % delay, delay=delay)).schedule_handle
                for delay in (5, 2, 4, 3, 600)
            }
        assert handles[3] is not None
        await mq.admin.cancel_scheduled(handles[3])
    brokers.kill(brokers.nodes)
    await trio.sleep(6)
    brokers.start(brokers.nodes)
    await trio.to_thread.run_sync(partial(brokers.wait_ready, brokers.nodes))
    async with raftmq.connect(bootstrap(brokers)) as mq:
        await leader_of(mq, topic)
        found = await read_until_quiet(mq, topic)
        assert [record.value for record in found] == [b"2", b"4", b"5"]
        [waiting] = (await mq.admin.scheduled(topic)).records
        assert waiting.handle == handles[600]


async def test_the_leader_dies_right_after_a_cancel(brokers: BrokerCluster) -> None:
    """What was answered holds under every later leader."""
    topic = "cancelled"
    async with raftmq.connect(bootstrap(brokers)) as mq:
        await mq.admin.create_topic(topic, replication_factor=3)
        async with mq.producer(linger_ms=50) as producer:
            sent = [await producer.enqueue(topic, b"%d" % number, delay=6) for number in range(10)]
            handles = [(await one).schedule_handle for one in sent]
        leader = await leader_of(mq, topic)
        gone = [one for one in handles[::2] if one is not None]
        assert await mq.admin.cancel_scheduled(gone) == {}
        brokers.kill([leader])
    others = [node for node in brokers.nodes if node != leader]
    async with raftmq.connect(bootstrap(brokers, others)) as mq:
        failed = await mq.admin.cancel_scheduled(gone)
        assert {error.reason for error in failed.values()} == {"cancelled"}  # type: ignore[attr-defined]
        assert len(failed) == len(gone)
        await trio.sleep(6)
        found = await read_until_quiet(mq, topic)
        assert [record.value for record in found] == [b"1", b"3", b"5", b"7", b"9"]
