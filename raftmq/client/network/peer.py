"""One broker of a client: address, dialling with backoff, at most one live connection.

Dials on first use, and again when a request finds the connection ended; after each end there is a
pause. Callers that come meanwhile wait for the next attempt and share its outcome, so that even
callers that retry in a loop dial no faster than the backoff.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import anyio

from raftmq.client.network.channel import open_channel
from raftmq.errors import RaftmqError, Unreachable
from raftmq.rpc.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from raftmq.client.network.channel import Channel
    from raftmq.client.network.network import Network, Stream
    from raftmq.model import Address
    from raftmq.rpc.backoff import Pauses
    from raftmq.rpc.protocol import RpcLimits
    from raftmq.rpc.reply import Answer
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.bodies import Request
    from raftmq.wire.messages.hello import Hello

logger = logging.getLogger("raftmq.client")


class Dialling(NamedTuple):
    """How to reach brokers, the same for all of them."""

    network: Network
    make_hello: Callable[[], Hello]
    random: Random
    limits: RpcLimits
    pauses: Pauses


class Attempt:
    """One attempt to connect, and its outcome.

    Attributes:
        problem: why there is no channel; empty if there is one, or the attempt is not over.
    """

    def __init__(self) -> None:
        self.problem = ""
        self.done = anyio.Event()

    def settle(self, problem: str) -> None:
        self.problem = problem
        self.done.set()


class Peer:
    """One broker. `run` is the task that dials."""

    def __init__(self, broker_id: int, address: Address, dialling: Dialling) -> None:
        self._broker_id, self._address, self._dialling = broker_id, address, dialling
        self._backoff = Backoff(dialling.random, dialling.pauses)
        self._channel: Channel | None = None
        self._attempt: Attempt | None = None  # that requests wait for
        self._asked = anyio.Event()
        self._round = anyio.CancelScope()
        self._is_gone = False
        self._problem = ""

    @property
    def address(self) -> Address:
        return self._address

    @property
    def is_connected(self) -> bool:
        return self._channel is not None and not self._channel.is_ended

    def move(self, address: Address) -> None:
        """The broker has another address; a channel to the old one ends."""
        self._address = address
        self._backoff.reset()
        self._problem = ""
        self._hang_up(f"it moved to {address}")

    def close(self) -> None:
        """The broker has left the cluster."""
        self._is_gone = True
        self._hang_up("it left the cluster")
        self._settle("it left the cluster")
        self._asked.set()

    async def request(
        self,
        body: Request,
        payload: Sequence[Buffer] = (),
        *,
        timeout_seconds: float,
    ) -> Answer:
        """See `Channel.request`; Unreachable also if there is no connection in time."""
        channel = self._channel
        if channel is None or channel.is_ended:  # dial, and subtract the time it took
            begin = anyio.current_time()
            channel = await self._connected(timeout_seconds)
            timeout_seconds -= anyio.current_time() - begin
        return await channel.request(body, payload, timeout_seconds=timeout_seconds)

    def send_one_way(self, body: Request, payload: Sequence[Buffer] = ()) -> bool:
        """False if it is not sent; without a channel one is dialled for the next time."""
        if self._channel is not None and not self._channel.is_ended:
            return self._channel.send_one_way(body, payload)
        self._ask()
        return False

    async def run(self) -> None:
        """Runs for ever, or until `close`."""
        try:
            while not self._is_gone:  # one attempt, and the life of its channel, per round
                with anyio.CancelScope() as self._round:
                    while self._attempt is None and not self._is_gone:
                        self._asked = anyio.Event()
                        # A broker that no request needs is not dialled.
                        await self._asked.wait()
                    if not self._is_gone:
                        await self._try()
                        # After a failed attempt as well as after a lost connection; `move` and
                        # `close` cut it short.
                        await anyio.sleep(self._backoff.next_seconds())
        finally:
            self._is_gone = True
            self._settle("this node stops")

    def _hang_up(self, reason: str) -> None:
        if self._channel is not None:
            self._channel.end(reason)
        self._round.cancel()

    def _ask(self) -> Attempt:
        if self._attempt is None:  # else this caller joins it
            self._attempt = Attempt()
            self._asked.set()
        return self._attempt

    def _settle(self, problem: str) -> None:
        if self._attempt is not None:
            self._attempt.settle(problem)
            self._attempt = None

    async def _connected(self, timeout_seconds: float) -> Channel:
        problem = f"no connection within {timeout_seconds:g} s"
        if self._is_gone:  # left the cluster, or the client is closing
            raise self._unreachable("this node has stopped calling it")
        attempt = self._ask()
        with anyio.move_on_after(timeout_seconds):
            # Ends when the dial has succeeded or failed; the attempt goes on for others after a
            # timeout.
            await attempt.done.wait()
            problem = attempt.problem
        if problem or self._channel is None:  # None: ended before this task ran
            raise self._unreachable(problem or "the connection ended at once")
        return self._channel

    def _unreachable(self, problem: str) -> Unreachable:
        return Unreachable(f"broker {self._broker_id} at {self._address}: {problem}")

    async def _try(self) -> None:
        """Dial, and keep the channel until it has ended."""
        seconds_max = self._dialling.limits.hello_seconds_max
        try:
            with anyio.fail_after(seconds_max):
                stream = await self._dialling.network.dial(self._address)
            await self._serve(stream)
        # The attempt failed; `run` pauses, then dials again if a request asks.
        except TimeoutError:
            self._fail_attempt(f"no connection within {seconds_max:g} s")
        except (RaftmqError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            self._fail_attempt(str(error) or repr(error))

    async def _serve(self, stream: Stream) -> None:
        hello, limits = self._dialling.make_hello(), self._dialling.limits
        name = f"broker-{self._broker_id} address={self._address}"
        async with open_channel(stream, hello, limits, name=name) as channel:
            self._check(channel, hello)
            self._channel = channel
            self._problem = ""
            self._backoff.reset()
            self._settle("")
            try:
                # Keeps the channel open: leaving the block would close it.
                await channel.wait_ended()
            finally:
                self._channel = None

    def _check(self, channel: Channel, hello: Hello) -> None:
        """Addresses are reassigned: the broker that answers must be the one that was called."""
        server = channel.server
        if server.node_id != self._broker_id:  # the address is another broker's now
            raise Unreachable(f"broker {server.node_id} answers there")
        if hello.cluster_id not in ("", server.cluster_id):
            raise Unreachable(f"a broker of cluster {server.cluster_id!r} answers there")

    def _fail_attempt(self, problem: str) -> None:
        """Fail the attempt; log the problem once, not at every attempt."""
        self._settle(problem)
        if problem != self._problem:  # a warning per change, not per attempt
            self._problem = problem
            where = f"broker={self._broker_id} address={self._address}"
            logger.warning("broker unreachable: %s reason=%s", where, problem)
