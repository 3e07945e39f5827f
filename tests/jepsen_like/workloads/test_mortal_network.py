"""A program that has crashed says nothing more, and is told nothing."""

from __future__ import annotations

import pytest
import trio

from jepsen_like.workloads.mortal_network import MortalNetwork
from raftmq.model import Address

pytestmark = pytest.mark.cluster


async def test_nothing_leaves_a_program_that_has_died() -> None:
    """The peer gets what was sent before, and then the end; tasks that go on wait for ever."""
    heard = list[bytes]()

    async def listen(stream: trio.SocketStream) -> None:
        async for data in stream:
            heard.append(bytes(data))

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, listen, [listener])
        network = MortalNetwork()
        address = Address("127.0.0.1", listener.socket.getsockname()[1])
        stream = await network.dial(address)
        await stream.send(b"alive")
        with trio.fail_after(5):
            while not heard:  # noqa: ASYNC110  # another task gets it
                await trio.sleep(0.01)
        await network.die()
        assert stream.send_now(b"dead") == 0
        for attempt in (stream.send(b"dead"), stream.receive(10), network.dial(address)):
            with trio.move_on_after(0.05) as scope:
                await attempt
            assert scope.cancelled_caught
        nursery.cancel_scope.cancel()
    assert heard == [b"alive"]
