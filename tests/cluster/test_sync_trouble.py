"""`raftmq.sync` in trouble: interrupted anywhere, left by an error, used by many threads at once.

An alarm plays Ctrl-C, which can be set more finely than a signal from outside.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from raftmq import testing
from raftmq.errors import Closed, InvalidRecord, InvalidRequest, RaftmqError, RequestTimedOut
from raftmq.sync import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.sync import Client, Consumer
    from raftmq.testing.server import Server

pytestmark = pytest.mark.cluster
SECONDS_MAX = 10.0  # for a program that takes less than two


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
    """Two partitions, of this test alone."""
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)
    client.admin.create_topic(name, partitions=2)
    return name


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """KeyboardInterrupt, and nothing of it afterwards."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def offsets_of(consumer: Consumer, *, seconds: float = 1) -> list[int]:
    return [record.offset for record in consumer.records(timeout=seconds)]


# -- interrupted, and going on -----------------------------------------------------------------


def test_reading_interrupted_at_any_moment(client: Client, topic: str) -> None:
    """Records and batches in turns: each comes once, in order, however often.

    An interrupt may come between the iterator and the list, which is not the consumer's: so a
    turn may end with one record, or one batch, that nobody wrote down. Few turns do.
    """
    count, turns, batch_records = 4000, 200, 7
    with client.producer() as producer:
        producer.send_columns(topic, values=[b"x"] * count, partitions=[0] * count)
    found: list[int] = []
    missing_max: dict[int, int] = {}  # by how much was found when a turn ended
    with client.consumer(assign=[(topic, 0)], start="earliest", max_poll_records=20) as consumer:
        for turn in range(turns):
            is_of_records = bool(turn % 3)
            with suppress(KeyboardInterrupt), interrupted_after(0.00005 * (1 + turn % 40)):
                if is_of_records:
                    for record in consumer.records(timeout=1):
                        found.append(record.offset)  # noqa: PERF401 (it may be interrupted)
                else:
                    for batch in consumer.batches(max_records=batch_records, timeout=1):
                        found += batch.offsets
            before = missing_max.get(len(found), 0)
            missing_max[len(found)] = before + (1 if is_of_records else batch_records)
        found += offsets_of(consumer)
    gaps = {
        place: after - offset - 1
        for place, (offset, after) in enumerate(pairwise([-1, *found, count]))
        if after != offset + 1
    }
    assert all(0 < gap <= missing_max.get(place, 0) for place, gap in gaps.items()), gaps
    assert len(gaps) <= turns / 10


def test_sending_interrupted_at_any_moment(client: Client, topic: str) -> None:
    """The producer works on, and what was told is there."""
    sent: list[bytes] = []
    with client.producer(linger_ms=0) as producer:
        for turn in range(150):
            with suppress(KeyboardInterrupt), interrupted_after(0.00005 * (1 + turn % 60)):
                value = b"%d" % turn
                if turn % 2:
                    producer.send_nowait(topic, value, partition=0)
                    producer.send_nowait(topic, value, partition=1)
                else:
                    producer.send(topic, value, partition=0)
                sent.append(value)
        producer.flush(timeout=SECONDS_MAX)
        producer.send(topic, b"last", partition=0, timeout=SECONDS_MAX)
    with client.consumer(assign=[(topic, 0)], start="earliest") as consumer:
        values = [record.value for record in consumer.records(timeout=0.5)]
    assert set(sent) <= set(values)
    assert len(set(values)) == len(values)


def test_send_many_interrupted(client: Client, topic: str) -> None:
    """In the middle of its rows; the same producer sends the next ones."""

    def rows() -> Iterator[bytes]:
        yield b"first"
        time.sleep(60)

    with client.producer() as producer:
        with pytest.raises(KeyboardInterrupt), interrupted_after(0.3):
            producer.send_many(topic, rows())
        sent = producer.send_many(topic, (b"%d" % number for number in range(10_000)))
        assert sum(each.record_count for each in sent) == 10_000
    assert producer.statistics.records == 10_000


# -- rows --------------------------------------------------------------------------------------


