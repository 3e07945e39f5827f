"""One suite for both networks: what TcpNetwork does, SimulatedNetwork does too, short of a fault.

TcpNetwork is tried on the loopback interface in real time, SimulatedNetwork on virtual time. What
links and nodes do when they fail is tested in tests/unit/simulation/test_network.py.
"""

from __future__ import annotations

import socket
from functools import partial
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import pytest
import trio
import trio.testing

from raftmq.errors import Unreachable
from raftmq.model import Address
from raftmq.rpc.network import TcpNetwork
from raftmq.rpc.sockets import SILENCE_SECONDS_MAX
from tests.simulation.deterministic import run
from tests.simulation.network import SimulatedNetwork

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from raftmq.rpc.network import Handler, Network, TcpStream

MEGABYTES_8 = bytes(range(256)) * (8 << 12)  # more than any socket buffers


class Place(NamedTuple):
    """A network and a host on it; tests run in `inside`, on the clock that it needs."""

    network: Network
    host: str
    inside: Callable[[Callable[[], Awaitable[None]]], None]

    @property
    def free(self) -> Address:
        return Address(self.host, 0)

    def serve(self, handler: Handler, test: Callable[[Address], Awaitable[None]]) -> None:
        """Run `test` with the address of a server."""

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                address = await nursery.start(self.network.serve, handler, self.free)
                await test(address)
                nursery.cancel_scope.cancel()

        self.inside(main)

    def dial(self, handler: Handler, test: Callable[[trio.abc.Stream], Awaitable[None]]) -> None:
        """Run `test` with a connection to a server."""

        async def dial_and_test(address: Address) -> None:
            async with await self.network.dial(address) as stream:
                await test(stream)

        self.serve(handler, dial_and_test)


@pytest.fixture(params=["tcp", "simulated"])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "tcp":
        return Place(TcpNetwork(), "127.0.0.1", trio.run)
    return Place(SimulatedNetwork(Random(0)).node("n1"), "n1", partial(run, "a"))


async def echo(stream: trio.abc.Stream) -> None:
    while data := await stream.receive_some():
        await stream.send_all(data)


async def hang(stream: trio.abc.Stream) -> None:
    await trio.sleep_forever()


async def send_for_ever(stream: trio.abc.Stream) -> None:
    while True:
        await stream.send_all(bytes(1000))


async def receive_exactly(stream: trio.abc.Stream, length: int) -> bytes:
    received = bytearray()
    while len(received) < length:
        data = await stream.receive_some(length - len(received))
        assert data, f"ended after {len(received)} of {length} bytes"
        received += data
    return bytes(received)


def test_what_is_sent_comes_back(place: Place) -> None:
    """Two messages to a server that echoes, one after the other on one connection."""

    async def test(stream: trio.abc.Stream) -> None:
        for message in (b"hello", b"world" * 1000):
            await stream.send_all(message)
            assert await receive_exactly(stream, len(message)) == message

    place.dial(echo, test)


def test_connections_are_apart(place: Place) -> None:
    """Ten connections at once, each of which gets its own bytes back."""

    async def converse(address: Address, number: int) -> None:
        async with await place.network.dial(address) as stream:
            message = bytes([number]) * 10_000
            await stream.send_all(message)
            assert await receive_exactly(stream, len(message)) == message

    async def test(address: Address) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(converse, address, number)

    place.serve(echo, test)


def test_where_nobody_listens_dialling_is_refused(place: Place) -> None:
    """The error names the address and says why."""

    async def nothing(address: Address) -> None:
        addresses.append(address)

    async def test() -> None:
        port = addresses[0].port
        refused = f"connect to {place.host}:{port}: .*refused"
        with pytest.raises(Unreachable, match=refused) as caught:
            await place.network.dial(addresses[0])
        assert caught.value.was_refused

    addresses: list[Address] = []
    place.serve(echo, nothing)  # a port that has just become free
    place.inside(test)


def test_an_address_is_listened_on_once(place: Place) -> None:
    """The second server is told that the address is in use."""

    async def test(address: Address) -> None:
        with pytest.raises(Unreachable, match=f"listen on .*:{address.port}: .*in use"):
            await place.network.serve(echo, address)

    place.serve(echo, test)


def test_nobody_listens_at_the_address_of_another(place: Place) -> None:
    """192.0.2.1 is of a network that is only written about."""

    async def test() -> None:
        with pytest.raises(Unreachable, match=r"listen on 192\.0\.2\.1:0: .*assign"):
            await place.network.serve(echo, Address("192.0.2.1", 0))

    place.inside(test)


def test_a_server_that_is_over_can_be_followed_by_another(place: Place) -> None:
    """After a restart the same port is listened on again, although connections were open."""

    async def restart(address: Address) -> None:
        async with await place.network.dial(address) as stream:
            await stream.send_all(b"x")
            await receive_exactly(stream, 1)

    async def test() -> None:
        address = place.free
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                address = await nursery.start(place.network.serve, echo, address)
                await restart(address)
                nursery.cancel_scope.cancel()

    place.inside(test)


