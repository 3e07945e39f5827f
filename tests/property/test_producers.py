"""Producers with numbers against a plain list of batches, through rolls, cuts, trims and crashes.

Every batch that was accepted stands in the log once and in order; one that is sent again is told
where it stands; a life under a name finds what those before it wrote of the same generation, and
none of those writes any more. What the log knows is what all batches say that it ever had and did
not lose, and a replica that copies it knows the same.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from raftmq.errors import (
    CorruptRecord,
    DuplicateSequence,
    InvalidProducerEpoch,
    OutOfOrderSequence,
    ProducerFenced,
    UnknownProducerId,
)
from raftmq.partition.sequences import ProducerState
from raftmq.partition.storage.known_producers import account_in, list_snapshots, load_snapshot
from raftmq.partition.storage.log import Appended
from raftmq.partition.storage.recovery import Past, open_log
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.header import NAMED_FIRST, Account
from raftmq.wire.batch.records import encode_batch
from tests.simulation.disk import SimulatedFiles
from tests.simulation.producer_reference import SEQUENCES, producers_in

if TYPE_CHECKING:
    from raftmq.partition.storage.log import PartitionLog
    from raftmq.partition.storage.work import LogStartOver, Truncation
    from raftmq.wire.batch.header import BatchHeader

FOLDER = Path("/data/topics/orders/Partition-0")
CONFIG = TopicConfig(segment_bytes=600, index_interval_bytes=200)
NOW_MS = 1_000_000
PRODUCERS = st.integers(0, 3)
COUNTS = st.integers(1, 3)
NAMES = st.integers(NAMED_FIRST, NAMED_FIRST + 2)


class Numbers(NamedTuple):
    """Of a batch, as its producer sends it."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    account: Account | None = None

    def encoded(self) -> bytes:
        return bytes(
            encode_batch(
                values=[b"x" * 20] * self.count,
                timestamp=NOW_MS,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=self.base_sequence,
                account=self.account,
            )
        )


def numbers_of(header: BatchHeader) -> Numbers:
    return Numbers(*header[9:12], header.record_count)


