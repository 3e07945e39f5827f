"""A program that has crashed says nothing more, and is told nothing; what is held arrives late."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from jepsen_like.workloads.mortal_network import MortalNetwork
from raftmq.model import Address

pytestmark = pytest.mark.cluster


class Peer:
    """Listens, and keeps what it hears."""

    def __init__(self) -> None:
        self.heard = b""

    async def start(self, nursery: trio.Nursery) -> Address:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, self._listen, [listener])
        return Address("127.0.0.1", listener.socket.getsockname()[1])

    async def _listen(self, stream: trio.SocketStream) -> None:
        async for data in stream:
            self.heard += bytes(data)

    async def wait_heard(self, data: bytes) -> None:
        with trio.fail_after(5):
            while self.heard != data:  # noqa: ASYNC110  # another task gets it
                await trio.sleep(0.01)


async def test_nothing_leaves_a_program_that_has_died() -> None:
    """The peer gets what was sent before, and then the end; tasks that go on wait for ever."""
    peer = Peer()
    async with trio.open_nursery() as nursery:
        address = await peer.start(nursery)
        network = MortalNetwork()
        stream = await network.dial(address)
        await stream.send(b"alive")
        await peer.wait_heard(b"alive")
        await network.die()
        assert stream.send_now(b"dead") == 0
        for attempt in (stream.send(b"dead"), stream.receive(10), network.dial(address)):
            with trio.move_on_after(0.05) as scope:
                await attempt
            assert scope.cancelled_caught
        nursery.cancel_scope.cancel()
    assert peer.heard == b"alive"


async def test_what_is_held_arrives_late_and_in_order() -> None:
    """Also what its program has closed the connection behind."""
    peer = Peer()
    async with trio.open_nursery() as nursery:
        network = MortalNetwork()
        stream = await network.dial(await peer.start(nursery))
        await stream.send(b"1")
        nursery.start_soon(network.hold, 0.2)
        await trio.testing.wait_all_tasks_blocked(0.05)
        await stream.send(b"2")
        assert stream.send_now(b"34") == 2
        await stream.aclose()
        assert peer.heard == b"1"
        await peer.wait_heard(b"1234")
        nursery.cancel_scope.cancel()
