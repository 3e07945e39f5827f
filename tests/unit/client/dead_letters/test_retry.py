"""`retry`: a record is moved to its group's topic of retries as it was sent, and comes back, or the
program hears why it was not moved (A12.4).
"""

from __future__ import annotations

import copy
import json
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import trio

import raftmq
from raftmq.client.client import Client
from raftmq.client.consumer.record import ConsumerRecord
from raftmq.client.dead_letters.letters import read_letter
from raftmq.errors import (
    ErrorCode,
    IllegalGeneration,
    InvalidConfig,
    InvalidRequest,
    InvalidTransaction,
    MessageTooLarge,
)
from raftmq.wire.messages.topics import CreateTopics
from tests.simulation.client_network import ClientNetwork
from tests.unit.client.administration.bureau import Bureau
from tests.unit.client.group.grouped import GROUP, MEMBER, Grouped, grouped, until
from tests.unit.client.processing.mill import DEAD, RETRY, now_ms
from tests.unit.client.producer.shell import NOW_MS
from tests.unit.client.scheduler import deliver_due, pending
from tests.unit.client.world import refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from raftmq.client.consumer.consumer import Consumer

POLICY = raftmq.RetryPolicy(attempts=3, backoff=raftmq.Exponential(10, factor=2))


class Office(NamedTuple):
    """A group's topic "orders", and a client of one of its members."""

    here: Grouped
    bureau: Bureau
    mq: Client

    def consumer(
        self, *, retry: raftmq.RetryPolicy | None = POLICY, **options: Any
    ) -> Consumer[Any, Any]:
        topics = () if {"assign", "pattern"} & options.keys() else ("orders",)
        return self.mq.consumer(*topics, retry=retry, **{**MEMBER, **options})

    async def send(self, *values: Any, **fields: Any) -> None:
        async with self.mq.producer() as producer:
            for value in values:
                await producer.send("orders", value, partition=0, **fields)

    def waiting(self) -> int:
        """Records in the topic of retries that are not delivered."""
        if RETRY not in self.here.world.topics:
            return 0
        return len(pending(self.here.world.topics[RETRY].partitions[0]))

    async def letters(self) -> list[ConsumerRecord]:
        async with self.mq.consumer(DEAD, start="earliest") as consumer:
            found = list[ConsumerRecord]()
            with trio.move_on_after(5):
                while True:
                    found.append(await anext(consumer))
            return found


@asynccontextmanager
async def office(partitions: int = 1) -> AsyncIterator[Office]:
    bureaus: list[Bureau] = []
    async with grouped(partitions, prepare=lambda world: bureaus.append(Bureau(world))) as here:
        here.nursery.start_soon(deliver_due, here.world, NOW_MS)
        addresses = [broker.address for broker in here.world.brokers.values()]
        network = ClientNetwork(here.world.network.node("program"))
        client = Client(addresses, network=network, random=Random(1), now_ms=now_ms)
        async with client:
            yield Office(here, bureaus[0], client)


@pytest.mark.parametrize("key", [None, b"k", "text", 17])
async def test_there_and_back(autojump_clock: MockClock, key: object) -> None:
    """Key with its kind, value, headers and tags are kept; the pauses grow, attempts count on, and
    the place where it stood first is known until it is a dead letter."""
    async with office() as here, here.consumer() as consumer:
        await here.send(b"v", key=key, headers={"trace": b"7"}, tags=["eu"], timestamp=NOW_MS - 5)
        record, times = await anext(consumer), [trio.current_time()]
        first = record.origin
        assert first == ("orders", 0, 0, NOW_MS - 5)
        for number in (1, 2):
            told = await consumer.retry(record, ValueError(f"no {number}"))
            assert told.topic == RETRY
            record = await anext(consumer)
            times.append(trio.current_time())
            assert (record.topic, record.partition) == (RETRY, 0)
            assert (record.key, record.value, record.tags) == (key, b"v", ("eu",))
            assert record.headers[0] == ("trace", b"7")
            letter = read_letter(record.headers)
            assert (letter.attempts, letter.error) == (number, f"ValueError: no {number}")
            assert letter.group == GROUP
            assert record.origin == letter.origin == first
        assert 8 <= times[1] - times[0] <= 13
        assert 16 <= times[2] - times[1] <= 25
        told = await consumer.retry(record, ValueError("no 3"))
        assert (told.topic, told.offset) == (DEAD, 0)
        [dead] = await here.letters()
        assert (dead.key, dead.value, dead.tags, dead.origin) == (key, b"v", ("eu",), first)
        assert read_letter(dead.headers).attempts == 3


async def test_the_topic_is_made_once(autojump_clock: MockClock) -> None:
    """With one partition, the retention of retries, and room for what its origin takes."""
    async with office() as here, here.consumer() as consumer:
        await here.mq.admin.alter_config("orders", {"max.message.bytes": 5_000_000})
        await here.send("a", "b", None)
        for _ in range(3):
            await consumer.retry(await anext(consumer), "not now")
        assert here.waiting() == 3
        [asked] = here.bureau.asked(CreateTopics)
        [wanted] = asked.topics
        assert (wanted.name, wanted.partition_count) == (RETRY, 1)
        assert wanted.configs == {
            "retention.ms": str(14 * 86_400_000),
            "max.message.bytes": str(5_000_000 + 65_536),
        }