def test_closing_ends_the_stream_of_the_peer(place: Place) -> None:
    """What was sent before arrives; then comes the end, again and again."""

    async def send_and_close(stream: trio.abc.Stream) -> None:
        await stream.send_all(b"last words")

    async def test(stream: trio.abc.Stream) -> None:
        assert await receive_exactly(stream, 10) == b"last words"
        assert await stream.receive_some() == b""
        assert await stream.receive_some() == b""

    place.dial(send_and_close, test)


def test_who_sends_to_one_that_has_closed_finds_out(place: Place) -> None:
    """Not with the first byte, but soon the connection is broken, and stays so."""

    async def close(stream: trio.abc.Stream) -> None:
        pass

    async def test(stream: trio.abc.Stream) -> None:
        with pytest.raises(trio.BrokenResourceError):
            await send_for_ever(stream)
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(b"x")

    place.dial(close, test)


def test_who_does_not_read_holds_up_who_sends(place: Place) -> None:
    """A large transfer stands still until the receiver reads, and is whole at the end."""
    is_sent, may_read = [], []

    async def read_late(stream: trio.abc.Stream) -> None:
        while not may_read:
            await trio.testing.wait_all_tasks_blocked(0.005)
            may_read.append(not is_sent)
        assert await receive_exactly(stream, len(MEGABYTES_8)) == MEGABYTES_8
        await stream.send_all(b"!")

    async def test(stream: trio.abc.Stream) -> None:
        await stream.send_all(MEGABYTES_8)
        is_sent.append(True)
        assert await receive_exactly(stream, 1) == b"!"

    place.dial(read_late, test)
    assert may_read == [True]


def test_what_a_handler_raises_ends_the_server(place: Place) -> None:
    """An error that nobody catches is a bug, and a bug must not be overlooked."""

    async def fail(stream: trio.abc.Stream) -> None:
        raise ZeroDivisionError

    async def test(address: Address) -> None:
        async with await place.network.dial(address):
            await trio.sleep_forever()

    with pytest.raises((ExceptionGroup, ZeroDivisionError)) as raised:
        place.serve(fail, test)
    assert "ZeroDivisionError" in repr(raised.value)


def test_a_dial_that_nobody_waits_for_leaves_nothing(place: Place) -> None:
    """Cancelled at once: no stream comes of it, and the next dial works."""

    async def test(address: Address) -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await place.network.dial(address)
        assert scope.cancelled_caught
        async with await place.network.dial(address) as stream:
            await stream.send_all(b"x")
            assert await receive_exactly(stream, 1) == b"x"

    place.serve(echo, test)


def test_the_options_of_tcp_are_set_at_both_ends() -> None:
    """No delay, keep-alive after 5 s, and a silent peer given up after 8 s."""
    options: list[list[int]] = []
    names = [socket.TCP_NODELAY, socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT]

    def look(stream: TcpStream) -> None:
        get = stream.socket.getsockopt
        tcp = [get(socket.IPPROTO_TCP, name) for name in [*names, socket.TCP_USER_TIMEOUT]]
        options.append([get(socket.SOL_SOCKET, socket.SO_KEEPALIVE), *tcp])

    async def accept(stream: TcpStream) -> None:
        look(stream)
        await stream.send_all(b"x")

    async def main() -> None:
        network = TcpNetwork()
        async with trio.open_nursery() as nursery:
            address = await nursery.start(network.serve, accept, Address("127.0.0.1", 0))
            async with await network.dial(address) as stream:
                look(stream)
                await stream.receive_some()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert options == [[1, 1, 5, 1, 3, SILENCE_SECONDS_MAX * 1000]] * 2


@pytest.mark.parametrize("host", ["a" * 64, "no-such-host.invalid"])
def test_a_name_that_cannot_be_resolved_is_unreachable(host: str) -> None:
    """Whether the name is impossible or only unknown, the error names it."""

    async def main() -> None:
        with pytest.raises(Unreachable, match=f"connect to {host}:1: "):
            await TcpNetwork().dial(Address(host, 1))

    trio.run(main)


def test_an_answer_that_does_not_come_is_not_waited_for() -> None:
    """A listener that accepts nobody, behind a queue that is full, does not answer."""

    async def main() -> None:
        with trio.socket.socket() as listener:
            await listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            address = Address(*listener.getsockname())
            # The one that is answered may take longer, on a busy machine.
            async with await TcpNetwork().dial(address):
                with pytest.raises(Unreachable, match="no answer in time"):
                    await TcpNetwork(connect_seconds_max=0.01).dial(address)

    trio.run(main)
