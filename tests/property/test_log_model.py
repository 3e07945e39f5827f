"""The partition log against a plain list of records: whatever is done to it, both agree."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
from hypothesis import Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from raftmq.partition.storage.recovery import Past, open_log
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.records import encode_batch
from tests.log_reading import offset_for_timestamp, read_batches, read_slice
from tests.simulation.disk import SimulatedFiles
from tests.unit.storage.directories import retirable

if TYPE_CHECKING:
    from raftmq.partition.storage.log import PartitionLog
    from raftmq.partition.storage.work import LogTrim

FOLDER = Path("/data/topics/orders/Partition-0")
CONFIG = TopicConfig(segment_bytes=2048, index_interval_bytes=200, retention_bytes=6000)


class LogAgainstList(RuleBasedStateMachine):
    """`records` is the model: (offset, value, timestamp) of all that the log should hold."""

    def __init__(self) -> None:
        super().__init__()
        self.files = SimulatedFiles(random.Random(0))
        self.records: list[tuple[int, bytes, int]] = []
        self.start = self.end = 0
        self.epoch = 0
        self.clock = 1_000_000
        self.log: PartitionLog

    @initialize()
    def create(self) -> None:
        self.log = retirable(open_log(self.files, FOLDER, "orders/Partition-0", CONFIG))

    def _batch(self, data: st.DataObject) -> tuple[bytes, list[tuple[bytes, int]]]:
        sizes = data.draw(st.lists(st.integers(0, 300), min_size=1, max_size=6))
        jumps = data.draw(st.lists(st.integers(-5, 50), min_size=len(sizes), max_size=len(sizes)))
        values = [bytes([65 + len(sizes)]) * size for size in sizes]
        timestamps = []
        for jump in jumps:
            self.clock += jump
            timestamps.append(self.clock)
        pairs = list(zip(values, timestamps, strict=True))
        return bytes(encode_batch(values=values, timestamps=timestamps)), pairs

    @rule(data=st.data(), count=st.integers(1, 3))
    def append(self, data: Any, count: int) -> None:
        batches = [self._batch(data) for _ in range(count)]
        buffer = b"".join(batch for batch, _ in batches)
        appended = self.log.append(buffer, leader_epoch=self.epoch, now_ms=self.clock, now=0.0)
        assert appended.base_offset == self.end
        for value, timestamp in (pair for _, pairs in batches for pair in pairs):
            self.records.append((self.end, value, timestamp))
            self.end += 1
        assert appended.end_offset == self.end

    @rule()
    def new_epoch(self) -> None:
        self.epoch += 1
        self.log.assign_epoch(self.epoch)

    @rule()
    def roll(self) -> None:
        if self.log.active.size:
            self.log.roll()

    @rule()
    def flush(self) -> None:
        flush = self.log.begin_flush(0.0)
        flush.perform(self.files)
        self.log.complete_flush(flush)
        assert self.log.durable_end_offset == self.end

    @precondition(lambda self: self.end > self.start)
    @rule(data=st.data())
    def truncate(self, data: Any) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        work = self.log.begin_truncate(offset)
        work.perform(self.files)
        self.log.end_truncate()
        assert self.log.log_end_offset <= offset  # whole batches
        self.end = self.log.log_end_offset
        self.start = min(self.start, self.end)  # the batch that the log began in was cut
        self.records = [record for record in self.records if record[0] < self.end]

    @rule(distance=st.integers(-30, 30))
    def start_over(self, distance: int) -> None:
        offset = max(0, self.end + distance)
        work = self.log.begin_start_over(offset)
        work.perform(self.files)
        self.log.end_truncate()
        assert self.log.log_start_offset == self.log.log_end_offset == offset
        self.start = self.end = offset
        self.records = []

    @rule(data=st.data())
    def delete_records(self, data: Any) -> None:
        if self.log.durable_end_offset <= self.start:
            return
        self.start = data.draw(st.integers(self.start, self.log.durable_end_offset))
        self._apply(self.log.plan_trim(self.start))

    @rule()
    def retain(self) -> None:
        self._apply(self.log.plan_retention(self.clock))
        self.start = max(self.start, self.log.log_start_offset)

    def _apply(self, trim: LogTrim | None) -> None:
        if trim is not None:
            trim.prepare(self.files)
            trim.perform(self.files)
            self.log.apply_trim(trim)
            trim.remove(self.files)

    @rule(how=st.sampled_from(["clean", "killed", "no checkpoint"]))
    def reopen(self, how: str) -> None:
        recovery_point = 0 if how == "no checkpoint" else self.log.durable_end_offset
        if how == "clean":
            self.flush()
            self.log.write_indexes()
            recovery_point = self.end
        past = Past(recovery_point=recovery_point, was_clean=how == "clean")
        log = open_log(self.files, FOLDER, "orders/Partition-0", CONFIG, past)
        self.log = retirable(log)
        assert self.log.report.clean == (how == "clean")
        assert self.log.damage is None

    @rule(data=st.data())
    def find_time(self, data: Any) -> None:
        timestamp = self.clock + data.draw(st.integers(-200, 10))
        kept = (record for record in self.records if record[0] >= self.start)
        expected = next((r for r in kept if r[2] >= timestamp), None)
        found = offset_for_timestamp(self.log, timestamp)
        assert (found.offset if found else None) == (expected[0] if expected else None)

    @rule(data=st.data(), bytes_max=st.integers(1, 3000))
    def read_from(self, data: Any, bytes_max: int) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        limit = data.draw(st.integers(offset, self.end))
        piece = read_slice(self.log, offset, bytes_max=bytes_max, end_offset=limit)
        assert piece.start_offset <= offset
        assert piece.end_offset <= limit or piece.bytes.length == 0
        assert len(piece.bytes.read()) == piece.bytes.length
        batches = list(read_batches(self.log, offset, bytes_max=bytes_max, end_offset=limit))
        got = [record for batch in batches for record in batch.records()]
        expected = {offset: (value, stamp) for offset, value, stamp in self.records}
        for record in got:
            assert expected[record.offset] == (record.value, record.timestamp)

    @invariant()
    def holds_what_the_list_holds(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.log_start_offset == self.start
        assert self.log.log_end_offset == self.end
        assert self.log.durable_end_offset <= self.end
        got = [record for record in read_all(self.log) if record[0] >= self.start]
        assert got == [record for record in self.records if record[0] >= self.start]


def read_all(log: PartitionLog) -> list[tuple[int, bytes | None, int]]:
    records = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        for batch in read_batches(log, offset):
            records += [(r.offset, r.value, r.timestamp) for r in batch.records()]
            offset = batch.header.end_offset
    return records


TestLogAgainstList = LogAgainstList.TestCase
TestLogAgainstList.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, phases=[Phase.generate, Phase.shrink]
)
