"""The schedule of a log, over rolls, cuts, trims and openings, against a walk over its batches.

Lists of segments and snapshots of producers are lost or damaged in between; `expected` says by the
definition what the batches that are there say (A12.2, A12.3).
"""

from __future__ import annotations

import random
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raftmq.model import NO_PRODUCER_ID
from raftmq.partition.scheduling.columns import RowState
from raftmq.partition.scheduling.lists import LIST_SUFFIX
from raftmq.partition.storage.recovery import Past, open_log
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.records import RecordBatch, encode_batch, encode_cancel
from raftmq.wire.batch.scheduling import copy_of, delivery_of
from tests.simulation.disk import SimulatedFiles
from tests.simulation.schedule.log import Batch, Kind, Log, expected
from tests.unit.storage.batches import NOW_MS, append
from tests.unit.storage.numbered import cut, trim, write_snapshots
from tests.unit.storage.transactional import append_as_leader_sent, end

if TYPE_CHECKING:
    from raftmq.partition.scheduling.columns import ScheduledEntry
    from raftmq.partition.storage.log import PartitionLog

FOLDER = Path("/data/topics/orders/Partition-0")
CONFIG = TopicConfig(segment_bytes=900, index_interval_bytes=200)
PRODUCERS = st.integers(0, 2)


def said(log: PartitionLog) -> Log:
    """The log as the model has it, by its batches alone."""
    found = Log(log.segments[0].base_offset, 1 << 40)
    for segment in log.segments:
        if segment is not log.segments[0]:
            found.segments.append(segment.base_offset)
        for position, header in segment.walk_all():
            data = segment.file.read(position, header.size)
            found.batches.append(_batch(RecordBatch.decode(data)))
            found.bases.append(header.base_offset)
            found.positions.append(position)
            found.end = header.end_offset
    return found


def _batch(batch: RecordBatch) -> Batch:
    header, mark = batch.header, batch.mark
    producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
    count = header.last_offset_delta + 1
    made = Batch(Kind.PLAIN, 0, header.size, header.base_offset, count, producer_id=producer_id)
    if header.is_control:
        control = batch.control
        kinds = {ControlType.COMMIT: Kind.COMMIT, ControlType.ABORT: Kind.ABORT}
        if control.type == ControlType.CANCEL:
            return made._replace(kind=Kind.CANCEL, named=control.cancelled)
        return made._replace(kind=kinds.get(ControlType(control.type), Kind.PLAIN))
    if mark is None:
        return made
    made = made._replace(due_ms=mark.due_ms)
    if mark.delivers is not None:
        return made._replace(kind=Kind.DELIVERY, named=(mark.delivers,))
    if mark.replaces is None or mark.first is None:
        return made._replace(kind=Kind.SCHEDULED)
    named = (mark.replaces,)
    first, left_out = mark.first, mark.left_out
    return made._replace(kind=Kind.COPY, named=named, first_offset=first, left_out=left_out)


