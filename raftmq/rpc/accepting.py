"""Accepting connections, also where the process has no descriptor left.

Owns the loop of one listener. Where the system refuses, it waits and says so, now and then in one
line; with a descriptor that it keeps for this it closes whoever is first in line, who would
otherwise wait for an answer that cannot come.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from errno import EMFILE, ENFILE, ENOBUFS, ENOMEM
from typing import TYPE_CHECKING, NoReturn

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LACKING = (EMFILE, ENFILE, ENOBUFS, ENOMEM)
PAUSE_SECONDS = 0.5
SAID_SECONDS = 60.0  # between two lines about the same

logger = logging.getLogger(__name__)


class Acceptor:
    """`run` takes connections until it is cancelled; what `handler` raises ends it."""

    def __init__(
        self,
        listener: trio.abc.Listener[trio.SocketStream],
        handler: Callable[[trio.SocketStream], Awaitable[object]],
        *,
        name: str,
    ) -> None:
        self._listener, self._handler, self._name = listener, handler, name
        self._spare: int | None = None
        self._refused = 0
        self._say_at = -float("inf")

    async def run(self) -> NoReturn:
        self._keep_spare()
        try:
            async with trio.open_nursery() as nursery, self._listener:
                while True:
                    nursery.start_soon(self._handle, await self._next())
        finally:
            self._give_spare()

    async def _handle(self, stream: trio.SocketStream) -> None:
        try:
            await self._handler(stream)
        finally:
            await trio.aclose_forcefully(stream)

    async def _next(self) -> trio.SocketStream:
        while True:
            try:
                return await self._listener.accept()
            except OSError as error:
                if error.errno not in LACKING:
                    raise
                await self._refuse_one()
                self._say(os.strerror(error.errno))
            await trio.sleep(PAUSE_SECONDS)
            self._keep_spare()

    async def _refuse_one(self) -> None:
        """Whoever is first in line, if the descriptor that was kept is free for a moment."""
        self._give_spare()
        with trio.move_on_after(PAUSE_SECONDS), suppress(OSError):
            await trio.aclose_forcefully(await self._listener.accept())
            self._refused += 1
        self._keep_spare()

    def _say(self, reason: str) -> None:
        now = trio.current_time()
        if now >= self._say_at:
            self._say_at = now + SAID_SECONDS
            logger.warning(
                "connections are not accepted: listener=%s reason=%s refused=%d:"
                " allow the process more descriptors",
                self._name,
                reason,
                self._refused,
            )

    def _keep_spare(self) -> None:
        if self._spare is None:
            with suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _give_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
