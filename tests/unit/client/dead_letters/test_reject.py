"""`reject`: a record reaches the dead letters of its group as it was sent, or the program hears
why it did not (A12.5).
"""

from __future__ import annotations

import copy
import json
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import trio

from raftmq.client.client import Client
from raftmq.client.dead_letters.letters import Origin, read_letter
from raftmq.errors import (
    ErrorCode,
    IllegalGeneration,
    InvalidRequest,
    InvalidTransaction,
    MessageTooLarge,
    UndecodableRecord,
    UnknownTopicOrPartition,
)
from raftmq.wire.batch.records import RecordBatch
from raftmq.wire.messages.topics import CreateTopics
from tests.simulation.client_network import ClientNetwork
from tests.unit.client.administration.bureau import Bureau
from tests.unit.client.group.grouped import GROUP, MEMBER, Grouped, grouped, until
from tests.unit.client.producer.shell import NOW_MS
from tests.unit.client.world import done_and_lost, refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from raftmq.client.consumer.consumer import Consumer

DEAD = f"__dead.{GROUP}"


class Letter(NamedTuple):
    """As it stands in the log."""

    key: Any
    value: Any
    headers: Any
    tags: Any


class Office(NamedTuple):
    """A group's topic "orders", and a client of one of its members."""

    here: Grouped
    bureau: Bureau
    mq: Client

    def letters(self, topic: str = DEAD) -> list[Letter]:
        if topic not in self.here.world.topics:
            return []
        batches = self.here.world.topics[topic].partitions[0].batches
        found = [RecordBatch.decode(data) for _, _, data in batches]
        return [
            Letter(*row)
            for one in found
            for row in zip(one.keys, one.values, one.headers, one.tags, strict=True)
        ]

    def consumer(self, **options: Any) -> Consumer[Any, Any]:
        given = {**MEMBER, **options}
        return self.mq.consumer(*(() if "assign" in options else ("orders",)), **given)

    async def send(self, *values: Any, **fields: Any) -> None:
        async with self.mq.producer() as producer:
            for value in values:
                await producer.send("orders", value, partition=0, **fields)


@asynccontextmanager
async def office(partitions: int = 1) -> AsyncIterator[Office]:
    bureaus: list[Bureau] = []
    async with grouped(partitions, prepare=lambda world: bureaus.append(Bureau(world))) as here:
        addresses = [broker.address for broker in here.world.brokers.values()]
        network = ClientNetwork(here.world.network.node("program"))
        client = Client(addresses, network=network, random=Random(1), now_ms=lambda: NOW_MS)
        async with client:
            yield Office(here, bureaus[0], client)


@pytest.mark.parametrize("key", [None, b"k", "text", 17])
async def test_as_it_was(autojump_clock: MockClock, key: object) -> None:
    """Key with its kind, value, headers and tags; and where it stood."""
    async with office() as here, here.consumer() as consumer:
        await here.send(b"v", key=key, headers={"trace": b"7"}, tags=["eu"], timestamp=NOW_MS - 5)
        record = await anext(consumer)
        told = await consumer.reject(record, ValueError("no"), attempts=3)
        assert (told.topic, told.partition, told.offset) == (DEAD, 0, 0)
        [letter] = here.letters()
        assert (letter.key, letter.value, letter.tags) == (key, b"v", ("eu",))
        assert letter.headers[0] == ("trace", b"7")
        read = read_letter(letter.headers)
        assert read == (Origin("orders", 0, 0, NOW_MS - 5), 3, "ValueError: no", GROUP, 0)


async def test_the_topic_is_made_once(autojump_clock: MockClock) -> None:
    """With one partition, the retention of dead letters, and room for what its origin takes."""
    async with office() as here, here.consumer() as consumer:
        await here.mq.admin.alter_config("orders", {"max.message.bytes": 5_000_000})
        await here.send("a", "b", None)
        for _ in range(3):
            await consumer.reject(await anext(consumer))
        assert [one.value for one in here.letters()] == [b"a", b"b", None]
        [asked] = here.bureau.asked(CreateTopics)
        [wanted] = asked.topics
        assert (wanted.name, wanted.partition_count) == (DEAD, 1)
        assert wanted.configs == {
            "retention.ms": str(30 * 86_400_000),
            "max.message.bytes": str(5_000_000 + 65_536),
        }


