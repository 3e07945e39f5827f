"""Connections between voters: dialling with back-off, one connection per peer, inbox, guests.

Owns which peers are connected, the messages received from them, and frames that wait for `flush`.
Of two voters the smaller id dials. The larger one connects only to ask why it is not dialled, after
some time: the address in the other's settings may be wrong, and no log would show it. Invariants:
  1. `on_connected` and `on_disconnected` alternate for each peer, and are called where it happens.
  2. Messages belong to a connection. Once it has ended (lost, dropped, or replaced by a newer one)
     none of its messages is delivered, and none queued for it is sent on another.
  3. On one connection messages arrive in the order in which they were sent, without a gap.

Must not interpret messages; the guard in front of the node does.
"""

from __future__ import annotations

import logging
from collections import deque
from enum import Enum, auto
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeAlias

import trio

from raftmq.errors import RaftmqError, RemoteProtocolError
from raftmq.metadata.raft.net.connection import (
    HANDSHAKE_SECONDS_MAX,
    AddressT,
    Caller,
    QuorumConnection,
    StreamLimits,
    judge_hello,
    open_connection,
    refuse,
    shake_hands,
)
from raftmq.metadata.raft.net.messages import (
    FRAME_BYTES_MAX,
    SMALL_FRAME_BYTES_MAX,
    NodeHello,
    Refusal,
    Role,
    Welcome,
    encode_frame,
)
from raftmq.metadata.raft.net.refusals import Refusals

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from random import Random

    from raftmq.metadata.raft.net.connection import Met, QuorumConnection, QuorumNetwork, Received
    from raftmq.metadata.raft.net.messages import AnyMessage

    Wrap = Callable[[trio.abc.Stream, bool], Awaitable[trio.abc.Stream]]
    Identify = Callable[[trio.abc.Stream], int | None]

    ServeGuest: TypeAlias = Callable[[QuorumConnection, NodeHello], Awaitable[None]]


logger = logging.getLogger("raftmq.metadata")


# -- Dialer ---------------------------------------------------------------------------------------
# Dials one voter until it answers, and again when the connection has ended.
#
# Owns the back-off and the address. `meet` serves the stream. Logs a problem once, not at every
# attempt. A voter that refuses this node will do so until an operator acts, so it is dialled less
# often.


# For a TCP connection within one network; longer means that packets are dropped.
DIAL_SECONDS_MAX = 3.0


class DialPauses(NamedTuple):
    """Back-off in seconds: the first pause, and the longest after a failure or a refusal."""

    seconds_min: float = 0.1
    seconds_max: float = 0.5  # short: a restarted voter is needed for the majority
    refused_seconds_max: float = 5.0


DIALLING = DialPauses()


class StreamOutcome(Enum):
    """How the connection over a stream ended."""

    SERVED = auto()  # accepted, at least for a while
    FAILED = auto()
    REFUSED = auto()  # by us or by them


class Dialer(Generic[AddressT]):
    """Calls `is_needed` before each attempt."""

    def __init__(
        self,
        peer: int,
        address: AddressT,
        network: QuorumNetwork[AddressT],
        *,
        random: Random,
        pauses: DialPauses = DIALLING,
        is_needed: Callable[[], bool] = lambda: True,
    ) -> None:
        self._peer, self._address, self._network, self._random = peer, address, network, random
        self._pauses, self._is_needed = pauses, is_needed
        self._pause = pauses.seconds_min
        self._pause_max = pauses.seconds_max
        self._problem = ""
        self._attempt = trio.CancelScope()

    def set_address(self, address: AddressT) -> None:
        """Dial this address from now on; a connection that is being served stays."""
        self._address = address
        self._problem = ""
        self._pause = self._pauses.seconds_min
        self._attempt.cancel()

    async def run(self, meet: Callable[[trio.abc.Stream], Awaitable[StreamOutcome]]) -> None:
        """Dial until cancelled; `meet` serves a stream to its end and returns how it ended."""
        while True:
            if self._is_needed():  # a larger id dials only for an inquiry
                stream = await self._dial()
                # `meet` returns when the connection has ended.
                self._note(StreamOutcome.FAILED if stream is None else await meet(stream))
                if stream is not None:  # connected: the next failure is logged again
                    self._problem = ""
            await self._rest()  # the back-off

    def _note(self, outcome: StreamOutcome) -> None:
        is_refused = outcome is StreamOutcome.REFUSED
        pauses = self._pauses
        self._pause_max = pauses.refused_seconds_max if is_refused else pauses.seconds_max
        self._pause = min(self._pause, self._pause_max)
        if outcome is StreamOutcome.SERVED:  # it worked: begin with a short pause next time
            self._pause = pauses.seconds_min

    async def _dial(self) -> trio.abc.Stream | None:
        address, problem = self._address, f"no answer within {DIAL_SECONDS_MAX:g} s"
        try:
            with trio.move_on_after(DIAL_SECONDS_MAX) as self._attempt:
                return await self._network.dial(address)  # bounded by DIAL_SECONDS_MAX
        except (OSError, RaftmqError) as error:  # a voter that is down is normal: try again
            problem = str(error) or repr(error)
        if address == self._address:  # else `set_address` has cancelled this attempt
            self._tell(problem)
        return None

    def _tell(self, problem: str) -> None:
        if problem != self._problem:  # once, not at every attempt
            self._problem = problem
            where = f"peer={self._peer} address={self._address!s}"
            logger.info("voter unreachable: %s reason=%s", where, problem)

    async def _rest(self) -> None:
        """Exponential back-off with 20 % jitter, so that nodes do not dial in step; `set_address`
        ends it.
        """
        with trio.move_on_after(self._pause * self._random.uniform(0.8, 1.2)) as self._attempt:
            self._pause = min(self._pause * 2, self._pause_max)
            await trio.sleep_forever()  # until the pause ends, or `set_address` cancels it


