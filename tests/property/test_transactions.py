"""Transactions of one log against a model of it, through rolls, cuts, trims, snapshots, crashes.

Two logs: a leader's, and a replica's that copies it and is cut. What each knows of transactions,
and its last stable offset at every high watermark, is what a walk over its batches says (X2); and
between the first batch of a transaction and its marker no record of its producer has another epoch
(X3).
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raftmq.errors import RaftmqError
from raftmq.model import TransactionOutcome
from raftmq.partition.admission import EarlierTransactionDecided
from raftmq.partition.storage.recovery import Past, open_log
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.records import encode_batch
from tests.simulation.disk import SimulatedFiles

if TYPE_CHECKING:
    from raftmq.partition.storage.log import PartitionLog
    from raftmq.partition.storage.work import Truncation
    from raftmq.wire.batch.header import BatchHeader

FOLDER = Path("/data/topics/orders/Partition-0")
CONFIG = TopicConfig(segment_bytes=700, index_interval_bytes=200)
NOW_MS = 1_000_000
PRODUCERS = st.integers(0, 3)
OUTCOMES = list(TransactionOutcome)


def stable_offset(headers: list[BatchHeader], high_watermark: int) -> int:
    """By the definition: the first offset of a transaction without marker below the high watermark,
    or else that."""
    open_at: dict[int, int] = {}
    for header in headers:
        if header.base_offset >= high_watermark:
            break
        if header.is_marker:
            open_at.pop(header.producer_id, None)
        elif header.is_transactional:
            open_at.setdefault(header.producer_id, header.base_offset)
    return min([high_watermark, *open_at.values()])


class TransactionsAgainstWalk(RuleBasedStateMachine):
    """Attributes:
    epochs: of each producer, by the metadata: lower ones are decided.
    outcomes: of each decided one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.files = SimulatedFiles(Random(0))
        self.log: PartitionLog
        self.headers: list[BatchHeader] = []  # all that the log had and did not lose
        self.epochs = dict.fromkeys(range(4), 0)
        self.outcomes: dict[tuple[int, int], TransactionOutcome] = {}
        self.stable = 0  # the highest that was told

    @initialize()
    def create(self) -> None:
        self.log = open_log(self.files, FOLDER, "orders/Partition-0", CONFIG)

    def _outcome(self, producer_id: int, epoch: int) -> TransactionOutcome:
        return self.outcomes.get((producer_id, epoch), TransactionOutcome.OPEN)

    # -- producers and metadata ------------------------------------------------------------

    @rule(producer_id=PRODUCERS, count=st.integers(1, 3), again=st.booleans())
    def send(self, producer_id: int, count: int, *, again: bool) -> None:
        """The next records of the present epoch; the earlier transaction ends first."""
        epoch = self.epochs[producer_id]
        known = self.log.producers.now.get(producer_id)
        sequence = known.next_sequence if known is not None and known.epoch == epoch else 0
        data = _batch(producer_id, epoch, sequence, count)
        end = self.log.log_end_offset
        appended = self._append(data)
        assert self.log.transactions.open[producer_id].producer_epoch == epoch
        if again:
            assert self._append(data).base_offset == appended.base_offset
        self._note_from(end)

    @rule(count=st.integers(1, 3))
    def send_plain(self, count: int) -> None:
        end = self.log.log_end_offset
        self._append(bytes(encode_batch(values=[b"x" * 20] * count, timestamp=NOW_MS)))
        self._note_from(end)

    def _append(self, data: bytes) -> Any:
        while True:
            try:
                return self.log.append(
                    data, leader_epoch=0, now_ms=NOW_MS, now=0.0, outcome_of=self._outcome
                )
            except EarlierTransactionDecided as earlier:
                self._end([earlier.producer_id])

    def _end(self, producer_ids: list[int] | None) -> None:
        wanted = self.log.transactions.due(producer_ids, self._outcome)
        if wanted:
            self.log.append_markers(wanted, leader_epoch=0, now_ms=NOW_MS, now=0.0)

    @rule(
        producer_id=PRODUCERS,
        outcome=st.sampled_from([TransactionOutcome.COMMITTED, TransactionOutcome.ABORTED]),
        is_told=st.booleans(),
    )
    def decide(self, producer_id: int, outcome: TransactionOutcome, *, is_told: bool) -> None:
        self.outcomes[producer_id, self.epochs[producer_id]] = outcome
        self.epochs[producer_id] += 1
        if is_told:
            end = self.log.log_end_offset
            self._end([producer_id])
            self._note_from(end)

    @rule(producers=st.lists(PRODUCERS, min_size=1, max_size=5))
    def send_and_decide(self, producers: list[int]) -> None:
        for producer_id in producers:
            self.send(producer_id, 1, again=False)
            self.decide(producer_id, TransactionOutcome.COMMITTED, is_told=True)

    @rule()
    def end_all(self) -> None:
        end = self.log.log_end_offset
        self._end(None)
        self._note_from(end)

    @precondition(lambda self: any(self.epochs.values()))
    @rule(data=st.data())
    def send_late(self, data: Any) -> None:
        """Of a transaction that was decided: never appended (planted: late_batch_joins_next)."""
        producer_id = data.draw(
            st.sampled_from([each for each in self.epochs if self.epochs[each]])
        )
        epoch = data.draw(st.integers(0, self.epochs[producer_id] - 1))
        end = self.log.log_end_offset
        late = _batch(producer_id, epoch, data.draw(st.integers(0, 6)), 1)
        with suppress(RaftmqError):
            assert self._append(late).end_offset <= end  # a duplicate of what stands here
        self._note_from(end)
        assert all(header.is_marker for header in self.headers if header.base_offset >= end)

    @rule(back=st.integers(0, 20))
    def release(self, back: int) -> None:
        """The high watermark rises, and producers whose decision is known are forgotten."""
        mark = max(self.stable, self.log.log_end_offset - back)
        self.log.transactions.on_high_watermark(mark)
        self.log.producers.now.release(mark, self._outcome)
        self.stable = max(self.stable, mark)

    def _note_from(self, start: int) -> None:
        self.headers += [each for each in _headers(self.log) if each.base_offset >= start]

    # -- what becomes of the log -----------------------------------------------------------

    @rule()
    def roll(self) -> None:
        if self.log.active.size:
            self.log.roll()

    @rule()
    def write_snapshots(self) -> None:
        work = self.log.producers.begin_write(self.log.segments)
        if work:
            work.perform(self.files)
            self.log.producers.complete_write(work)

    @rule()
    def flush(self) -> None:
        flush = self.log.begin_flush(0.0)
        flush.perform(self.files)
        self.log.complete_flush(flush)

    @rule(distance=st.integers(1, 12))
    def truncate(self, distance: int) -> None:
        """Never below the high watermark: what is committed is not cut."""
        start, end = self.log.log_start_offset, self.log.log_end_offset
        work: Truncation = self.log.begin_truncate(max(start, self.stable, end - distance))
        work.perform(self.files)
        self.log.end_truncate()
        self._lose()

    @rule(data=st.data())
    def trim(self, data: Any) -> None:
        """Up to the last stable offset, as retention does."""
        mark = self.stable
        stable = self.log.transactions.last_stable_offset(mark)
        bases = [segment.base_offset for segment in self.log.segments]
        offset = min(data.draw(st.sampled_from(bases)), self.log.durable_end_offset, stable)
        work = self.log.plan_trim(offset)
        if work is None:
            return
        if work.removed:
            self.log.producers.cover(work.first_offset, self.log.log_end_offset)
            self.write_snapshots()
            self.flush()
        work.prepare(self.files)
        work.perform(self.files)
        self.log.apply_trim(work)
        work.remove(self.files)

    @rule(power_lost=st.booleans(), seed=st.integers(0, 99))
    def crash(self, *, power_lost: bool, seed: int) -> None:
        self.files = self.files.photograph(Random(seed), power_lost=power_lost, reorder=True)
        self._reopen(Past(self.log.durable_end_offset, page_cache_survived=not power_lost))

    @rule()
    def restart(self) -> None:
        self.flush()
        self.log.write_indexes()
        self.log.producers.take_last(self.log.log_end_offset)
        self.write_snapshots()
        self._reopen(Past(self.log.log_end_offset, was_clean=True))

    def _reopen(self, past: Past) -> None:
        self.log = open_log(self.files, FOLDER, "orders/Partition-0", CONFIG, past)
        self._lose()

    def _lose(self) -> None:
        end = self.log.log_end_offset
        self.headers = [each for each in self.headers if each.base_offset < end]
        self.stable = min(self.stable, end)

    # -- what holds ------------------------------------------------------------------------

    @invariant()
    def stable_is_what_the_log_says(self) -> None:
        if not hasattr(self, "log"):
            return
        transactions = self.log.transactions
        for mark in range(self.stable, self.log.log_end_offset + 1):
            assert transactions.last_stable_offset(mark) == stable_offset(self.headers, mark)

    @invariant()
    def ended_is_what_the_log_says(self) -> None:
        """Planted: forgets_before_marker_is_committed."""
        if not hasattr(self, "log"):
            return
        for producer_id, epoch in self.outcomes:
            last = [each for each in self.headers if each.producer_id == producer_id][-1:]
            is_open = bool(last) and not last[0].is_marker and last[0].producer_epoch <= epoch
            end = max(
                (h.end_offset for h in self.headers if _is_marker_of(h, producer_id)), default=0
            )
            for mark in range(self.stable, self.log.log_end_offset + 1):
                is_ended = self.log.transactions.is_ended([producer_id], epoch, mark)
                assert is_ended == (not is_open and end <= mark), (producer_id, epoch, mark)

    @invariant()
    def nothing_open_is_forgotten(self) -> None:
        if not hasattr(self, "log"):
            return
        open_at: dict[int, tuple[int, int]] = {}
        for header in self.headers:
            if header.is_marker:
                assert open_at.pop(header.producer_id)[0] == header.producer_epoch - 1
            elif header.is_transactional:
                mine = header.producer_epoch, header.base_offset
                epoch, _ = open_at.setdefault(header.producer_id, mine)
                assert epoch == header.producer_epoch, "X3"
        found = self.log.transactions.open.items()
        assert [(pid, *each[:2]) for pid, each in found] == [
            (pid, *each) for pid, each in open_at.items()
        ]


def _batch(producer_id: int, epoch: int, sequence: int, count: int) -> bytes:
    data = encode_batch(
        values=[b"x" * 20] * count,
        timestamp=NOW_MS,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    return bytes(data)


def _is_marker_of(header: BatchHeader, producer_id: int) -> bool:
    return header.is_marker and header.producer_id == producer_id


def _headers(log: PartitionLog) -> list[BatchHeader]:
    return [found.header for segment in log.segments for found in segment.walk_all()]


TestTransactions = TransactionsAgainstWalk.TestCase
TestTransactions.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
