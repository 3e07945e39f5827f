"""Under pytest-trio, with the mark or with `trio_mode = true`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from orders import Orders

pytestmark = pytest.mark.trio


async def test_topics_are_apart(orders: Orders) -> None:
    await orders.place("c-17", "a plum")
    assert await orders.first(1) == ["a plum"]
