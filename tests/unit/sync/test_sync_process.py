"""Blocking `process`: handlers in threads, Ctrl-C and `stop` (A11.2, A12.5)."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

import raftmq
from raftmq.errors import Closed, InvalidConfig
from raftmq.sync import connect

if TYPE_CHECKING:
    from raftmq import sync
    from raftmq.client.consumer.record import ConsumerRecord
    from raftmq.testing.server import Server

COUNT = 30
QUICK: dict[str, Any] = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 100}
AT_ONCE = raftmq.RetryPolicy(attempts=3, backoff=raftmq.Exponential(0.01), in_place=True)


def fill(mq: sync.Client, topic: str) -> None:
    mq.admin.create_topic(topic, partitions=1, replication_factor=1)
    with mq.producer() as producer:
        producer.send_many(topic, range(COUNT), value=str)


def committed(mq: sync.Client, group: str) -> int:
    return sum(found.offset for found in mq.admin.group_offsets(group).values())


def test_stopped(raftmq_broker: Server, raftmq_topic: str) -> None:
    """Handlers may use the client; a record that fails three times is among the dead letters."""
    stop, tried, dead = threading.Event(), list[str](), f"__dead.{raftmq_topic}"
    with connect(raftmq_broker.bootstrap) as mq, mq.producer() as producer:
        fill(mq, raftmq_topic)
        mq.admin.create_topic(f"{raftmq_topic}-out", partitions=1, replication_factor=1)

        def handle(record: ConsumerRecord) -> None:
            tried.append(record.text())
            if len(tried) == COUNT + 2:
                stop.set()
            if record.text() == "7":
                raise ValueError("seven")
            producer.send(f"{raftmq_topic}-out", record.value)

        mq.process(
            raftmq_topic, handler=handle, group=raftmq_topic, retry=AT_ONCE, stop=stop, **QUICK
        )
        assert tried.count("7") == 3
        assert committed(mq, raftmq_topic) == COUNT
        with mq.consumer(dead, start="earliest") as letters:
            assert next(letters.records(timeout=10)).text() == "7"


def test_interrupted(raftmq_broker: Server, raftmq_topic: str) -> None:
    """Ctrl-C ends it, after the record at work; what is finished is committed."""
    done: list[str] = []

    def handle(record: ConsumerRecord) -> None:
        if record.offset == 10:
            signal.raise_signal(signal.SIGINT)
        done.append(record.text())

    with connect(raftmq_broker.bootstrap) as mq:
        fill(mq, raftmq_topic)
        with pytest.raises(KeyboardInterrupt):
            mq.process(raftmq_topic, handler=handle, group=raftmq_topic, **QUICK)
        count = len(done)
        assert count >= 11
        assert committed(mq, raftmq_topic) == count
        assert len(done) == count  # nothing goes on


def test_the_client_is_closed(raftmq_broker: Server, raftmq_topic: str) -> None:
    """By another thread."""
    with connect(raftmq_broker.bootstrap) as mq:
        fill(mq, raftmq_topic)

        def handle(record: ConsumerRecord) -> None:
            if record.offset == 5:
                threading.Thread(target=mq.close).start()

        with pytest.raises(Closed):
            mq.process(raftmq_topic, handler=handle, group=raftmq_topic, **QUICK)


def test_an_async_handler(raftmq_broker: Server) -> None:
    """Belongs to the other face."""

    async def handle(record: ConsumerRecord) -> None: ...

    with (
        connect(raftmq_broker.bootstrap) as mq,
        pytest.raises(InvalidConfig, match="function that is no `async def`"),
    ):
        mq.process("orders", handler=handle, group="billing")
