"""Fixtures that hold a connection open, for asynchronous tests of either plugin and for plain ones.

`raftmq_broker` and `raftmq_topic` come with raftmq: one broker for the whole session, and a topic's
name that no other test has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from orders import Orders

import raftmq

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from raftmq.testing import Server


@pytest.fixture
async def mq(raftmq_broker: Server) -> AsyncIterator[raftmq.Client]:
    """`open` and `aclose`, as plugins may set up and tear down in different tasks."""
    client = await raftmq.connect(raftmq_broker.bootstrap).open()
    yield client
    await client.aclose()


@pytest.fixture
async def orders(mq: raftmq.Client, raftmq_topic: str) -> AsyncIterator[Orders]:
    await mq.admin.create_topic(raftmq_topic, partitions=1)
    producer = await mq.producer(linger_ms=0).open()
    yield Orders(mq, producer, raftmq_topic)
    await producer.aclose()


@pytest.fixture(scope="session")
def blocking_mq(raftmq_broker: Server) -> Iterator[raftmq.sync.Client]:
    """One connection for all tests of a session: threads may share it."""
    with raftmq.sync.connect(raftmq_broker.bootstrap) as client:
        yield client


@pytest.fixture
def anyio_backend() -> str:
    """For anyio's plugin: which loop runs tests with the mark `anyio`."""
    return "asyncio"
