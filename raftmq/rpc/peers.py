"""All brokers that this node may ask something, by id.

Owns which there are; `Peer` the way to each. Addresses come from the metadata: whoever
follows it calls `set_addresses`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import trio

from raftmq.errors import RaftmqError, Unreachable
from raftmq.rpc.backoff import Backoff, Pauses
from raftmq.rpc.channel import open_channel
from raftmq.rpc.protocol import RpcLimits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from random import Random

    from raftmq.model import Address
    from raftmq.rpc.channel import Channel
    from raftmq.rpc.connection import RunSync
    from raftmq.rpc.reply import Answer, Payload
    from raftmq.wire.bodies import Request
    from raftmq.wire.messages.hello import Hello


logger = logging.getLogger("raftmq.rpc")


# -- Peer -----------------------------------------------------------------------------------------
# One broker as others see it: an address, and at most one live channel.
#
# Owns dialling: on first use, and again when the channel has ended and somebody asks; after each
# end there is a pause. Whoever asks meanwhile waits for the next attempt and shares its outcome, so
# that callers who try again and again do so at the pace of the pauses.


Dial: TypeAlias = "Callable[[Address], Awaitable[trio.abc.Stream]]"


class Dialling(NamedTuple):
    """How to reach a broker, the same for all of them."""

    dial: Dial  # raises RaftmqError, OSError, or what streams raise
    make_hello: Callable[[], Hello]
    random: Random
    limits: RpcLimits
    pauses: Pauses
    run_sync: RunSync
    on_left: Callable[[int], None]  # the channel with this broker is over


class Attempt:
    """Attributes:
    problem: why there is no channel; empty if there is one, or nobody knows yet.
    """

    def __init__(self) -> None:
        self.problem = ""
        self.done = trio.Event()

    def settle(self, problem: str) -> None:
        self.problem = problem
        self.done.set()


class Peer:
    """`run` dials."""

    def __init__(self, broker_id: int, address: Address, dialling: Dialling) -> None:
        self._broker_id, self._address, self._dialling = broker_id, address, dialling
        self._backoff = Backoff(dialling.random, dialling.pauses)
        self._channel: Channel | None = None
        self._attempt: Attempt | None = None  # that somebody waits for
        self._asked = trio.lowlevel.ParkingLot()
        self._round = trio.CancelScope()
        self._is_gone = False
        self._problem = ""

    @property
    def address(self) -> Address:
        return self._address

    @property
    def is_connected(self) -> bool:
        return self._channel is not None and not self._channel.is_ended

    def move(self, address: Address) -> None:
        """From now on it is there; a channel to the old address ends."""
        self._address = address
        self._backoff.reset()
        self._problem = ""
        self._hang_up(f"it moved to {address}")

    def close(self) -> None:
        """It is no longer to be reached."""
        self._is_gone = True
        self._hang_up("it left the cluster")
        self._settle("it left the cluster")
        self._asked.unpark_all()

    async def request(
        self,
        body: Request,
        payload: Payload = (),
        *,
        timeout_seconds: float,
        trace: Mapping[str, str] | None = None,
    ) -> Answer:
        """See `Channel.request`; Unreachable also if there is no connection in time."""
        channel = self._channel
        if channel is None or channel.is_ended:
            begin = trio.current_time()
            channel = await self._connected(timeout_seconds)
            timeout_seconds -= trio.current_time() - begin
        return await channel.request(body, payload, timeout_seconds=timeout_seconds, trace=trace)

    def ask(
        self,
        body: Request,
        on_outcome: Callable[[Answer | RaftmqError], None],
        *,
        timeout_seconds: float,
    ) -> bool:
        """See `Channel.ask`; False if there is no channel, and then nothing is sent or told."""
        if not self.is_connected:
            return False
        assert self._channel is not None
        self._channel.ask(body, on_outcome, timeout_seconds=timeout_seconds)
        return True

    def send_one_way(self, body: Request, payload: Payload = ()) -> bool:
        """False if it is not sent; where there is no channel, one is dialled for the next time."""
        if self._channel is not None and not self._channel.is_ended:
            return self._channel.send_one_way(body, payload)
        self._ask()
        return False

    async def run(self) -> None:
        """For ever, or until `close`."""
        try:
            while not self._is_gone:
                with trio.CancelScope() as self._round:
                    while self._attempt is None and not self._is_gone:
                        await self._asked.park()
                    if not self._is_gone:
                        await self._try()
                        await trio.sleep(self._backoff.next_seconds())
        finally:
            self._is_gone = True
            self._settle("this node stops")

    def _hang_up(self, reason: str) -> None:
        if self._channel is not None:
            self._channel.end(reason)
        self._round.cancel()

    def _ask(self) -> Attempt:
        if self._attempt is None:
            self._attempt = Attempt()
            self._asked.unpark_all()
        return self._attempt

    def _settle(self, problem: str) -> None:
        if self._attempt is not None:
            self._attempt.settle(problem)
            self._attempt = None

    async def _connected(self, timeout_seconds: float) -> Channel:
        problem = f"no connection within {timeout_seconds:g} s"
        if self._is_gone:
            raise self._unreachable("this node has stopped calling it")
        attempt = self._ask()
        with trio.move_on_after(timeout_seconds):
            await attempt.done.wait()
            problem = attempt.problem
        if problem or self._channel is None:
            raise self._unreachable(problem or "the connection ended at once")
        return self._channel

    def _unreachable(self, problem: str) -> Unreachable:
        return Unreachable(f"broker {self._broker_id} at {self._address}: {problem}")

    async def _try(self) -> None:
        """Dial, and stay until the channel has ended."""
        seconds_max = self._dialling.limits.hello_seconds_max
        try:
            with trio.fail_after(seconds_max):
                stream = await self._dialling.dial(self._address)
            await self._serve(stream)
        except trio.TooSlowError:
            self._tell(f"no connection within {seconds_max:g} s")
        except (RaftmqError, OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._tell(str(error) or repr(error))

    async def _serve(self, stream: trio.abc.Stream) -> None:
        dialling = self._dialling
        make_hello, limits, run_sync = dialling.make_hello, dialling.limits, dialling.run_sync
        name = f"broker-{self._broker_id} address={self._address}"
        hello = make_hello()
        async with open_channel(stream, hello, limits, name=name, run_sync=run_sync) as channel:
            self._check(channel, hello)
            self._channel = channel
            self._problem = ""
            self._backoff.reset()
            self._settle("")
            try:
                await channel.wait_ended()
            finally:
                self._channel = None
                dialling.on_left(self._broker_id)

    def _check(self, channel: Channel, hello: Hello) -> None:
        """Addresses are given to others; whoever answers must be whom we called."""
        server = channel.server
        if server.node_id != self._broker_id:
            raise Unreachable(f"broker {server.node_id} answers there")
        if hello.cluster_id not in ("", server.cluster_id):
            raise Unreachable(f"a broker of cluster {server.cluster_id!r} answers there")

    def _tell(self, problem: str) -> None:
        """Once, not at every attempt."""
        self._settle(problem)
        if problem != self._problem:
            self._problem = problem
            where = f"broker={self._broker_id} address={self._address}"
            logger.warning("broker unreachable: %s reason=%s", where, problem)


# -- Peers ----------------------------------------------------------------------------------------


class Peers:
    """Nothing is dialled before `run`, nor before somebody asks."""

    def __init__(
        self,
        dial: Dial,
        *,
        make_hello: Callable[[], Hello],
        random: Random,
        limits: RpcLimits | None = None,
        pauses: Pauses | None = None,
        on_left: Callable[[int], None] = lambda _broker_id: None,
        run_sync: RunSync = trio.to_thread.run_sync,
    ) -> None:
        """`on_left`: told when the channel with a broker is over, whatever the reason."""
        self._dialling = Dialling(
            dial, make_hello, random, limits or RpcLimits(), pauses or Pauses(), run_sync, on_left
        )
        self._peers: dict[int, Peer] = {}
        self._nursery: trio.Nursery | None = None

    def set_addresses(self, addresses: Mapping[int, Address]) -> None:
        """These are all there are; channels to whoever left or moved end."""
        for broker_id in self._peers.keys() - addresses.keys():
            self._peers.pop(broker_id).close()
        for broker_id, address in addresses.items():
            peer = self._peers.get(broker_id)
            if peer is None:
                self._add(broker_id, address)
            elif peer.address != address:
                peer.move(address)

    def is_connected(self, broker_id: int) -> bool:
        peer = self._peers.get(broker_id)
        return peer is not None and peer.is_connected

    async def request(
        self,
        broker_id: int,
        body: Request,
        payload: Payload = (),
        *,
        timeout_seconds: float,
        trace: Mapping[str, str] | None = None,
    ) -> Answer:
        """Ask a broker; see `Channel.request`.

        Raises:
            Unreachable: nothing was sent. Definite.
            RaftmqError: see there.
        """
        peer = self._peers.get(broker_id)
        if peer is None:
            await trio.lowlevel.checkpoint()
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
        """See `Channel.ask`; False if there is no channel now, and then nothing is sent or told."""
        peer = self._peers.get(broker_id)
        return peer is not None and peer.ask(body, on_outcome, timeout_seconds=timeout_seconds)

    def send_one_way(self, broker_id: int, body: Request, payload: Payload = ()) -> bool:
        """False if it is not sent: no such broker, no channel, or too much waits already."""
        peer = self._peers.get(broker_id)
        return peer is not None and peer.send_one_way(body, payload)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                for peer in self._peers.values():
                    self._nursery.start_soon(peer.run)
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None

    def _add(self, broker_id: int, address: Address) -> None:
        peer = self._peers[broker_id] = Peer(broker_id, address, self._dialling)
        if self._nursery is not None:
            self._nursery.start_soon(peer.run)
