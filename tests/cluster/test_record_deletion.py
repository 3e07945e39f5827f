"""Records that were deleted stay deleted, whoever is killed or deposed (A3.4, G8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

import raftmq
from raftmq.errors import ErrorCode
from raftmq.rpc.network import TcpNetwork
from raftmq.rpc.protocol import RpcLimits
from raftmq.rpc.trio_channel import open_channel
from raftmq.wire.messages.hello import Hello
from raftmq.wire.messages.topics import DeleteRecords, RecordsToDelete

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from raftmq.client.administration.results import PartitionDetails
    from raftmq.rpc.channel import Channel
    from tests.cluster.broker_cluster import BrokerCluster

pytestmark = pytest.mark.cluster

ROUNDS = 4
COUNT, DELETED = 1000, 900
LOOK_SECONDS = 0.2
PATIENT = RpcLimits(silence_seconds_max=30.0)
REFUSALS = (
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.STALE_BROKER_EPOCH,
)


def bootstrap(brokers: BrokerCluster, nodes: Collection[int]) -> str:
    return ",".join(str(brokers.address(node)) for node in nodes)


def others(brokers: BrokerCluster, node_id: int) -> list[int]:
    return [node for node in brokers.nodes if node != node_id]


async def make(mq: raftmq.Client, topic: str) -> int:
    """A topic of one partition, with records; who leads it."""
    await mq.admin.create_topic(topic, partitions=1, replication_factor=3)
    async with mq.producer() as producer:
        await producer.send_columns(topic, values=[b"%d" % number for number in range(COUNT)])
    leader = (await mq.admin.describe_topic(topic)).partitions[0].leader
    assert leader is not None, "it has just taken records"
    return leader


async def wait(mq: raftmq.Client, topic: str, is_so: Callable[[PartitionDetails], bool]) -> None:
    """Until a broker says so of the partition."""
    with trio.fail_after(30):
        while not is_so((await mq.admin.describe_topic(topic)).partitions[0]):  # noqa: ASYNC110  # it is asked
            await trio.sleep(LOOK_SECONDS)


async def wait_led_by_another(mq: raftmq.Client, topic: str, leader: int) -> None:
    await wait(mq, topic, lambda partition: partition.leader not in (leader, None))


async def wait_in_sync(mq: raftmq.Client, topic: str, node_id: int) -> None:
    await wait(mq, topic, lambda partition: node_id in partition.isr)


async def first_record(mq: raftmq.Client, topic: str) -> int:
    async with mq.consumer(assign=[(topic, 0)], start="earliest") as consumer:
        async for record in consumer:
            return record.offset
    raise AssertionError("it has ended by itself")


async def test_the_leader_dies_right_after_its_answer(brokers: BrokerCluster) -> None:
    """kill -9, round after round: whoever leads next begins where it was answered, and so does the
    old leader when it leads again.
    """
    for number in range(ROUNDS):
        topic = f"trimmed-{number}"
        async with raftmq.connect(bootstrap(brokers, brokers.nodes)) as mq:
            leader = await make(mq, topic)
            assert await mq.admin.delete_records(topic, {0: DELETED}) == {0: DELETED}
            brokers.kill([leader])
        async with raftmq.connect(bootstrap(brokers, others(brokers, leader))) as mq:
            await wait_led_by_another(mq, topic, leader)
            assert await mq.admin.offsets(topic, "earliest") == {0: DELETED}
            assert await first_record(mq, topic) == DELETED
            brokers.start([leader])
            brokers.wait_ready([leader])
            await wait_in_sync(mq, topic, leader)
            await mq.admin.elect_leaders(topic)
            assert await mq.admin.offsets(topic, "earliest") == {0: DELETED}
            assert await first_record(mq, topic) == DELETED


async def test_a_leader_that_does_not_know_of_its_successor(brokers: BrokerCluster) -> None:
    """It stood still while another was elected, and somebody asked it meanwhile: it deletes
    nothing, and says so.
    """
    async with raftmq.connect(bootstrap(brokers, brokers.nodes)) as mq:
        leader = await make(mq, "deposed")
        topic_id = (await mq.admin.describe_topic("deposed")).topic_id
    stream = await TcpNetwork().dial(brokers.address(leader))
    async with open_channel(stream, Hello(client_id="test"), PATIENT) as channel:
        brokers.pause([leader])
        async with raftmq.connect(bootstrap(brokers, others(brokers, leader))) as mq:
            await wait_led_by_another(mq, "deposed", leader)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(check_refusal, channel, topic_id)
                await trio.sleep(LOOK_SECONDS)
                brokers.resume([leader])
            assert await mq.admin.offsets("deposed", "earliest") == {0: 0}
            assert await mq.admin.delete_records("deposed", {0: DELETED}) == {0: DELETED}


async def check_refusal(channel: Channel, topic_id: bytes) -> None:
    request = DeleteRecords((RecordsToDelete(topic_id, 0, DELETED),), timeout_ms=20_000)
    answer = await channel.request(request, timeout_seconds=30)
    told = answer.body.partitions[0]
    assert told.error in REFUSALS, told
