"""The load of a bench: records of one size, half compressible, over as many keys as were asked for.

They are made beforehand and sent over and over, so that making them costs nothing while it runs.
"""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from itertools import chain, islice, repeat
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

import anyio

from raftmq.cli.data.topic_check import check_there
from raftmq.cli.terminal.program import as_called
from raftmq.errors import RaftmqError, UnknownTopicOrPartition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from raftmq.cli.data.record_lines import Row
    from raftmq.client.client import Client


POOL_RECORDS = 4096  # distinct ones: far more than a batch holds, else compression finds repeats
POOL_BYTES_MAX = 16 << 20  # of 1 MiB values it holds 16 only
LETTERS = b"0123456789abcdef"  # 4 bits of entropy in each byte: compresses to about a half
SEED = 1  # the same records in every run, so that runs compare


class Amount(NamedTuple):
    """How much to send: `records`, or as many as possible in `seconds`."""

    records: int | None
    seconds: float


class Load:
    def __init__(self, size: int, keys: int) -> None:
        random = Random(SEED)
        count = max(1, min(POOL_RECORDS, POOL_BYTES_MAX // max(size, 1)))
        names = [b"key-%d" % number for number in range(keys)]
        self.pool: list[Row] = [
            (random.choice(names) if names else None, _value(random, size)) for _ in range(count)
        ]

    def rows(self, amount: Amount) -> Iterator[Row]:
        """The rows to send; the clock is read for each eighth of the pool only."""
        if amount.records is not None:
            return islice(chain.from_iterable(repeat(self.pool)), amount.records)
        return chain.from_iterable(self._until(monotonic() + amount.seconds))

    def _until(self, end: float) -> Iterator[list[Row]]:
        step = max(1, len(self.pool) // 8)
        while True:
            for start in range(0, len(self.pool), step):
                if monotonic() >= end:
                    return
                yield self.pool[start : start + step]

    @property
    def record_bytes(self) -> float:
        """Of key and value, on average."""
        return sum(len(key or b"") + len(value or b"") for key, value in self.pool) / len(self.pool)


def _value(random: Random, size: int) -> bytes:
    return bytes(random.choices(LETTERS, k=size))


# -- Topics ---------------------------------------------------------------------------------------
# The topic of a bench: one that exists, or one of its own that is deleted afterwards.


DELETE_SECONDS_MAX = 10.0  # shielded from Ctrl-C, which must not hang when the cluster is down


class BenchTopic(NamedTuple):
    """Attributes:
    name: of an existing topic; None: make one named `own_name`.
    """

    name: str | None
    own_name: str
    partitions: int | None
    replication_factor: int | None


@asynccontextmanager
async def topic_of(client: Client, wanted: BenchTopic) -> AsyncIterator[str]:
    """Raises UnknownTopicOrPartition, RaftmqError."""
    if wanted.name is not None:
        await check_there(client, wanted.name)
        yield wanted.name
        return
    name, is_made = wanted.own_name, True
    try:
        try:
            await client.admin.create_topic(
                name, partitions=wanted.partitions, replication_factor=wanted.replication_factor
            )
        except RaftmqError as error:
            is_made = not error.definite  # a time-out leaves open whether it was made
            raise
        yield name
    finally:
        if is_made:
            await _delete(client, name)


async def _delete(client: Client, name: str) -> None:
    """Delete the bench's own topic, also after an interrupt, and one during its creation."""
    reason: str | None = "no answer"
    try:
        with anyio.move_on_after(DELETE_SECONDS_MAX, shield=True):  # Ctrl-C has cancelled the rest
            await client.admin.delete_topic(name)
            reason = None
    except UnknownTopicOrPartition:  # it was never made, or is deleted already
        reason = None
    except RaftmqError as error:
        reason = str(error)
    finally:  # also after another Ctrl-C
        if reason is not None:
            told = f"topic {name} may be left, as deleting it has failed ({reason})"
            sys.stderr.write(as_called(f"raftmq: {told}: `raftmq topic delete {name}`\n"))
