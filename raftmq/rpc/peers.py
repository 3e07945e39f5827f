"""Connections to other brokers by id: dials on first use, backs off, retries, follows addresses.

`Peers` owns which brokers there are, `Peer` the connection to one. Addresses come from the
metadata: a broker's follower of the metadata, or the `Cluster` of a client, calls `set_addresses`.
At most one channel to a broker is open. Runs on asyncio or trio; a Connector opens the channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import anyio

from raftmq.errors import RaftmqError, Unreachable
from raftmq.rpc.backoff import Backoff, Pauses

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from random import Random

    from anyio.abc import TaskGroup, TaskStatus

    from raftmq.model import Address
    from raftmq.rpc.channel import Channel, Connector
    from raftmq.rpc.reply import Answer
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.bodies import Request


# -- Peer -----------------------------------------------------------------------------------------
# One broker as seen from this node: an address, and at most one live channel.
#
# Owns dialling: on first use, and again when the channel has ended and a caller wants it; after
# each end there is a pause. Callers that come meanwhile wait for the next attempt and share its
# outcome, so that retrying callers are slowed to the pace of the pauses.


class Dialling(NamedTuple):
    """How to reach a broker; the same for all of them."""

    connector: Connector
    random: Random
    pauses: Pauses
    on_left: Callable[[int], None]  # called when the channel with this broker has ended


class Attempt:
    """One attempt to connect, which any number of callers wait for.

    Attributes:
        problem: why there is no channel; empty when there is one, or while it is not known.
    """

    def __init__(self) -> None:
        self.problem = ""
        self.done = anyio.Event()

    def settle(self, problem: str) -> None:
        self.problem = problem
        self.done.set()


class Peer:
    """`run` is the task that dials."""

    def __init__(self, broker_id: int, address: Address, dialling: Dialling) -> None:
        self._broker_id, self._address, self._dialling = broker_id, address, dialling
        self._backoff = Backoff(dialling.random, dialling.pauses)
        self._channel: Channel | None = None
        self._attempt: Attempt | None = None  # None while no caller wants a channel
        self._asked = anyio.Event()
        self._round = anyio.CancelScope()  # of one attempt and its pause; `move` cancels it
        self._is_gone = False
        self._problem = ""  # last one logged, so that a repeated one is not

    @property
    def address(self) -> Address:
        return self._address

    @property
    def channel(self) -> Channel | None:
        """The one that lives, if there is one."""
        found = self._channel
        return None if found is None or found.is_ended else found

    def move(self, address: Address) -> None:
        """The broker has another address; a channel to the old one ends."""
        self._address = address
        self._backoff.reset()
        self._problem = ""
        self._hang_up(f"it moved to {address}")

    def close(self) -> None:
        """The broker has left the metadata: fail its callers and stop dialling."""
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
        trace: Mapping[str, str] | None = None,
    ) -> Answer:
        """See `Channel.request`; Unreachable also where there is no connection in time."""
        channel = self.channel
        if channel is None:  # not dialled yet, or broken since
            begin = anyio.current_time()
            # Until Hello has succeeded or failed, within the timeout.
            channel = await self._connected(timeout_seconds)
            # The timeout is for both: what dialling took is gone.
            timeout_seconds -= anyio.current_time() - begin
        return await channel.request(body, payload, timeout_seconds=timeout_seconds, trace=trace)

    def ask(
        self,
        body: Request,
        on_outcome: Callable[[Answer | RaftmqError], None],
        *,
        timeout_seconds: float,
    ) -> bool:
        """See `Channel.ask`; False without a channel: nothing is sent, `on_outcome` not called."""
        channel = self.channel
        if channel is None:
            return False
        channel.ask(body, on_outcome, timeout_seconds=timeout_seconds)
        return True

    def send_one_way(self, body: Request, payload: Sequence[Buffer] = ()) -> bool:
        """False if not sent; without a channel one is dialled for the next request."""
        channel = self.channel
        if channel is not None:
            return channel.send_one_way(body, payload)
        self._ask()
        return False

    async def run(self) -> None:
        """Until `close`, or cancelled."""
        try:
            while not self._is_gone:
                with anyio.CancelScope() as self._round:
                    while self._attempt is None and not self._is_gone:
                        self._asked = anyio.Event()
                        # Until a caller wants a channel, or the broker is removed.
                        await self._asked.wait()
                    if not self._is_gone:
                        await self._try()  # for as long as the channel lives
                        # After every end, also of a good channel: a broker that accepts and
                        # hangs up would be dialled in a loop otherwise.
                        await anyio.sleep(self._backoff.next_seconds())
        finally:
            # Callers must not wait for an attempt that no task will make.
            self._is_gone = True
            self._settle("this node stops")

    def _hang_up(self, reason: str) -> None:
        if self._channel is not None:  # its callers get Disconnected or Unreachable
            self._channel.end(reason)
        self._round.cancel()

    def _ask(self) -> Attempt:
        if self._attempt is None:  # the first caller of this attempt wakes the dialling task
            self._attempt = Attempt()
            self._asked.set()
        return self._attempt

    def _settle(self, problem: str) -> None:
        if self._attempt is not None:  # there may be no caller, as after `move`
            self._attempt.settle(problem)
            self._attempt = None

    async def _connected(self, timeout_seconds: float) -> Channel:
        problem = f"no connection within {timeout_seconds:g} s"
        if self._is_gone:  # removed from the metadata, or this node stops
            raise self._unreachable("this node has stopped calling it")
        attempt = self._ask()
        # Ends with Hello, with a failed attempt, or by the caller's timeout.
        with anyio.move_on_after(timeout_seconds):
            await attempt.done.wait()  # settled by Hello, by a failure, or by `close`
            problem = attempt.problem
        # The channel may have ended between its Hello and this task's turn.
        if problem or self._channel is None:
            raise self._unreachable(problem or "the connection ended at once")
        return self._channel

    def _unreachable(self, problem: str) -> Unreachable:
        return Unreachable(f"broker {self._broker_id} at {self._address}: {problem}")

    async def _try(self) -> None:
        """Dial, say Hello, and stay until the channel has ended."""
        name = f"broker-{self._broker_id} address={self._address}"
        try:
            async with self._dialling.connector.open(self._address, name=name) as channel:
                await self._serve(channel)  # the life of the channel
        # Refused, no answer, or a refused Hello: `run` pauses, then dials again if a caller asks.
        except RaftmqError as error:
            self._tell(str(error) or repr(error))

    async def _serve(self, channel: Channel) -> None:
        self._check(channel)
        self._channel = channel
        self._problem = ""
        self._backoff.reset()
        self._settle("")
        # The reader's task ends the channel: the broker hung up, went silent, or `_hang_up`.
        try:
            await channel.wait_ended()  # the reader notices the end; pings find a silent peer
        finally:
            self._channel = None
            self._dialling.on_left(self._broker_id)

    def _check(self, channel: Channel) -> None:
        """An address may belong to another node by now: check who answers."""
        hello, server = channel.hello, channel.server
        if server.node_id != self._broker_id:  # the address belongs to another node now
            raise Unreachable(f"broker {server.node_id} answers there")
        # Another cluster uses that address.
        if hello.cluster_id not in ("", server.cluster_id):
            raise Unreachable(f"a broker of cluster {server.cluster_id!r} answers there")

    def _tell(self, problem: str) -> None:
        """Fail the waiting callers; log a problem once, not at every attempt."""
        self._settle(problem)
        if problem != self._problem:  # logged once for each problem
            self._problem = problem
            where = f"broker={self._broker_id} address={self._address}"
            self._dialling.connector.logger.warning(
                "broker unreachable: %s reason=%s", where, problem
            )


# -- Peers ----------------------------------------------------------------------------------------


class Peers:
    """Nothing is dialled before `run`, nor before the first request to a broker."""

    def __init__(
        self,
        connector: Connector,
        *,
        random: Random,
        pauses: Pauses | None = None,
        on_left: Callable[[int], None] = lambda _broker_id: None,
    ) -> None:
        """`on_left` is called when the channel with a broker has ended, for any reason."""
        self._dialling = Dialling(connector, random, pauses or Pauses(), on_left)
        self._peers: dict[int, Peer] = {}
        self._tasks: TaskGroup | None = None

    def set_addresses(self, addresses: Mapping[int, Address]) -> None:
        """The complete list; channels to brokers that left or moved are closed."""
        # Removed ones first: an address may have gone from one broker to another.
        for broker_id in self._peers.keys() - addresses.keys():
            self._peers.pop(broker_id).close()
        for broker_id, address in addresses.items():
            peer = self._peers.get(broker_id)
            if peer is None:
                # Before `run` there is no task group; `run` starts those that are known then.
                self._add(broker_id, address)
            elif peer.address != address:
                peer.move(address)

    def channel(self, broker_id: int) -> Channel | None:
        """The one to that broker, if there is one now; it may end at any time."""
        peer = self._peers.get(broker_id)
        return None if peer is None else peer.channel

    def is_connected(self, broker_id: int) -> bool:
        return self.channel(broker_id) is not None

    async def request(
        self,
        broker_id: int,
        body: Request,
        payload: Sequence[Buffer] = (),
        *,
        timeout_seconds: float,
        trace: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request to a broker; see `Channel.request`.

        Raises:
            Unreachable: nothing was sent. Definite.
            RaftmqError: see there.
        """
        peer = self._peers.get(broker_id)
        if peer is None:  # not in the metadata (yet)
            # A caller that retries at once must not starve the loop.
            await anyio.lowlevel.checkpoint()
            raise Unreachable(f"broker {broker_id}: no address is known")
        return await peer.request(body, payload, timeout_seconds=timeout_seconds, trace=trace)

    def ask(
        self,
        broker_id: int,
        body: Request,
        on_outcome: Callable[[Answer | RaftmqError], None],
        *,
        timeout_seconds: float,
    ) -> bool:
        """See `Channel.ask`; False without a channel: nothing is sent, `on_outcome` not called."""
        peer = self._peers.get(broker_id)
        return peer is not None and peer.ask(body, on_outcome, timeout_seconds=timeout_seconds)

    def send_one_way(self, broker_id: int, body: Request, payload: Sequence[Buffer] = ()) -> bool:
        """False if not sent: unknown broker, no channel, or too many bytes queued."""
        peer = self._peers.get(broker_id)
        return peer is not None and peer.send_one_way(body, payload)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        try:
            async with anyio.create_task_group() as self._tasks:
                for peer in self._peers.values():
                    self._tasks.start_soon(peer.run)
                task_status.started()
                # Keeps the task group open for peers that are added later.
                await anyio.sleep_forever()
        finally:
            self._tasks = None

    def _add(self, broker_id: int, address: Address) -> None:
        peer = self._peers[broker_id] = Peer(broker_id, address, self._dialling)
        if self._tasks is not None:  # before `run`, that starts it
            self._tasks.start_soon(peer.run)
