"""Keeps calling one voter until it answers, and again when the connection is gone.

Owns the pauses and the address. What is done with a stream is decided by `meet`. Says once what is
wrong, not at every attempt.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Generic

import trio

from raftmq.errors import RaftmqError
from raftmq.metadata.raft.network_protocol import AddressT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from raftmq.metadata.raft.network_protocol import Network

DIAL_SECONDS_MAX = 3.0
PAUSE_SECONDS_MIN = 0.1
PAUSE_SECONDS_MAX = 0.5

logger = logging.getLogger(__name__)


class Dialer(Generic[AddressT]):
    def __init__(
        self, peer: int, address: AddressT, network: Network[AddressT], *, random: Random
    ) -> None:
        self._peer, self._address, self._network, self._random = peer, address, network, random
        self._pause = PAUSE_SECONDS_MIN
        self._problem = ""
        self._attempt = trio.CancelScope()

    def set_address(self, address: AddressT) -> None:
        """Call there from now on; whoever is being served is not disturbed."""
        self._address = address
        self._problem = ""
        self._pause = PAUSE_SECONDS_MIN
        self._attempt.cancel()

    async def run(self, meet: Callable[[trio.abc.Stream], Awaitable[bool]]) -> None:
        """For ever; `meet` serves a stream to its end and says whether it was of any use."""
        while True:
            stream = await self._dial()
            if stream is not None:
                self._on_answer(is_useful=await meet(stream))
            await self._rest()

    def _on_answer(self, *, is_useful: bool) -> None:
        self._problem = ""
        if is_useful:
            self._pause = PAUSE_SECONDS_MIN

    async def _dial(self) -> trio.abc.Stream | None:
        address, problem = self._address, f"no answer within {DIAL_SECONDS_MAX:g} s"
        try:
            with trio.move_on_after(DIAL_SECONDS_MAX) as self._attempt:
                return await self._network.dial(address)
        except (OSError, RaftmqError) as error:
            problem = str(error) or repr(error)
        if address == self._address:  # otherwise it does not matter any more
            self._tell(problem)
        return None

    def _tell(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            where = f"peer={self._peer} address={self._address}"
            logger.info("voter unreachable: %s reason=%s", where, problem)

    async def _rest(self) -> None:
        """Each pause is twice the last one, give or take a fifth, so that nodes do not march."""
        with trio.move_on_after(self._pause * self._random.uniform(0.8, 1.2)) as self._attempt:
            self._pause = min(self._pause * 2, PAUSE_SECONDS_MAX)
            await trio.sleep_forever()
