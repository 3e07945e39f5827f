"""Batches come back as they were handed in, whatever the shape, format and codec."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from raftmq.client.producer.record import hashed_bytes
from raftmq.model import Compression, RecordFormat, TimestampType
from raftmq.wire.batch.header import check_batch
from raftmq.wire.batch.records import (
    RecordBatch,
    check_structure,
    encode_batch,
    stamp_log_append_time,
)

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
BYTES = st.none() | st.binary(max_size=40)
NAMES = st.text(max_size=8)
HEADERS = st.none() | st.lists(st.tuples(NAMES, BYTES), max_size=3) | st.dictionaries(NAMES, BYTES)
TIMESTAMPS = st.integers(0, 1 << 45) | st.integers(-(1 << 61), 1 << 61)
KEYS = (BYTES, NAMES, INT64, BYTES | NAMES | INT64)


@st.composite
def columns(draw: st.DrawFn) -> dict[str, Any]:
    """The arguments of `encode_batch` that hold records."""
    count = draw(st.integers(1, 8) | st.integers(60, 200))

    def dice() -> bytes | None:
        return draw(st.none() | st.binary(min_size=count, max_size=count))

    def column(items: st.SearchStrategy[Any]) -> Any:
        """Items from a small choice: drawing each of them would take all the time there is."""
        choice, numbers = draw(st.lists(items, min_size=1, max_size=6)), dice()
        return numbers and [choice[number % len(choice)] for number in numbers]

    steps = dice()
    return {
        "values": column(BYTES) or [None] * count,
        "keys": column(draw(st.sampled_from(KEYS))),
        "headers": column(HEADERS),
        "tags": tags_of(dice()),
        "timestamps": column(TIMESTAMPS) or [draw(INT64)] * count,
        "offset_deltas": steps and list(accumulate([1 + step for step in steps], initial=-1))[1:],
    }


def tags_of(numbers: bytes | None) -> list[list[str] | None] | None:
    """Up to 256 different tag sets, of which 64 get a chunk of their own."""
    if numbers is None:
        return None
    return [[f"b{number // 16}", f"a{number % 16}"] if number else None for number in numbers]


@st.composite
def producers(draw: st.DrawFn) -> dict[str, Any]:
    """The arguments that only the header holds."""
    return {
        "producer_id": draw(INT64),
        "producer_epoch": draw(st.integers(-1, (1 << 15) - 1)),
        "base_sequence": draw(st.integers(-1, (1 << 31) - 1)),
        "base_offset": draw(st.integers(0, (1 << 63) - (1 << 32))),
        "leader_epoch": draw(st.integers(-1, (1 << 31) - 1)),
        "transactional": draw(st.booleans()),
    }


def expected_records(given_columns: dict[str, Any], base_offset: int) -> list[tuple[Any, ...]]:
    """What the records are, by the words of the interface."""
    count = len(given_columns["values"])
    offsets = given_columns["offset_deltas"] or range(count)
    blank = [None] * count
    return [
        (base_offset + offset, timestamp, key, value, as_pairs(headers), as_tags(tags))
        for offset, timestamp, key, value, headers, tags in zip(
            offsets,
            given_columns["timestamps"],
            given_columns["keys"] or blank,
            given_columns["values"],
            given_columns["headers"] or blank,
            given_columns["tags"] or blank,
            strict=True,
        )
    ]


def as_pairs(headers: Any) -> tuple[Any, ...]:
    return tuple(headers.items() if isinstance(headers, dict) else headers or ())


def as_tags(tags: Any) -> tuple[Any, ...]:
    return tuple(sorted(set(tags or ())))


@given(columns(), producers(), st.sampled_from(Compression))
def test_columns_round_trip(
    given_columns: dict[str, Any], producer: dict[str, Any], compression: Compression
) -> None:
    """Everything that can be said in columns, and a broker that takes it unopened (A2.6)."""
    batch = encode_batch(**given_columns, **producer, compression=compression)
    check_structure(batch, 0, check_batch(batch))
    decoded = RecordBatch.decode(memoryview(batch))
    assert list(decoded.records()) == expected_records(given_columns, producer["base_offset"])
    check_header(decoded, given_columns, producer)


@given(columns(), producers(), st.sampled_from(Compression))
def test_kafka_round_trip(
    given_columns: dict[str, Any], producer: dict[str, Any], compression: Compression
) -> None:
    """The same without tags; integers and text come back as the bytes that stand for them."""
    given_columns["tags"] = None
    batch = encode_batch(
        **given_columns, **producer, compression=compression, record_format=RecordFormat.KAFKA
    )
    if given_columns["keys"]:
        given_columns["keys"] = [
            None if key is None else hashed_bytes(key) for key in given_columns["keys"]
        ]
    decoded = RecordBatch.decode(batch)
    assert list(decoded.records()) == expected_records(given_columns, producer["base_offset"])
    check_header(decoded, given_columns, producer)


def check_header(
    decoded: RecordBatch, given_columns: dict[str, Any], producer: dict[str, Any]
) -> None:
    header = decoded.header
    assert header.record_count == len(given_columns["values"])
    assert header.max_timestamp == max(given_columns["timestamps"])
    assert header.base_timestamp == given_columns["timestamps"][0]
    assert header.is_transactional == producer["transactional"]
    names = ("producer_id", "producer_epoch", "base_sequence", "base_offset", "leader_epoch")
    assert {name: getattr(header, name) for name in names}.items() <= producer.items()


@given(columns(), st.sampled_from(Compression), st.integers(0, 1 << 45))
def test_decoded_columns_encode_to_the_same_bytes(
    given_columns: dict[str, Any], compression: Compression, now_ms: int
) -> None:
    """There is one way to write a batch; and the broker's stamp changes nothing but times."""
    batch = encode_batch(**given_columns, compression=compression)
    decoded = RecordBatch.decode(bytes(batch))
    again = encode_batch(
        values=decoded.values,
        keys=decoded.keys,
        headers=decoded.headers,
        tags=decoded.tags,
        timestamps=decoded.timestamps,
        offset_deltas=decoded.offsets,
        compression=compression,
    )
    assert again == batch
    stamp_log_append_time(batch, now_ms)
    stamped = RecordBatch.decode(batch)
    assert stamped.header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert [record._replace(timestamp=0) for record in stamped.records()] == [
        record._replace(timestamp=0) for record in decoded.records()
    ]
    assert set(stamped.timestamps) == {now_ms}
