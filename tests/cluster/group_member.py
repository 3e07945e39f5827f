"""The process that is killed, stopped and replaced: one member of a group.

    python -m tests.cluster.group_member --bootstrap B --group G --topic T --log F ...

It writes down what it was handed out before it asks for more, and what it was told of its
partitions before the callback returns. Told to stop, it leaves in order. It never outlives its
parent.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import trio

import raftmq
from raftmq.errors import RaftmqError, RebalanceInProgress
from tests.cluster.broker_process import die_with_parent
from tests.cluster.group_words import (
    BEFORE,
    MANUAL,
    READY,
    RECORD,
    Assigned,
    Began,
    Committed,
    Ended,
    Handed,
    Lost,
    MemberOrder,
    Problem,
    Refused,
    Revoked,
    Scattered,
    encode,
    parse_order,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.group.effects import Rebalance
    from tests.cluster.group_words import Word

AGAIN_SECONDS = 0.1
COMMITS_MAX = 100
RECORD_SECONDS, BATCH_SECONDS, WORK_SECONDS_MAX = 0.02, 0.1, 1.0
HEARTBEATS = 6  # in a session


class Steps(trio.abc.Instrument):
    """When the event loop began with the step of a task that runs now."""

    def __init__(self) -> None:
        self.began_at = time.monotonic()

    def before_task_step(self, _: trio.lowlevel.Task) -> None:
        self.began_at = time.monotonic()


class MemberLog:
    """A line is with the kernel before `write` returns."""

    def __init__(self, path: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o644)

    def write(self, word: Word) -> None:
        line = encode(word)
        assert os.write(self._file, line) == len(line), "the disk is full"


class Member:
    def __init__(self, order: MemberOrder) -> None:
        self._order, self._log, self._steps = order, MemberLog(order.log), Steps()
        self._random = Random(order.log)

    async def run(self) -> None:
        trio.lowlevel.add_instrument(self._steps)
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(_cancel_when_told, scope)
            await self._read(scope)
            nursery.cancel_scope.cancel()
        self._log.write(Ended(time.monotonic()))

    async def _read(self, scope: trio.CancelScope) -> None:
        order = self._order
        is_first = order.commit == BEFORE
        how = {"delivery": "at_most_once"} if is_first else {"commit": order.commit}
        async with (
            raftmq.connect(order.bootstrap, client_id=Path(order.log).stem) as mq,
            mq.consumer(
                order.topic,
                group=order.group,
                start="earliest",
                session_timeout_ms=order.session_ms,
                heartbeat_interval_ms=order.session_ms // HEARTBEATS,
                on_rebalance=self._on_rebalance,
                **how,
            ) as consumer,
        ):
            self._log.write(Began(time.monotonic()))
            os.write(sys.stdout.fileno(), READY + b"\n")
            with scope:
                await self._read_on(consumer)

    async def _read_on(self, consumer: Any) -> None:
        read = self._read_records if self._order.way == "records" else self._read_batches
        while True:
            try:
                await read(consumer)
            except RaftmqError as error:
                self._log.write(Problem(time.monotonic(), repr(error), error.retriable))
                await trio.sleep(AGAIN_SECONDS)

    async def _read_records(self, consumer: Any) -> None:
        async for record in consumer:
            self._hand(record.partition, [record.offset], [record.value])
            await self._work(RECORD_SECONDS)
            await self._maybe_commit(consumer, record, record.partition, record.offset + 1)

    async def _read_batches(self, consumer: Any) -> None:
        is_single = self._order.commit == RECORD  # then a batch is one record
        async for batch in consumer.batches():
            self._hand(batch.partition, batch.offsets, batch.values)
            await self._work(RECORD_SECONDS if is_single else BATCH_SECONDS)
            await self._maybe_commit(consumer, batch, batch.partition, batch.end_offset)

    def _hand(self, partition: int, offsets: Sequence[int], values: Sequence[bytes]) -> None:
        now, base_offset = time.monotonic(), offsets[0]
        if list(offsets) != list(range(base_offset, base_offset + len(offsets))):
            self._log.write(Scattered(now, partition, list(offsets)))
            return
        numbers = [int(value) for value in values]
        self._log.write(Handed(now, self._steps.began_at, partition, base_offset, numbers))

    async def _work(self, mean_seconds: float) -> None:
        """It has something in hand for a while, and sometimes for long."""
        await trio.sleep(min(self._random.expovariate(1 / mean_seconds), WORK_SECONDS_MAX))

    async def _maybe_commit(self, consumer: Any, work: Any, partition: int, offset: int) -> None:
        """By hand; while the group deals anew, again and again."""
        for _ in range(COMMITS_MAX if self._order.commit == MANUAL else 0):
            try:
                await consumer.commit(work)
            except RaftmqError as error:
                self._log.write(Refused(time.monotonic(), partition, offset, repr(error)))
                if not isinstance(error, RebalanceInProgress):
                    return
                await trio.sleep(AGAIN_SECONDS)
            else:
                self._log.write(Committed(time.monotonic(), partition, offset))
                return

    def _on_rebalance(self, rebalance: Rebalance) -> None:
        now, generation = time.monotonic(), rebalance.generation
        if rebalance.assigned:
            self._log.write(Assigned(now, generation, _numbers(rebalance.assigned)))
        if rebalance.revoked:
            self._log.write(Revoked(now, generation, _numbers(rebalance.revoked)))
        if rebalance.lost:
            self._log.write(Lost(now, _numbers(rebalance.lost)))


def _numbers(keys: Sequence[tuple[str, int]]) -> list[int]:
    return [partition for _, partition in keys]


async def _cancel_when_told(scope: trio.CancelScope) -> None:
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as told:
        await told.receive_some()
        scope.cancel()
        await trio.sleep_forever()


def main() -> None:
    die_with_parent()
    trio.run(Member(parse_order()).run)


if __name__ == "__main__":
    main()
