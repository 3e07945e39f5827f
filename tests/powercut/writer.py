"""The process that is killed: opens a data directory and keeps its logs busy, seeded by a number.

    python -m tests.powercut.writer ROOT --seed 7 --life 1 --power-cuts 0

Owns the load. Tells its parent over stdout what it begins, what it has done, and what is durable,
in that order (`events.py`); a promise is told only after `wait_durable` returned. Everything here
is production code on real files and threads, except for the boot id.
"""

from __future__ import annotations

import argparse
import os
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import trio

from raftmq.errors import StorageError
from raftmq.partition.storage.directory import LogId, open_log_directory, wall_clock_ms
from tests.powercut.content import SEQUENCES_PER_LIFE, TOPIC, batch_of, config_of
from tests.powercut.events import (
    Acknowledged,
    Appended,
    Closed,
    Deleted,
    Deleting,
    NotDeleted,
    Opened,
    Pending,
    Ready,
    Refused,
    Truncated,
    Truncating,
    WentOffline,
    encode,
)
from tests.powercut.faulty_files import ForgetfulFiles, RebootedFiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.partition.storage.log import PartitionLog
    from tests.powercut.events import AnyEvent

RECORDS_KEPT = 1500  # per partition; more are deleted
WAITERS_MAX = 8
SAMPLE_INTERVAL = 0.01  # seconds


class Order(NamedTuple):
    """What this life is to do; the command line of the process."""

    root: Path
    seed: int = 0
    life: int = 0  # of the directory; writers and checkers count together
    power_cuts: int = 0
    partitions: int = 4
    rounds: int = 1 << 30  # of every partition; then the directory is closed
    forgetful: bool = False
    sampled: bool = False  # tell the age of what waits for the disk

    def arguments(self) -> list[str]:
        named = self._asdict()
        root = str(named.pop("root"))
        return [root, *(f"--{name.replace('_', '-')}={int(named[name])}" for name in named)]


def parse_order() -> Order:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    for name, default in Order._field_defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=int(default))
    return Order(**vars(parser.parse_args()))


def tell(event: AnyEvent) -> None:
    os.write(1, encode(event))


async def run(order: Order, tell: Callable[[AnyEvent], None]) -> None:
    """One life; ends with a clean shutdown after `order.rounds`."""
    files = (ForgetfulFiles if order.forgetful else RebootedFiles)(order.power_cuts)
    async with open_log_directory(order.root, files=files) as directory:
        logs = await open_logs(directory, order.partitions, tell)
        async with trio.open_nursery() as nursery:
            if order.sampled:
                nursery.start_soon(_sample, directory, tell)
            async with trio.open_nursery() as writers:
                for partition, log in enumerate(logs):
                    writers.start_soon(PartitionWriter(directory, log, partition, order, tell).run)
            nursery.cancel_scope.cancel()
        if order.sampled:
            await _sample_at_rest(directory, logs, tell)
    tell(Closed())


async def open_logs(
    directory: LogDirectory, partitions: int, tell: Callable[[AnyEvent], None]
) -> list[PartitionLog]:
    wanted = [(LogId(TOPIC, number), config_of(number)) for number in range(partitions)]
    logs = await directory.open_logs(wanted)
    for number, log in enumerate(logs):
        damage = str(log.damage) if log.damage else ""
        tell(Opened(number, log.log_start_offset, log.log_end_offset, log.report.cut_bytes, damage))
    return logs


async def _sample(directory: LogDirectory, tell: Callable[[AnyEvent], None]) -> None:
    while True:
        due = trio.current_time() + SAMPLE_INTERVAL
        await trio.sleep_until(due)
        tell(Pending(directory.oldest_pending_age(), trio.current_time() - due))


async def _sample_at_rest(
    directory: LogDirectory, logs: list[PartitionLog], tell: Callable[[AnyEvent], None]
) -> None:
    """Once nothing waits for the disk any more."""
    for log in logs:
        await directory.flusher.wait_durable(log, log.log_end_offset)
    for _ in range(100):  # the round that is under way may be for what was cut since
        if not directory.oldest_pending_age():
            break
        await trio.sleep(SAMPLE_INTERVAL)
    tell(Pending(directory.oldest_pending_age(), 0.0))


