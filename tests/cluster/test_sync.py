"""`raftmq.sync` against a broker in this process: every call, Ctrl-C, time limits, forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from raftmq import ConsumerRecord, testing
from raftmq.errors import (
    BufferFull,
    Closed,
    DeliveryTimedOut,
    InvalidConfig,
    InvalidRecord,
    RequestTimedOut,
    Unreachable,
)
from raftmq.sync import connect

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from raftmq.errors import RaftmqError
    from raftmq.sync import Client
    from raftmq.testing.server import Server

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with testing.broker() as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with connect(server.bootstrap) as client:
        yield client


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    """Three partitions, of this test alone."""
    name: str = request.node.name
    client.admin.create_topic(name, partitions=3)
    return name


def _values(client: Client, topic: str) -> list[bytes | None]:
    with client.consumer(topic, start="earliest") as consumer:
        return [record.value for record in consumer.records(timeout=1)]


def test_a_record_goes_there_and_back(client: Client, topic: str) -> None:
    """Everything a record has comes back as it was (A2.1)."""
    with client.producer() as producer:
        sent = producer.send(topic, b"hello", key="k", headers={"a": b"1"}, tags=["x"])
    record = next(client.consumer(topic, start="earliest").records(timeout=5))
    assert record == ConsumerRecord(
        topic, sent.partition, 0, sent.timestamp, "k", b"hello", (("a", b"1"),), ("x",)
    )


def test_many_records_without_waiting(client: Client, topic: str) -> None:
    """Order within a key, word about each, a callback, and nothing left at the end (A4.7)."""
    told: list[tuple[RaftmqError | None, object]] = []
    with client.producer() as producer:
        deliveries = [producer.send_nowait(topic, b"%d" % n, key=1) for n in range(500)]
        producer.send_nowait(topic, b"500", key=1, on_delivery=lambda *each: told.append(each))
        producer.flush(timeout=30)
        assert deliveries[0].is_done
        assert [each.result().offset for each in deliveries] == list(range(500))
        producer.enqueue(topic, b"501", key=1)
    assert told[0][0] is None
    assert _values(client, topic) == [b"%d" % n for n in range(502)]
    assert producer.statistics.records == 502


def test_the_fast_paths(client: Client, topic: str) -> None:
    """Rows with functions, and columns; one result for each run of records."""
    with client.producer() as producer:
        found = producer.send_many(topic, range(1000), value=lambda n: b"%d" % n, key=lambda n: n)
        assert sum(each.record_count for each in found) == 1000
        producer.send_columns(topic, values=[b"x"] * 10, partitions=[2] * 10)
    assert len(_values(client, topic)) == 1010


def test_reading_can_be_broken_off(client: Client, topic: str) -> None:
    """What was not handed out comes with the next call, and after seek and pause."""
    with client.producer() as producer:
        producer.send_columns(topic, values=[b"%d" % n for n in range(10)], partitions=[0] * 10)
    with client.consumer(assign=[(topic, 0)], start="earliest") as consumer:
        first = [record.offset for _, record in zip(range(3), consumer, strict=False)]
        assert first == [0, 1, 2]
        assert consumer.position(topic, 0) == 3
        assert consumer.lag(topic, 0) == 7
        batch = next(consumer.batches(max_records=2, timeout=5))
        assert list(batch.values) == [b"3", b"4"]
        consumer.seek(topic, 0, offset=8)
        assert next(consumer.records(timeout=5)).offset == 8
        consumer.pause((topic, 0))
        assert consumer.paused == [(topic, 0)]
        assert list(consumer.records(timeout=0.2)) == []
        consumer.resume((topic, 0))
        assert [record.offset for record in consumer.records(timeout=0.5)] == [9]
        assert consumer.end_offsets() == {(topic, 0): 10}
        assert consumer.high_watermark(topic, 0) == 10
        assert consumer.assignment == [(topic, 0)]
    with pytest.raises(Closed):
        next(consumer.records())


def test_reading_by_tags(client: Client, topic: str) -> None:
    """By an expression or a set; the position steps over what is left out (A12.1)."""
    told: list[Sequence[str]] = [["eu"], ["us"], [], ["eu", "test"], ["us"]]
    with client.producer() as producer:
        values = [" ".join(tags).encode() for tags in told]
        producer.send_columns(topic, values=values, tags=told, partitions=[0] * len(told))
    asked: list[tuple[str | set[str] | None, list[bytes | None]]] = [
        ("eu & !test", [b"eu"]),
        ({"eu", "us"}, [b"eu", b"us", b"eu test", b"us"]),
        ("!eu & !us", [b""]),
        ("none", []),
        (None, [*values]),
    ]
    for tags, found in asked:
        with client.consumer(topic, start="earliest", tags=tags) as consumer:
            assert [record.value for record in consumer.records(timeout=1)] == found
            assert (consumer.position(topic, 0), consumer.lag(topic, 0)) == (5, 0)
    with pytest.raises(InvalidConfig, match=r"tags: expected a tag, ! or [(] at character 5"):
        client.consumer(topic, tags="eu & ")


def test_topics_and_the_cluster(client: Client, topic: str) -> None:
    """The calls of the administration."""
    admin = client.admin
    assert topic in [found.name for found in admin.list_topics()]
    admin.alter_config(topic, {"retention.ms": 5000})
    assert admin.describe_config(topic)["retention.ms"].value in (5000, "5000")
    admin.create_partitions(topic, 4)
    assert len(admin.describe_topic(topic).partitions) == 4
    assert admin.offsets(topic, "latest") == {0: 0, 1: 0, 2: 0, 3: 0}
    assert admin.delete_records(topic, {0: 0}) == {0: 0}
    assert admin.elect_leaders(topic)
    assert admin.describe_cluster().brokers
    assert admin.health().is_healthy
    assert admin.broker_loads()
    admin.with_timeout(5).delete_topic(topic)


def test_a_wait_has_an_end(client: Client) -> None:
    """The time of a call is over; leaving the block tells what became of the record."""

    def give_up() -> None:
        with client.producer(delivery_timeout_ms=200) as producer:
            begin = time.monotonic()
            with pytest.raises(RequestTimedOut):
                producer.send("nowhere", b"x", timeout=0.1)
            assert time.monotonic() - begin < 3

    with pytest.raises(DeliveryTimedOut, match="nowhere"):
        give_up()


def test_bad_records_are_refused_where_they_are_handed_in(client: Client, topic: str) -> None:
    """By the call itself where it can be seen there, and otherwise by the flush at the latest."""
    with client.producer() as producer:
        with pytest.raises(InvalidRecord, match="value is a dict"):
            producer.send_nowait(topic, {"a": 1})
        producer.send(topic, b"first", key=b"k")
        producer.send_nowait(topic, b"x", partition=99)
        with pytest.raises(InvalidRecord, match="99"):
            producer.flush()


def test_a_full_buffer_is_told_or_waited_for(client: Client, topic: str) -> None:
    """`send_nowait` raises, `enqueue` waits, and nothing is lost (A4.6)."""
    with client.producer(buffer_memory=64 << 10, batch_size=1 << 10, max_request_size=8 << 10) as p:

        def overfill() -> None:
            for _ in range(10_000):
                p.send_nowait(topic, b"x" * 1000)

        with pytest.raises(BufferFull):
            overfill()
        for _ in range(200):
            p.enqueue(topic, b"y" * 1000)
    values = _values(client, topic)
    assert values.count(b"y" * 1000) == 200
    assert p.statistics.failed_records == 0


def test_threads_share_a_producer(client: Client, topic: str) -> None:
    """Each thread's records are there, in its order."""
    with client.producer() as producer:

        def hand_in(number: int) -> None:
            for each in range(300):
                producer.send_nowait(topic, b"%d %d" % (number, each), key=number)

        threads = [threading.Thread(target=hand_in, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    values = [value.split() for value in _values(client, topic) if value]
    for number in range(4):
        assert [int(each) for who, each in values if int(who) == number] == list(range(300))


def test_a_fork_is_refused(client: Client) -> None:
    """The child has neither the thread nor the right to the sockets; the parent goes on."""
    child = os.fork()
    if not child:
        try:
            client.admin.list_topics()
        except Closed as error:
            os._exit(0 if "connect anew" in str(error) else 1)
        os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    client.admin.list_topics()


def test_use_outside_of_a_block_is_told(server: Server) -> None:
    """Before, after, and for the second time."""
    client = connect(server.bootstrap)
    with pytest.raises(Closed):
        client.admin.list_topics()
    with client:
        producer = client.producer()
        with pytest.raises(Closed):
            producer.send_nowait("t", b"x")
    with pytest.raises(Closed), client:
        pass
    with pytest.raises(Closed):
        client.producer()


def test_nobody_answers(tmp_path: object) -> None:
    """The addresses are told, and no thread is left."""
    before = threading.active_count()
    with (
        pytest.raises(Unreachable, match=r"127\.0\.0\.1:1\b"),
        connect("127.0.0.1:1", connect_timeout_ms=300),
    ):
        pass
    assert threading.active_count() == before


PROGRAM = """
import sys
from raftmq.sync import connect
with connect(sys.argv[1]) as client:
    print("waiting", flush=True)
    for record in client.consumer(sys.argv[2]):
        pass
"""


def test_ctrl_c_works_at_once(server: Server, topic: str) -> None:
    """A program that waits for records ends with its KeyboardInterrupt, within a moment."""
    command = [sys.executable, "-c", PROGRAM, server.bootstrap, topic]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.5)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)
        assert time.monotonic() - begin < 3
    assert "KeyboardInterrupt" in errors
    assert process.returncode != 0
