"""The random script of a crash sweep: two logs with appends, flushes, truncations, restarts.

Owns the load and the bookkeeping of what the logs owe (an Expectation each), not the crashes. One
action at a time, except that appends also happen while a worker thread would be inside the disk;
the "thread" runs inline, and its operations call back.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import trio

from raftmq.errors import StorageError
from raftmq.model import Durability
from raftmq.partition.storage.directory import LogId, open_log_directory
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.header import iter_batches, pack_prefix
from raftmq.wire.batch.records import encode_batch
from tests.simulation.crash_expectation import (
    Expectation,
    Violation,
    check_aborted,
    stored_batches,
)
from tests.simulation.deterministic import run_inline
from tests.simulation.producer_load import Numbers, transactional_batch
from tests.unit.storage.directories import retirable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.partition.storage.log import PartitionLog
    from raftmq.partition.storage.work import LogTrim
    from tests.simulation.disk import SimulatedFiles
    from tests.simulation.disk_faults import Moment

ROOT = Path("/data")
EPOCH_MS = 1_700_000_000_000
_SMALL = TopicConfig(
    segment_bytes=1024, index_interval_bytes=200, retention_ms=400_000, segment_ms=200_000
)
_CACHED = TopicConfig(
    segment_bytes=2048,
    index_interval_bytes=0,
    retention_bytes=8192,
    durability=Durability.PAGE_CACHE,
)
LOGS = ((LogId("orders-1", 0), _SMALL), (LogId("clicks-2", 7), _CACHED))
# Bytes of the values of a batch: one small record, several, one that spans sectors.
SHAPES = ((20,), (5, 60, 0), (30,) * 6, (700,))
APPENDS_MEANWHILE = 0.1  # probability at each operation of the worker thread
PREFIX_SIZE = 16
# Scripts from this seed on have transactions. The others have not: they would cut and roll less.
TRANSACTIONAL_SEED = 2000
T = TypeVar("T")


class Action(NamedTuple):
    weight: int
    perform: Callable[[PartitionLog], Awaitable[None]]


class CrashScript:
    """`interrupt` of the disk must call `on_operation`, or nothing is appended meanwhile."""

    def __init__(self, seed: int, disk: SimulatedFiles) -> None:
        self.random = Random(f"{seed}/script")
        self.disk = disk
        self.expectations = {log_id.name: Expectation() for log_id, _ in LOGS}
        self.epochs = dict.fromkeys(self.expectations, 0)
        self.logs: dict[str, PartitionLog] = {}
        self.now_ms = EPOCH_MS
        # Whether the worker "thread" is running, and the loop might append at the same time.
        self._is_in_worker = self._may_append = False
        self._directory: LogDirectory
        self._actions = [
            Action(30, self._append),
            Action(25 if seed >= TRANSACTIONAL_SEED else 0, self._append_transactional),
            Action(15, self._flush),
            Action(8, self._new_epoch),
            Action(6, self._truncate),
            Action(2, self._start_over),
            Action(4, self._delete_records),
            Action(4, self._enforce_retention),
            Action(4, self._checkpoint),
            Action(4, self._sleep),
        ]

    async def run(self, operations: int) -> None:
        """Until the disk has counted that many operations, or has failed."""
        while self.disk.count < operations and not self.disk.has_failed:
            async with open_log_directory(
                ROOT, files=self.disk, run_sync=self._run_sync, now_ms=lambda: self.now_ms
            ) as self._directory:
                opened = await self._directory.open_logs(LOGS)
                self._check_reopened(opened)
                self.logs = {log.name: log for log in opened}
                for log in opened:
                    retirable(log)
                    self._watch_trims(log)
                end = min(operations, self.disk.count + self.random.randrange(20, 200))
                while self.disk.count < end and not self.disk.has_failed:
                    await self._act()
            if not self.disk.has_failed:
                self.logs = {}

    def _watch_trims(self, log: PartitionLog) -> None:
        plan, expectation = log.plan_trim, self.expectations[log.name]

        def plan_trim(log_start_offset: int) -> LogTrim | None:
            trim = plan(log_start_offset)
            if trim:
                expectation.request_trim(trim.log_start_offset)
            return trim

        log.plan_trim = plan_trim  # type: ignore[method-assign]

    def observe(self) -> dict[str, Expectation]:
        """What is owed at this moment."""
        for name, log in self.logs.items():
            self.expectations[name].observe(log)
        return {name: expectation.copy() for name, expectation in self.expectations.items()}

    def on_operation(self, moment: Moment) -> None:
        """The worker is inside the disk: sometimes the loop appends meanwhile."""
        if not (self._is_in_worker and self._may_append) or moment == "torn":
            return
        if self.random.random() < APPENDS_MEANWHILE:
            self._is_in_worker = False
            with suppress(StorageError):  # the log is offline then, which everybody will see
                self._append_now(self._any_log())
            self._is_in_worker = True

    async def _run_sync(self, function: Callable[[], T], /) -> T:
        def in_worker() -> T:
            self._is_in_worker = True
            try:
                return function()
            finally:
                self._is_in_worker = False

        return await run_inline(in_worker)

    def _check_reopened(self, logs: list[PartitionLog]) -> None:
        for log in logs:
            served = self.expectations[log.name].check(log, random=self.random, power_lost=False)
            if not log.report.clean:
                raise Violation(f"{log.name} was closed, and is not found clean")
            if log.durable_end_offset != self.expectations[log.name].end_offset:
                raise Violation(f"{log.name} was closed with {len(served)} batches not durable")

    async def _act(self) -> None:
        weights = [action.weight for action in self._actions]
        action = self.random.choices(self._actions, weights)[0]
        self.now_ms += self.random.randrange(20_000)
        self._may_append = action.perform not in (self._truncate, self._start_over)
        await action.perform(self._any_log())
        self._may_append = False

    def _any_log(self) -> PartitionLog:
        log_id, _ = self.random.choice((LOGS[0], LOGS[0], LOGS[1]))
        return self.logs[log_id.name]

    # -- actions ---------------------------------------------------------------------------

    async def _append(self, log: PartitionLog) -> None:
        for _ in range(self.random.randrange(1, 4)):
            self._append_now(log)
            for _ in range(self.random.choice((0, 0, 1, 2))):
                await trio.lowlevel.checkpoint()

    def _append_now(self, log: PartitionLog) -> None:
        if log.offline_reason:
            return
        expectation = self.expectations[log.name]
        epoch = self.epochs[log.name]
        data, placed = make_batches(self.random, log, epoch=epoch, timestamp=self.now_ms)
        expectation.begin_append(stored_batches(placed))
        now = trio.current_time()
        if self.random.random() < 0.7:
            log.append(data, leader_epoch=epoch, now_ms=self.now_ms, now=now)
        else:
            log.append_replicated(placed, leader_epoch=epoch, now=now)
        expectation.complete_append()

    async def _append_transactional(self, log: PartitionLog) -> None:
        """As a follower: who may write what is the leader's business."""
        if log.offline_reason:
            return
        expectation, epoch = self.expectations[log.name], self.epochs[log.name]
        for _ in range(self.random.randrange(1, 4)):
            values = [self.random.randbytes(size) for size in self.random.choice(SHAPES)]
            sent = transactional_batch(self.random, log, values, self.now_ms)
            placed = placed_at(log.log_end_offset, sent, epoch)
            expectation.begin_append(stored_batches(placed))
            log.append_replicated(placed, leader_epoch=epoch, now=trio.current_time())
            expectation.complete_append()

    async def _flush(self, log: PartitionLog) -> None:
        await self._directory.flusher.wait_durable(log, log.log_end_offset)

    async def _new_epoch(self, log: PartitionLog) -> None:
        self.epochs[log.name] += self.random.randrange(1, 3)
        if self.random.random() < 0.5:
            log.assign_epoch(self.epochs[log.name])

    async def _truncate(self, log: PartitionLog) -> None:
        few, all_ = int(self.random.expovariate(1 / 8)), log.log_end_offset - log.log_start_offset
        distance = self.random.choice((few, few, self.random.randrange(all_ + 1)))
        offset = log.log_end_offset - min(distance, all_)
        expectation = self.expectations[log.name]
        expectation.begin_truncate(offset)
        await self._directory.truncate(log, offset)
        expectation.complete_truncate(log)
        expectation.check_producers(log)
        check_aborted(log)

    async def _start_over(self, log: PartitionLog) -> None:
        offset = max(0, log.log_end_offset + self.random.choice((-20, 0, 1, 50)))
        expectation = self.expectations[log.name]
        expectation.begin_start_over(offset)
        await self._directory.start_over(log, offset)
        expectation.complete_truncate(log)
        expectation.check_producers(log)

    async def _delete_records(self, log: PartitionLog) -> None:
        span = log.log_end_offset - log.log_start_offset
        offset = log.log_start_offset + int(span * self.random.random() ** 2)
        await self._directory.delete_records(log, self.random.choice((offset, log.log_end_offset)))
        self.expectations[log.name].complete_trim(log)

    async def _enforce_retention(self, _log: PartitionLog) -> None:
        self.now_ms += self.random.choice((0, 100_000, 1_000_000))
        await self._directory.enforce_retention(self.now_ms)
        for log in self.logs.values():
            if not log.offline_reason:
                self.expectations[log.name].complete_trim(log)

    async def _checkpoint(self, _log: PartitionLog) -> None:
        await self._directory.checkpoint()

    async def _sleep(self, _log: PartitionLog) -> None:
        await trio.sleep(self.random.random() * 8)


def make_batches(
    random: Random, log: PartitionLog, *, epoch: int, timestamp: int
) -> tuple[bytes, bytes]:
    """One to three batches as producers send them, and as the log will store them."""
    numbers = Numbers(random, log.producers.now)
    sent = b"".join(
        _make_batch(random, timestamp, numbers) for _ in range(random.choice((1, 1, 2, 3)))
    )
    return sent, placed_at(log.log_end_offset, sent, epoch)


def placed_at(offset: int, sent: bytes, epoch: int) -> bytes:
    """As a log that ends at `offset` will store them."""
    placed = b""
    for at, header in iter_batches(sent):
        placed += pack_prefix(header, base_offset=offset, leader_epoch=epoch)
        placed += sent[at + PREFIX_SIZE : at + header.size]
        offset += header.record_count
    return placed


def _make_batch(random: Random, timestamp: int, numbers: Numbers) -> bytes:
    values = [random.randbytes(size) for size in random.choice(SHAPES)]
    number = numbers.take(len(values))
    stamp = timestamp - random.randrange(5000)
    return bytes(encode_batch(values=values, timestamp=stamp, **number))
