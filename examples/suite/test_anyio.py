"""On asyncio under anyio's plugin, which comes with raftmq's own dependencies.

With pytest-asyncio only the mark is another: `asyncio`, and `@pytest_asyncio.fixture` in its strict
mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

if TYPE_CHECKING:
    from orders import Orders

pytestmark = pytest.mark.anyio


async def test_orders_come_in_order(orders: Orders) -> None:
    await orders.place("c-17", "two apples")
    await orders.place("c-17", "a pear")
    assert await orders.first(2) == ["two apples", "a pear"]


async def test_reading_waits_for_orders(orders: Orders) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(orders.place, "c-17", "a plum")
        assert await orders.first(1) == ["a plum"]
