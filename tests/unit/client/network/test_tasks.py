"""One error is that error; several stay a group."""

from __future__ import annotations

import anyio
import pytest

from raftmq.client.network.channel import one_error
from tests.unit.client.backends import on_trio_and_asyncio


async def fail() -> None:
    raise ZeroDivisionError("by zero")


@on_trio_and_asyncio
async def test_one_error_of_nested_tasks() -> None:
    """Two groups around it: neither is seen, not even as the context of the error."""

    async def fail_inside() -> None:
        with one_error():
            async with anyio.create_task_group() as outer, anyio.create_task_group() as inner:
                inner.start_soon(fail)
                outer.start_soon(anyio.sleep_forever)

    with pytest.raises(ZeroDivisionError) as found:
        await fail_inside()
    assert found.value.__context__ is None


@on_trio_and_asyncio
async def test_several_errors() -> None:
    """None of them is lost."""

    async def fail_twice() -> None:
        with one_error():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(fail)
                tasks.start_soon(fail)

    with pytest.raises(ExceptionGroup) as found:
        await fail_twice()
    assert len(found.value.exceptions) == 2


@on_trio_and_asyncio
async def test_cancellation_goes_through() -> None:
    """Whoever cancelled from outside gets what it wanted."""
    with anyio.CancelScope() as scope, one_error():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            scope.cancel()
    assert scope.cancelled_caught
