"""Bit flips and truncations over every kind of file of a data directory.

One case: a directory with several segments, epochs, a trimmed start and a recovery point, left
cleanly or killed; one file, drawn with its bit or length from the seed, is damaged; the log is
opened and read in every way. Allowed are a right answer and an error that says so. Anything else
raises AssertionError. `python -m tests.property.damage --seed N` replays one case.
"""

from __future__ import annotations

import argparse
import logging
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import trio
from trio.testing import MockClock

from raftmq.errors import CorruptRecord, OffsetOutOfRange, StorageError
from raftmq.partition.storage.directory import open_log_directory
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.records import encode_batch
from tests.log_reading import offset_for_timestamp, read_batches
from tests.simulation.disk import SimulatedFiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.partition.storage.log import PartitionLog
    from raftmq.wire.batch.records import Record

T = TypeVar("T")
ROOT = Path("/data")
NOW_MS = 1_700_000_000_000
CONFIG = TopicConfig(segment_bytes=3000, index_interval_bytes=256)
RECORDS, START, CHECKPOINT = 120, 7, 90


class Damage(NamedTuple):
    path: Path
    bit: int | None  # flipped, or
    length: int | None  # cut to

    def __str__(self) -> str:
        what = f"bit {self.bit} flipped" if self.bit is not None else f"cut to {self.length} bytes"
        return f"{self.path}: {what}"


async def inline(function: Callable[[], T], /) -> T:
    await trio.lowlevel.checkpoint()
    return function()


def value_of(offset: int) -> bytes:
    return b"%05d" % offset * (1 + offset % 40)


@cache
def directory(is_clean: bool) -> SimulatedFiles:
    """A directory as a broker leaves it: closed, or killed with a tail behind the checkpoint."""
    files = SimulatedFiles(Random(0))
    left: list[SimulatedFiles] = []

    async def fill() -> None:
        async with open_log_directory(ROOT, files=files, run_sync=inline) as opened:
            log = await opened.open_log("t", 0, CONFIG)
            for offset in range(0, RECORDS, 3):
                values = [value_of(n) for n in range(offset, offset + 3)]
                batch = encode_batch(values=values, timestamp=NOW_MS + offset)
                log.append(batch, leader_epoch=offset // 25, now_ms=NOW_MS, now=0.0)
                if offset == CHECKPOINT - 3:
                    await opened.flusher.wait_durable(log, CHECKPOINT)
                    await opened.checkpoint()
            await opened.delete_records(log, START)
            left.append(files.photograph(Random(0), power_lost=False))

    trio.run(fill, clock=MockClock(autojump_threshold=0))
    return files if is_clean else left[0]


def damage(files: SimulatedFiles, random: Random) -> Damage:
    """Damage one file; every kind of file has the same chance."""
    by_kind: dict[str, list[Path]] = {}
    for path in files.paths(ROOT):
        by_kind.setdefault(path.suffix or path.name, []).append(path)
    path = random.choice(by_kind[random.choice(sorted(by_kind))])
    size = files.size(path)
    if size and random.random() < 0.7:
        bit = random.randrange(size * 8)
        files.flip_bit(path, bit // 8, bit % 8)
        return Damage(path, bit, None)
    length = random.randrange(size + 1)
    files.cut(path, length)
    return Damage(path, None, length)


def run(seed: int) -> Damage:
    """One case; raises AssertionError if a reader gets a wrong byte or a loss goes unsaid."""
    random = Random(f"damage/{seed}")
    is_clean = random.random() < 0.5
    files = directory(is_clean).photograph(random, power_lost=False)
    done = damage(files, random)

    async def examine() -> None:
        async with open_log_directory(ROOT, files=files, run_sync=inline) as opened:
            log = await opened.open_log("t", 0, CONFIG)
            _check_reads(log, random)
            _check_nothing_lost_unsaid(log, vouched=RECORDS if is_clean else CHECKPOINT)
            with suppress(StorageError):
                batch = encode_batch(values=[b"new"], timestamp=NOW_MS)
                end = log.append(batch, leader_epoch=100, now_ms=NOW_MS, now=0.0).end_offset
                await opened.flusher.wait_durable(log, end)

    trio.run(examine, clock=MockClock(autojump_threshold=0))
    return done


def _check_reads(log: PartitionLog, random: Random) -> None:
    for _ in range(30):
        offset = random.randrange(RECORDS + 5)
        with suppress(CorruptRecord, OffsetOutOfRange):
            for batch in read_batches(log, offset, bytes_max=random.randrange(4000)):
                _check_records(list(batch.records()))
        with suppress(CorruptRecord, OffsetOutOfRange):
            found = offset_for_timestamp(log, NOW_MS + offset)
            assert not found or found.timestamp == NOW_MS + found.offset // 3 * 3


def _check_records(records: list[Record]) -> None:
    for record in records:
        assert record.value == value_of(record.offset), f"wrong bytes at offset {record.offset}"
        assert record.timestamp == NOW_MS + record.offset // 3 * 3


def _check_nothing_lost_unsaid(log: PartitionLog, vouched: int) -> None:
    """Every durable record is read, or an error or the log's own word covers it."""
    offset = max(log.log_start_offset, START)
    while offset < vouched:
        if log.damage and offset >= log.damage.offset:
            return
        try:
            batches = list(read_batches(log, offset))
        except CorruptRecord:
            return
        assert batches, f"offset {offset} is gone and nobody says so"
        offset = batches[-1].header.end_offset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    arguments = parser.parse_args()
    logging.disable()
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        try:
            done = run(seed)
        except BaseException:
            sys.stderr.write(f"replay: python -m tests.property.damage --seed {seed}\n")
            raise
        if arguments.count == 1:
            sys.stdout.write(f"{done}\n")
    sys.stdout.write(f"{arguments.count} cases, 0 wrong bytes, 0 unhandled exceptions\n")


if __name__ == "__main__":
    main()
