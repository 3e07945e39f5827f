"""A network in memory, voters that write down what their transports tell them, and strangers.

Owns no rules; time is that of `autojump_clock`. A `Stranger` speaks frames by
hand, where a test needs a peer that no transport is.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import trio
from trio.testing import memory_stream_pair

from raftmq.metadata.raft.net.messages import (
    PROTOCOL_VERSION,
    KeepAlive,
    MessageReader,
    NodeHello,
    Refusal,
    Role,
    Welcome,
    encode_frame,
)
from raftmq.metadata.raft.net.transport import Transport, VoterLinks
from raftmq.model import Address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from raftmq.metadata.raft.net.connection import QuorumConnection
    from raftmq.metadata.raft.net.messages import AnyMessage

    Handler = Callable[[trio.abc.Stream], Awaitable[None]]

ADDRESSES = {node_id: Address(f"voter{node_id}", 9000) for node_id in (1, 2, 3)}


def hello_of(node_id: int, **changes: Any) -> NodeHello:
    values = {"cluster_id": "ours", "role": Role.VOTER, "protocol_version": PROTOCOL_VERSION}
    return NodeHello(**{**values, "node_id": node_id, **changes})


class MemoryNetwork:
    """Streams without latency or limits. `dials` has the times of all attempts, by address."""

    caller_name = "10.0.0.9:4711"

    def __init__(self) -> None:
        self.listeners: dict[Address, Handler] = {}
        self.dials: dict[Address, list[float]] = {}
        self.streams: list[tuple[trio.abc.Stream, trio.abc.Stream]] = []
        self.nursery: trio.Nursery

    async def dial(self, address: Address) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        self.dials.setdefault(address, []).append(trio.current_time())
        handler = self.listeners.get(address)
        if handler is None:
            raise ConnectionRefusedError(f"nobody listens at {address}")
        ours, theirs = memory_stream_pair()
        theirs.peer_name = self.caller_name  # type: ignore[attr-defined]  # as streams of TCP have
        self.streams.append((ours, theirs))
        self.nursery.start_soon(handler, theirs)
        return ours

    async def serve(
        self,
        handler: Handler,
        address: Address,
        *,
        task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        self.listeners[address] = handler
        task_status.started(address)
        try:
            await trio.sleep_forever()
        finally:
            del self.listeners[address]


@asynccontextmanager
async def open_network() -> AsyncIterator[MemoryNetwork]:
    network = MemoryNetwork()
    async with trio.open_nursery() as nursery:
        network.nursery = nursery
        yield network
        nursery.cancel_scope.cancel()


async def answer_nothing(_connection: QuorumConnection, _hello: NodeHello) -> None:
    await trio.sleep_forever()


class Voter:
    """A transport with its diary."""

    def __init__(self, network: MemoryNetwork, node_id: int, **options: Any) -> None:
        self.node_id, self.network = node_id, network
        self.events: list[tuple[object, ...]] = []
        self.hello, self.links = hello_of(node_id), VoterLinks()
        self.terms: list[int] = []  # of the peers that have connected, in order
        self._changed = trio.Event()
        self.transport = Transport(
            node_id,
            options.pop("addresses", ADDRESSES),
            network,
            self.links,
            make_hello=lambda: self.hello,
            check_hello=options.pop("check_hello", lambda hello: None),
            on_connected=self.on_connected,
            on_disconnected=lambda peer: self.note("disconnected", peer),
            on_refused=lambda peer, refusal: self.note("refused", peer, refusal),
            serve_guest=options.pop("serve_guest", answer_nothing),
            wake=self.on_wake,
            random=Random(node_id),
            **options,
        )
        self.scope = trio.CancelScope()

    def note(self, *event: object) -> None:
        self.events.append(event)

    def on_connected(self, peer: int, hello: NodeHello) -> None:
        self.terms.append(hello.term)
        self.note("connected", peer)

    def on_wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        with self.scope:
            await self.transport.run(task_status)

    async def start(self) -> Voter:
        await self.network.nursery.start(self.run)
        return self

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(60):
            while not condition():
                await self._changed.wait()

    async def until_connected(self, *peers: int) -> None:
        await self.until(lambda: self.transport.connected == set(peers))

    async def take(self) -> list[tuple[int, AnyMessage]]:
        """What arrives next."""
        taken: list[tuple[int, AnyMessage]] = []
        await self.until(lambda: bool(taken.extend(self.transport.take_inbox()) or taken))
        return taken

    def say(self, peer: int, *messages: AnyMessage) -> None:
        assert all(self.links.send(peer, message) for message in messages)
        self.transport.flush()


class Stranger:
    """The other end of a stream to a voter, by hand."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._speaking = trio.Lock()
        self._reader = MessageReader()
        self._arrived: list[AnyMessage] = []

    async def say(self, *messages: AnyMessage) -> None:
        async with self._speaking:
            await self.stream.send_all(b"".join(map(encode_frame, messages)))

    async def hear(self) -> AnyMessage | None:
        """The next message, KeepAlives left out; None at the end."""
        while not self._arrived:
            data = await self.stream.receive_some()
            if not data:
                return None
            frames = self._reader.receive(data)
            self._arrived += [frame for frame in frames if not isinstance(frame, KeepAlive)]
        return self._arrived.pop(0)

    async def keep_alive(self) -> None:
        while True:
            await self.say(KeepAlive())
            await trio.sleep(1)

    async def be_welcomed(self, hello: NodeHello) -> Stranger:
        """The whole handshake of a voter."""
        await self.say(hello)
        assert isinstance(await self.hear(), NodeHello)
        assert await self.hear() == Welcome()
        await self.say(Welcome())
        return self


async def call(voter: Voter) -> Stranger:
    return Stranger(await voter.network.dial(ADDRESSES[voter.node_id]))


async def refusal_of(voter: Voter, hello: NodeHello) -> Refusal:
    """Call as `hello`, and be refused."""
    stranger = await call(voter)
    await stranger.say(hello)
    assert isinstance(await stranger.hear(), NodeHello)
    refusal = await stranger.hear()
    assert isinstance(refusal, Refusal)
    assert await stranger.hear() is None
    return refusal