async def test_too_large(autojump_clock: MockClock) -> None:
    """The error says where there is no room."""
    async with office() as here, here.consumer() as consumer:
        await here.send("a")
        record = await anext(consumer)
        await here.mq.admin.create_topic(RETRY)
        here.here.world.brokers[1].produces += [refused(ErrorCode.MESSAGE_TOO_LARGE)]
        with pytest.raises(MessageTooLarge, match=f"not moved, .* {RETRY}: raise max"):
            await consumer.retry(record)
        assert here.waiting() == 0


async def test_rejected_in_the_end(autojump_clock: MockClock) -> None:
    """A program may give up before the policy does: the dead letter tells of all attempts."""
    async with office() as here, here.consumer() as consumer:
        await here.send("a")
        await consumer.retry(await anext(consumer), "not now", attempts=2)
        await consumer.reject(await anext(consumer), "never", attempts=5)
        [dead] = await here.letters()
        letter = read_letter(dead.headers)
        assert (letter.attempts, letter.error) == (7, "never")
        assert dead.origin[:3] == ("orders", 0, 0)


async def test_of_a_deserializer(autojump_clock: MockClock) -> None:
    """What it has made of a value is not what is sent."""
    async with office() as here, here.consumer(value_deserializer=json.loads) as consumer:
        await here.send('{"a": 1}')
        for _ in range(2):
            record = await anext(consumer)
            assert record.value == {"a": 1}
            await consumer.retry(record, "by hand")


async def test_it_counts_as_done(autojump_clock: MockClock) -> None:
    """As any record: the commit mode says when."""
    async with office() as here:
        await here.send("a", "b")
        async with here.consumer(commit="manual") as consumer:
            record = await anext(consumer)
            await consumer.retry(record)
            assert here.here.committed(0) is None
            await consumer.commit(record)
            assert here.here.committed(0) == 1
        async with here.consumer(commit="record") as consumer:
            await consumer.retry(await anext(consumer))
        assert here.here.committed(0) == 2
        assert here.waiting() == 2


async def test_without_dead_letters(autojump_clock: MockClock) -> None:
    """After the last attempt the error is raised as it is, or as a text; nothing is sent."""
    policy = raftmq.RetryPolicy(attempts=1, dead_letters=False)
    async with office() as here, here.consumer(retry=policy) as consumer:
        await here.send("a")
        record, error = await anext(consumer), KeyError("no")
        with pytest.raises(KeyError) as caught:
            await consumer.retry(record, error)
        assert caught.value is error
        words = "orders-0, offset 0: failed after 1 attempt, and the policy has no dead letters: no"
        with pytest.raises(InvalidRequest, match=words):
            await consumer.retry(record, "no")
        assert here.bureau.asked(CreateTopics) == []


async def test_mistakes(autojump_clock: MockClock) -> None:
    """A copy, a batch, a number of attempts or an error that is none: nothing is sent."""
    async with office() as here, here.consumer() as consumer:
        await here.send("a")
        record = await anext(consumer)
        with pytest.raises(InvalidRequest, match="copied"):
            await consumer.retry(copy.copy(record))
        with pytest.raises(TypeError, match=r"retry: .*give a record"):
            await consumer.retry([record])  # type: ignore[arg-type]
        for attempts in (0, True, 1.5):
            with pytest.raises(InvalidRequest, match="attempts"):
                await consumer.retry(record, attempts=attempts)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="error"):
            await consumer.retry(record, 17)  # type: ignore[arg-type]
        assert here.bureau.asked(CreateTopics) == []


async def test_without_a_policy(autojump_clock: MockClock) -> None:
    """Nobody has said when, and nobody would read it."""
    async with office() as here, here.consumer(retry=None) as consumer:
        await here.send("a")
        with pytest.raises(InvalidRequest, match=r"give it retry=raftmq\.RetryPolicy"):
            await consumer.retry(await anext(consumer))


async def test_with_transactions(autojump_clock: MockClock) -> None:
    """Outside of one it could not be of one piece with the commit."""
    async with office() as here, here.consumer(delivery="exactly_once") as consumer:
        await here.send("a")
        with pytest.raises(InvalidTransaction, match=r"tx\.retry"):
            await consumer.retry(await anext(consumer))


async def test_a_partition_that_was_lost(autojump_clock: MockClock) -> None:
    """The member that has it now reads the record again: nothing is moved here."""
    async with office() as here, here.consumer(max_poll_interval_ms=3_000) as consumer:
        await here.send("a")
        record = await anext(consumer)
        await until(lambda: not consumer.assignment)  # its program works for too long
        with pytest.raises(IllegalGeneration, match="max_poll_interval_ms"):
            await consumer.retry(record)
        assert here.waiting() == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"assign": [("orders", 0)]}, "retry: with assign no member"),
        ({"retry": "in_place"}, "expected a RetryPolicy"),
        ({"retry": raftmq.RetryPolicy(in_place=True)}, r"only mq\.process tries again in place"),
        ({"group": None}, "retry: needs a group"),
    ],
)
async def test_what_is_refused(
    autojump_clock: MockClock, options: dict[str, Any], words: str
) -> None:
    """Where the consumer is made."""
    async with office() as here:
        given = MEMBER if "group" not in options else {"start": "earliest"}
        topics = () if "assign" in options else ("orders",)
        with pytest.raises(InvalidConfig, match=words):
            here.mq.consumer(*topics, **{"retry": POLICY, **given, **options})


@pytest.mark.parametrize("topic", [RETRY, DEAD])
async def test_its_own_topics(autojump_clock: MockClock, topic: str) -> None:
    async with office() as here:
        with pytest.raises(InvalidConfig, match=topic):
            here.mq.consumer("orders", topic, group=GROUP, retry=POLICY)
        # Another group may look at them as at any topic.
        here.mq.consumer(topic, group="others", retry=POLICY)
