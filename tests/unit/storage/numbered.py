"""Logs that idempotent producers write, and what is done to them, each in one line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from raftmq.partition.storage.known_producers import account_in
from raftmq.partition.storage.recovery import open_log
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.records import encode_batch
from tests.simulation.producer_reference import producers_in
from tests.unit.storage.batches import NOW_MS

if TYPE_CHECKING:
    from raftmq.partition.sequences import ProducerState
    from raftmq.partition.storage.log import Appended, PartitionLog
    from raftmq.partition.storage.recovery import Past
    from raftmq.partition.storage.work import LogStartOver, LogTrim, Truncation
    from tests.simulation.disk import SimulatedFiles

FOLDER = Path("/data/topics/t/Partition-0")
CONFIG = TopicConfig(segment_bytes=1000, index_interval_bytes=100)
PRODUCER = 7


def opened(files: SimulatedFiles, past: Past | None = None) -> PartitionLog:
    return open_log(files, FOLDER, "t/Partition-0", CONFIG, past)


def numbered(
    first: int, count: int = 2, *, producer: int = PRODUCER, epoch: int = 0, size: int = 20
) -> bytes:
    data = encode_batch(
        values=[b"x" * size] * count,
        timestamp=NOW_MS,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=first,
    )
    return bytes(data)


def append(log: PartitionLog, *batches: bytes, now: float = 0.0) -> Appended:
    return log.append(b"".join(batches), leader_epoch=0, now_ms=NOW_MS, now=now)


def fill(log: PartitionLog, requests: int = 30) -> None:
    """Three producers in turn, two records each time: several segments."""
    for at in range(requests):
        append(log, numbered(at // 3 * 2, producer=at % 3))


def write_snapshots(log: PartitionLog, *, is_durable: bool = True) -> None:
    work = log.producers.begin_write(log.segments, is_durable=is_durable)
    if work:
        work.perform(log.files)
        log.producers.complete_write(work)


def cut(log: PartitionLog, work: Truncation | LogStartOver) -> None:
    work.perform(log.files)
    log.end_truncate()


def trim(log: PartitionLog, offset: int) -> None:
    flush = log.begin_flush(0.0)
    flush.perform(log.files)
    log.complete_flush(flush)
    work = log.plan_trim(offset)
    assert work is not None
    log.producers.cover(work.first_offset, log.log_end_offset)
    write_snapshots(log)
    perform_trim(log, work)


def perform_trim(log: PartitionLog, work: LogTrim) -> None:
    work.prepare(log.files)
    work.perform(log.files)
    log.apply_trim(work)
    work.remove(log.files)


def known(log: PartitionLog) -> dict[int, ProducerState]:
    return log.producers.now.picture().known


def said_by(log: PartitionLog) -> dict[int, ProducerState]:
    """What a walk over everything that is there finds."""
    batches = [(each, segment) for segment in log.segments for each in segment.walk_all()]
    accounts = {each.header.base_offset: account_in(part.file, each) for each, part in batches}
    said = {offset: account for offset, account in accounts.items() if account is not None}
    return producers_in((each.header for each, _ in batches), said)