class ProducersAgainstList(RuleBasedStateMachine):
    """`batches` is the model: all that the log had and did not lose, but for what was trimmed and
    no snapshot kept."""

    def __init__(self) -> None:
        super().__init__()
        self.files = SimulatedFiles(Random(0))
        self.batches: list[BatchHeader] = []
        self.accounts: dict[int, Account] = {}  # by offset, of those among them that say something
        self.covering: int | None = None  # where the snapshot stands that keeps what was trimmed
        self.log: PartitionLog

    @initialize()
    def create(self) -> None:
        self.log = open_log(self.files, FOLDER, "orders/Partition-0", CONFIG)

    # -- sending ---------------------------------------------------------------------------

    def _next_of(self, producer_id: int, count: int, *, new_epoch: bool = False) -> Numbers:
        known = self._known().get(producer_id)
        epoch, sequence = known[:2] if known else (0, 0)
        if new_epoch:
            epoch, sequence = epoch + 1, 0
        return Numbers(producer_id, epoch, sequence, count)

    def _known(self) -> dict[int, ProducerState]:
        return producers_in(self.batches, self.accounts)

    def _send(self, *batches: Numbers) -> Appended:
        data = b"".join(each.encoded() for each in batches)
        start = self.log.log_end_offset
        appended = self.log.append(data, leader_epoch=0, now_ms=NOW_MS, now=0.0)
        self._note_from(start)
        return appended

    def _note_from(self, start: int) -> None:
        self.batches += [header for header in headers_of(self.log) if header.base_offset >= start]
        self.accounts |= {
            offset: account for offset, account in accounts_of(self.log).items() if offset >= start
        }

    @rule(producer_id=PRODUCERS, count=COUNTS, new_epoch=st.booleans())
    def send(self, producer_id: int, count: int, *, new_epoch: bool) -> None:
        end = self.log.log_end_offset
        appended = self._send(self._next_of(producer_id, count, new_epoch=new_epoch))
        assert appended == Appended(end, end + count, ())

    @rule(batches=st.lists(st.tuples(st.integers(-1, 3), COUNTS), min_size=3, max_size=12))
    def send_many(self, batches: list[tuple[int, int]]) -> None:
        """Some of them without a producer id."""
        for producer_id, count in batches:
            nameless = Numbers(-1, -1, -1, count)
            self._send(self._next_of(producer_id, count) if producer_id >= 0 else nameless)

    @rule(producer_id=PRODUCERS, count=COUNTS, data=st.data())
    def send_old_and_new(self, producer_id: int, count: int, data: Any) -> None:
        """In one request: some of the last that were accepted, and the next one."""
        mine = self._of_epoch_of(producer_id)[-5:]
        old = mine[len(mine) - data.draw(st.integers(0, len(mine))) :]
        end = self.log.log_end_offset
        new = self._next_of(producer_id, count)
        appended = self._send(*map(numbers_of, old), new)
        assert self.log.log_end_offset == appended.end_offset == end + count
        if old:
            assert appended.base_offsets == (*(each.base_offset for each in old), end)

    @precondition(lambda self: any(0 <= each.producer_id < 4 for each in self.batches))
    @rule(data=st.data())
    def send_again(self, data: Any) -> None:
        """Any batch that was ever accepted: told where it is, or that it is there, or over."""
        numbered = [each for each in self.batches if 0 <= each.producer_id < 4]
        old = data.draw(st.sampled_from(numbered))
        end, mine = self.log.log_end_offset, self._of_epoch_of(old.producer_id)
        if old not in mine:
            with pytest.raises(InvalidProducerEpoch):
                self._send(numbers_of(old))
        elif old in mine[-5:]:
            again = Appended(old.base_offset, old.end_offset, (old.base_offset,))
            assert self._send(numbers_of(old)) == again
        else:
            self._send_long_ago(old)
        assert self.log.log_end_offset == end

    def _send_long_ago(self, old: BatchHeader) -> None:
        try:
            assert self._send(numbers_of(old)).base_offset == old.base_offset
        except DuplicateSequence:
            assert len(self._known()[old.producer_id].runs) == 5

    def _of_epoch_of(self, producer_id: int) -> list[BatchHeader]:
        mine = [each for each in self.batches if each.producer_id == producer_id]
        return [each for each in mine if each.producer_epoch == mine[-1].producer_epoch]

    @rule(producer_id=PRODUCERS, distance=st.integers(1, 1000), count=COUNTS)
    def leave_a_gap(self, producer_id: int, distance: int, count: int) -> None:
        following = self._next_of(producer_id, count)
        sequence = (following.base_sequence + distance) % SEQUENCES
        with pytest.raises((OutOfOrderSequence, UnknownProducerId)):
            self._send(following, following._replace(base_sequence=sequence + count))
        with pytest.raises((OutOfOrderSequence, UnknownProducerId)):
            self._send(following._replace(base_sequence=sequence))

    # -- names -----------------------------------------------------------------------------

    @rule(name=NAMES, more=st.sampled_from((0, 0, 0, 1, 7)), partition_count=st.integers(0, 3))
    def fence(self, name: int, more: int, partition_count: int) -> None:
        """A new life finds what stands there, if its generation is not a higher one."""
        known, end = self._known().get(name), self.log.log_end_offset
        generation = max(0, known.generation if known else 0) + more
        expected = self._expected_life(known, generation, partition_count)
        fenced = self.log.append_fence(
            name,
            generation,
            partition_count=partition_count,
            leader_epoch=0,
            now_ms=NOW_MS,
            now=0.0,
        )
        assert fenced == (expected, end + 1)
        self._note_from(end)

    def _expected_life(
        self, known: ProducerState | None, generation: int, count: int
    ) -> ProducerState:
        epoch = known.epoch + 1 if known else 0
        if known is None or generation != known.generation:
            return ProducerState(epoch, 0, (), generation, 0, count)
        count = known.partition_count or count
        return ProducerState(epoch, known.next_sequence, (), generation, known.digest, count)

    @precondition(lambda self: any(each >= NAMED_FIRST for each in self._known()))
    @rule(counts=st.lists(COUNTS, min_size=1, max_size=4), again=st.booleans(), data=st.data())
    def send_named(self, counts: list[int], again: bool, data: Any) -> None:
        """The digest of a batch is its number of records, ever since its generation began."""
        name = data.draw(st.sampled_from([each for each in self._known() if each >= NAMED_FIRST]))
        for count in counts:
            numbers, end = self._next_named(name, count), self.log.log_end_offset
            assert self._send(numbers) == Appended(end, end + count, ())
            if again:
                assert self._send(numbers) == Appended(end, end + count, (end,))

    def _next_named(self, name: int, count: int) -> Numbers:
        epoch, first, _, generation, *_ = self._known()[name]
        return Numbers(name, epoch, first, count, Account(generation, first + count))

    @rule(name=NAMES, count=COUNTS, behind=st.integers(1, 3))
    def send_of_a_life_before(self, name: int, count: int, behind: int) -> None:
        known, end = self._known().get(name), self.log.log_end_offset
        if known is None:
            numbers = Numbers(name, 0, 0, count, Account(0, count))
        else:
            numbers = self._next_named(name, count)._replace(producer_epoch=known.epoch + behind)
        with pytest.raises(UnknownProducerId if known is None else ProducerFenced):
            self._send(Numbers(-1, -1, -1, 1), numbers)
        if known is not None and known.generation:
            with pytest.raises(ProducerFenced):
                self.log.append_fence(
                    name, known.generation - 1, leader_epoch=0, now_ms=NOW_MS, now=0.0
                )
        assert self.log.log_end_offset == end

    # -- what becomes of the log -----------------------------------------------------------

    @rule()
    def roll(self) -> None:
        if self.log.active.size:
            self.log.roll()

    @rule()
    def write_snapshots(self) -> None:
        self._write(is_durable=True)

    def _write(self, *, is_durable: bool) -> None:
        work = self.log.producers.begin_write(self.log.segments, is_durable=is_durable)
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
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self._cut(self.log.begin_truncate(max(start, end - distance)))

    @precondition(lambda self: len(self.batches) > 30)
    @rule(distance=st.integers(-30, 30))
    def start_over(self, distance: int) -> None:
        self.batches.clear()
        self.covering = None
        self._cut(self.log.begin_start_over(max(0, self.log.log_end_offset + distance)))

    def _cut(self, work: Truncation | LogStartOver) -> None:
        work.perform(self.files)
        self.log.end_truncate()
        if self.covering is not None and self.log.log_end_offset < self.covering:
            self.covering = None
        self._lose(in_memory=True)

    @rule(data=st.data())
    def trim(self, data: Any) -> None:
        bases = [segment.base_offset for segment in self.log.segments]
        offset = data.draw(st.sampled_from(bases)) + data.draw(st.integers(0, 2))
        work = self.log.plan_trim(min(offset, self.log.durable_end_offset))
        if work is None:
            return
        if work.removed:
            self.covering = self.log.producers.cover(work.first_offset, self.log.log_end_offset)
            self._write(is_durable=True)
            self.flush()
        work.prepare(self.files)
        work.perform(self.files)
        self.log.apply_trim(work)
        work.remove(self.files)

    @rule(power_lost=st.booleans(), reorder=st.booleans(), seed=st.integers(0, 99))
    def crash(self, *, power_lost: bool, reorder: bool, seed: int) -> None:
        past = Past(self.log.durable_end_offset, page_cache_survived=not power_lost)
        self.files = self.files.photograph(Random(seed), power_lost=power_lost, reorder=reorder)
        self._reopen(past)

    @rule()
    def close(self) -> None:
        self.flush()
        self.log.write_indexes()
        self.log.producers.take_last(self.log.log_end_offset)
        self._write(is_durable=False)
        self._reopen(Past(self.log.log_end_offset, was_clean=True))

    def _reopen(self, past: Past) -> None:
        self.log = open_log(self.files, FOLDER, "orders/Partition-0", CONFIG, past)
        assert self.log.damage is None
        self._lose(in_memory=False)

    def _lose(self, *, in_memory: bool) -> None:
        """What is behind the end, and what was trimmed, if no snapshot below the end has it."""
        first, end = self.log.segments[0].base_offset, self.log.log_end_offset
        offsets = [each for each in list_snapshots(self.files, FOLDER) if self._is_sound(each)]
        if in_memory:
            offsets += [each.end_offset for each in self.log.producers._waiting]
        if not any(first <= offset <= end for offset in offsets):
            assert self.covering is None, "what was trimmed should be known"
            self.batches = [each for each in self.batches if each.base_offset >= first]
        self.batches = [each for each in self.batches if each.base_offset < end]
        left = self.accounts.keys() & {each.base_offset for each in self.batches}
        self.accounts = {offset: self.accounts[offset] for offset in left}

    def _is_sound(self, offset: int) -> bool:
        try:
            load_snapshot(self.files, FOLDER, offset)
        except CorruptRecord:
            return False
        return True

    # -- what holds ------------------------------------------------------------------------

    @invariant()
    def knows_what_all_batches_say(self) -> None:
        if hasattr(self, "log"):
            assert self.log.producers.now.picture().known == self._known()

    @invariant()
    def holds_each_batch_once_and_in_order(self) -> None:
        if not hasattr(self, "log"):
            return
        last: dict[int, tuple[int, int]] = {}
        for header in headers_of(self.log):
            before = last.get(header.producer_id)
            number = (header.producer_epoch, header.base_sequence)
            if header.producer_id >= 0 and before is not None:
                again = before if header.producer_id < NAMED_FIRST else (before[0] + 1, before[1])
                assert number in (before, (before[0] + 1, 0), again)
            counted = 0 if header.is_control else header.record_count
            last[header.producer_id] = (number[0], number[1] + counted)

    def teardown(self) -> None:
        """A replica that copies the log knows what is in it."""
        if hasattr(self, "log"):
            copy = copied(self.log)
            known = producers_in(headers_of(copy), accounts_of(copy))
            assert copy.producers.now.picture().known == known


def headers_of(log: PartitionLog) -> list[BatchHeader]:
    return [found.header for segment in log.segments for found in segment.walk_all()]


def accounts_of(log: PartitionLog) -> dict[int, Account]:
    return {
        found.header.base_offset: account
        for segment in log.segments
        for found in segment.walk_all()
        if (account := account_in(segment.file, found)) is not None
    }


def copied(log: PartitionLog) -> PartitionLog:
    files = SimulatedFiles(Random(0))
    copy = open_log(files, FOLDER, "orders/Partition-0", CONFIG)
    work = copy.begin_start_over(log.segments[0].base_offset)
    work.perform(files)
    copy.end_truncate()
    for segment in log.segments:
        if segment.size:
            data = segment.file.read(0, segment.size)
            copy.append_replicated(data, leader_epoch=0, now=0.0)
    return copy


TestProducersAgainstList = ProducersAgainstList.TestCase
TestProducersAgainstList.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, phases=[Phase.generate, Phase.shrink]
)
