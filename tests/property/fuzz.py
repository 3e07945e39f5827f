"""Feeds damaged batches to the decoder: python -m tests.property.fuzz --count 1000000 --seed 1

Only CorruptRecord and UnsupportedCompression may come out, soon, and within the memory bound.
Input number i of a seed follows from seed and i alone: a failure prints the line that replays it.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections import Counter
from random import Random

from raftmq.errors import CorruptRecord, UnsupportedCompression
from raftmq.wire.batch.header import RECORDS_MAX, check_batch
from raftmq.wire.batch.records import DecodeLimits, RecordBatch, check_structure
from raftmq.wire.batch.scheduling import copy_of, delivery_of
from tests.property.batch_mutations import UNCOMPRESSED_BYTES_MAX, corpus, damage
from tests.property.fuzzing import Failure, fuzz

LIMITS = DecodeLimits(uncompressed_bytes_max=UNCOMPRESSED_BYTES_MAX)
CORPUS_SIZE = 60
SECONDS_MAX = 0.1
MEMORY_EVERY = 250
MEMORY_FIXED = 256 << 10
PROGRESS_EVERY = 20_000


def touch_everything(data: bytes) -> str:
    """Decode all there is; the name of the outcome."""
    try:
        header = check_batch(data)
        check_structure(data, 0, header)
        batch = RecordBatch.decode(data, limits=LIMITS)
        count = sum(1 for _ in batch.records())
        if header.is_scheduled:
            RecordBatch.decode(delivery_of(data, original_offset=7, now_ms=1), limits=LIMITS)
            copy_of(data, replaces=7, first=7)
        if batch.is_control:
            _ = batch.control
    except (CorruptRecord, UnsupportedCompression) as error:
        return type(error).__name__
    assert count == batch.header.record_count
    return "decoded"


def run(*, seed: int, count: int, first: int = 0, progress: bool = False) -> Counter[str]:
    """Outcomes of `count` inputs from number `first` on.

    Raises:
        Failure: at the first input that does what it must not.
    """
    batches = corpus(Random(f"corpus {seed}"), CORPUS_SIZE)
    outcomes: Counter[str] = Counter()
    for index in range(first, first + count):
        data = damage(Random(f"{seed} {index}"), batches)
        outcomes[_check(index, data)] += 1
        if progress and index % PROGRESS_EVERY == 0:
            sys.stderr.write(f"{index} {dict(outcomes)}\n")
    return outcomes


def _check(index: int, data: bytes) -> str:
    measured = index % MEMORY_EVERY == 0
    if measured:
        tracemalloc.start()
    # Processor time: what other processes do to the clock is no fault of the input.
    started = time.process_time()
    try:
        outcome = touch_everything(data)
        peak = tracemalloc.get_traced_memory()[1] if measured else 0
    except Exception as error:
        raise Failure(index, f"{type(error).__name__}: {error}") from error
    finally:
        seconds = time.process_time() - started
        tracemalloc.stop()
    if seconds > SECONDS_MAX and not measured:
        raise Failure(index, f"took {seconds:.3f} s")
    if peak > _memory_max(data):
        raise Failure(index, f"allocated {peak} bytes, allowed {_memory_max(data)}")
    return outcome


def _memory_max(data: bytes) -> int:
    count = int.from_bytes(data[57:61], "big")
    records = count if 1 <= count <= RECORDS_MAX else 0
    return 2 * (len(data) + UNCOMPRESSED_BYTES_MAX) + 128 * records + MEMORY_FIXED


if __name__ == "__main__":
    fuzz(run, "tests.property.fuzz", __doc__)
