"""Records into batches: each once, in the order of its key, within all limits."""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftmq.client.producer.accumulator import Accumulator, TopicQueues
from raftmq.client.producer.bulk import deal
from raftmq.client.producer.options import ProducerOptions
from raftmq.client.producer.partition_queue import RecordColumns
from raftmq.client.producer.record import (
    RECORD_OVERHEAD_BYTES,
    checked_extras,
    checked_key,
    checked_value,
    size_of,
)
from raftmq.errors import InvalidRecord
from raftmq.model import Compression
from raftmq.wire.batch.header import RECORDS_MAX
from raftmq.wire.batch.records import RecordBatch

if TYPE_CHECKING:
    from raftmq.client.producer.batch import ProducerBatch

NOW_MS = 1_700_000_000_000


class Given(NamedTuple):
    value: bytes | None
    key: bytes | str | int | None = None
    headers: dict[str, bytes] | None = None
    tags: list[str] | None = None
    timestamp: int = NOW_MS


RECORDS = st.lists(
    st.builds(
        Given,
        st.none() | st.binary(max_size=60),
        st.none() | st.binary(max_size=4) | st.text(max_size=3) | st.integers(0, 9),
        st.none() | st.dictionaries(st.text(max_size=5), st.binary(max_size=9), max_size=2),
        st.none() | st.lists(st.sampled_from(["a", "b", "c"]), max_size=2),
        st.integers(0, NOW_MS),
    ),
    max_size=60,
)


def make(**options: Any) -> tuple[Accumulator, TopicQueues]:
    accumulator = Accumulator(ProducerOptions(**options), Random(3), lambda *_: True, lambda: None)
    topic = accumulator.topic("t")
    topic.count = 5
    return accumulator, topic


def add(accumulator: Accumulator, topic: TopicQueues, record: Given) -> tuple[ProducerBatch, int]:
    value, key = checked_value(record.value), checked_key(record.key)
    extras = checked_extras(record.headers, record.tags, None)
    size = size_of(value, key, extras)
    return accumulator.add(topic, value, key, record.timestamp, size, lambda: 0.0, extras)


def batches_of(topic: TopicQueues) -> list[ProducerBatch]:
    """By partition, in order."""
    return [batch for partition in sorted(topic.queues) for batch in topic.queues[partition]]


def decoded(batch: ProducerBatch) -> list[Any]:
    found = RecordBatch.decode(batch.encode(Compression.NONE))
    return [
        Given(value, key, dict(headers), list(tags), timestamp)
        for value, key, headers, tags, timestamp in zip(
            found.values, found.keys, found.headers, found.tags, found.timestamps, strict=True
        )
    ]


def as_read(record: Given) -> Given:
    return record._replace(
        key=checked_key(record.key),  # type: ignore[arg-type]
        headers=record.headers or {},
        tags=sorted(set(record.tags or [])),
    )


@given(RECORDS, st.integers(1, 300))
def test_every_record_is_in_one_batch(records: list[Given], batch_size: int) -> None:
    """What is told about a place is true: the record is read there, with all that belongs to it."""
    accumulator, topic = make(batch_size=batch_size)
    placed = [add(accumulator, topic, record) for record in records]
    contents = {id(batch): decoded(batch) for batch in batches_of(topic)}
    for record, (batch, index) in zip(records, placed, strict=True):
        assert contents[id(batch)][index] == as_read(record)
    assert sum(map(len, contents.values())) == len(records)


@given(RECORDS, st.integers(1, 300))
def test_the_order_of_a_key_is_kept(records: list[Given], batch_size: int) -> None:
    """Records with one key are read in the order in which they came, from one partition."""
    accumulator, topic = make(batch_size=batch_size)
    for number, record in enumerate(records):
        add(accumulator, topic, record._replace(value=b"%d" % number))
    for key in {checked_key(record.key) for record in records} - {None}:
        of_key = [
            (batch.partition, int(each.value))
            for batch in batches_of(topic)
            for each in decoded(batch)
            if each.key == key
        ]
        assert len({partition for partition, _ in of_key}) == 1
        assert [number for _, number in of_key] == [
            number for number, record in enumerate(records) if checked_key(record.key) == key
        ]


