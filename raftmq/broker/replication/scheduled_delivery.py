"""Delivery of scheduled records when they are due; carries forward what retention would delete.

Owns when the leaders on this broker append: one timing wheel has the next due time of each
partition, and a partition without scheduled records costs nothing (RocketMQ: TimerMessageStore).
Originals are read from the page cache, or in worker threads; `partition/scheduling/leading.py` asks
once more what is pending when it appends. Exactly once comes from the log alone: this task may die
between any two steps.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, NoReturn, Protocol

import trio

from raftmq.broker.timing_wheel import TimingWheel
from raftmq.errors import CorruptRecord, StorageError
from raftmq.partition.scheduling.leading import (
    APPENDED_BYTES_MAX,
    LedLog,
    ReadOriginal,
    carry_forward,
    deliver,
)
from raftmq.wire.bodies import ACKS_ALL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from raftmq.partition.replica import Replica
    from raftmq.partition.replica_environment import PartitionKey
    from raftmq.partition.scheduling.columns import ScheduledEntry
    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.partition.storage.log import PartitionLog

logger = logging.getLogger("raftmq.broker")

# Of one partition, delivered and not committed yet: what a leader of a later epoch repeats. What is
# appended at once is more, APPENDED_BYTES_MAX and a batch.
AHEAD_BYTES_MAX = 4 << 20
TAKEN_AT_ONCE = 256  # batches that are read for one append
AT_ONCE = 64  # partitions whose originals are read at a time
# A clock that was set forward makes a batch late by so much, while this task sleeps.
SLEEP_SECONDS_MAX = 1.0
RETRY_SECONDS = 1.0  # after rot, or a disk that refuses
COMMIT_SECONDS = 10.0  # how long one wait for the followers takes at the most
FAILED_MAX = 10_000  # batches of one partition that cannot be delivered now
CARRY_SECONDS = 10.0  # between looks at what retention would delete


class UncommittedDeliveries:
    """What was delivered of one partition in one leadership, and is not committed yet."""

    def __init__(self, led: LedLog) -> None:
        self.led = led
        self._parts: deque[tuple[int, int]] = deque()  # end offset and bytes
        self._bytes = 0

    def add(self, end_offset: int, length: int) -> None:
        self._parts.append((end_offset, length))
        self._bytes += length

    def bytes_beyond(self, high_watermark: int) -> int:
        while self._parts and self._parts[0][0] <= high_watermark:
            self._bytes -= self._parts.popleft()[1]
        return self._bytes


class LedReplicas(Protocol):
    """The replicas on this broker, see `replicas.Replicas`."""

    def find(self, key: PartitionKey) -> Replica | None: ...
    def all(self) -> Iterable[Replica]: ...


class ScheduledDelivery:
    """Delivers nothing before `run`."""

    def __init__(self, hosting: LedReplicas, directory: LogDirectory) -> None:
        self._hosting, self._directory = hosting, directory
        self._wheel: TimingWheel[PartitionKey] = TimingWheel(directory.now_ms())
        self._due: dict[PartitionKey, int] = {}  # what the wheel has
        self._changed: dict[PartitionKey, None] = {}  # to be put into the wheel
        self._busy: set[PartitionKey] = set()  # their originals are being read
        self._ahead: dict[PartitionKey, UncommittedDeliveries] = {}
        self._room = trio.CapacityLimiter(AT_ONCE)
        self._woken = trio.Event()

    def on_pending(self, key: PartitionKey, due_ms: int) -> None:
        """That partition is led here, and is due then next."""
        # Nearly always something else of the partition is due before what was just appended.
        if self._due.get(key) != due_ms and key not in self._busy:
            self._changed[key] = None
            self._woken.set()

    async def run(self) -> NoReturn:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_carrying)
            while True:
                self._set_due()
                for key in self._wheel.advance(self._directory.now_ms()):
                    del self._due[key]
                    self._busy.add(key)
                    nursery.start_soon(self._deliver_from, key)
                # Until the next one is due, or another one may be due before.
                with trio.move_on_after(self._sleep_seconds()):
                    await self._woken.wait()
                self._woken = trio.Event()

    def _set_due(self) -> None:
        changed, self._changed = self._changed, {}
        for key in changed:
            if key in self._busy:  # it is put in again afterwards
                continue
            led = self._led_log(key)
            due_ms = None if led is None else led.log.schedule.next_due()
            if due_ms is None:
                self._wheel.discard(key)
                self._due.pop(key, None)
                self._ahead.pop(key, None)
            else:
                self._wheel.set(key, due_ms)
                self._due[key] = due_ms

    def _led_log(self, key: PartitionKey) -> LedLog | None:
        replica = self._hosting.find(key)
        return None if replica is None else LedLog.of(replica)

    def _sleep_seconds(self) -> float:
        due_ms = self._wheel.next_due()
        if due_ms is None:
            return float("inf")
        seconds = max(0.0, (due_ms - self._directory.now_ms()) / 1000)
        return min(seconds, SLEEP_SECONDS_MAX)

    # -- delivering ------------------------------------------------------------------------

    async def _deliver_from(self, key: PartitionKey) -> None:
        """Deliver what is due of one partition."""
        # Rot, which another task looks at, or a disk that refuses: tried again after a pause, while
        # others are delivered.
        failed: list[int] = []
        log: PartitionLog | None = None
        try:
            while len(failed) < FAILED_MAX:
                replica = self._hosting.find(key)
                led = None if replica is None else LedLog.of(replica)
                if replica is None or led is None:
                    break
                log, ahead = led.log, self._ahead_of(key, led)
                if ahead.bytes_beyond(replica.high_watermark) >= AHEAD_BYTES_MAX:
                    await self._committed(replica, led)
                    continue
                async with self._room:  # until others have read theirs
                    if not await self._deliver_some(replica, led, failed, ahead):
                        break
                await trio.lowlevel.checkpoint()
            if failed:
                await trio.sleep(RETRY_SECONDS)
        finally:
            if log is not None:
                for base_offset in failed:
                    log.schedule.give_back(base_offset)
            self._busy.discard(key)
            self._changed[key] = None
            self._woken.set()

    def _ahead_of(self, key: PartitionKey, led: LedLog) -> UncommittedDeliveries:
        known = self._ahead.get(key)
        if known is None or known.led != led:
            known = self._ahead[key] = UncommittedDeliveries(led)
        return known

    async def _deliver_some(
        self, replica: Replica, led: LedLog, failed: list[int], ahead: UncommittedDeliveries
    ) -> bool:
        """False: nothing is due any more. What cannot be delivered now stays taken."""
        schedule = led.log.schedule
        taken = schedule.take_due(self._directory.now_ms(), TAKEN_AT_ONCE)
        left: Sequence[ScheduledEntry] = taken
        try:
            while left:
                some, left = await self._read(led, left)
                length = deliver(replica, led, some, now_ms=self._directory.now_ms())
                if length:
                    ahead.add(led.log.log_end_offset, length)
                if ahead.bytes_beyond(replica.high_watermark) >= AHEAD_BYTES_MAX:
                    for entry in left:
                        schedule.give_back(entry.base_offset)
                    break
        except StorageError as error:
            logger.warning("delivery has to wait: log=%s reason=%s", led.log.name, error)
        failed += [one.base_offset for one in taken if schedule.is_taken(one.base_offset)]
        return bool(taken)

    async def _read(
        self, led: LedLog, entries: Sequence[ScheduledEntry]
    ) -> tuple[list[ReadOriginal], Sequence[ScheduledEntry]]:
        """As many as one append takes, and those that are left. What cannot be read is left out."""
        some, length, number = list[ReadOriginal](), 0, 0
        unread, reason = list[int](), ""
        while number < len(entries) and length < APPENDED_BYTES_MAX:
            offset = entries[number].base_offset
            try:
                data = await self._directory.read(led.log.slice_of(entries[number]))
            except (CorruptRecord, StorageError) as error:
                unread.append(offset)
                reason = reason or str(error)
            else:
                some.append(ReadOriginal(offset, data))
                length += len(data)
            number += 1
        if unread:  # one line for all of them: it comes again with each attempt
            logger.warning(
                "cannot be read: log=%s batches=%d first_offset=%d reason=%s",
                led.log.name, len(unread), unread[0], reason,
            )  # fmt: skip
        return some, entries[number:]

    async def _committed(self, replica: Replica, led: LedLog) -> None:
        """Wait until all that was appended is committed, or this leadership is over."""
        ended = trio.Event()
        waiter = replica.on_acks(
            led.log.log_end_offset,
            lambda _error: ended.set(),
            acks=ACKS_ALL,
            leader_epoch=led.leader_epoch,
            deadline=trio.current_time() + COMMIT_SECONDS,
        )
        if waiter is not None:
            await ended.wait()
        else:  # known at once; callers loop
            await trio.lowlevel.checkpoint()

    # -- carrying forward ------------------------------------------------------------------

    async def _run_carrying(self) -> NoReturn:
        while True:
            await trio.sleep(CARRY_SECONDS)
            await self._carry_all()

    async def _carry_all(self) -> None:
        """A function of its own: its loop variable would keep the last replica's files open."""
        for replica in list(self._hosting.all()):
            log = replica.log
            if log.schedule.pending_count and log.wanted_start > log.log_start_offset:
                await self._carry_for_retention(replica)

    async def _carry_for_retention(self, replica: Replica) -> None:
        led = LedLog.of(replica)
        if led is None:
            return
        log = led.log
        end_offset = min(log.wanted_start, replica.deletable_end)
        size = sum(one.size for one in log.segments[:-1] if one.end_offset <= end_offset)
        if log.schedule.is_worth_carrying(end_offset, size):
            try:
                await self._carry(replica, led, end_offset)
            except StorageError as error:  # tried again
                logger.warning("not carried forward: log=%s reason=%s", log.name, error)

    async def _carry(self, replica: Replica, led: LedLog, end_offset: int) -> None:
        begin, length = 0, 0
        while led.lasts(replica):
            entries = led.log.schedule.pending_from(begin, end_offset, TAKEN_AT_ONCE)
            if not entries:
                return
            begin = entries[-1].base_offset + 1
            left: Sequence[ScheduledEntry] = entries
            while left:
                some, left = await self._read(led, left)
                length += carry_forward(replica, led, some)
                if length >= AHEAD_BYTES_MAX:
                    await self._committed(replica, led)
                    length = 0
            await trio.lowlevel.checkpoint()

    async def settle_before(self, replica: Replica, end_offset: int) -> bool:
        """Carry forward all that is pending before that offset, and wait until the copies are
        committed. False: something scheduled there is in a transaction that is open, or cannot be
        read, or this leadership has ended.

        Raises:
            StorageError: the disk refused.
        """
        led = LedLog.of(replica)
        if led is None:
            return False
        schedule = led.log.schedule
        if schedule.is_empty or schedule.is_settled_before(end_offset, replica.settled_bound):
            return True
        if schedule.has_undecided(end_offset):
            return False
        await self._carry(replica, led, end_offset)
        await self._committed(replica, led)
        # Not only in the page cache: the deletion is durable at once.
        await self._directory.flusher.wait_durable(led.log, led.log.log_end_offset)
        return schedule.is_settled_before(end_offset, replica.settled_bound)