# -- Guests ---------------------------------------------------------------------------------------
# Connections of nodes without a vote: observers and visitors.
#
# Owns how many there may be at a time and how each of them ends. `serve_guest` answers them; it is
# cancelled when its connection ends.


# Observers and visitors of one voter at a time; others are refused and try the next voter. Each may
# make the voter read entries of 1 MiB at once.
GUESTS_MAX = 64


class ObserverLinks:
    def __init__(self, serve_guest: ServeGuest) -> None:
        self._serve_guest, self._count = serve_guest, 0

    async def serve(self, connection: QuorumConnection, hello: NodeHello) -> None:
        """Serve a guest until it leaves, or `serve_guest` returns."""
        if self._count >= GUESTS_MAX:
            reason = f"{self._count} guests are here already: ask another voter, or later"
            await refuse(connection, Refusal(reason))
            return
        self._count += 1
        try:
            await serve_until_closed(connection, hello, self._serve_guest)  # until the guest leaves
        finally:
            self._count -= 1


async def serve_until_closed(
    connection: QuorumConnection, hello: NodeHello, serve_guest: ServeGuest
) -> None:
    async def cancel_when_closed() -> None:
        await connection.wait_closed()  # ended by the peer, or by a timeout
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_when_closed)
        try:
            await serve_guest(connection, hello)  # until it leaves or breaks the protocol
            await connection.finish("served")  # lets it read the last answer
        except RemoteProtocolError as error:  # a faulty guest loses its connection only
            connection.close(str(error), is_fault=True)


# -- Inbox ----------------------------------------------------------------------------------------
# Messages received from other voters that the driver has not taken yet.
#
# Owns their order and each connection's share of the memory (back-pressure: a connection whose
# share is used up is not read). Messages of a connection that was dropped are removed, so that the
# driver gets those of live connections only.


# Of one connection, plus the last read; as much as a leader may have in flight to this follower.
SHARE_BYTES_MAX = 8 << 20


class Inbox:
    def __init__(self, share_bytes_max: int) -> None:
        self._share_bytes_max = share_bytes_max
        self._messages: deque[tuple[VoterLink, AnyMessage]] = deque()
        self._shares: dict[VoterLink, int] = {}
        self._space_freed = trio.lowlevel.ParkingLot()

    def put(self, link: VoterLink, messages: Sequence[AnyMessage], size_bytes: int) -> None:
        self._messages.extend((link, message) for message in messages)
        self._shares[link] = self._shares.get(link, 0) + size_bytes

    async def wait_room(self, link: VoterLink) -> None:
        """Wait until the driver has taken messages, if the share of `link` is used up."""
        while self._shares.get(link, 0) >= self._share_bytes_max:
            await self._space_freed.park()  # until `take` or `drop`

    def take(self) -> list[tuple[int, AnyMessage]]:
        """All messages with the voter that sent each, in the order of arrival."""
        taken = [(link.peer, message) for link, message in self._messages]
        self._messages.clear()
        self._shares.clear()
        self._space_freed.unpark_all()
        return taken

    def drop(self, link: VoterLink) -> None:
        """Remove the messages of `link`."""
        if self._shares.pop(link, None) is not None:  # it had messages in the inbox
            self._messages = deque(item for item in self._messages if item[0] is not link)
            self._space_freed.unpark_all()


