"""The index of aborted transactions against a walk over all batches: both always agree."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raftmq.partition.storage.entries import ABORTED_SIZE, ABORTED_SUFFIX
from raftmq.partition.storage.recovery import Past, open_log
from raftmq.topic_config import TopicConfig
from tests.simulation.disk import SimulatedFiles
from tests.unit.storage.batches import append
from tests.unit.storage.numbered import cut
from tests.unit.storage.transactional import (
    all_aborted,
    append_as_leader_sent,
    end,
    expected_in,
    marked_batches,
    open_by_log,
    open_in,
    sent,
)

if TYPE_CHECKING:
    from raftmq.partition.storage.log import PartitionLog

FOLDER = Path("/data/topics/orders/Partition-0")
CONFIG = TopicConfig(segment_bytes=700, index_interval_bytes=200)
PRODUCERS = st.integers(0, 4)
ALL = 1 << 40


class IndexAgainstWalk(RuleBasedStateMachine):
    """A walk over the batches is the model."""

    def __init__(self) -> None:
        super().__init__()
        self.files = SimulatedFiles(random.Random(0))
        self.epochs = dict.fromkeys(range(5), 0)
        self.log: PartitionLog

    @initialize()
    def create(self) -> None:
        self._open(Past())

    def _open(self, past: Past) -> None:
        self.log = open_log(self.files, FOLDER, "orders/Partition-0", CONFIG, past)

    @rule(producer=PRODUCERS, size=st.integers(0, 120))
    def send(self, producer: int, size: int) -> None:
        append_as_leader_sent(self.log, sent(producer, epoch=self.epochs[producer], size=size))

    @rule(producer=PRODUCERS, commit=st.booleans())
    def end(self, producer: int, *, commit: bool) -> None:
        self.epochs[producer] += 1
        end(self.log, producer, commit=commit, epoch=self.epochs[producer])

    @rule()
    def send_plain(self) -> None:
        append(self.log, b"plain")

    @rule()
    def checkpoint(self) -> None:
        self.log.write_indexes()

    @rule()
    def roll(self) -> None:
        if self.log.active.size:
            self.log.roll()

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.log.log_start_offset, self.log.log_end_offset))
        cut(self.log, self.log.begin_truncate(offset))

    @rule(distance=st.integers(0, 5))
    def start_over(self, distance: int) -> None:
        cut(self.log, self.log.begin_start_over(self.log.log_end_offset + distance))

    @rule()
    def open_after_close(self) -> None:
        self.log.write_indexes()
        self.log.close_aborted()
        self.log.close()
        self._open(Past(self.log.log_end_offset, was_clean=True))

    @rule()
    def open_after_kill(self) -> None:
        """What was buffered is gone; batches were written at once."""
        self.log.close()
        self._open(Past())

    @rule(data=st.data(), harm=st.sampled_from(["lose", "cut", "rot"]))
    def harm_index(self, data: st.DataObject, harm: str) -> None:
        """Between two lookups, of a segment whose file is not in memory."""
        names = [name for name in self.files.names(FOLDER) if name.endswith(ABORTED_SUFFIX)]
        if not names:
            return
        path = FOLDER / data.draw(st.sampled_from(names))
        self.log.write_indexes()
        file = self.files.open(path)
        count = file.size() // ABORTED_SIZE
        if harm == "lose":
            self.files.remove(path)
        elif harm == "cut":
            file.truncate(data.draw(st.integers(0, max(0, count - 1))) * ABORTED_SIZE)
        elif count:
            file.write(data.draw(st.integers(0, file.size() - 1)), [b"\xaa"])
        for segment in self.log.segments:
            if segment.aborted.path == path:
                segment.aborted.void()
                if segment is self.log.active:
                    self.log.aborted.open_at = None

    @precondition(lambda self: self.log.log_end_offset > self.log.log_start_offset)
    @rule(data=st.data(), limit=st.integers(1, 6))
    def look(self, data: st.DataObject, limit: int) -> None:
        first = data.draw(st.integers(self.log.log_start_offset, self.log.log_end_offset - 1))
        end_offset = data.draw(st.integers(first, self.log.log_end_offset))
        expected = expected_in(marked_batches(self.log), first, end_offset, limit)
        assert self.log.aborted_in(first, end_offset, limit) == expected

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "log"):
            return
        batches = marked_batches(self.log)
        if self.log.aborted.open_at is not None:
            assert open_by_log(self.log) == open_in(batches)
        if self.log.aborted.open_at is not None and random.Random(len(batches)).random() < 0.5:
            said = self.log.aborted_in(self.log.log_start_offset, ALL)
            assert sorted(said) == sorted(all_aborted(batches))


IndexAgainstWalk.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestIndexAgainstWalk = IndexAgainstWalk.TestCase