@given(RECORDS, st.integers(1, 300), st.integers(1, 600))
def test_sizes_hold(records: list[Given], batch_size: int, request_size: int) -> None:
    """A batch is over batch_size, and a request over max_request_size, only by its first part."""
    accumulator, topic = make(batch_size=batch_size)
    for record in records:
        add(accumulator, topic, record)
    for queue in topic.queues.values():
        held = list(queue)
        assert queue.queued_bytes == sum(batch.byte_count for batch in held)
        for batch in held:
            assert batch.payload_bytes <= batch_size or len(batch) == 1
            overhead = RECORD_OVERHEAD_BYTES * len(batch)
            assert batch.byte_count == batch.payload_bytes + overhead
        taken = []
        while len(queue):
            together = queue.take(request_size, 0.0, is_hurried=True)
            assert len(together) == 1 or (
                sum(batch.payload_bytes for batch in together) <= request_size
            )
            taken += together
        assert taken == held
        assert queue.queued_bytes == 0


@given(RECORDS, st.integers(1, 300), st.data())
def test_columns_are_as_records_one_by_one(
    records: list[Given], batch_size: int, data: st.DataObject
) -> None:
    """Whatever the columns hold, and in whichever portions: the same order by key, all once."""
    one_by_one, topic = make(batch_size=batch_size)
    columns_way, columns_topic = make(batch_size=batch_size)
    has_keys, has_extras = data.draw(st.booleans()), data.draw(st.booleans())
    records = [
        record._replace(
            key=checked_key(record.key) or b"?" if has_keys else None,
            **{} if has_extras else {"headers": None, "tags": None},  # type: ignore[arg-type]
        )
        for record in records
    ]
    for record in records:
        add(one_by_one, topic, record)
    start = 0
    while start < len(records):
        end = start + data.draw(st.integers(1, 30))
        _add_columns(columns_way, columns_topic, records[start:end], has_keys, has_extras)
        start = end
    if has_keys:
        by_records, by_columns = [
            {
                partition: [each for batch in queue for each in decoded(batch)]
                for partition, queue in each.queues.items()
            }
            for each in (topic, columns_topic)
        ]
        assert by_records == by_columns
    found = [each for batch in batches_of(columns_topic) for each in decoded(batch)]
    assert sorted(map(str, found)) == sorted(str(as_read(record)) for record in records)
    sizes = [batch.payload_bytes for batch in batches_of(columns_topic) if len(batch) > 1]
    assert all(size <= batch_size for size in sizes)


def _add_columns(
    accumulator: Accumulator,
    topic: TopicQueues,
    records: list[Given],
    has_keys: bool,
    has_extras: bool,
) -> None:
    columns = RecordColumns(
        [record.value for record in records],
        [record.key for record in records] if has_keys else None,
        [record.headers for record in records] if has_extras else None,
        [record.tags for record in records] if has_extras else None,
        [record.timestamp for record in records],
    )
    prepared = columns.prepared(0)
    total = 0
    for partition, group, sizes in deal(topic, *prepared):
        for batch, position, count in accumulator.add_columns(
            topic, partition, group, sizes, NOW_MS, 0.0
        ):
            assert position + count <= len(batch)
            total += count
    assert total == len(records)


def test_a_batch_holds_so_many_records() -> None:
    """Empty records fill a batch by their number, one by one and as columns."""
    for is_column in (False, True):
        accumulator, topic = make(batch_size=1 << 20)
        if is_column:
            columns = RecordColumns([b""] * (RECORDS_MAX + 10))
            sizes = [RECORD_OVERHEAD_BYTES] * len(columns.values)
            list(accumulator.add_columns(topic, 1, columns, sizes, 0, 0.0))
        else:
            for _ in range(RECORDS_MAX + 10):
                accumulator.add(topic, b"", b"k", 0, RECORD_OVERHEAD_BYTES, lambda: 0.0)
        assert [len(batch) for batch in batches_of(topic)] == [RECORDS_MAX, 10]
        assert batches_of(topic)[0].is_closed


