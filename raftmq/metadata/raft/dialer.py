"""Keeps calling one voter until it answers, and again when the connection is gone.

Owns the pauses and the address. What is done with a stream is decided by `meet`. Says once what is
wrong, not at every attempt. Whoever refuses us will do so again until somebody has acted: it is
called less and less often.
"""

from __future__ import annotations

import logging
from enum import Enum, auto
from typing import TYPE_CHECKING, Generic, NamedTuple

import trio

from raftmq.errors import RaftmqError
from raftmq.metadata.raft.network_protocol import AddressT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from raftmq.metadata.raft.network_protocol import Network

DIAL_SECONDS_MAX = 3.0

logger = logging.getLogger(__name__)


class Pauses(NamedTuple):
    """Seconds between attempts: the first, and the longest after a failure or a refusal."""

    seconds_min: float = 0.1
    seconds_max: float = 0.5
    refused_seconds_max: float = 5.0


DIALLING = Pauses()


class Outcome(Enum):
    """What came of a stream."""

    SERVED = auto()  # accepted, at least for a while
    FAILED = auto()
    REFUSED = auto()  # by us or by them


class Dialer(Generic[AddressT]):
    """`is_needed` is asked before each attempt."""

    def __init__(
        self,
        peer: int,
        address: AddressT,
        network: Network[AddressT],
        *,
        random: Random,
        pauses: Pauses = DIALLING,
        is_needed: Callable[[], bool] = lambda: True,
    ) -> None:
        self._peer, self._address, self._network, self._random = peer, address, network, random
        self._pauses, self._is_needed = pauses, is_needed
        self._pause = pauses.seconds_min
        self._pause_max = pauses.seconds_max
        self._problem = ""
        self._attempt = trio.CancelScope()

    def set_address(self, address: AddressT) -> None:
        """Call there from now on; whoever is being served is not disturbed."""
        self._address = address
        self._problem = ""
        self._pause = self._pauses.seconds_min
        self._attempt.cancel()

    async def run(self, meet: Callable[[trio.abc.Stream], Awaitable[Outcome]]) -> None:
        """For ever; `meet` serves a stream to its end and says what came of it."""
        while True:
            if self._is_needed():
                stream = await self._dial()
                self._note(Outcome.FAILED if stream is None else await meet(stream))
                if stream is not None:
                    self._problem = ""
            await self._rest()

    def _note(self, outcome: Outcome) -> None:
        is_refused = outcome is Outcome.REFUSED
        pauses = self._pauses
        self._pause_max = pauses.refused_seconds_max if is_refused else pauses.seconds_max
        self._pause = min(self._pause, self._pause_max)
        if outcome is Outcome.SERVED:
            self._pause = pauses.seconds_min

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
            where = f"peer={self._peer} address={self._address!s}"
            logger.info("voter unreachable: %s reason=%s", where, problem)

    async def _rest(self) -> None:
        """Each pause is twice the last one, give or take a fifth, so that nodes do not march."""
        with trio.move_on_after(self._pause * self._random.uniform(0.8, 1.2)) as self._attempt:
            self._pause = min(self._pause * 2, self._pause_max)
            await trio.sleep_forever()
