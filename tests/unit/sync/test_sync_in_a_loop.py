"""`raftmq.sync` in a thread whose own event loop runs, as in a notebook."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import trio

import raftmq.sync

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from raftmq.testing.server import Server


@pytest.mark.parametrize("run", [asyncio.run, trio.run])
def test_a_notebook(run: Callable[..., Any], raftmq_broker: Server, raftmq_topic: str) -> None:
    """Everything is made and used in a cell, while asyncio's or trio's loop runs in its thread."""

    async def cell() -> None:
        with raftmq.sync.connect(raftmq_broker.bootstrap) as client:
            client.admin.create_topic(raftmq_topic)
            with client.producer() as producer:
                producer.send(raftmq_topic, b"a", timeout=10)
                producer.enqueue(raftmq_topic, b"b")
                producer.send_many(raftmq_topic, [b"c"])
            with client.consumer(raftmq_topic, start="earliest") as consumer:
                found = [record.value for _, record in zip(range(3), consumer, strict=False)]
            assert sorted(filter(None, found)) == [b"a", b"b", b"c"]
            with client.consumer(raftmq_topic, group=raftmq_topic, start="earliest") as member:
                assert next(iter(member.records(timeout=10)))
                member.commit()
            assert client.admin.group_lag(raftmq_topic)

    run(cell if run is trio.run else cell())