def test_a_function_is_asked_once_for_each_record() -> None:
    """Also where its choice closes a batch: it may count along."""
    asked: list[bytes | None] = []

    def choose(_topic: str, _key: object, value: bytes | None, _headers: object, count: int) -> int:
        asked.append(value)
        return len(asked) % count

    accumulator, topic = make(partitioner=choose, batch_size=10)
    values = [b"%08d" % number for number in range(40)]
    for value in values:
        add(accumulator, topic, Given(value))
    assert asked == values
    assert {partition: len(queue) for partition, queue in topic.queues.items()} == dict.fromkeys(
        (1, 2, 3, 4, 0), 8
    )


def test_a_function_that_fails() -> None:
    """Whatever it raises is told as what it is, and no batch is opened."""

    def choose(*_arguments: object) -> int:
        raise KeyError("colour")

    accumulator, topic = make(partitioner=choose)
    with pytest.raises(
        InvalidRecord, match="topic 't': the partitioner failed: KeyError"
    ) as caught:
        add(accumulator, topic, Given(b""))
    assert isinstance(caught.value.__cause__, KeyError)
    assert not topic.queues


def test_headers_and_tags_are_kept_as_they_were() -> None:
    """A program changes its dict for the next record; the first one has what it had."""
    accumulator, topic = make()
    headers, tags = {"n": b"1"}, ["a"]
    batch, _ = add(accumulator, topic, Given(b"", b"k", headers, tags))
    headers["n"] = b"2"
    tags.append("b")
    add(accumulator, topic, Given(b"", b"k", headers, tags))
    assert [(each.headers, each.tags) for each in decoded(batch)] == [
        ({"n": b"1"}, ["a"]),
        ({"n": b"2"}, ["a", "b"]),
    ]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "take", "fail", "succeed"]), st.integers(0, 9)),
        max_size=60,
    )
)
def test_a_queue_keeps_its_order(steps: list[tuple[str, int]]) -> None:
    """One request at a time, however often it fails: the log has the order of the records."""
    accumulator, topic = make(batch_size=3)
    topic.count = 1
    log: list[int] = []
    flying: list[ProducerBatch] | None = None
    handed_in = 0
    for step, amount in steps:
        queue = topic.queue(0)
        if step == "add":
            for _ in range(amount):
                accumulator.add(
                    topic, b"%d" % handed_in, None, 0, RECORD_OVERHEAD_BYTES + 1, lambda: 0.0
                )
                handed_in += 1
        elif step == "take" and queue.ready_at(is_hurried=True) <= 0.0:
            assert flying is None
            flying = queue.take(amount, 0.0, is_hurried=True)
        elif flying is not None:
            queue.on_answer(flying)
            if step == "fail":
                queue.put_back(flying)
            elif step == "succeed":
                log += [int(each.value) for batch in flying for each in decoded(batch)]
            if step in {"fail", "succeed"}:
                flying = None
            else:
                queue.in_flight.append(flying)
    assert log == list(range(len(log)))
    held = [int(each.value) for batch in topic.queue(0) for each in decoded(batch)]
    flown = [int(each.value) for batch in flying or () for each in decoded(batch)]
    assert log + flown + held == list(range(handed_in))


def test_lingering() -> None:
    """An open batch waits; a closed one does not, nor does it take the open one along."""
    accumulator, topic = make(batch_size=10, linger_ms=50)
    add(accumulator, topic, Given(b"123456", b"k"))
    [queue] = topic.busy.values()
    assert queue.ready_at(is_hurried=False) == 0.05
    assert queue.ready_at(is_hurried=True) == -math.inf
    add(accumulator, topic, Given(b"123456", b"k"))
    assert queue.ready_at(is_hurried=False) == -math.inf
    assert len(queue.take(1 << 20, 0.01, is_hurried=False)) == 1
    assert len(queue) == 1
    assert queue.ready_at(is_hurried=True) == math.inf, "one is in flight"
    assert topic.take_out_idle() is False
