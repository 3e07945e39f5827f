"""A look at the newest metadata that many share: one read barrier for all who ask meanwhile.

Owns the barriers: one is under way, and whoever comes then waits for the next one, as the one
under way may not show what was answered before he asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import trio

from raftmq.errors import CoordinatorNotAvailable, RaftmqError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from raftmq.metadata.image import MetadataImage


class _Round:
    """One barrier, and all who wait for it."""

    def __init__(self) -> None:
        self.is_over = trio.Event()
        self.image: MetadataImage | None = None
        self.problem = ""


class SharedLook:
    """
    Args:
        catch_up: returns once this broker's image shows all that was answered before the call.
        image: that image.
    """

    def __init__(
        self, catch_up: Callable[[], Awaitable[None]], image: Callable[[], MetadataImage]
    ) -> None:
        self._catch_up, self._image = catch_up, image
        self._next = _Round()
        self._wanted = trio.Event()

    async def look(self) -> MetadataImage:
        """An image that shows everything that was answered, by anybody, before this call.

        Raises:
            CoordinatorNotAvailable: nobody could tell in time; definite.
        """
        waited_for = self._next
        self._wanted.set()
        await waited_for.is_over.wait()
        if waited_for.image is None:
            raise CoordinatorNotAvailable(waited_for.problem)
        return waited_for.image

    async def run(self) -> NoReturn:
        while True:
            await self._wanted.wait()
            await trio.lowlevel.checkpoint()  # all that this moment brings goes together
            current, self._next, self._wanted = self._next, _Round(), trio.Event()
            try:
                await self._catch_up()
                current.image = self._image()
            except RaftmqError as error:
                current.problem = f"the quorum does not answer: {error}: ask again"
            current.is_over.set()
