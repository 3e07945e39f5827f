"""InitProducerId: ids of idempotent producers, from blocks that the quorum gives to this broker.

Owns the ids that this broker may give out, and one proposal at a time for more; requests that come
meanwhile wait for that one. Blocks are fetched ahead, at the first registration and when few ids
are left, so that new producers are served while the quorum cannot be reached. The rest of a block
is lost with the process, and so is a block whose proposal has an unknown outcome: there are enough.
No id is given out twice. (Kafka: ProducerIdManager)

Invariant: LOW_COUNT ids are there, or more are being asked for, while this broker is registered.
"""

from __future__ import annotations

import logging
from collections import deque
from math import inf
from typing import TYPE_CHECKING, NoReturn

import trio

from raftmq.errors import NotController, RaftmqError, error_for
from raftmq.metadata.commands import NO_EPOCH, AllocateProducerIds, Refused
from raftmq.metadata.commands import ProducerIdBlock as Block
from raftmq.rpc.reply import Reply
from raftmq.wire.batch.header import is_named
from raftmq.wire.bodies import clip_message
from raftmq.wire.messages.producers import InitProducerIdReply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from raftmq.broker.controller_link import ControllerLink
    from raftmq.metadata.commands import AnyResult
    from raftmq.wire.messages.producers import InitProducerId

BLOCK_COUNT = 1000  # of one command, as in Kafka; a restart wastes at most so many of 2^62
LOW_COUNT = 500  # fewer left: fetch the next block; so many producers can start without a quorum
PROPOSE_SECONDS = 5.0  # then waiting clients had better ask another broker
AGAIN_SECONDS = 5.0  # after an attempt to fetch ahead that failed, if no client asks before

logger = logging.getLogger("raftmq.broker")


class _Round:
    """One proposal, and the requests that wait for it."""

    def __init__(self) -> None:
        self.is_over = trio.Event()
        self.problem: RaftmqError | None = None


class ProducerIdAllocation:
    """`run` proposes."""

    def __init__(
        self, broker_id: int, link: ControllerLink, *, broker_epoch: Callable[[], int]
    ) -> None:
        self._broker_id, self._link, self._broker_epoch = broker_id, link, broker_epoch
        self._ids: deque[int] = deque()
        self._round = _Round()
        self._wanted, self._is_asking = trio.Event(), False
        self._said = ""  # last problem logged, so that attempts do not repeat it

    def init(self, request: InitProducerId) -> Reply | Awaitable[Reply]:
        """The answer to a producer without a transaction id."""
        return self._give() if self._ids else self._wait(request.timeout_ms / 1000)

    def on_epoch(self) -> None:
        """This broker was registered under a new epoch, or lost its registration."""
        if self._is_low:
            self._want()

    @property
    def _is_low(self) -> bool:
        return len(self._ids) < LOW_COUNT and self._broker_epoch() != NO_EPOCH

    async def run(self) -> NoReturn:
        while True:
            # Until a client wants ids; while few are left also after a pause, to try again.
            with trio.move_on_after(AGAIN_SECONDS if self._is_low else inf):
                await self._wanted.wait()  # `_want`: few ids are left, or a client waits
            self._wanted, self._is_asking = trio.Event(), True
            try:
                # Committed, refused or unknown within PROPOSE_SECONDS.
                self._take_in(await self._propose())
                self._said = ""
            # The clients of this round are refused; the next one asks anew.
            except RaftmqError as error:
                if str(error) != self._said:  # log each problem once
                    self._said = str(error)
                    logger.info("no more producer ids: left=%d reason=%s", len(self._ids), error)
                self._round.problem = error
            self._is_asking = False
            current, self._round = self._round, _Round()
            current.is_over.set()

    def _give(self) -> Reply:
        producer_id = self._ids.popleft()
        if self._is_low:  # fetch the next block before this one is used up
            self._want()
        return Reply(InitProducerIdReply(producer_id=producer_id))

    async def _wait(self, seconds: float) -> Reply:
        problem: RaftmqError | None = None
        # Ends with ids, with a failed round, or at the client's timeout.
        with trio.move_on_after(seconds):
            # A round may bring fewer ids than there are clients waiting.
            while not self._ids and problem is None:
                waited = self._round
                self._want()
                await waited.is_over.wait()  # ended by `run`, with ids or a problem
                problem = waited.problem
        return self._give() if self._ids else self._refused(problem)

    def _want(self) -> None:
        # A round under way serves those who come meanwhile.
        if not self._is_asking:
            self._wanted.set()

    def _refused(self, problem: RaftmqError | None) -> Reply:
        """Definite: nothing has happened, and another broker may have ids."""
        reason = problem or "the quorum has not answered in time"
        error = NotController(f"broker {self._broker_id} has no producer ids to give: {reason}")
        return Reply(InitProducerIdReply(error.code, clip_message(str(error))))

    async def _propose(self) -> AnyResult:
        command = AllocateProducerIds(self._broker_id, self._broker_epoch(), BLOCK_COUNT)
        return await self._link.propose(command, timeout=PROPOSE_SECONDS)

    def _take_in(self, result: AnyResult) -> None:
        """Raises RaftmqError: the quorum refused."""
        match result:
            case Block(first, count):
                assert not is_named(first + count - 1), "those are of names"
                self._ids.extend(range(first, first + count))
            case Refused(code, message):
                raise error_for(code, message)
            case unexpected:
                raise AssertionError(f"{unexpected} to an AllocateProducerIds")
