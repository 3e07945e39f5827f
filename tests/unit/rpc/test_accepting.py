"""Where the process has no descriptor left: one line now and then, whoever calls is turned away."""

from __future__ import annotations

import os
import resource
from errno import EBADF, EMFILE
from typing import TYPE_CHECKING

import pytest
import trio
import trio.lowlevel
from trio.testing import memory_stream_pair

from raftmq.broker.broker import NodeEnvironment
from raftmq.model import Address
from raftmq.rpc.network import PAUSE_SECONDS, Acceptor, TcpNetwork
from raftmq.rpc.protocol import CONNECTIONS_LEAST, connections_within, logs_within

if TYPE_CHECKING:
    from trio.testing import MockClock


class Lacking(trio.abc.Listener[trio.SocketStream]):
    """Accepts what `outcomes` says: an errno, or a stream; after a refusal one more has room."""

    def __init__(self, outcomes: list[object]) -> None:
        self.outcomes = outcomes
        self.left: list[trio.abc.Stream] = []

    async def accept(self) -> trio.SocketStream:
        await trio.lowlevel.checkpoint()
        if not self.outcomes:
            await trio.sleep_forever()
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, int):
            raise OSError(outcome, os.strerror(outcome))
        left, right = memory_stream_pair()
        self.left.append(left)
        return right  # type: ignore[return-value]

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_it_waits_says_so_once_and_goes_on(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Twenty times there is no descriptor; each time who called is turned away at once."""
    served: list[object] = []
    listener = Lacking([*[EMFILE, "turned away"] * 20, "served"])

    async def serve(stream: object) -> None:
        served.append(stream)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(Acceptor(listener, serve, name="here:1").run)
        await trio.sleep(20 * PAUSE_SECONDS + 1)
        nursery.cancel_scope.cancel()
    assert len(served) == 1
    for left in listener.left[:20]:
        assert isinstance(left, trio.StapledStream)
        assert await left.receive_some() == b""
    lines = [record for record in caplog.records if "not accepted" in record.message]
    assert len(lines) == 1
    assert "Traceback" not in caplog.text


async def test_other_errors_end_it(autojump_clock: MockClock) -> None:
    """A listener that is gone is no reason to go on."""
    with pytest.RaisesGroup(OSError):
        await Acceptor(Lacking([EBADF]), trio.aclose_forcefully, name="here:1").run()


async def test_a_real_process_without_descriptors(caplog: pytest.LogCaptureFixture) -> None:
    """Its listener stays; once there are descriptors again it serves."""
    served = trio.Event()

    async def serve(_stream: object) -> None:
        served.set()

    network = TcpNetwork()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with trio.open_nursery() as nursery:
        address = await nursery.start(network.serve, serve, Address("127.0.0.1", 0))
        async with await network.dial(address) as first:
            await served.wait()
            served = trio.Event()
            with trio.socket.socket() as caller:
                highest = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208
                resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
                held = []
                try:
                    while True:
                        held.append(os.open(os.devnull, os.O_RDONLY))
                except OSError:
                    pass
                try:
                    await caller.connect((address.host, address.port))
                    with trio.fail_after(5):
                        assert await caller.recv(1) == b""
                finally:
                    for descriptor in held:
                        os.close(descriptor)
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert first is not None
        async with await network.dial(address):
            with trio.fail_after(5):
                await served.wait()
        nursery.cancel_scope.cancel()
    assert caplog.text.count("not accepted") == 1


@pytest.mark.parametrize(
    ("descriptors", "logs", "expected"),
    [
        (1 << 40, 0, 10_000),
        (65_536, 5_000, 10_000),
        (20_000, 5_000, 7_180),
        (4_096, 100, 1_678),
        (1_024, 0, 384),
        (1_024, 900, CONNECTIONS_LEAST),
    ],
)
def test_connections_leave_the_disks_their_descriptors(
    descriptors: int, logs: int, expected: int
) -> None:
    """Half of what is left when everything else has its own."""
    assert connections_within(descriptors, wanted=10_000, logs=logs) == expected


@pytest.mark.parametrize(
    ("descriptors", "connections", "expected"),
    [(1024, 384, 384), (20_000, 9_680, 9_680), (1_048_576, 10_000, 1_037_936), (100, 90, 1)],
)
def test_logs_that_connections_leave_room_for(
    descriptors: int, connections: int, expected: int
) -> None:
    """With all connections that the node allows there is one descriptor for each of them."""
    assert logs_within(descriptors, connections=connections) == expected


def test_a_node_takes_all_descriptors_that_it_may_have() -> None:
    """The soft limit is for interactive programs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        assert NodeEnvironment(TcpNetwork()).descriptors_max >= hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
