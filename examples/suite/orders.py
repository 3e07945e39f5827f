"""What is tested: a program that keeps orders in a topic."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import raftmq


class Orders:
    """The client and the producer stay open, and are the caller's to close."""

    def __init__(self, mq: raftmq.Client, producer: raftmq.Producer, topic: str) -> None:
        self._mq, self._producer, self._topic = mq, producer, topic

    async def place(self, customer: str, item: str) -> None:
        value = json.dumps({"customer": customer, "item": item})
        await self._producer.send(self._topic, value, key=customer)

    async def first(self, count: int) -> list[str]:
        """The items of the first orders; waits until there are as many."""
        async with self._mq.consumer(self._topic, start="earliest") as consumer:
            return [(await anext(consumer)).json()["item"] for _ in range(count)]
