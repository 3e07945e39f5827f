"""What may be handed in to be encoded; every refusal names the column and the index."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from raftmq.errors import InvalidRecord
from raftmq.model import RecordFormat
from raftmq.wire.batch.arguments import check_records
from raftmq.wire.batch.header import RECORDS_MAX
from raftmq.wire.batch.records import encode_batch

TWO: dict[str, Any] = {"values": [b"a", b"b"], "timestamp": 0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": []}, "0 values"),
        ({"values": [b""] * (RECORDS_MAX + 1)}, "65537 values"),
        ({"keys": [b"a"]}, "1 keys for 2 values"),
        ({"headers": [None] * 3}, "3 headers for 2 values"),
        ({"tags": []}, "0 tags for 2 values"),
        ({"timestamps": [1, 2]}, "either timestamps or timestamp"),
        ({"timestamp": None}, "either timestamps or timestamp"),
        ({"timestamp": None, "timestamps": [1]}, "1 timestamps for 2 values"),
        ({"values": [b"", 1.5]}, r"values\[1\] is a float, expected bytes, str or None; value"),
        ({"values": [1, b""]}, r"values\[0\] is an int"),
        ({"keys": [b"", 1.5]}, r"keys\[1\] is a float"),
        ({"keys": [True, b""]}, r"keys\[0\] is a bool"),
        ({"keys": [1 << 63, b""]}, r"keys\[0\] = \d+ does not fit into 64 bits"),
        ({"keys": ["\ud800", b""]}, r"keys\[0\] is not valid Unicode"),
        ({"timestamp": 1.5}, "timestamp is a float"),
        ({"timestamp": 1 << 63}, "timestamp = .* does not fit"),
        ({"timestamp": None, "timestamps": [1, "2"]}, r"timestamps\[1\] is a str"),
        ({"timestamp": None, "timestamps": [0, 1 << 63]}, "do not fit into 64 bits"),
        ({"timestamp": None, "timestamps": [-(1 << 62), 1 << 62]}, "do not fit into 64 bits"),
        ({"offset_deltas": [0, 0]}, "strictly increasing"),
        ({"offset_deltas": [-1, 0]}, "strictly increasing"),
        ({"offset_deltas": [0, 1 << 31]}, "strictly increasing"),
        ({"headers": [None, 5]}, r"headers\[1\] is an int"),
        ({"headers": [None, "ab"]}, r"headers\[1\] is a str"),
        ({"headers": [None, ["abc"]]}, r"headers\[1\]: expected pairs"),
        ({"headers": [{b"n": b"v"}, None]}, r"headers\[0\]: the name is a bytes"),
        (
            {"headers": [{"n": 5}, None]},
            r"headers\[0\]: 'n' is an int, expected bytes, str or None$",
        ),
        ({"headers": [{"\ud800": b""}, None]}, r"headers\[0\] is not valid Unicode"),
        ({"headers": [[("n", b"")] * 1025, None]}, r"headers\[0\]: 1025 headers, allowed 1024"),
        ({"tags": [None, "a"]}, r"tags\[1\] is a str, expected a list"),
        ({"tags": [[1], []]}, r"tags\[0\]: a tag is an int"),
        ({"tags": [[""], []]}, r"tags\[0\]: a tag that has not 1 to 255 bytes"),
        ({"tags": [["é" * 128], []]}, r"tags\[0\]: a tag that has not 1 to 255 bytes"),
        ({"tags": [["\ud800"], []]}, r"tags\[0\] is not valid Unicode"),
        ({"tags": [[str(n) for n in range(17)], []]}, r"tags\[0\]: 17 tags, allowed 16"),
        ({"producer_epoch": 1 << 15}, "a header field is out of range"),
        ({"tags": [[["a"]], []]}, r"tags\[0\]: a tag that is not a str"),
        ({"headers": [[(["n"], b"")], None]}, r"headers\[0\]: expected pairs"),
        ({"headers": [[5], None]}, r"headers\[0\]: expected pairs"),
        ({"tags": [["a"], []], "record_format": RecordFormat.KAFKA}, "cannot hold tags"),
    ],
)
def test_refused(arguments: dict[str, Any], message: str) -> None:
    """One thing is wrong with a batch of two records."""
    with pytest.raises(InvalidRecord, match=message):
        encode_batch(**{**TWO, **arguments})


def test_taken_in_other_forms() -> None:
    """Bytes may come in any bytes-like object, text as keys, columns as any sequence."""
    records = check_records(
        values=deque([b"a", bytearray(b"b"), memoryview(b"c")]),
        keys=("text", 5, None),
        headers=[{"n": bytearray(b"v")}, [["m", None]], None],
        tags=[{"b", "a"}, ("c", "c"), None],
        timestamps=(5, 4, 9),
        offset_deltas=range(3),
    )
    assert records.values == [b"a", b"b", b"c"]
    assert records.keys == ["text", 5, None]
    assert records.headers == [[b"n", b"v"], [b"m", None], []]
    assert records.tags == [("a", "b"), ("c",), ()]
    assert (records.base_timestamp, records.max_timestamp) == (5, 9)
    assert records.timestamp_deltas == [0, -1, 4]
    assert records.offset_deltas is None


def test_columns_that_hold_nothing() -> None:
    """A column of nothing is not written at all."""
    records = check_records(
        values=[None, None],
        keys=[None, None],
        headers=[None, {}],
        tags=[[], None],
        timestamps=[7, 7],
    )
    columns = ("values", "keys", "headers", "tags", "timestamp_deltas", "offset_deltas")
    assert [getattr(records, column) for column in columns] == [None] * 6