# -- Transport ------------------------------------------------------------------------------------


# Incoming streams before their Hello. Each may hold 64 KiB and a task for three seconds; more are
# closed at once.
STRANGERS_MAX = 128
# Time without a connection after which the larger id asks the smaller one, which should dial, why
# it does not. A restart of that voter takes less.
UNCALLED_SECONDS_MAX = 10.0
FOREIGN_WARNING_SECONDS = 60.0  # between two warnings of one protocol that is not ours
INQUIRY_PAUSES = DialPauses(5.0, 20.0, 20.0)  # rare: it only serves the operator's log


class VoterLink:
    """A connection to a voter, accepted by both sides."""

    def __init__(self, connection: QuorumConnection, hello: NodeHello, *, number: int) -> None:
        self.peer, self.connection, self.hello = hello.node_id, connection, hello
        self.number = number  # of its stream, in the order of their beginning
        self.held: list[bytes] = []  # frames that wait for `flush`


class VoterLinks(dict[int, VoterLink]):
    """By peer: live connections. `Transport` adds and removes them; others only `send`."""

    def send(self, peer: int, message: AnyMessage) -> bool:
        """Queue `message` for the next `flush`; False, and dropped, without a connection."""
        link = self.get(peer)
        if link is None or link.connection.is_closed:  # dropped: Raft sends again
            return False
        link.held.append(encode_frame(message))
        return True


