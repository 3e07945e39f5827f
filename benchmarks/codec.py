"""How long the record batch codec takes for a record, in each format and with each codec.

    python -m benchmarks.codec [--json FILE] [--rounds 100]

Batches of 1000 records of 100 B. Packing is `encode_batch`; unpacking is `RecordBatch.decode`
with every column touched that the batch has, and every record's headers parsed. Checking is what
a broker does with a batch besides its CRC. Cases take turns, round by round, in one process;
medians.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.report import Report
from raftmq.model import Compression, RecordFormat
from raftmq.wire.batch.header import check_batch
from raftmq.wire.batch.records import RecordBatch, check_structure, encode_batch

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = 1000
VALUE_BYTES = 100
NOW_MS = 1_700_000_000_000
WORDS = [b"order", b"paid", b"shipped", b"refund", b"customer", b"warehouse", b"0", b"1", b"17"]


class Case(NamedTuple):
    name: str
    arguments: dict[str, Any]
    touched: tuple[str, ...]  # columns, besides offsets and values


def cases() -> list[Case]:
    random = Random(1)
    values = [value_of(random) for _ in range(COUNT)]
    bare: dict[str, Any] = {"values": values, "timestamp": NOW_MS}
    timed = {
        "values": values,
        "keys": [b"customer-%d" % random.randrange(10_000) for _ in range(COUNT)],
        "timestamps": [NOW_MS + 3 * index for index in range(COUNT)],
    }
    kafka = {**timed, "record_format": RecordFormat.KAFKA}
    headers = [{"trace": b"0123456789abcdef", "attempt": b"1"}] * COUNT
    tags = [[f"tag-{index % 8}"] for index in range(COUNT)]
    keyed = ("keys", "timestamps")
    compressed = [
        Case(f"columns, keys + timestamps, {codec.name.lower()}",
             {**timed, "compression": codec}, keyed)
        for codec in Compression if codec is not Compression.NONE
    ]  # fmt: skip
    return [
        Case("columns, values only", bare, ()),
        Case("columns, keys + timestamps", timed, keyed),
        *compressed,
        Case("columns, + 2 headers", {**timed, "headers": headers}, (*keyed, "headers")),
        Case("columns, + 1 tag of 8", {**timed, "tags": tags}, (*keyed, "tags")),
        Case("kafka, keys + timestamps", kafka, keyed),
        Case("kafka, + 2 headers", {**kafka, "headers": headers}, (*keyed, "headers")),
    ]


def value_of(random: Random) -> bytes:
    """Text that compresses about as well as JSON does."""
    text = b" ".join(random.choice(WORDS) for _ in range(VALUE_BYTES // 2))
    return text[:VALUE_BYTES]


def unpack(batch: bytes, touched: tuple[str, ...]) -> RecordBatch:
    decoded = RecordBatch.decode(batch)
    for column in ("offsets", "values", *touched):
        getattr(decoded, column)
    if "headers" in touched:
        list(decoded.headers)
    return decoded


def seconds(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measure(case: Case, batch: bytes) -> tuple[float, float, float]:
    header = check_batch(batch)
    return (
        seconds(lambda: encode_batch(**case.arguments)),
        seconds(lambda: unpack(batch, case.touched)),
        seconds(lambda: check_structure(batch, 0, header)),
    )


def run(report: Report, rounds: int) -> None:
    batches = [(case, bytes(encode_batch(**case.arguments))) for case in cases()]
    times: dict[str, list[tuple[float, float, float]]] = {case.name: [] for case, _ in batches}
    for _ in range(rounds):
        for case, batch in batches:
            measure(case, batch)  # warms the caches that the case before has emptied
            times[case.name].append(measure(case, batch))
    for case, batch in batches:
        packing, unpacking, checking = map(median, zip(*times[case.name], strict=True))
        report.row(
            what=case.name,
            batch_bytes=len(batch),
            pack_ns_per_record=round(packing / COUNT * 1e9),
            unpack_ns_per_record=round(unpacking / COUNT * 1e9),
            pack_records_per_s=round(COUNT / packing),
            unpack_records_per_s=round(COUNT / unpacking),
            check_us_per_batch=round(checking * 1e6, 1),
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.codec", description=__doc__)
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/codec.json")
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    report = Report("codec", options.json)
    run(report, options.rounds)
    report.finish()


if __name__ == "__main__":
    main()