@pytest.mark.parametrize("size", [(32 << 20) - 65_536, (32 << 20) - 65_535, 32 << 20])
async def test_of_a_topic_of_large_records(autojump_clock: MockClock, size: int) -> None:
    """Its room is the largest that a topic can have."""
    async with office() as here, here.consumer() as consumer:
        await here.mq.admin.alter_config("orders", {"max.message.bytes": size})
        await here.send("a")
        await consumer.reject(await anext(consumer))
        [asked] = here.bureau.asked(CreateTopics)
        assert asked.topics[0].configs["max.message.bytes"] == str(32 << 20)


async def test_two_members_make_it_at_once(autojump_clock: MockClock) -> None:
    """Both find no topic; the second is told that it is there."""
    async with office(2) as here, here.consumer() as one, here.consumer() as other:
        here.here.append(0, "a")
        here.here.append(1, "b")

        async def reject_one(consumer: Consumer[Any, Any]) -> None:
            await consumer.reject(await anext(consumer))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(reject_one, one)
            nursery.start_soon(reject_one, other)
        assert sorted(each.value for each in here.letters()) == [b"a", b"b"]


async def test_tasks_of_one_consumer(autojump_clock: MockClock) -> None:
    """Several reject at once, and one producer sends it all."""
    async with office() as here, here.consumer() as consumer:
        await here.send(*map(str, range(20)))
        records = [await anext(consumer) for _ in range(20)]
        async with trio.open_nursery() as nursery:
            for record in records:
                nursery.start_soon(consumer.reject, record)
        assert sorted(int(each.value) for each in here.letters()) == [*range(20)]


async def test_a_topic_that_is_there_is_used_as_it_is(autojump_clock: MockClock) -> None:
    async with office() as here, here.consumer() as consumer:
        await here.mq.admin.create_topic(DEAD, config={"retention.ms": 5})
        await here.send("a")
        await consumer.reject(await anext(consumer))
        assert len(here.letters()) == 1
        assert here.bureau.configs[DEAD] == {"retention.ms": "5"}


async def test_of_a_deserializer(autojump_clock: MockClock) -> None:
    """What it has made of a value is not what is sent, and where it fails the record is at hand."""
    async with office() as here, here.consumer(value_deserializer=json.loads) as consumer:
        await here.send('{"a": 1}', "{", key=5)
        record = await anext(consumer)
        assert record.value == {"a": 1}
        assert record.size == 16
        await consumer.reject(record, "by hand")
        with pytest.raises(UndecodableRecord) as caught:
            await anext(consumer)
        await consumer.reject(caught.value.record, caught.value)
        assert [(one.key, one.value) for one in here.letters()] == [(5, b'{"a": 1}'), (5, b"{")]
        assert "UndecodableRecord" in read_letter(here.letters()[1].headers).error


async def test_it_counts_as_done(autojump_clock: MockClock) -> None:
    """As any record: the commit mode says when."""
    async with office() as here:
        await here.send("a", "b")
        async with here.consumer(commit="manual") as consumer:
            record = await anext(consumer)
            await consumer.reject(record)
            assert here.here.committed(0) is None
            await consumer.commit(record)
            assert here.here.committed(0) == 1
        async with here.consumer(commit="record") as consumer:
            await consumer.reject(await anext(consumer))
        assert here.here.committed(0) == 2


@pytest.mark.parametrize("options", [{"group": None}, {"assign": [("orders", 0)]}])
async def test_no_member(autojump_clock: MockClock, options: dict[str, Any]) -> None:
    """Who is in no group has no dead letters."""
    async with office() as here:
        given = {"start": "earliest", **({} if "group" in options else {"group": GROUP, **options})}
        topics = () if "assign" in options else ("orders",)
        async with here.mq.consumer(*topics, **given) as consumer:
            here.here.append(0, "a")
            record = await anext(consumer)
            with pytest.raises(InvalidRequest, match="member of a group") as caught:
                await consumer.reject(record)
            assert caught.value.definite
            assert here.letters() == []


async def test_mistakes(autojump_clock: MockClock) -> None:
    """A copy, a batch, a number of attempts or an error that is none: nothing is sent."""
    async with office() as here, here.consumer() as consumer:
        await here.send("a")
        record = await anext(consumer)
        with pytest.raises(InvalidRequest, match="copied"):
            await consumer.reject(copy.copy(record))
        with pytest.raises(TypeError, match="give a record"):
            await consumer.reject([record])  # type: ignore[arg-type]
        for attempts in (0, True, 1.5):
            with pytest.raises(InvalidRequest, match="attempts"):
                await consumer.reject(record, attempts=attempts)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="error"):
            await consumer.reject(record, 17)  # type: ignore[arg-type]
        assert here.letters() == []
        assert here.bureau.asked(CreateTopics) == []


