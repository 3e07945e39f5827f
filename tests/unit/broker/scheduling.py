"""A broker that leads a topic with scheduled records, under a clock that goes with trio's."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from raftmq.wire.batch.records import encode_batch
from tests.unit.broker.readers import Reader, reading
from tests.unit.storage.batches import NOW_MS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from raftmq.partition.replica import Replica


def now_ms() -> int:
    """The broker's clock goes with trio's."""
    return NOW_MS + round(trio.current_time() * 1000)


@asynccontextmanager
async def scheduling(**around: Any) -> AsyncIterator[tuple[Any, Any, Replica, Reader]]:
    async with reading(now_ms=now_ms, **around) as parts:
        yield parts


def schedule(replica: Replica, *values: bytes, delay: float = 10, **more: Any) -> int:
    """Due so many seconds from now; returns the offset."""
    due_ms = now_ms() + round(delay * 1000)
    data = encode_batch(values=list(values), timestamp=now_ms(), due_ms=due_ms, **more)
    acks = -1 if more.get("transactional") else 1
    return replica.append(bytes(data), acks=acks).base_offset


def plain(replica: Replica, *values: bytes) -> None:
    replica.append(bytes(encode_batch(values=list(values), timestamp=now_ms())), acks=1)
