"""What is easily typed wrongly: a clear error at the call, which says what to write."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import raftmq
from raftmq.client.consumer.options import consumer_options
from raftmq.client.producer.options import producer_options
from raftmq.errors import (
    Closed,
    InvalidConfig,
    InvalidRecord,
    InvalidRequest,
    UnknownTopicOrPartition,
)
from tests.unit.client.consumer.reading import append, consumer, reading
from tests.unit.client.group.grouped import grouped
from tests.unit.client.producer.shell import open_producer, open_stage, used_bytes

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.testing.server import Server


async def later(*_: object) -> None:
    """An `async def` where a function is expected."""


# -- Blocks ---------------------------------------------------------------------------------------


async def test_blocks_of_the_other_kind(autojump_clock: MockClock) -> None:
    """`with` where it is `async with`: the error names both ways out."""
    async with open_stage() as stage:
        for made in (raftmq.connect(), stage.client.producer(), stage.client.consumer("t")):
            with pytest.raises(TypeError, match=r"opened by `async with`.* raftmq\.sync"):
                made.__enter__()


async def test_blocking_blocks_are_not_async(raftmq_broker: Server) -> None:
    """And the other way round."""
    with raftmq.sync.connect(raftmq_broker.bootstrap) as mq:
        for made in (mq, mq.producer(), mq.consumer("t")):
            with pytest.raises(TypeError, match=r"raftmq\.sync, and is opened by `with`"):
                await made.__aenter__()


def test_a_closed_producer_of_threads(raftmq_broker: Server) -> None:
    """It says that it was closed, and not that it should be opened."""
    with raftmq.sync.connect(raftmq_broker.bootstrap) as mq:
        producer = mq.producer()
        with pytest.raises(Closed, match="is not open: enter its"):
            producer.send("t", b"x")
        producer.open().close()
        with pytest.raises(Closed, match="has been closed: make another one"):
            producer.send("t", b"x")


# -- Names ----------------------------------------------------------------------------------------


async def test_names_of_kafka(autojump_clock: MockClock) -> None:
    """Options of other clients: the error names the one that is meant."""
    unknown: Any = {"bootstrap_servers": "host:1"}
    with pytest.raises(TypeError, match=r"did you mean 'bootstrap'.* are bootstrap, client_id"):
        raftmq.connect(**unknown)
    with pytest.raises(TypeError, match="did you mean 'commit'"):
        consumer_options(["t"], {"enable_auto_commit": False})
    unknown = {"num_partitions": 3}
    async with open_stage() as stage:
        with pytest.raises(TypeError, match=r"create_topic: .*did you mean 'partitions'"):
            await stage.client.admin.create_topic("t2", **unknown)


async def test_what_a_delivery_looks_like(autojump_clock: MockClock) -> None:
    """Where it goes, or is, or why it is not there; its failure stays unread."""
    async with open_producer(linger_ms=50) as (_, producer):
        await producer.send("t", b"x")
        delivery = producer.send_nowait("t", b"x")
        assert repr(delivery) == "<Delivery: to t-0, not known yet>"
        await delivery
        assert repr(delivery).startswith("<Delivery: RecordMetadata(topic='t', partition=0, ")
        lost = producer.send_nowait("no-such-topic", b"x")
        assert repr(lost) == "<Delivery: waits for metadata>"
        with pytest.raises(UnknownTopicOrPartition):
            await producer.flush()
        assert repr(lost).startswith("<Delivery: UnknownTopicOrPartition(")


def test_what_a_blocking_delivery_looks_like(raftmq_broker: Server, raftmq_topic: str) -> None:
    """As the other one, in each thread."""
    with raftmq.sync.connect(raftmq_broker.bootstrap) as mq, mq.producer() as producer:
        mq.admin.create_topic(raftmq_topic)
        delivery = producer.enqueue(raftmq_topic, b"x")
        assert repr(delivery).startswith("<Delivery: ")
        delivery.result()
        assert repr(delivery).startswith("<Delivery: RecordMetadata(topic=")


# -- Functions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [5, "f", later, partial(print)])
async def test_on_delivery(autojump_clock: MockClock, wrong: Any) -> None:
    """A number, or an `async def`, which would never run, is refused at the call, and leaves
    nothing behind; a partial is fine."""
    async with open_producer() as (_, producer):
        if isinstance(wrong, partial):
            await producer.send_nowait("t", b"x", on_delivery=wrong)
        else:
            with pytest.raises(TypeError, match=r"on_delivery = .* function of"):
                producer.send_nowait("t", b"x", on_delivery=wrong)
            with pytest.raises(TypeError, match=r"on_delivery = .* function of"):
                await producer.enqueue("t", b"x", on_delivery=wrong)
            assert producer.statistics.records == 0
    assert used_bytes(producer) == 0


def test_on_delivery_of_threads(raftmq_broker: Server) -> None:
    """In the thread that calls."""
    with raftmq.sync.connect(raftmq_broker.bootstrap) as mq, mq.producer() as producer:
        for wrong in (5, later):
            with pytest.raises(TypeError, match="on_delivery = "):
                producer.enqueue("t", b"x", on_delivery=wrong)


@pytest.mark.parametrize("name", ["value_serializer", "key_serializer", "partitioner"])
def test_async_functions_of_a_producer(name: str) -> None:
    """Nothing awaits them."""
    with pytest.raises(InvalidConfig, match=rf"{name} = .* is no `async def`"):
        producer_options({name: later})


@pytest.mark.parametrize("name", ["value_deserializer", "key_deserializer"])
def test_async_functions_of_a_consumer(name: str) -> None:
    """Nothing awaits them."""
    with pytest.raises(InvalidConfig, match=rf"{name} = .* is no `async def`"):
        consumer_options(["t"], {name: later})


async def test_another_thread(autojump_clock: MockClock) -> None:
    """`send_nowait` in a thread without an event loop names what is for threads."""
    found: list[BaseException] = []
    async with open_producer() as (_, producer):
        await producer.send("t", b"x")

        def send() -> None:
            try:
                producer.send_nowait("t", b"x")
            except InvalidRequest as error:
                found.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        thread.join()
    assert "anyio.from_thread" in str(found[0])
    assert "raftmq.sync" in str(found[0])
    assert used_bytes(producer) == 0


# -- Records --------------------------------------------------------------------------------------


async def test_seconds_for_milliseconds(autojump_clock: MockClock) -> None:
    """`int(time.time())` would be a day in January 1970; a datetime of that day is taken."""
    async with open_producer() as (_, producer):
        for wrong in (int(time.time()), 10**9, 10**10 - 1):
            with pytest.raises(InvalidRecord, match="seconds, most likely"):
                await producer.send("t", b"x", timestamp=wrong)
        day = datetime(1970, 1, 20, tzinfo=UTC)
        assert (await producer.send("t", b"x", timestamp=day)).timestamp == 19 * 86_400_000
        for right in (0, 10**9 - 1, 10**10):
            assert (await producer.send("t", b"x", timestamp=right)).timestamp == right


def test_seconds_in_a_thread(raftmq_broker: Server) -> None:
    """At the call."""
    with (
        raftmq.sync.connect(raftmq_broker.bootstrap) as mq,
        mq.producer() as producer,
        pytest.raises(InvalidRecord, match="seconds, most likely"),
    ):
        producer.send("t", b"x", timestamp=int(time.time()))


@pytest.mark.parametrize("given", ["abc", b"abc", bytearray(b"abc"), memoryview(b"abc")])
async def test_one_value_for_rows(autojump_clock: MockClock, given: Any) -> None:
    """A single text is not sent as a record for each character."""
    async with open_producer() as (_, producer):
        with pytest.raises(InvalidRecord, match=r"rows is a \w+, expected a list: send\(\)"):
            await producer.send_many("t", given)
        assert producer.statistics.records == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tags": ["paid"]}, r"tags is a list, .*: `tags=lambda row: \['paid'\]`$"),
        ({"value": ["a"]}, r"value is a list, expected a function of a row: "),
        ({"key": "a", "value": str}, r"key is a str, .*: `key=lambda row: 'a'`$"),
        ({"headers": {"a" * 99: b""}}, "headers is a dict, .{60,90}$"),
        ({"timestamp": 0}, "timestamp is an int, "),
    ],
)
async def test_what_is_no_function_of_a_row(
    autojump_clock: MockClock, options: dict[str, Any], words: str
) -> None:
    """It may be what `send` takes; long ones are cut."""
    async with open_producer() as (_, producer):
        with pytest.raises(TypeError, match=words):
            await producer.send_many("t", ["a"], **options)
        assert producer.statistics.records == 0


# -- Consumers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [["e"], ("e", "f"), {"e"}])
def test_a_list_of_topics(given: Any) -> None:
    """Topics are arguments one by one."""
    with pytest.raises(InvalidConfig, match=r"one by one, as in consumer\(\"a\", \"b\"\)"):
        consumer_options([given], {})


@pytest.mark.parametrize("wrong", [5, {("orders", 0): 5}, [1], "orders"])
async def test_commit_of_something_else(autojump_clock: MockClock, wrong: Any) -> None:
    """Offsets as aiokafka takes them: the error says what is taken, and what sets offsets."""
    async with grouped(1) as here:
        here.append(0, "a")
        async with here.consumer("a", commit="manual") as c:
            await anext(c)
            with pytest.raises(TypeError, match=r"as it was handed out.*alter_group_offsets"):
                await c.commit(wrong)
            with pytest.raises(TypeError, match="as it was handed out"):
                c.processing(wrong)
            assert here.committed(0) is None


async def test_what_is_read(autojump_clock: MockClock) -> None:
    """A partition that is not read is answered with those that are: dots only where there are
    more."""
    async with reading(1) as (_, client), consumer(client) as c:
        with pytest.raises(InvalidConfig, match=r"u-7 is not read .* what is: u-0$"):
            c.pause(("u", 7))


async def test_deserialized_records_look_like_others(autojump_clock: MockClock) -> None:
    """Their class is not a name of the package; the batch says that it was deserialized."""
    async with reading(1) as (world, client):
        append(world, 0, "1", "2")
        async with consumer(client, value_deserializer=json.loads) as c:
            record = await anext(c)
            assert repr(record).startswith("ConsumerRecord(topic='u', partition=0, offset=0, ")
            assert "size" not in repr(record)
            c.seek("u", 0, offset=0)
            batch = await anext(c.batches())
            assert (
                repr(batch) == "<ConsumedBatch u-0: 2 records, offsets 0 through 1, deserialized>"
            )
            assert repr(batch.raw) == "<ConsumedBatch u-0: 2 records, offsets 0 through 1>"