class PartitionWriter:
    """Appends to one log, and now and then cuts it at either end."""

    def __init__(
        self,
        directory: LogDirectory,
        log: PartitionLog,
        partition: int,
        order: Order,
        tell: Callable[[AnyEvent], None],
    ) -> None:
        self._directory, self._log, self._partition = directory, log, partition
        self._seed, self._rounds, self._tell = order.seed, order.rounds, tell
        self._random = Random(f"{order.seed}/{order.life}/{partition}")
        self._next_sequence = order.life * SEQUENCES_PER_LIFE
        self._leader_epoch = max(0, log.epochs.latest)
        self._bases: list[int] = []  # of what was appended lately, in offset order
        self._waiting = 0

    async def run(self) -> None:
        try:
            for _ in range(self._rounds):
                await self._append_for_a_while()
                await self._upkeep()
        except* StorageError:
            self._tell(WentOffline(self._partition, self._log.offline_reason))
            self._try_again()

    def _try_again(self) -> None:
        """Offline means offline: an append that succeeds is told, and counts as a bug."""
        try:
            self._append()
        except StorageError:
            return

    async def _append_for_a_while(self) -> None:
        """Some appends; half of the time nobody waits for the last of them."""
        async with trio.open_nursery() as waiters:
            for _ in range(self._random.randint(1, 20)):
                end_offset = self._append()
                chance = self._random.random()
                if chance < 0.3:
                    await self._acknowledge(end_offset)
                elif chance < 0.7 and self._waiting < WAITERS_MAX:
                    waiters.start_soon(self._acknowledge, end_offset)
                await trio.lowlevel.checkpoint()
            if self._random.random() < 0.5:
                waiters.cancel_scope.cancel()

    async def _acknowledge(self, end_offset: int) -> None:
        self._waiting += 1
        try:
            await self._directory.flusher.wait_durable(self._log, end_offset)
            self._tell(Acknowledged(self._partition, end_offset))
        finally:
            self._waiting -= 1

    def _append(self) -> int:
        """One append of one to three batches."""
        first_sequence = self._next_sequence
        payload = bytearray()
        for _ in range(self._random.randint(1, 3)):
            end = self._next_sequence + self._random.randint(1, 8)
            payload += batch_of(self._seed, self._partition, range(self._next_sequence, end))
            self._next_sequence = end
        appended = self._log.append(
            payload,
            leader_epoch=self._leader_epoch,
            now_ms=wall_clock_ms(),
            now=trio.current_time(),
        )
        self._tell(Appended(self._partition, *appended[:2], first_sequence, self._leader_epoch))
        self._bases.append(appended.base_offset)
        return appended.end_offset

    async def _upkeep(self) -> None:
        chance = self._random.random()
        if self._log.log_end_offset - self._log.log_start_offset > RECORDS_KEPT or chance < 0.1:
            await self._delete()
        elif chance < 0.4:
            await self._truncate()
        elif chance < 0.5:
            self._leader_epoch += self._random.randint(1, 3)
            self._log.assign_epoch(self._leader_epoch)
        elif chance < 0.6:
            with suppress(StorageError):  # the old one still holds
                await self._directory.checkpoint()

    async def _truncate(self) -> None:
        """Forget some of the last appends, acknowledged or not."""
        bases = [base for base in self._bases if base >= self._log.log_start_offset]
        if not bases:
            return
        base = bases[-self._random.randint(1, min(6, len(bases)))]
        self._bases = [kept for kept in bases if kept < base]
        self._tell(Truncating(self._partition, base))
        await self._directory.truncate(self._log, base)
        self._tell(Truncated(self._partition, self._log.log_end_offset))

    async def _delete(self) -> None:
        log = self._log
        newest = max(log.log_start_offset, log.durable_end_offset - self._random.randint(0, 800))
        before = self._random.randint(log.log_start_offset, newest)
        self._tell(Deleting(self._partition, before))
        try:
            await self._directory.delete_records(log, before)
        except StorageError:
            if log.offline_reason:
                raise
            self._tell(NotDeleted(self._partition))
            return
        self._tell(Deleted(self._partition, log.log_start_offset))


def main() -> None:
    order = parse_order()
    tell(Ready(os.getpid()))
    try:
        trio.run(run, order, tell)
    except* StorageError as group:
        tell(Refused(repr(group.exceptions)))


if __name__ == "__main__":
    main()
