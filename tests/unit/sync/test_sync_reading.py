"""A consumer in a thread, of no group: what was not handed out comes next, whatever is asked."""

from __future__ import annotations

from itertools import islice
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from raftmq.errors import UnknownTopicOrPartition
from tests.unit.client.group.grouped import grouped
from tests.unit.sync.loop_here import threaded_alone

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.sync.consumer import Consumer

TEN = tuple(map(str, range(10)))
PLACE = ("orders", 0)
MANY, THREADS = 200, 3


def offsets(consumer: Consumer, count: int) -> list[int]:
    return [record.offset for record in islice(consumer.records(timeout=0.5), count)]


async def test_broken_off_in_the_midst(autojump_clock: MockClock) -> None:
    """Records, then batches, then records; a seek, and a pause."""

    def read(consumer: Consumer) -> None:
        with consumer:
            assert offsets(consumer, 3) == [0, 1, 2]
            assert (consumer.position(*PLACE), consumer.lag(*PLACE)) == (3, 7)
            batch = next(consumer.batches(max_records=2, timeout=5))
            assert list(batch.offsets) == [3, 4]
            assert offsets(consumer, 2) == [5, 6]
            consumer.seek(*PLACE, offset=4)
            assert offsets(consumer, 4) == [4, 5, 6, 7]
            consumer.pause(PLACE)
            assert offsets(consumer, 1) == []
            consumer.resume(PLACE)
            assert offsets(consumer, 9) == [8, 9]
            assert (consumer.position(*PLACE), consumer.lag(*PLACE)) == (10, 0)

    async with grouped(1) as here:
        here.append(0, *TEN)
        async with threaded_alone(here, "a", start="earliest") as (loop, consumer):
            await loop.run(lambda: read(consumer))


async def test_threads_share_what_there_is(autojump_clock: MockClock) -> None:
    """Each record goes to one of them."""
    found: list[int] = []

    def read(consumer: Consumer) -> None:
        found.extend(record.offset for record in consumer.records(timeout=0.5))

    def read_all(consumer: Consumer) -> None:
        with consumer:
            threads = [Thread(target=read, args=(consumer,)) for _ in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    async with grouped(1) as here:
        for start in range(0, MANY, 10):
            here.append(0, *map(str, range(start, start + 10)))
        async with threaded_alone(here, "a", start="earliest", max_poll_records=7) as (loop, c):
            await loop.run(lambda: read_all(c))
        assert sorted(found) == list(range(MANY))


@pytest.mark.parametrize("seconds", [1.0, 7.0])
async def test_a_topic_that_does_not_exist(seconds: float, autojump_clock: MockClock) -> None:
    """No record for so long, and brokers say that there is no such topic: an error, as an end would
    look as if all had been read."""

    def read(consumer: Consumer) -> None:
        with consumer, pytest.raises(UnknownTopicOrPartition, match="no topic 'orders'"):
            list(consumer.records(timeout=seconds))

    async with grouped(1) as here:
        del here.world.topics["orders"]
        async with threaded_alone(here, "a") as (loop, consumer):
            await loop.run(lambda: read(consumer))


async def test_a_partition_that_does_not_exist(autojump_clock: MockClock) -> None:
    """Likewise, for batches; a topic without records just ends."""

    def read(consumer: Consumer) -> None:
        with consumer, pytest.raises(UnknownTopicOrPartition, match="the topic has 1 partition"):
            list(consumer.batches(timeout=1))

    def read_nothing(consumer: Consumer) -> None:
        with consumer:
            assert list(consumer.records(timeout=1)) == list(consumer.batches(timeout=1)) == []

    async with grouped(1) as here:
        async with threaded_alone(here, "a", assign=[("orders", 3)]) as (loop, consumer):
            await loop.run(lambda: read(consumer))
        async with threaded_alone(here, "b") as (loop, consumer):
            await loop.run(lambda: read_nothing(consumer))
