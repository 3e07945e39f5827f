"""Clients in a thread of this process, while the test does things to their brokers.

Owns the thread: its beginning, its end, what ended it, and whether its clients are to work. What
they do is their load's (`broker_load.py`, `group_load.py`).
"""

from __future__ import annotations

import traceback
from contextlib import suppress
from threading import Event, Thread

import trio


class LoadThread:
    """Attributes:
    failure: what ended it, if anything did.
    """

    def __init__(self, *, is_working: bool) -> None:
        self.failure = ""
        self._in_flight, self._is_working = 0, is_working
        self._scope, self._has_begun = trio.CancelScope(), Event()
        self._thread = Thread(target=self._run_thread, daemon=True)

    # From the other thread

    def start(self) -> None:
        """Make the topic, and begin; when this returns, it may not have yet."""
        self._thread.start()
        self._has_begun.wait()

    def stop(self) -> None:
        if self._thread.ident is not None:
            with suppress(trio.RunFinishedError):  # it has failed
                self._token.run_sync_soon(self._scope.cancel)
            self._thread.join()

    def work(self) -> None:
        self._is_working = True

    def rest(self) -> None:
        self._is_working = False

    @property
    def is_at_rest(self) -> bool:
        return not (self._is_working or self._in_flight)

    # In the thread of its own

    def _run_thread(self) -> None:
        try:
            trio.run(self._run)
        except BaseException:  # whoever waits for anything will see it
            self.failure = traceback.format_exc()

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._has_begun.set()
        with self._scope:
            await self._run_load()

    async def _run_load(self) -> None:
        """Until it is cancelled."""
        raise NotImplementedError
