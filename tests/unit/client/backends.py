"""A test of the client's shell runs on both event loops, trio and asyncio.

Owns the way to start them. pytest runs trio's tests itself; what is decorated here is a plain
function for it, which starts a loop of its own, in real time. A test that needs virtual time is for
trio alone and takes `autojump_clock` instead.
"""

from __future__ import annotations

from functools import partial, wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

import anyio
import pytest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

BACKENDS = ("trio", "asyncio")
SECONDS_MAX = 30.0  # of a test that hangs


def on_trio_and_asyncio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """`test` may take fixtures; it takes `backend` only if it wants to know."""
    parameters = signature(test).parameters

    @wraps(test)
    def run(*, backend: str, **fixtures: Any) -> None:
        if "backend" in parameters:
            fixtures["backend"] = backend
        anyio.run(partial(_bounded, test, fixtures), backend=backend)

    backend = Parameter("backend", Parameter.KEYWORD_ONLY)
    others = [found for found in parameters.values() if found.name != "backend"]
    run.__signature__ = signature(test).replace(  # type: ignore[attr-defined]
        parameters=[each.replace(kind=Parameter.KEYWORD_ONLY) for each in [*others, backend]]
    )
    del run.__wrapped__  # type: ignore[attr-defined]  # or it would be taken for a test of trio's
    return pytest.mark.parametrize("backend", BACKENDS)(run)


async def _bounded(test: Callable[..., Awaitable[None]], fixtures: dict[str, Any]) -> None:
    with anyio.fail_after(SECONDS_MAX):
        await test(**fixtures)
