"""Rot in the head of a scheduled batch whose list is lost: nothing is delivered until it is mended.

A settlement of anything may stand where the log cannot be read (docs/decisions/0041).
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from raftmq.partition.scheduling.schedule import CancelRefusal
from raftmq.partition.storage.recovery import Past, open_log
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.header import HEADER_SIZE
from raftmq.wire.batch.records import encode_batch
from tests.simulation.disk import SimulatedFiles
from tests.unit.storage.batches import NOW_MS
from tests.unit.storage.numbered import cut

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
