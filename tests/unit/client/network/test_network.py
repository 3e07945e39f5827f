"""The door to sockets, on both event loops over the loopback interface."""

from __future__ import annotations

import socket
import struct
from contextlib import closing, contextmanager
from functools import partial
from threading import Event, Thread
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest
from anyio.abc import SocketAttribute

from raftmq.client.network.network import AnyioTcpNetwork
from raftmq.errors import Unreachable
from raftmq.model import Address
from raftmq.rpc.sockets import SILENCE_SECONDS_MAX
from tests.unit.client.backends import on_trio_and_asyncio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOST = "127.0.0.1"
MEGABYTES_8 = bytes(range(256)) * (8 << 12)  # more than any socket buffers
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@contextmanager
def listening(handle: Callable[[socket.socket], object]) -> Iterator[Address]:
    """A server of one connection, in a thread of its own."""

    def serve() -> None:
        accepted, _ = listener.accept()
        with closing(accepted):
            handle(accepted)

    with closing(socket.create_server((HOST, 0))) as listener:
        listener.settimeout(10)
        thread = Thread(target=serve)
        thread.start()
        yield Address(*listener.getsockname())
        thread.join()


def echo(connection: socket.socket) -> None:
    while data := connection.recv(1 << 20):
        connection.sendall(data)


def reset(connection: socket.socket) -> None:
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)


@on_trio_and_asyncio
async def test_what_is_sent_comes_back() -> None:
    """Eight megabytes, while they are read, of bytes and of views; then the other side's end."""
    received = bytearray()
    with listening(echo) as address:
        stream = await AnyioTcpNetwork().dial(address)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.send, memoryview(MEGABYTES_8))
            while len(received) < len(MEGABYTES_8):
                data = await stream.receive(512 << 10)
                assert 0 < len(data) <= 512 << 10
                received += data
        await stream.aclose()
    assert received == MEGABYTES_8


@on_trio_and_asyncio
async def test_what_leaves_without_waiting() -> None:
    """As much as the socket takes, then nothing, and `send` goes on behind it; after the end of
    either side nothing, and no other socket that has got its number since is written to."""
    received = bytearray()
    may_read = Event()

    def read_late(connection: socket.socket) -> None:
        may_read.wait(10)
        while data := connection.recv(1 << 20):
            received.extend(data)

    with listening(read_late) as address:
        stream = await AnyioTcpNetwork().dial(address)
        sent = 0
        while taken := stream.send_now(memoryview(MEGABYTES_8)[sent:]):
            sent += taken
        assert 0 < sent < len(MEGABYTES_8)
        may_read.set()
        await stream.send(memoryview(MEGABYTES_8)[sent:])
        await stream.aclose()
        await anyio.lowlevel.checkpoint()
        ends = socket.socketpair()
        with ends[0], ends[1]:
            assert stream.send_now(b"late") == 0
            ends[1].setblocking(False)
            with pytest.raises(BlockingIOError):
                ends[1].recv(1)
    assert received == MEGABYTES_8


@on_trio_and_asyncio
async def test_the_other_side_hangs_up() -> None:
    """What it said comes first, then nothing, again and again; this side may still talk."""
    heard: list[bytes] = []

    def say_and_hear(connection: socket.socket) -> None:
        connection.sendall(b"bye")
        connection.shutdown(socket.SHUT_WR)
        heard.append(connection.recv(100))

    with listening(say_and_hear) as address:
        stream = await AnyioTcpNetwork().dial(address)
        assert [await stream.receive(100) for _ in range(3)] == [b"bye", b"", b""]
        await stream.send(b"good night")
        await stream.aclose()
    assert heard == [b"good night"]


@on_trio_and_asyncio
async def test_a_reset_breaks_it() -> None:
    """Receiving and sending say so, and why."""
    with listening(reset) as address:
        stream = await AnyioTcpNetwork().dial(address)
        await stream.send(b"x")
        with pytest.raises(anyio.BrokenResourceError, match=r"connection broke: .*reset"):
            await stream.receive(100)
        with pytest.raises(anyio.BrokenResourceError, match="the connection broke: "):
            await stream.send(MEGABYTES_8)
        await stream.aclose()


@on_trio_and_asyncio
async def test_closed_on_this_side() -> None:
    """It may be closed twice, and then neither sends nor receives."""
    with listening(echo) as address:
        stream = await AnyioTcpNetwork().dial(address)
        await stream.aclose()
        await stream.aclose()
        for use in (partial(stream.send, b"x"), partial(stream.receive, 1)):
            with pytest.raises(anyio.ClosedResourceError, match="this end"):
                await use()


@on_trio_and_asyncio
async def test_nobody_listens() -> None:
    """That is certain, and the address is named."""
    with closing(socket.create_server((HOST, 0))) as listener:
        address = Address(*listener.getsockname())
    with pytest.raises(Unreachable) as found:
        await AnyioTcpNetwork().dial(address)
    assert found.value.was_refused
    assert str(found.value) == f"connect to {address}: Connection refused"


@on_trio_and_asyncio
@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 64 + ".example"])
async def test_a_host_that_does_not_exist(host: str) -> None:
    """Not refused: nobody was asked."""
    with pytest.raises(Unreachable, match=f"connect to {host}:1: ") as found:
        await AnyioTcpNetwork().dial(Address(host, 1))
    assert not found.value.was_refused


@on_trio_and_asyncio
async def test_no_answer_in_time() -> None:
    """A listener whose queue is full: the dial gives up."""
    with closing(socket.create_server((HOST, 0), backlog=0)) as listener:
        address = Address(*listener.getsockname())
        with closing(socket.create_connection(address)):
            await _fill_queue(address)
            with pytest.raises(Unreachable, match="no answer in time") as found:
                await AnyioTcpNetwork(connect_seconds_max=0.02).dial(address)
            assert not found.value.was_refused


async def _fill_queue(address: Address) -> None:
    """Until the kernel answers no more."""
    for _ in range(10):
        try:
            stream = await AnyioTcpNetwork(connect_seconds_max=0.02).dial(address)
        except Unreachable:
            return
        await stream.aclose()
    raise AssertionError("the queue has no end")


@on_trio_and_asyncio
async def test_options_of_the_socket() -> None:
    """No delay, and a peer that has died is found out in 8 s: those of brokers."""
    with listening(echo) as address:
        stream = await AnyioTcpNetwork().dial(address)
        endpoint = stream._stream.extra(SocketAttribute.raw_socket)
        get = endpoint.getsockopt
        options = [
            get(socket.IPPROTO_TCP, option)
            for option in (
                socket.TCP_NODELAY,
                socket.TCP_KEEPIDLE,
                socket.TCP_KEEPINTVL,
                socket.TCP_KEEPCNT,
                socket.TCP_USER_TIMEOUT,
            )
        ]
        assert get(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert options == [1, 5, 1, 3, SILENCE_SECONDS_MAX * 1000]
        await stream.aclose()


@on_trio_and_asyncio
async def test_a_dial_is_cancelled_at_once() -> None:
    """Cancellation is not taken for a failure."""
    with closing(socket.create_server((HOST, 0))) as listener, anyio.CancelScope() as scope:
        scope.cancel()
        await AnyioTcpNetwork().dial(Address(*listener.getsockname()))
    assert scope.cancelled_caught