def test_rows_that_come_slowly_keep_nobody_waiting(client: Client, topic: str) -> None:
    """They leave as they come, and others use the loop meanwhile; records may be rows, too."""
    with client.producer() as producer:
        producer.send_columns(topic, values=[b"%d" % each for each in range(5000)])
        client.admin.create_topic(topic + "-copy")
        source = client.consumer(topic, start="earliest").records(timeout=0.5)
        sent = producer.send_many(topic + "-copy", source, value=lambda record: record.value)
        assert sum(each.record_count for each in sent) == 5000


def test_rows_that_fail(client: Client, topic: str) -> None:
    """An error of the program's own iterable is its own; a bad row ends the call."""
    with client.producer() as producer:
        with pytest.raises(ZeroDivisionError):
            producer.send_many(topic, (b"%d" % (1 // (3 - each)) for each in range(9)))
        endless = iter(lambda: 1.5, None)
        with pytest.raises(InvalidRecord, match="is a float"):
            producer.send_many(topic, endless)
        with pytest.raises(TypeError):
            producer.send_many(topic, 5)  # type: ignore[arg-type]
        with pytest.raises(RequestTimedOut):
            producer.send_many(topic, iter(lambda: time.sleep(0.01) or b"x", None), timeout=0.2)
        assert producer.send_many(topic, iter([])) == []


# -- callbacks ---------------------------------------------------------------------------------


def test_a_callback_may_send_and_must_not_wait(client: Client, topic: str) -> None:
    """It runs in the loop's thread, where to wait would be to wait for itself."""
    told: list[Any] = []

    def once_more(error: RaftmqError | None, _metadata: object) -> None:
        told.append(error)
        producer.send_nowait(topic, b"again")
        with pytest.raises(InvalidRequest, match="waits"):
            producer.flush()
        told.append("done")

    with client.producer() as producer:
        producer.send_nowait(topic, b"x", on_delivery=once_more)
        producer.flush(timeout=SECONDS_MAX)
        producer.send(topic, b"y", timeout=SECONDS_MAX)
    assert told == [None, "done"]
    assert producer.statistics.records == 3


def test_a_refusal_is_told(client: Client, topic: str) -> None:
    """To the callback; to flush, if a wait for it was given up before; never to nobody."""
    told: list[Any] = []
    with client.producer() as producer:
        producer.send(topic, b"x")
        producer.send_nowait(topic, b"x", partition=9, on_delivery=lambda *each: told.append(each))
        producer.flush(timeout=SECONDS_MAX)
        assert isinstance(told[0][0], InvalidRecord)
        delivery = producer.send_nowait(topic, b"x", partition=9)
        with suppress(RequestTimedOut, InvalidRecord):
            delivery.result(0)
        with pytest.raises(InvalidRecord):
            delivery.result()
        producer.flush(timeout=SECONDS_MAX)  # it is known now
        with pytest.raises(TypeError, match="topic"):
            producer.send_nowait(None, b"x")  # type: ignore[arg-type]


# -- threads -----------------------------------------------------------------------------------


def test_a_block_is_left_while_threads_send(client: Client, topic: str) -> None:
    """By an error: they are told Closed, and what they were told is sent is there."""
    sent: list[int] = []
    ends: list[BaseException] = []

    def send(number: int) -> None:
        try:
            while True:
                producer.send(topic, b"x", partition=0)
                sent.append(number)
        except BaseException as error:  # to be looked at below
            ends.append(error)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    with pytest.raises(ZeroDivisionError), client.producer() as producer:  # noqa: PT012
        for thread in threads:
            thread.start()
        while len(sent) < 20:
            time.sleep(0.01)
        raise ZeroDivisionError
    for thread in threads:
        thread.join(SECONDS_MAX)
    assert [type(error) for error in ends] == [Closed] * 4
    assert client.admin.offsets(topic, "latest", partitions=[0])[0] == len(sent)


def test_the_client_is_left_while_threads_wait(server: Server, topic: str) -> None:
    """For records, for room, for word about a record: all are told Closed."""
    ends: list[BaseException] = []

    def wait(call: Any) -> None:
        try:
            call()
        except BaseException as error:  # to be looked at below
            ends.append(error)

    with connect(server.bootstrap) as client:
        producer = client.producer(delivery_timeout_ms=60_000).__enter__()
        delivery = producer.send_nowait("nowhere", b"x")
        consumer = client.consumer(topic)
        calls = [delivery.result, producer.flush, lambda: next(consumer.records())]
        threads = [threading.Thread(target=wait, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
    for thread in threads:
        thread.join(SECONDS_MAX)
    assert [type(error) for error in ends] == [Closed] * 3
    with pytest.raises(Closed):
        producer.send_nowait(topic, b"x")
    with pytest.raises(Closed):
        next(consumer.records())
    with pytest.raises(Closed):
        client.admin.list_topics()


def test_a_flush_ends_while_others_go_on(client: Client, topic: str) -> None:
    """It waits for what was handed in before, and for nothing that comes later."""
    stop = threading.Event()
    with client.producer() as producer:

        def hand_in() -> None:
            while not stop.is_set():
                producer.enqueue(topic, b"x" * 100)

        threads = [threading.Thread(target=hand_in) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            time.sleep(0.2)
            producer.flush(timeout=SECONDS_MAX)
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def test_send_waits_for_room(client: Client, topic: str) -> None:
    """BufferFull is for those who do not wait."""
    with client.producer(
        buffer_memory=64 << 10, batch_size=1 << 10, max_request_size=8 << 10
    ) as producer:

        def flood() -> None:
            for _ in range(3000):
                with suppress(RaftmqError):
                    producer.send_nowait(topic, b"x" * 1000)

        thread = threading.Thread(target=flood)
        thread.start()
        for _ in range(20):
            producer.send(topic, b"y" * 1000)
        thread.join()


def test_threads_share_a_consumer(client: Client, topic: str) -> None:
    """Each record is handed out once, to one of them."""
    with client.producer() as producer:
        producer.send_columns(topic, values=[b"x"] * 2000, partitions=[0] * 2000)
    consumer = client.consumer(topic, start="earliest", max_poll_records=10)
    found: list[list[int]] = [[], [], []]

    def read(mine: list[int]) -> None:
        mine += offsets_of(consumer, seconds=0.5)

    threads = [threading.Thread(target=read, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted([*found[0], *found[1], *found[2]]) == list(range(2000))


# -- consumers ---------------------------------------------------------------------------------


def test_turns_of_records_batches_and_pauses(client: Client, topic: str) -> None:
    """What was taken and not handed out is in nobody's way, and is not lost."""
    with client.producer() as producer:
        for partition in (0, 1):
            producer.send_columns(topic, values=[b"x"] * 50, partitions=[partition] * 50)
    with client.consumer(topic, start="earliest", max_poll_records=8) as consumer:
        found: dict[int, list[int]] = {0: [], 1: []}
        while sum(map(len, found.values())) < 90:
            record = next(consumer.records(timeout=5))
            partition = record.partition
            found[partition].append(record.offset)
            assert consumer.position(topic, partition) == record.offset + 1
            assert consumer.lag(topic, partition) == 49 - record.offset
            consumer.pause((topic, partition))
            batch = next(consumer.batches(max_records=3, timeout=0.3), None)
            consumer.resume((topic, partition))
            if batch is not None:
                assert batch.partition != partition
                found[batch.partition] += batch.offsets
        for record in consumer.records(timeout=0.5):
            found[record.partition].append(record.offset)
    assert found == {0: list(range(50)), 1: list(range(50))}


def test_consumers_that_were_closed_are_forgotten(client: Client, topic: str) -> None:
    """And those that were never used: a long-lived client holds none of them."""
    for _ in range(3):
        client.consumer(topic)
        with client.consumer(topic):
            assert len(client._consumers) == 1
    assert not client._consumers


def test_two_clients(server: Server, client: Client, topic: str) -> None:
    """In one process, one within the other; the end of one is not the end of the other."""
    with connect(server.bootstrap) as other, other.producer() as producer:
        producer.send(topic, b"x", partition=0)
        with client.consumer(topic, start="earliest") as consumer:
            assert offsets_of(consumer, seconds=0.3) == [0]
    with pytest.raises(Closed):
        other.admin.list_topics()
    client.admin.list_topics()
