"""`Admin.topic_sizes`: records and bytes of topics, from all brokers that hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from raftmq.client.administration.results import PartitionSize
from raftmq.errors import InvalidRequest, UnknownTopicOrPartition
from raftmq.wire.messages.topics import DescribeLogs, DescribeLogsReply, LogCursor, LogRow
from tests.unit.client.administration.bureau import open_bureau

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.client.administration.bureau import Bureau


def fill(bureau: Bureau) -> None:
    """Topic "u": partition 0 on brokers 1 and 2, partition 1 on broker 2 alone."""
    topic = bureau.world.add_topic("u", 1, 2)
    bureau.replicas["u", 0] = ((1, 2), (1, 2))
    topic.partitions[0].log_start_offset, topic.partitions[0].end_offset = 3, 8
    topic.partitions[1].end_offset = 4


async def test_sums_over_leaders_and_over_replicas(autojump_clock: MockClock) -> None:
    """Two brokers, whose answers have several pages; a follower's records are not counted twice."""
    async with open_bureau() as (bureau, admin):
        fill(bureau)
        sizes = await admin.topic_sizes()
        assert set(sizes) == {"t", "u"}
        assert sizes["u"].partitions == (
            PartitionSize(0, 5, 50, 100),
            PartitionSize(1, 4, 40, 40),
        )
        size = sizes["u"]
        assert (size.record_count, size.log_bytes, size.replica_bytes) == (9, 90, 140)
        assert size.topic_id == bureau.world.topics["u"].topic_id
        assert (sizes["t"].record_count, sizes["t"].replica_bytes) == (0, 0)
        assert bureau.count(DescribeLogs) == 4  # two pages of each


async def test_some_topics(autojump_clock: MockClock) -> None:
    """Brokers are asked for these alone, and what does not exist is named."""
    async with open_bureau() as (bureau, admin):
        fill(bureau)
        assert set(await admin.topic_sizes(["t", "t"])) == {"t"}
        assert bureau.asked(DescribeLogs)[0].topics == (bureau.world.topics["t"].topic_id,)
        with pytest.raises(UnknownTopicOrPartition, match="no topic 'no'"):
            await admin.topic_sizes(["t", "no"])
        with pytest.raises(TypeError, match="expected a list of names"):
            await admin.topic_sizes("t")
        with pytest.raises(InvalidRequest, match="leave it out for all"):
            await admin.topic_sizes([])


async def test_a_broker_that_came_after_the_connection(autojump_clock: MockClock) -> None:
    """It was down when this client learnt the addresses: it is asked nevertheless."""
    async with open_bureau(lambda bureau: bureau.down.add(2)) as (bureau, admin):
        await admin.list_topics()  # learns the addresses
        bureau.down.clear()
        fill(bureau)
        assert (await admin.topic_sizes(["u"]))["u"].replica_bytes == 140


async def test_a_broker_of_an_older_version(autojump_clock: MockClock) -> None:
    """A rolling upgrade: what the old broker holds is unknown, the rest is told (A10.1)."""

    def age(bureau: Bureau) -> None:
        del bureau.world.brokers[2].handlers[DescribeLogs]

    async with open_bureau(age) as (bureau, admin):
        fill(bureau)
        sizes = await admin.topic_sizes()
        assert sizes["u"].partitions == (
            PartitionSize(0, 5, 50, None),
            PartitionSize(1, None, None, None),
        )
        size = sizes["u"]
        assert (size.record_count, size.log_bytes, size.replica_bytes) == (None, None, None)
        assert sizes["t"].record_count == 0


async def test_silent_brokers(autojump_clock: MockClock) -> None:
    """It takes the request and never answers, and then it dies: two seconds, and no failure."""

    async def hang(*_: Any) -> None:
        await anyio.sleep_forever()

    def slow_down(bureau: Bureau) -> None:
        bureau.world.brokers[2].handlers[DescribeLogs] = hang

    async with open_bureau(slow_down) as (bureau, admin):
        fill(bureau)
        begin = anyio.current_time()
        assert (await admin.topic_sizes())["u"].partitions[0] == PartitionSize(0, 5, 50, None)
        assert anyio.current_time() - begin == pytest.approx(2.0, abs=0.1)
        bureau.world.brokers[2].stop()
        assert (await admin.topic_sizes())["u"].partitions[0] == PartitionSize(0, 5, 50, None)


async def test_a_partition_without_a_leader(autojump_clock: MockClock) -> None:
    """The number of records is not known."""
    async with open_bureau() as (bureau, admin):
        bureau.world.add_topic("u", -1)
        assert (await admin.topic_sizes())["u"].record_count is None


async def test_pages_that_lead_nowhere(autojump_clock: MockClock) -> None:
    """A faulty broker: the call ends, with what it has said so far."""
    async with open_bureau() as (bureau, admin):
        topic_id = bureau.world.topics["t"].topic_id
        row = LogRow(topic_id, 0, 7, 0, 1)
        bureau.lie(DescribeLogs, DescribeLogsReply((row,), LogCursor(topic_id, 0)))
        assert (await admin.topic_sizes())["t"].log_bytes == 7
