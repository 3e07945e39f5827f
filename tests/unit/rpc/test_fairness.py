"""One connection does not live at the cost of others, and order holds where there is a queue."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NoReturn

import trio
from trio.testing import wait_all_tasks_blocked

from raftmq.disk.files import FileSlice, OsFiles
from raftmq.rpc.connection import SENDFILE_BYTES_MIN, Outbox
from raftmq.rpc.protocol import RpcLimits
from raftmq.rpc.server import TAKEN_AT_ONCE_MAX
from raftmq.wire.messages.cluster import Propose
from tests.simulation.deterministic import run_inline
from tests.unit.rpc.puppet import puppet_channel
from tests.unit.rpc.shells import SHELLS
from tests.unit.rpc.talk import BROKERS, connected, echo, greeted, new_server, propose, proposing
from tests.unit.rpc.test_sending import receive_all, tcp_pair

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from raftmq.disk.files import File
    from raftmq.rpc.reply import Reply

MORE_THAN_A_SOCKET_TAKES = 8 << 20


class Neighbour:
    """Somebody else on the same loop, who always has something to do.

    Attributes:
        waited_max: requests of others that were handled between two of its turns, at most.
    """

    def __init__(self) -> None:
        self.waited_max = self._waited = 0

    def handle(self, command: bytes) -> Reply:
        self._waited += 1
        self.waited_max = max(self.waited_max, self._waited)
        return echo(command)

    async def run(self) -> NoReturn:
        while True:
            self._waited = 0
            await trio.lowlevel.checkpoint()


class CountedFile:
    """Attributes:
    bytes_read: into memory, without waiting.
    """

    def __init__(self, file: File) -> None:
        self._file, self.bytes_read = file, 0

    def read_now(self, position: int, length: int) -> bytes:
        self.bytes_read += length
        return self._file.read_now(position, length)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


async def test_many_requests_at_once_leave_a_turn_to_others() -> None:
    """All of them in one read, and more may be in flight than there are."""
    neighbour, limits = Neighbour(), RpcLimits(requests_in_flight_max=10_000)
    server = new_server(proposing(neighbour.handle), limits=limits)
    async with connected(server) as stream, trio.open_nursery() as nursery:
        stranger = await greeted(stream)
        nursery.start_soon(neighbour.run)
        await stranger.send(*[Propose(b"")] * 1000)
        for number in range(1, 1001):
            assert (await stranger.receive()).correlation_id == number
        nursery.cancel_scope.cancel()
    assert neighbour.waited_max <= 2 * TAKEN_AT_ONCE_MAX  # tasks take turns in no fixed order


async def test_requests_whose_answers_leave_at_once_leave_a_turn_too() -> None:
    """Over TCP an answer frees its place without any wait: a full window alone is no pause."""
    neighbour, limits = Neighbour(), RpcLimits(requests_in_flight_max=10)
    server = new_server(proposing(neighbour.handle), limits=limits)
    async with tcp_pair() as (sending, receiving), trio.open_nursery() as nursery:
        nursery.start_soon(server.serve_stream, receiving, BROKERS)
        stranger = await greeted(sending)
        nursery.start_soon(neighbour.run)
        await stranger.send(*[Propose(b"")] * 100)
        for number in range(1, 101):
            assert (await stranger.receive()).correlation_id == number
        nursery.cancel_scope.cancel()
    assert neighbour.waited_max <= 2 * 10


async def test_small_parts_of_files_are_not_read_ahead(tmp_path: Path) -> None:
    """An answer of 480 of them, 47 MiB in all, for somebody who takes nothing."""
    file = OsFiles().open(tmp_path / "records", create=True)
    file.write(0, [bytes(100 << 10)])
    counted = CountedFile(file)
    async with tcp_pair() as (sending, _), trio.open_nursery() as nursery:
        outbox = Outbox(sending, run_inline)
        nursery.start_soon(outbox.run)
        await wait_all_tasks_blocked()
        outbox.put(b"head", [FileSlice(counted, 0, 100 << 10)] * 480, held_bytes=4)  # type: ignore[arg-type]
        outbox.flush(at_once=True)
        assert counted.bytes_read < SENDFILE_BYTES_MIN
        nursery.cancel_scope.cancel()


async def test_what_is_put_because_something_left_may_fill_the_socket() -> None:
    """One frame leaves at once; told of it, somebody puts more than the other side takes."""
    more = [bytes(MORE_THAN_A_SOCKET_TAKES)]
    async with tcp_pair() as (sending, receiving), trio.open_nursery() as nursery:
        outbox = Outbox(sending, run_inline)

        def on_sent(_answers: int, _held_bytes: int) -> None:
            if more:
                outbox.put(more.pop())
                outbox.flush(at_once=True)

        outbox.on_sent = on_sent
        nursery.start_soon(outbox.run)
        await wait_all_tasks_blocked()
        outbox.put(b"first")
        outbox.flush(at_once=True)
        assert not outbox.is_empty, "the socket took it all"
        received = await receive_all(receiving, len(b"first") + MORE_THAN_A_SOCKET_TAKES)
        assert received[:6] == b"first\0"
        await outbox.wait_empty()
        nursery.cancel_scope.cancel()


@SHELLS
async def test_what_is_asked_without_waiting_goes_before_what_is_told_after_it(
    autojump_clock: MockClock, shell: str
) -> None:
    """The channel has as many requests in flight as it may, and one more in line."""
    async with (
        puppet_channel(shell, RpcLimits(requests_in_flight_max=1)) as (channel, puppet),
        trio.open_nursery() as nursery,
    ):
        for command in (b"first", b"in line"):
            nursery.start_soon(partial(propose, channel, command))
            await wait_all_tasks_blocked()
        channel.ask(Propose(b"asked"), lambda _outcome: None, timeout_seconds=30)
        channel.send_one_way(Propose(b"told"))
        received = [(await puppet.receive()).body for _ in range(3)]
        assert received == [Propose(b"first"), Propose(b"asked"), Propose(b"told")]
        nursery.cancel_scope.cancel()
