"""What type checkers say of programs that consume and administer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.client.typing.checker import check

if TYPE_CHECKING:
    from pathlib import Path

RIGHT = """
import json
from datetime import UTC, datetime

import raftmq
from raftmq.sync import connect


async def consume(mq: raftmq.Client) -> None:
    made = await mq.admin.create_topic("orders", partitions=6, if_not_exists=True)
    is_new: bool = made.is_new
    await mq.admin.delete_topic("orders", missing_ok=is_new)
    mq.consumer("orders", start="earliest", group="g", commit="manual", delivery="at_least_once")
    mq.consumer("orders", start=42, auto_offset_reset="latest")

    async def on_rebalance(change: raftmq.Rebalance) -> None:
        print(change.assigned, change.revoked, change.lost, change.generation)

    mq.consumer("orders", group="g", on_rebalance=on_rebalance)
    mq.consumer("orders", start=datetime.now(UTC))
    async with mq.consumer("orders", value_deserializer=json.loads) as c:
        async for record in c:
            amount: int = record.value["amount"]
            text: str = record.text()
            size: int = record.size
            when: datetime | None = record.time
            last: int | None = c.last_consumed("orders", 0)
            print(amount, text, size, when, last, record.json()["a"], record.key)
        async for batch in c.batches(max_records=5):
            print(batch.raw.values, batch.last_offset)


def consume_blocking() -> None:
    with connect() as mq:
        mq.admin.create_topic("orders", if_not_exists=True)
        consumer = mq.consumer("orders", start="latest", key_deserializer=bytes.decode)
        for record in consumer.records(timeout=5):
            print(record.text().upper())
"""
WRONG = """
import raftmq
from raftmq import sync


async def consume(mq: raftmq.Client, blocking: sync.Client, word: str) -> None:
    mq.consumer("orders", start="begining")  # wrong
    mq.consumer("orders", start=word)  # wrong
    mq.consumer("orders", group="g", commit="manuel")  # wrong
    mq.consumer("orders", auto_offset_reset="beginning")  # wrong
    mq.consumer("orders", group="g", delivery="at_most_twice")  # wrong
    mq.consumer("orders", value_deserializer="json")  # wrong
    mq.consumer("orders", strat="earliest")  # wrong
    blocking.consumer("orders", start="begining")  # wrong
    blocking.consumer("orders", strat="earliest")  # wrong
    await mq.admin.create_topic("orders", partition=3)  # wrong
    blocking.admin.create_topic("orders", if_exists=True)  # wrong
    await mq.admin.offsets("orders", "erliest")  # wrong
    mq.consumer("orders", group="g", on_rebalance=print, comit="none")  # wrong
    raftmq.Rebalance().count  # wrong
    async for record in mq.consumer("orders"):
        print(record.count)  # wrong
        topic, partition, *rest = record  # wrong
        record.value = b"x"  # wrong
"""


def test_right_programs(tmp_path: Path) -> None:
    """All that the documents show, strictly: no complaint."""
    check(RIGHT, tmp_path)


def test_wrong_programs(tmp_path: Path) -> None:
    """Mistyped options and values, and what a record has not."""
    check(WRONG, tmp_path)
