"""InitProducerId: ids for producers, out of blocks that the quorum gives to this broker.

Owns the ids that this broker may give out, and one proposal at a time for more of them: whoever
asks meanwhile waits for that one. Blocks are fetched ahead, at the first registration and whenever
the stock is low, so that new producers are served while the quorum is not to be reached. What is
left of a block is lost with the process, and a block whose proposal has an unknown outcome is, too:
there are more than enough. None is given out twice.

Invariant: LOW_COUNT ids are there, or more are being asked for, as long as it is registered.
"""

from __future__ import annotations

import logging
from collections import deque
from math import inf
from typing import TYPE_CHECKING, NoReturn, Protocol

import trio

from raftmq.errors import NotController, RaftmqError, error_for
from raftmq.metadata.commands import NO_EPOCH, AllocateProducerIds, Refused
from raftmq.metadata.commands import ProducerIdBlock as Block
from raftmq.rpc.reply import Reply
from raftmq.wire.apis import ApiKey
from raftmq.wire.batch.header import is_named
from raftmq.wire.bodies import clip_message
from raftmq.wire.messages.producers import InitProducerIdReply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from raftmq.metadata.commands import AnyCommand, AnyResult
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.server import Handler
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.messages.producers import InitProducerId

BLOCK_COUNT = 1000
LOW_COUNT = 500  # with fewer left the next block is asked for: so many producers need no quorum
PROPOSE_SECONDS = 5.0  # then those who wait had better ask another broker
AGAIN_SECONDS = 5.0  # after an attempt to fetch ahead that failed, if nobody asks before

logger = logging.getLogger("raftmq.broker")


class ProducerIdLink(Protocol):
    async def propose(
        self,
        command: AnyCommand,
        *,
        timeout: float,  # noqa: ASYNC109  # part of the outcome
    ) -> AnyResult:
        """On whichever node leads the quorum; raises RaftmqError."""


class _Round:
    """One proposal, and those who wait for it."""

    def __init__(self) -> None:
        self.is_over = trio.Event()
        self.problem: RaftmqError | None = None


class ProducerIdAllocation:
    """`run` proposes."""

    def __init__(
        self, broker_id: int, link: ProducerIdLink, *, broker_epoch: Callable[[], int]
    ) -> None:
        self._broker_id, self._link, self._broker_epoch = broker_id, link, broker_epoch
        self._ids: deque[int] = deque()
        self._round = _Round()
        self._wanted, self._is_asking = trio.Event(), False
        self._said = ""  # why there are none; once, not at each attempt

    def handlers(self) -> dict[ApiKey, Handler]:
        return {ApiKey.INIT_PRODUCER_ID: self.init}

    def init(
        self, _context: RequestContext, request: InitProducerId, _payload: Buffer
    ) -> Reply | Awaitable[Reply]:
        return self._give() if self._ids else self._wait(request.timeout_ms / 1000)

    def on_epoch(self) -> None:
        """This broker is registered, under another epoch than before, or not any more."""
        if self._is_low:
            self._want()

    @property
    def _is_low(self) -> bool:
        return len(self._ids) < LOW_COUNT and self._broker_epoch() != NO_EPOCH

    async def run(self) -> NoReturn:
        while True:
            with trio.move_on_after(AGAIN_SECONDS if self._is_low else inf):
                await self._wanted.wait()
            self._wanted, self._is_asking = trio.Event(), True
            try:
                self._take_in(await self._propose())
                self._said = ""
            except RaftmqError as error:
                if str(error) != self._said:
                    self._said = str(error)
                    logger.info("no more producer ids: left=%d reason=%s", len(self._ids), error)
                self._round.problem = error
            self._is_asking = False
            current, self._round = self._round, _Round()
            current.is_over.set()

    def _give(self) -> Reply:
        producer_id = self._ids.popleft()
        if self._is_low:
            self._want()
        return Reply(InitProducerIdReply(producer_id=producer_id))

    async def _wait(self, seconds: float) -> Reply:
        problem: RaftmqError | None = None
        with trio.move_on_after(seconds):
            while not self._ids and problem is None:
                waited = self._round
                self._want()
                await waited.is_over.wait()
                problem = waited.problem
        return self._give() if self._ids else self._refused(problem)

    def _want(self) -> None:
        if not self._is_asking:
            self._wanted.set()

    def _refused(self, problem: RaftmqError | None) -> Reply:
        """Nothing has happened, and another broker may have some, or this one in a moment."""
        reason = problem or "the quorum has not answered in time"
        error = NotController(f"broker {self._broker_id} has no producer ids to give: {reason}")
        return Reply(InitProducerIdReply(error.code, clip_message(str(error))))

    async def _propose(self) -> AnyResult:
        command = AllocateProducerIds(self._broker_id, self._broker_epoch(), BLOCK_COUNT)
        return await self._link.propose(command, timeout=PROPOSE_SECONDS)

    def _take_in(self, result: AnyResult) -> None:
        """Raises RaftmqError: it was refused."""
        match result:
            case Block(first, count):
                assert not is_named(first + count - 1), "those are of names"
                self._ids.extend(range(first, first + count))
            case Refused(code, message):
                raise error_for(code, message)
            case unexpected:
                raise AssertionError(f"{unexpected} to an AllocateProducerIds")
