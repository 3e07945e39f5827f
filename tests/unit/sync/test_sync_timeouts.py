"""`timeout` of blocking calls: what is refused, and the number that messages name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import raftmq
from raftmq.errors import InvalidConfig, RequestTimedOut
from raftmq.sync.loop import TimeLimit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.testing.server import Server


@pytest.fixture
def client(raftmq_broker: Server) -> Iterator[raftmq.sync.Client]:
    with raftmq.sync.connect(raftmq_broker.bootstrap) as client:
        yield client


@pytest.mark.parametrize("wrong", ["5", True, b"5", [5]])
def test_no_number(wrong: Any) -> None:
    """A TypeError that says what is expected."""
    with pytest.raises(TypeError, match=r"timeout = .* is a \w+, expected seconds, or None"):
        TimeLimit(wrong)


@pytest.mark.parametrize("wrong", [-1, -0.5, float("nan")])
def test_no_time(wrong: float) -> None:
    """A negative one is not taken for "at once"."""
    with pytest.raises(InvalidConfig, match=r"timeout = .*: expected seconds, 0 or more"):
        TimeLimit(wrong)


def test_every_call_checks_it(client: raftmq.sync.Client) -> None:
    """Before anything is sent, or read."""
    calls: list[Any] = []
    with client.producer() as producer:
        calls += [
            lambda: producer.send("t", b"x", timeout="5"),
            lambda: producer.enqueue("t", b"x", timeout="5"),
            lambda: producer.flush(timeout="5"),
            lambda: producer.send_many("t", iter([b"x"]), timeout="5"),
            lambda: producer.send_columns("t", values=[b"x"], timeout="5"),
        ]
        for call in calls:
            with pytest.raises(TypeError, match="timeout = '5' is a str"):
                call()
        consumer = client.consumer("t", start="earliest")
        for read in (consumer.records, consumer.batches):
            with pytest.raises(TypeError, match="timeout = '5' is a str"):
                next(read(timeout="5"))
        assert producer.statistics.requests == 0


def test_the_message_names_the_programs_number(
    client: raftmq.sync.Client, raftmq_topic: str
) -> None:
    """And not what was left of it when the wait began."""
    client.admin.create_topic(raftmq_topic)
    with client.producer(linger_ms=200) as producer:
        with pytest.raises(RequestTimedOut, match=r"no result within 0\.05 s$"):
            producer.send(raftmq_topic, b"x", timeout=0.05)
        with pytest.raises(RequestTimedOut, match=r"no result within 0\.025 s$"):
            producer.enqueue(raftmq_topic, b"x").result(0.025)


def test_the_message_says_what_the_record_waits_for(client: raftmq.sync.Client) -> None:
    """A topic that there is not: named, also as `topic`, long before that is certain."""
    with client.producer() as producer:
        with pytest.raises(
            RequestTimedOut, match=r"^nope: no result .* know no such topic"
        ) as caught:
            producer.send("nope", b"x", timeout=0.5)
        assert caught.value.topic == "nope"
        client.admin.create_topic("nope")  # else leaving the block raises for the record


def test_serializers_run_in_the_programs_thread(
    client: raftmq.sync.Client, raftmq_topic: str
) -> None:
    """Once for each record, so that their errors show at the call; in bulk calls in the loop."""
    client.admin.create_topic(raftmq_topic)
    with client.producer(value_serializer=json.dumps, key_serializer=str) as producer:
        producer.send(raftmq_topic, {"a": 1}, key=17)
        producer.enqueue(raftmq_topic, {"a": 1}, key=17)
        producer.send_many(raftmq_topic, [{"a": 1}], key=lambda _: 17)
        producer.send_columns(raftmq_topic, values=[{"a": 1}], keys=[17])
        with pytest.raises(TypeError, match="not JSON serializable"):
            producer.enqueue(raftmq_topic, {1})
    found = list(client.consumer(raftmq_topic, start="earliest").records(timeout=1))
    assert [(one.key, one.value) for one in found] == [("17", b'{"a": 1}')] * 4
