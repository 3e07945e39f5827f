"""The records of a bench: of one size, half compressible, with as many keys as were asked for.

They are made beforehand and sent over and over, so that making them costs nothing.
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
from raftmq.errors import RaftmqError, UnknownTopicOrPartition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from raftmq.cli.data.produce_run import Row
    from raftmq.client.client import Client


POOL_RECORDS = 4096  # distinct ones
POOL_BYTES_MAX = 16 << 20
LETTERS = b"0123456789abcdef"  # half a byte's worth of surprise in each
SEED = 1


class Amount(NamedTuple):
    """How much is to be done: so many records, or as many as go in so long."""

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
        """Looks at the clock once in a while."""
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
# The topic of a bench: one that is there, or one of its own that is gone afterwards.


DELETE_SECONDS_MAX = 10.0


class BenchTopic(NamedTuple):
    """`name`: None: one of its own."""

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
            is_made = not error.definite
            raise
        yield name
    finally:
        if is_made:
            await _delete(client, name)


async def _delete(client: Client, name: str) -> None:
    """Also when the bench was interrupted, be it while the topic was made."""
    reason: str | None = "no answer"
    try:
        with anyio.move_on_after(DELETE_SECONDS_MAX, shield=True):
            await client.admin.delete_topic(name)
            reason = None
    except UnknownTopicOrPartition:
        reason = None
    except RaftmqError as error:
        reason = str(error)
    finally:  # also after another Ctrl-C
        if reason is not None:
            sys.stderr.write(
                f"raftmq: topic {name} may be left, as deleting it has failed ({reason}): "
                f"`raftmq topic delete {name}`\n"
            )
