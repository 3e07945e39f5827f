"""Rot in the head of a scheduled batch whose list is lost: nothing is delivered until it is mended.

A settlement of anything may stand where the log cannot be read (docs/decisions/0041).
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from raftmq.partition.scheduling.schedule import CancelRefusal
from raftmq.partition.storage.recovery import Past, open_log
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.header import HEADER_SIZE
from raftmq.wire.batch.records import encode_batch
from raftmq.wire.batch.scheduling import delivery_of
from tests.simulation.disk import SimulatedFiles
from tests.unit.storage.batches import NOW_MS, append
from tests.unit.storage.numbered import cut

if TYPE_CHECKING:
    from raftmq.partition.storage.log import PartitionLog
    from raftmq.partition.storage.segment import Segment

FOLDER = Path("/data/topics/orders/Partition-0")


def test_rot_hides_what_is_scheduled_until_it_is_mended() -> None:
    """The place is told, so that it is checked on the disk. (A12.3, A3.6)"""
    files = SimulatedFiles(Random(0))
    log = open_log(files, FOLDER, "orders/Partition-0", TopicConfig())
    for _ in range(3):
        data = encode_batch(values=[b"v"], timestamp=NOW_MS, due_ms=NOW_MS)
        log.append(bytes(data), leader_epoch=0, now_ms=NOW_MS, now=0.0)
    log.write_indexes()
    place = list(log.schedule.entries())[1].position + HEADER_SIZE + 10
    file, end_offset = log.active.file, log.log_end_offset
    before = file.read(place, 1)
    log.close()
    file.write(place, [bytes([before[0] ^ 1])])
    log = open_log(
        files, FOLDER, "orders/Partition-0", TopicConfig(), Past(end_offset, was_clean=True)
    )
    told: list[int] = []
    log.on_doubt = told.append
    log.doubt_unread()
    assert told == [1]
    assert log.schedule.is_unread
    assert log.schedule.take_due(NOW_MS, 10) == []
    assert log.schedule.check_cancel(0).refusal is CancelRefusal.UNREAD
    assert log.schedule.deletable_start(2, end_offset) == 0
    log.active.file.write(place, [before])
    cut(log, log.begin_truncate(end_offset))  # as a repair does: nothing is cut
    assert not log.schedule.is_unread
    assert [one.base_offset for one in log.schedule.take_due(NOW_MS, 10)] == [0, 1, 2]


def flip(log: PartitionLog, segment: Segment, position: int) -> None:
    """One bit of its file."""
    (byte,) = segment.file.read(position, 1)
    segment.file.write(position, [bytes([byte ^ 1])])


def schedule_one(log: PartitionLog) -> None:
    data = encode_batch(values=[b"v"], timestamp=NOW_MS, due_ms=NOW_MS)
    log.append(bytes(data), leader_epoch=0, now_ms=NOW_MS, now=0.0)


def opened(files: SimulatedFiles, log: PartitionLog | None = None) -> PartitionLog:
    """Anew, as if it were closed in order."""
    past = Past()
    if log is not None:
        past = Past(log.log_end_offset, was_clean=True)
        log.close()
    return open_log(files, FOLDER, "orders/Partition-0", TopicConfig(segment_bytes=900), past)


def write_lists(log: PartitionLog) -> None:
    """As a shutdown does."""
    log.write_indexes()
    log.producers.take_last(log.log_end_offset)
    log.scheduled.take_last(log.log_end_offset)
    for work in (log.scheduled.begin_write(), log.producers.begin_write(log.segments)):
        if work is not None:
            work.perform(log.files)


def test_no_list_claims_what_was_not_read() -> None:
    """It would be believed, and the batch be forgotten, once the rot is mended. The others are
    known at once: a rotten head hides its batch alone. (A12.3)"""
    files = SimulatedFiles(Random(0))
    log = opened(files)
    for _ in range(5):
        schedule_one(log)
    log.write_indexes()
    place = list(log.schedule.entries())[1].position + HEADER_SIZE + 10
    flip(log, log.active, place)
    log = opened(files, log)
    assert [one.base_offset for one in log.schedule.entries()] == [0, 2, 3, 4]
    schedule_one(log)
    write_lists(log)
    log = opened(files, log)
    assert log.schedule.is_unread
    flip(log, log.active, place)
    log = opened(files, log)
    assert [one.base_offset for one in log.schedule.entries()] == [0, 1, 2, 3, 4, 5]
    assert not log.schedule.is_unread


def test_a_segment_of_which_nothing_could_be_read_is_read_again() -> None:
    """All that it has are deliveries, and the first of them has rotted: what they have delivered
    would be pending, once a snapshot says that nothing speaks there. (A12.3)"""
    files = SimulatedFiles(Random(0))
    log = opened(files)
    for _ in range(3):
        schedule_one(log)
    log.roll()
    made = [
        delivery_of(
            log.segments[0].file.read(one.position, one.length),
            original_offset=one.base_offset,
            now_ms=NOW_MS,
        )
        for one in log.schedule.entries()
    ]
    log.append_settling(made, leader_epoch=0, now_ms=NOW_MS, now=0.0)
    settled, place = log.active, HEADER_SIZE + 10
    log.roll()
    append(log, b"plain")
    log.write_indexes()
    flip(log, settled, place)
    for _ in range(2):  # the second opening starts from what the first has written down
        log = opened(files, log)
        assert log.schedule.is_unread
        assert log.schedule.take_due(NOW_MS, 10) == []
        write_lists(log)
    flip(log, log.segments[1], place)
    log = opened(files, log)
    assert not log.schedule.is_unread
    assert log.schedule.pending_count == 0