async def test_with_transactions(autojump_clock: MockClock) -> None:
    """Outside of one it could not be of one piece with the commit."""
    async with office() as here, here.consumer(delivery="exactly_once") as consumer:
        await here.send("a")
        record = await anext(consumer)
        with pytest.raises(InvalidTransaction, match=r"tx\.reject"):
            await consumer.reject(record)
        assert here.letters() == []


async def test_a_partition_that_was_lost(autojump_clock: MockClock) -> None:
    """The member that has it now reads the record again: nothing is set aside here."""
    async with office() as here, here.consumer(max_poll_interval_ms=3_000) as consumer:
        await here.send("a")
        record = await anext(consumer)
        await until(lambda: not consumer.assignment)  # its program works for too long
        with pytest.raises(IllegalGeneration, match="max_poll_interval_ms") as caught:
            await consumer.reject(record)
        assert caught.value.definite
        assert here.letters() == []


async def test_too_large(autojump_clock: MockClock) -> None:
    """The topic has no room for it: it is not set aside, and the error says what to raise."""
    async with office() as here, here.consumer() as consumer:
        await here.send("a")
        record = await anext(consumer)
        produces = [refused(ErrorCode.MESSAGE_TOO_LARGE)]
        await here.mq.admin.create_topic(DEAD)
        here.here.world.brokers[1].produces += produces
        with pytest.raises(MessageTooLarge, match=r"raise max\.message\.bytes") as caught:
            await consumer.reject(record)
        assert caught.value.definite
        assert "orders-0, offset 0: not moved" in str(caught.value)
        assert f"too large for {DEAD}" in str(caught.value)
        await consumer.reject(record)  # and goes on
        assert len(here.letters()) == 1


async def test_answers_that_are_lost(autojump_clock: MockClock) -> None:
    """The producer is idempotent: the dead letter stands there once."""
    async with office() as here, here.consumer() as consumer:
        await here.send("a", "b")
        await here.mq.admin.create_topic(DEAD)
        here.here.world.brokers[1].produces += [done_and_lost]
        for _ in range(2):
            await consumer.reject(await anext(consumer))
        assert [one.value for one in here.letters()] == [b"a", b"b"]


async def test_no_topic_can_be_made(autojump_clock: MockClock) -> None:
    """The program hears why, and a later call works."""
    async with office() as here, here.consumer() as consumer:
        await here.send("a")
        record = await anext(consumer)
        here.bureau.errors += [ErrorCode.INVALID_REPLICATION_FACTOR]
        with pytest.raises(Exception, match="INVALID_REPLICATION_FACTOR"):
            await consumer.reject(record)
        await consumer.reject(record)
        assert len(here.letters()) == 1


async def test_a_wait_that_is_cancelled(autojump_clock: MockClock) -> None:
    """The consumer goes on, and its end waits for what was handed in, and raises nothing."""
    async with office() as here:
        async with here.consumer() as consumer:
            await here.send("a", "b")
            record = await anext(consumer)
            await consumer.reject(record)
            here.here.world.brokers[1].produces += [done_and_lost]
            with trio.move_on_after(0.001):
                await consumer.reject(await anext(consumer))
        assert [one.value for one in here.letters()] == [b"a", b"b"]


async def test_patterns_do_not_match_it(autojump_clock: MockClock) -> None:
    """Else a group that reads all topics would read what it has set aside."""
    async with office() as here:
        given = MEMBER | {"pattern": ".*"}
        async with here.mq.consumer(**given) as consumer:
            await here.send("a")
            await consumer.reject(await anext(consumer))
            await here.send("b")
            assert (await anext(consumer)).value == b"b"
            await trio.sleep(30)
            assert consumer.assignment == [("orders", 0)]


async def test_it_is_deleted_meanwhile(autojump_clock: MockClock) -> None:
    """The call hears that there is no such topic, and the next one makes it."""
    async with office() as here, here.consumer() as consumer:
        await here.send("a", "b")
        await consumer.reject(await anext(consumer))
        await here.mq.admin.delete_topic(DEAD)
        record = await anext(consumer)
        with pytest.raises(UnknownTopicOrPartition) as caught:
            await consumer.reject(record)
        assert caught.value.definite
        await consumer.reject(record)
        assert [one.value for one in here.letters()] == [b"b"]