class ScheduleAgainstWalk(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.files = SimulatedFiles(random.Random(0))
        self.epochs = dict.fromkeys(range(3), 0)
        self.log: PartitionLog

    @initialize()
    def create(self) -> None:
        self._open(Past())

    def _open(self, past: Past) -> None:
        self.log = open_log(self.files, FOLDER, "orders/Partition-0", CONFIG, past)

    # -- appends ---------------------------------------------------------------------------

    @rule(delay=st.integers(-5, 50), count=st.integers(1, 3), follows=st.booleans())
    def schedule(self, delay: int, count: int, *, follows: bool) -> None:
        values = [b"v"] * count
        data = bytes(encode_batch(values=values, timestamp=NOW_MS, due_ms=NOW_MS + delay))
        if follows:
            append_as_leader_sent(self.log, data)
        else:
            self.log.append(data, leader_epoch=0, now_ms=NOW_MS, now=0.0)

    @rule(producer=PRODUCERS, delay=st.integers(0, 50))
    def schedule_in_transaction(self, producer: int, delay: int) -> None:
        data = encode_batch(
            values=[b"t"], timestamp=NOW_MS, due_ms=NOW_MS + delay, producer_id=producer,
            producer_epoch=self.epochs[producer], base_sequence=0, transactional=True,
        )  # fmt: skip
        append_as_leader_sent(self.log, bytes(data))

    @rule(producer=PRODUCERS, commit=st.booleans())
    def end(self, producer: int, *, commit: bool) -> None:
        self.epochs[producer] += 1
        end(self.log, producer, commit=commit, epoch=self.epochs[producer])

    @rule()
    def plain(self) -> None:
        append(self.log, b"plain")

    def _pending(self) -> list[ScheduledEntry]:
        pending = (self.log.schedule.pending_at(it.base_offset) for it in self._entries())
        return [each for each in pending if each is not None]

    def _entries(self) -> list[ScheduledEntry]:
        return list(self.log.schedule.entries())

    @rule(data=st.data(), kind=st.sampled_from(["deliver", "carry", "cancel"]))
    def settle(self, data: st.DataObject, kind: str) -> None:
        pending = self._pending()
        if not pending:
            return
        entry = data.draw(st.sampled_from(pending))
        original = self.log.slice_of(entry).read()
        offset = entry.base_offset
        if kind == "deliver":
            made = delivery_of(
                original, original_offset=offset, now_ms=NOW_MS, left_out=entry.left_out
            )
        elif kind == "carry":
            first = entry.first_offset
            made = copy_of(original, replaces=offset, first=first, left_out=entry.left_out)
        else:
            record = data.draw(st.integers(offset, offset + entry.record_count - 1))
            made = encode_cancel([record], timestamp=NOW_MS)
        if data.draw(st.booleans()):
            append_as_leader_sent(self.log, bytes(made))
        else:
            self.log.append_settling([made], leader_epoch=0, now_ms=NOW_MS, now=0.0)

    # -- changes ---------------------------------------------------------------------------

    @rule()
    def roll(self) -> None:
        if self.log.active.size:
            self.log.roll()

    @rule()
    def checkpoint(self) -> None:
        self.log.write_indexes()
        self._write()

    def _write(self) -> None:
        work = self.log.scheduled.begin_write()
        if work is not None:
            work.perform(self.files)
        write_snapshots(self.log)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.log.log_start_offset, self.log.log_end_offset))
        cut(self.log, self.log.begin_truncate(offset))

    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.log.log_start_offset, self.log.log_end_offset))
        if offset > self.log.log_start_offset:
            trim(self.log, offset)

    @rule(distance=st.integers(0, 5))
    def start_over(self, distance: int) -> None:
        cut(self.log, self.log.begin_start_over(self.log.log_end_offset + distance))

    @rule()
    def open_after_close(self) -> None:
        self.log.write_indexes()
        self.log.close_aborted()
        self.log.producers.take_last(self.log.log_end_offset)
        self.log.scheduled.take_last(self.log.log_end_offset)
        self._write()
        self.log.close()
        self._open(Past(self.log.log_end_offset, was_clean=True))

    @rule()
    def open_after_kill(self) -> None:
        self.log.close()
        self._open(Past())

    @precondition(lambda self: hasattr(self, "log"))
    @rule(data=st.data(), harm=st.sampled_from(["lose", "cut", "rot"]), lists=st.booleans())
    def harm(self, data: st.DataObject, harm: str, *, lists: bool) -> None:
        """To a list or a snapshot, which the next opening does without."""
        suffix = LIST_SUFFIX if lists else ".producers"
        names = [name for name in self.files.names(FOLDER) if name.endswith(suffix)]
        if not names:
            return
        path = FOLDER / data.draw(st.sampled_from(names))
        file = self.files.open(path)
        if harm == "lose":
            self.files.remove(path)
        elif harm == "cut":
            file.truncate(data.draw(st.integers(0, file.size() - 1)))
        else:
            position = data.draw(st.integers(0, file.size() - 1))
            (byte,) = file.read(position, 1)
            file.write(position, [bytes([byte ^ 0x55])])

    @rule(now=st.integers(-10, 60), limit=st.integers(1, 3))
    def take(self, now: int, limit: int) -> None:
        """As a leader does."""
        for entry in self.log.schedule.take_due(NOW_MS + now, limit):
            if entry.base_offset % 2:
                self.log.schedule.give_back(entry.base_offset)

    # -- both agree ------------------------------------------------------------------------

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "log"):
            return
        found = [_untaken(each) for each in self._entries()]
        assert found == expected(said(self.log))
        pending = self._pending()
        schedule = self.log.schedule
        assert schedule.pending_count == len(pending)
        assert schedule.pending_bytes == sum(each.length for each in pending)
        start = self.log.log_start_offset
        hidden = [
            range(each.base_offset, each.base_offset + each.record_count)
            for each in found
            if each.base_offset + each.record_count > start
        ]
        assert _hidden_runs(self.log) == [*chain.from_iterable(hidden)]


def _hidden_runs(log: PartitionLog) -> list[int]:
    """Offsets of what readers do not get, as a look from run to run finds them."""
    hidden: list[int] = []
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        runs, offset = log.schedule.hidden_runs(offset, end, runs_max=2)
        hidden += chain.from_iterable(range(run.offset, run.end_offset) for run in runs)
    return hidden


def _untaken(entry: ScheduledEntry) -> ScheduledEntry:
    state = RowState.WAITING if entry.state is RowState.TAKEN else entry.state
    return entry._replace(state=state)


ScheduleAgainstWalk.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None
)
TestScheduleAgainstWalk = ScheduleAgainstWalk.TestCase
