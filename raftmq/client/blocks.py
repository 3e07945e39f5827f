"""The wrong kind of `with`: an error that names the right one, in place of Python's.

Hidden from type checkers, which complain of such a block by themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING


class AsyncBlock:
    """What `async with` opens."""

    if not TYPE_CHECKING:

        def __enter__(self) -> None:
            name = type(self).__name__
            raise TypeError(
                f"this {name} is opened by `async with`; for programs without async there is "
                "raftmq.sync, whose blocks are `with raftmq.sync.connect(...)`"
            )

        def __exit__(self, *_: object) -> None:
            """Never called: there is no entering."""


class BlockingBlock:
    """What `with` opens."""

    if not TYPE_CHECKING:

        async def __aenter__(self) -> None:
            name = type(self).__name__
            raise TypeError(
                f"this {name} is of raftmq.sync, and is opened by `with`; for async programs "
                "there is raftmq.connect, as in `async with raftmq.connect(...)`"
            )

        async def __aexit__(self, *_: object) -> None:
            """Never called: there is no entering."""
