"""The decorator for both event loops: that each test really runs on each."""

from __future__ import annotations

from inspect import iscoroutinefunction, signature

import pytest
import sniffio

from tests.unit.client.backends import on_trio_and_asyncio


@on_trio_and_asyncio
@pytest.mark.parametrize("number", [1, 2])
async def test_that_takes_parameters(number: int, backend: str) -> None:
    """It runs on the loop that it is told."""
    assert sniffio.current_async_library() == backend
    assert number in (1, 2)


def test_it_is_a_plain_function_to_pytest() -> None:
    """With the names of its fixtures; trio's plugin would run a coroutine function itself."""
    assert not iscoroutinefunction(test_that_takes_parameters)
    assert set(signature(test_that_takes_parameters).parameters) == {"number", "backend"}
