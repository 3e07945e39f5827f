"""Delivery of scheduled records when they are due; carries forward what retention would delete.

Owns when the leaders on this broker append: one timing wheel has the next due time of each
partition, and a partition without scheduled records costs nothing (RocketMQ: TimerMessageStore).
Originals are read from the page cache, or in worker threads; `partition/scheduling/leading.py` asks
once more what is pending when it appends. Exactly once comes from the log alone: this task may die
between any two steps.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NoReturn, Protocol

import trio

from raftmq.broker.timing_wheel import TimingWheel
from raftmq.errors import CorruptRecord, StorageError
from raftmq.partition.scheduling.leading import (
    APPENDED_BYTES_MAX,
    ReadOriginal,
    Reign,
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

logger = logging.getLogger("raftmq.broker")

# Of one partition, delivered and not committed yet: what a leader of a later epoch repeats.
AHEAD_BYTES_MAX = 4 << 20
TAKEN_AT_ONCE = 256  # batches that are read for one append
AT_ONCE = 64  # partitions whose originals are read at a time
# A clock that was set forward makes a batch late by so much, while this task sleeps.
SLEEP_SECONDS_MAX = 1.0
RETRY_SECONDS = 1.0  # after rot, or a disk that refuses
COMMIT_SECONDS = 10.0  # how long one wait for the followers takes at the most
CARRY_SECONDS = 10.0  # between looks at what retention would delete


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
            reign = self._reign_of(key)
            due_ms = None if reign is None else reign.log.schedule.next_due()
            if due_ms is None:
                self._wheel.discard(key)
                self._due.pop(key, None)
            else:
                self._wheel.set(key, due_ms)
                self._due[key] = due_ms

    def _reign_of(self, key: PartitionKey) -> Reign | None:
        replica = self._hosting.find(key)
        return None if replica is None else Reign.of(replica)

    def _sleep_seconds(self) -> float:
        due_ms = self._wheel.next_due()
        if due_ms is None:
            return float("inf")
        seconds = max(0.0, (due_ms - self._directory.now_ms()) / 1000)
        return min(seconds, SLEEP_SECONDS_MAX)

    # -- delivering ------------------------------------------------------------------------

    async def _deliver_from(self, key: PartitionKey) -> None:
        """Deliver what is due of one partition."""
        try:
            async with self._room:  # until others have read theirs
                is_done = await self._deliver_due(key)
            if not is_done:  # rot, which another task looks at, or a disk that refuses
                await trio.sleep(RETRY_SECONDS)
        finally:
            self._busy.discard(key)
            self._changed[key] = None
            self._woken.set()

    async def _deliver_due(self, key: PartitionKey) -> bool:
        """False: something is due, and cannot be read or appended now."""
        ahead_bytes = 0
        while True:
            replica = self._hosting.find(key)
            reign = None if replica is None else Reign.of(replica)
            if replica is None or reign is None:
                return True
            taken = reign.log.schedule.take_due(self._directory.now_ms(), TAKEN_AT_ONCE)
            if not taken:
                return True
            length = await self._deliver(replica, reign, taken)
            if not length:
                return False
            ahead_bytes += length
            if ahead_bytes >= AHEAD_BYTES_MAX:
                await self._committed(replica, reign)
                ahead_bytes = 0
            await trio.lowlevel.checkpoint()

    async def _deliver(
        self, replica: Replica, reign: Reign, taken: Sequence[ScheduledEntry]
    ) -> int:
        """Returns the bytes of what was appended."""
        length, left = 0, taken
        try:
            while left:
                some, left = await self._read(reign, left)
                now_ms = self._directory.now_ms()
                length += deliver(replica, reign, some, now_ms=now_ms)
        except StorageError as error:
            logger.warning("delivery has to wait: log=%s reason=%s", reign.log.name, error)
        finally:
            # What could not be read, or is not due any more.
            for entry in taken:
                reign.log.schedule.give_back(entry.base_offset)
        return length

    async def _read(
        self, reign: Reign, entries: Sequence[ScheduledEntry]
    ) -> tuple[list[ReadOriginal], Sequence[ScheduledEntry]]:
        """As many as one append takes, and those that are left. What cannot be read is left out."""
        some, length = list[ReadOriginal](), 0
        for number, entry in enumerate(entries):
            if length >= APPENDED_BYTES_MAX:
                return some, entries[number:]
            try:
                data = await self._directory.read(reign.log.slice_of(entry))
            except (CorruptRecord, StorageError) as error:
                logger.warning("cannot be read: log=%s reason=%s", reign.log.name, error)
                continue
            some.append(ReadOriginal(entry.base_offset, data))
            length += len(data)
        return some, ()

    async def _committed(self, replica: Replica, reign: Reign) -> None:
        """Wait until all that was appended is committed, or this leadership is over."""
        ended = trio.Event()
        waiter = replica.on_acks(
            reign.log.log_end_offset,
            lambda _error: ended.set(),
            acks=ACKS_ALL,
            leader_epoch=reign.leader_epoch,
            deadline=trio.current_time() + COMMIT_SECONDS,
        )
        if waiter is not None:
            await ended.wait()

    # -- carrying forward ------------------------------------------------------------------

    async def _run_carrying(self) -> NoReturn:
        while True:
            await trio.sleep(CARRY_SECONDS)
            for replica in list(self._hosting.all()):
                log = replica.log
                if log.schedule.pending_count and log.wanted_start > log.log_start_offset:
                    await self._carry_for_retention(replica)

    async def _carry_for_retention(self, replica: Replica) -> None:
        reign = Reign.of(replica)
        if reign is None:
            return
        log = reign.log
        end_offset = min(log.wanted_start, replica.deletable_end)
        size = sum(one.size for one in log.segments[:-1] if one.end_offset <= end_offset)
        entries = log.schedule.to_carry_forward(end_offset, size)
        if entries:
            try:
                await self._carry(replica, reign, entries)
            except StorageError as error:  # tried again
                logger.warning("not carried forward: log=%s reason=%s", log.name, error)

    async def _carry(
        self, replica: Replica, reign: Reign, entries: Sequence[ScheduledEntry]
    ) -> None:
        length, left = 0, entries
        while left:
            some, left = await self._read(reign, left)
            length += carry_forward(replica, reign, some)
            if length >= AHEAD_BYTES_MAX:
                await self._committed(replica, reign)
                length = 0
            await trio.lowlevel.checkpoint()

    async def settle_before(self, replica: Replica, end_offset: int) -> bool:
        """Carry forward all that is pending before that offset, and wait until the copies are
        committed. False: something scheduled there is in a transaction that is open, or cannot be
        read, or this leadership has ended.

        Raises:
            StorageError: the disk refused.
        """
        reign = Reign.of(replica)
        while reign is not None and reign.lasts(replica):
            schedule = reign.log.schedule
            if not schedule.bases or schedule.is_settled_before(end_offset, replica.high_watermark):
                return True
            entries = schedule.pending_before(end_offset)
            if entries is None:
                return False
            await self._carry(replica, reign, entries)
            await self._committed(replica, reign)
            if not reign.lasts(replica) or schedule.pending_before(end_offset):
                return False  # rot, or a commit that takes too long
        return False