class Transport(Generic[AddressT]):
    """The callbacks are called on the event loop and must not block.

    `addresses` holds all voters; this node listens at its own. `on_refused` is called only for
    refusals after which this node must stop, `wake` when the driver has work.
    `wrap(stream, server_side)` adds TLS, and raises OSError, RaftmqError or what streams raise;
    `identify(stream)` reads the node id from the certificate.
    """

    def __init__(
        self,
        node_id: int,
        addresses: Mapping[int, AddressT],
        network: QuorumNetwork[AddressT],
        links: VoterLinks,
        *,
        make_hello: Callable[[], NodeHello],
        check_hello: Callable[[NodeHello], Refusal | None],
        on_connected: Callable[[int, NodeHello], None],
        on_disconnected: Callable[[int], None],
        on_refused: Callable[[int, Refusal], None],
        serve_guest: ServeGuest,
        wake: Callable[[], None],
        random: Random,
        identify: Identify | None = None,
        wrap: Wrap | None = None,
        limits: StreamLimits | None = None,
        share_bytes_max: int = SHARE_BYTES_MAX,
    ) -> None:
        self._node_id, self._network = node_id, network
        self._voters = frozenset(addresses)
        self._listen_address = addresses[node_id]
        self._make_hello, self._check_hello = make_hello, check_hello
        self._identify, self._wrap, self._limits = identify, wrap, limits
        self._on_connected, self._on_disconnected = on_connected, on_disconnected
        self._on_refused, self._wake = on_refused, wake
        self._links, self._inbox = links, Inbox(share_bytes_max)
        self._guests = ObserverLinks(serve_guest)
        self._strangers: set[trio.abc.Stream] = set()
        self._stream_numbers = count(1)
        self._newest: dict[int, int] = {}  # by peer: number of the newest link it ever had
        self._refusals = Refusals(node_id)
        self._foreign_warning_at: dict[str, float] = {}  # by protocol: the time of the next one
        self._missed_since = dict.fromkeys(addresses, trio.current_time())
        self._dialers = {
            peer: self._dialer(peer, addresses[peer], random)
            for peer in sorted(addresses)
            if peer != node_id
        }

    def _dialer(self, peer: int, address: AddressT, random: Random) -> Dialer[AddressT]:
        if peer > self._node_id:  # the smaller id dials
            return Dialer(peer, address, self._network, random=random)
        is_needed = partial(self._is_missed, peer)
        return Dialer(
            peer, address, self._network, random=random, pauses=INQUIRY_PAUSES, is_needed=is_needed
        )

    def _is_missed(self, peer: int) -> bool:
        is_long_ago = trio.current_time() - self._missed_since[peer] >= UNCALLED_SECONDS_MAX
        return peer not in self._links and is_long_ago

    @property
    def connected(self) -> frozenset[int]:
        return frozenset(peer for peer in self._links if self.is_connected(peer))

    def is_connected(self, peer: int) -> bool:
        link = self._links.get(peer)
        return link is not None and not link.connection.is_closed

    def set_address(self, peer: int, address: AddressT) -> None:
        """From now on `peer` is dialled there; a live connection stays."""
        assert peer in self._voters, f"{peer} is no voter"
        assert peer != self._node_id, "the own address does not change while running"
        self._dialers[peer].set_address(address)

    def take_inbox(self) -> list[tuple[int, AnyMessage]]:
        """All messages of connections that are not reported as lost, oldest first."""
        return self._inbox.take()

    def flush(self) -> None:
        """Send the queued frames, each on the connection for which it was queued."""
        for link in list(self._links.values()):
            held, link.held = link.held, []
            # The connection has ended, or its queue is full.
            if not all(link.connection.send_soon(frame) for frame in held):
                self._lose(link, "frames were left over")

    def disconnect(self, peer: int, reason: str) -> None:
        """Drop the connection, if there is one; `on_disconnected` is called before this returns."""
        link = self._links.get(peer)
        if link is not None:
            self._lose(link, reason)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and dial until cancelled; `task_status` when it listens."""
        async with trio.open_nursery() as nursery:
            # Until it listens: dialled peers may dial back at once.
            await nursery.start(self._network.serve, self._accept, self._listen_address)
            for peer, dialer in self._dialers.items():
                nursery.start_soon(dialer.run, partial(self._meet_voter, peer))
            task_status.started()

    async def _meet_voter(self, peer: int, stream: trio.abc.Stream) -> StreamOutcome:
        """Serve a stream to `peer`, which this node dialled."""
        return await self._meet(stream, dialled=peer)  # until the connection has ended

    async def _accept(self, stream: trio.abc.Stream) -> None:
        if len(self._strangers) >= STRANGERS_MAX:
            logger.warning("stream closed at once: reason=%d wait already", STRANGERS_MAX)
            await trio.aclose_forcefully(stream)  # before TLS or Hello: costs nothing
            return
        self._strangers.add(stream)
        try:
            await self._meet(stream, dialled=None)  # until the connection has ended
        finally:
            self._strangers.discard(stream)

    async def _meet(self, stream: trio.abc.Stream, *, dialled: int | None) -> StreamOutcome:
        number = next(self._stream_numbers)
        # Only the network knows the other end's address; simulated streams have none.
        caller = getattr(stream, "peer_name", "") or f"stream-{number}"
        name = caller if dialled is None else f"voter-{dialled}"
        # Bounded by HANDSHAKE_SECONDS_MAX.
        wrapped = await self._wrapped(stream, name, is_server=dialled is None)
        if wrapped is None:  # TLS failed; logged
            return StreamOutcome.FAILED
        async with open_connection(
            wrapped,
            name=name,
            limits=self._limits,
            warns_of_foreign_protocol=self._warns_of_foreign_protocol,
        ) as connection:
            own = self._make_hello()
            if dialled is None:  # a stranger until its Hello
                connection.expect(frame_bytes_max=SMALL_FRAME_BYTES_MAX)
            judge = partial(self._judge, own, self._caller(wrapped, dialled), connection)
            # Bounded by HANDSHAKE_SECONDS_MAX.
            met = await shake_hands(connection, own=own, judge=judge)
            self._strangers.discard(stream)
            # Final for this stream: dial again later.
            if met.refusal is not None or met.rejected is not None:
                self._note_refusal(met, dialled)
                return StreamOutcome.REFUSED
            if met.hello is not None and met.hello.role is not Role.VOTER:
                connection.name = _guest_name(met.hello)
                if met.hello.role is Role.VISITOR:  # comes and goes with each `quorum status`
                    connection.end_level = logging.DEBUG
                # Until the guest leaves.
                await self._guests.serve(connection, met.hello)
            # An inquiry that was not refused as it should be: still only the smaller id dials.
            elif met.hello is not None and dialled is not None and dialled < self._node_id:
                connection.close("the smaller id dials: we only asked")
            elif met.hello is not None:
                # Until the connection has ended.
                return await self._serve_voter(VoterLink(connection, met.hello, number=number), own)
        return StreamOutcome.FAILED

    def _warns_of_foreign_protocol(self, protocol: str) -> bool:
        """Of each once in a while: health checks may come every second."""
        now = trio.current_time()
        is_due = now >= self._foreign_warning_at.get(protocol, now)
        if is_due:
            self._foreign_warning_at[protocol] = now + FOREIGN_WARNING_SECONDS
        return is_due

    async def _wrapped(
        self, stream: trio.abc.Stream, name: str, *, is_server: bool
    ) -> trio.abc.Stream | None:
        """The stream inside of TLS, if it is configured; None, and closed, if that fails."""
        if self._wrap is None:
            return stream
        wrapped, reason = None, f"not done within {HANDSHAKE_SECONDS_MAX:g} s"
        try:
            with trio.move_on_after(HANDSHAKE_SECONDS_MAX):
                wrapped = await self._wrap(stream, is_server)
        except (OSError, RaftmqError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            reason = repr(error)
        finally:
            if wrapped is None:
                await trio.aclose_forcefully(stream)
        if wrapped is None:
            logger.warning("no TLS: with=%s reason=%s", name, reason)
        return wrapped

    def _caller(self, stream: trio.abc.Stream, dialled: int | None) -> Caller:
        certificate = self._identify(stream) if self._identify else None
        return Caller(dialled, certificate, needs_certificate=self._identify is not None)

    def _judge(
        self, own: NodeHello, caller: Caller, connection: QuorumConnection, hello: NodeHello
    ) -> Refusal | None:
        refusal = judge_hello(hello, own=own, voters=self._voters, caller=caller)
        if refusal is None and hello.role is Role.VOTER:  # the rest needs this node's state
            refusal = self._check_hello(hello)
            if refusal is None:  # large messages may arrive in one read with the peer's Welcome
                connection.expect(frame_bytes_max=FRAME_BYTES_MAX)
        return refusal

    def _note_refusal(self, met: Met, dialled: int | None) -> None:
        hello = met.rejected[0] if met.rejected else met.hello
        if dialled is None and hello is not None and hello.node_id in self._missed_since:
            self._missed_since[hello.node_id] = trio.current_time()  # it does dial: no inquiry
        if met.rejected is not None:
            self._refusals.on_refusing(dialled, *met.rejected)
        if met.refusal is not None:  # by the peer
            self._on_refusal(met.hello.node_id if met.hello else dialled, met.refusal)

    def _on_refusal(self, peer: int | None, refusal: Refusal) -> None:
        """Acted upon only if a known voter sent it: any process may connect and send one."""
        self._refusals.on_refused_by(peer, refusal)
        if peer is not None and refusal.must_stop:  # see `Refusal.must_stop`
            self._on_refused(peer, refusal)
            self._wake()

    async def _serve_voter(self, link: VoterLink, sent_hello: NodeHello) -> StreamOutcome:
        """Serve a voter until the connection ends; FAILED if it never began."""
        link.connection.name = f"voter-{link.peer}"
        # A newer connection came and went during this handshake: these bytes are older.
        if link.number < self._newest.get(link.peer, 0):
            link.connection.close("a newer one was served before: these bytes are late")
        # Term or standing have changed during the handshake: the peer would believe the old ones.
        elif self._make_hello() != sent_hello:
            link.connection.close("what we said of ourselves holds no more: once again")
        if link.connection.is_closed:  # ended during the handshake
            return StreamOutcome.FAILED
        self._gain(link)
        try:
            # Until messages come or the connection ends.
            while (received := await link.connection.receive_many()) is not None:
                self._deliver(link, received)
                await self._inbox.wait_room(link)  # back-pressure: until the driver has taken some
        finally:
            self._lose(link, "the transport stops")
        return StreamOutcome.SERVED

    def _deliver(self, link: VoterLink, received: Received) -> None:
        assert self._links.get(link.peer) is link, "a closed connection delivers nothing"
        for message in received.messages:
            if isinstance(message, Refusal):  # this directory is an older copy
                self._lose(link, f"refused by them: {message.reason!r}")
                self._on_refusal(link.peer, message)
                return
            if isinstance(message, NodeHello | Welcome):  # a faulty peer
                self._lose(link, f"{type(message).__name__} after the handshake")
                return
        self._inbox.put(link, received.messages, received.size_bytes)
        self._wake()

    def _gain(self, link: VoterLink) -> None:
        """The newest connection replaces an older one, which the peer has given up already."""
        older = self._links.get(link.peer)
        if older is not None:  # the peer has reconnected before this side noticed the loss
            self._lose(older, "replaced by a newer one")
        self._links[link.peer], self._newest[link.peer] = link, link.number
        self._refusals.forget(link.peer)
        logger.info("voter connected: peer=%d", link.peer)
        self._on_connected(link.peer, link.hello)
        self._wake()

    def _lose(self, link: VoterLink, reason: str) -> None:
        """End the connection; does nothing if it was ended before."""
        link.connection.close(reason)
        self._inbox.drop(link)
        # Not replaced by a newer one: the peer is disconnected.
        if self._links.get(link.peer) is link:
            del self._links[link.peer]
            self._missed_since[link.peer] = trio.current_time()
            self._on_disconnected(link.peer)
            self._wake()


def _guest_name(hello: NodeHello) -> str:
    """For logs. A visitor has no id."""
    return "visitor" if hello.role is Role.VISITOR else f"observer-{hello.node_id}"
