"""How bytes leave: in which pieces, out of which files, and past which mistakes."""

from __future__ import annotations

import os
import socket
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from raftmq.disk.files import FileSlice, OsFiles, WouldBlock
from raftmq.model import Address
from raftmq.rpc.connection import (
    SENDFILE_BYTES_MIN,
    STEP_BYTES,
    Outbox,
    SocketWriter,
    WriteStep,
    steps,
)
from raftmq.rpc.network import TcpNetwork
from raftmq.rpc.reply import payload_sizes
from tests.simulation.deterministic import run_inline
from tests.simulation.disk import SimulatedFiles

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from raftmq.disk.files import File
    from raftmq.rpc.network import TcpStream
    from raftmq.rpc.reply import Piece

CONTENT = os.urandom(3 << 20)


class ColdFile:
    """A file none of whose bytes are in the page cache."""

    def __init__(self, file: File) -> None:
        self._file, self.path = file, file.path
        self.reads = 0

    def read_now(self, position: int, length: int) -> bytes:
        raise WouldBlock

    def read(self, position: int, length: int) -> bytes:
        self.reads += 1
        return self._file.read(position, length)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def file_of(path: Path, content: bytes = CONTENT) -> File:
    file = OsFiles().open(path / "records", create=True)
    file.write(0, [content])
    return file


@asynccontextmanager
async def tcp_pair() -> AsyncIterator[tuple[TcpStream, trio.abc.Stream]]:
    """Both ends of a connection on the loopback interface."""
    network = TcpNetwork()
    send_accepted, receive_accepted = trio.open_memory_channel[trio.abc.Stream](0)

    async def accept(stream: trio.abc.Stream) -> None:
        await send_accepted.send(stream)
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        address = await nursery.start(network.serve, accept, Address("127.0.0.1", 0))
        async with await network.dial(address) as dialled:
            yield dialled, await receive_accepted.receive()
        nursery.cancel_scope.cancel()


async def receive_all(stream: trio.abc.ReceiveStream, length: int) -> bytes:
    received = bytearray()
    while len(received) < length:
        data = await stream.receive_some()
        assert data, f"ended after {len(received)} of {length} bytes"
        received += data
    return bytes(received)


async def through_tcp(*pieces: Piece) -> bytes:
    """What arrives of `pieces`."""
    received = b""

    async with tcp_pair() as (sending, receiving), trio.open_nursery() as nursery:

        async def receive() -> None:
            nonlocal received
            received = await receive_all(receiving, payload_sizes(pieces)[0])

        nursery.start_soon(receive)
        sender = SocketWriter(sending, run_inline)
        for step in steps(pieces):
            await sender.send(step)
    return received


async def through_memory(*pieces: Piece) -> bytes:
    left, right = memory_stream_pair()
    sender = SocketWriter(left, run_inline)
    for step in steps(pieces):
        await sender.send(step)
    return await receive_all(right, payload_sizes(pieces)[0])


# Steps


@given(lengths=st.lists(st.integers(0, 3 * STEP_BYTES), max_size=6))
def test_steps_hold_every_byte_and_are_small(lengths: list[int]) -> None:
    """However long the buffers are, each step has at most two MiB, and nothing is missing."""
    pieces = [CONTENT[:length] for length in lengths]
    found = list(steps(pieces))
    assert b"".join(bytes(b) for step in found for b in step.buffers) == b"".join(pieces)
    assert all(sum(map(len, step.buffers)) < 2 * STEP_BYTES for step in found)


def test_a_file_is_cut_and_follows_what_comes_before(tmp_path: Path) -> None:
    """A head, two MiB and some of a file, a tail."""
    file = file_of(tmp_path)
    found = list(steps([b"head", FileSlice(file, 5, (2 << 20) + 1), b"tail"]))
    assert [step.buffers for step in found] == [[b"head"], [], [], [b"tail"]]
    parts = [step.file for step in found if step.file]
    assert [(part.position, part.length) for part in parts] == [
        (5, 1 << 20),
        (5 + (1 << 20), 1 << 20),
        (5 + (2 << 20), 1),
    ]


def test_an_empty_part_of_a_file_is_no_step(tmp_path: Path) -> None:
    """A fetch that found nothing."""
    assert list(steps([b"head", FileSlice(file_of(tmp_path), 0, 0)])) == [WriteStep([b"head"])]


def test_what_a_payload_weighs(tmp_path: Path) -> None:
    """On the stream everything counts, in memory files do not."""
    payload = (b"four", memoryview(b"four"), FileSlice(file_of(tmp_path), 0, 100))
    assert payload_sizes(payload) == (108, 8)


# Files, over real TCP


@pytest.mark.parametrize(
    ("position", "length"),
    [(0, 1), (7, 1000), (0, SENDFILE_BYTES_MIN), (3, SENDFILE_BYTES_MIN + 1), (0, len(CONTENT))],
)
async def test_a_file_arrives_as_it_is(tmp_path: Path, position: int, length: int) -> None:
    """Between two buffers, over TCP, byte for byte; below and above the least for sendfile."""
    part = FileSlice(file_of(tmp_path), position, length)
    expected = b"head" + CONTENT[position : position + length] + b"tail"
    assert await through_tcp(b"head", part, b"tail") == expected


async def test_a_stream_without_sendfile_gets_the_same(tmp_path: Path) -> None:
    """In memory, as under TLS: the file is read and sent."""
    part = FileSlice(file_of(tmp_path), 3, 1_500_000)
    assert await through_memory(b"head", part) == b"head" + CONTENT[3:1_500_003]


async def test_a_simulated_file_can_be_sent() -> None:
    """It has no descriptor, and needs none off TCP."""
    file = SimulatedFiles(Random(0)).open(Path("/records"), create=True)
    file.write(0, [CONTENT[:1000]])
    assert await through_memory(FileSlice(file, 1, 998)) == CONTENT[1:999]


async def test_what_is_not_cached_is_read_in_a_worker_thread(tmp_path: Path) -> None:
    """The loop waits for no disk: cold bytes are read elsewhere, in steps of a MiB."""
    cold = ColdFile(file_of(tmp_path))
    assert await through_tcp(b"head", FileSlice(cold, 0, len(CONTENT))) == b"head" + CONTENT  # type: ignore[arg-type]
    assert cold.reads == 3


@pytest.mark.parametrize("length", [1000, SENDFILE_BYTES_MIN, 2 << 20])
async def test_a_file_that_is_too_short_is_an_error(tmp_path: Path, length: int) -> None:
    """It was cut meanwhile: the frame cannot be completed, and that is said."""
    part = FileSlice(file_of(tmp_path, CONTENT[:500]), 0, length)
    async with tcp_pair() as (sending, _):
        for step in steps([part]):
            with pytest.raises(EOFError, match=r"ends at byte (500|1048576)"):
                await SocketWriter(sending, run_inline).send(step)
            break


# The stream


async def test_many_buffers_in_one_go() -> None:
    """Small and large ones, more than one system call takes; in order, and nothing twice."""
    buffers = [CONTENT[start : start + start % 997] for start in range(0, 1_500_000, 701)]
    async with tcp_pair() as (sending, receiving), trio.open_nursery() as nursery:
        nursery.start_soon(sending.send_buffers, buffers)
        expected = b"".join(buffers)
        assert await receive_all(receiving, len(expected)) == expected


async def test_sending_to_one_that_has_gone_is_an_error(tmp_path: Path) -> None:
    """Buffers and files alike: the connection is broken, and closed once it was closed here."""
    file = file_of(tmp_path)
    async with tcp_pair() as (sending, receiving):
        receiving_socket = receiving.socket  # type: ignore[attr-defined]
        receiving_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await receiving.aclose()
        with pytest.raises(trio.BrokenResourceError):
            await sending.send_file(file.fileno(), 0, len(CONTENT))
        with pytest.raises(trio.BrokenResourceError):
            await sending.send_buffers([b"x"])
        assert sending.send_now([b"x"]) == 0
        await sending.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await sending.send_file(file.fileno(), 0, 1)


async def test_a_transfer_can_be_cancelled(tmp_path: Path) -> None:
    """The other side does not read: the wait for room ends when it is told to."""
    part = FileSlice(file_of(tmp_path), 0, len(CONTENT))
    async with tcp_pair() as (sending, _), trio.open_nursery() as nursery:
        nursery.start_soon(_send_for_ever, SocketWriter(sending, run_inline), part)
        await wait_all_tasks_blocked(0.005)
        nursery.cancel_scope.cancel()


async def _send_for_ever(sender: SocketWriter, part: FileSlice) -> None:
    while True:
        await sender.send(WriteStep([], part))


async def test_what_leaves_at_once_keeps_its_order() -> None:
    """A socket that takes only a part of it: the rest follows through the writing task."""
    frames = [bytes([number]) * 60_000 for number in range(100)]
    async with tcp_pair() as (sending, receiving), trio.open_nursery() as nursery:
        outbox = Outbox(sending, run_inline)
        sent: list[int] = []
        outbox.on_sent = lambda answers, _held_bytes: sent.append(answers)
        nursery.start_soon(outbox.run)
        await wait_all_tasks_blocked()
        for frame in frames:
            outbox.put(frame, held_bytes=1)
            outbox.flush(at_once=True)
        assert 0 < sum(sent) < 100
        assert await receive_all(receiving, 6_000_000) == b"".join(frames)
        await outbox.wait_empty()
        assert (outbox.queued_bytes, sum(sent)) == (0, 100)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("length", [0, 10])
async def test_files_leave_through_the_writing_task(tmp_path: Path, length: int) -> None:
    """Also an empty part of one, and also where everything else could leave at once."""
    part = FileSlice(file_of(tmp_path), 0, length)
    async with tcp_pair() as (sending, receiving), trio.open_nursery() as nursery:
        outbox = Outbox(sending, run_inline)
        nursery.start_soon(outbox.run)
        await wait_all_tasks_blocked()
        outbox.put(b"head", (part, b"tail"))
        outbox.flush(at_once=True)
        assert await receive_all(receiving, length + 8) == b"head" + CONTENT[:length] + b"tail"
        nursery.cancel_scope.cancel()


async def test_what_is_queued_leaves_in_one_piece(autojump_clock: MockClock) -> None:
    """Ten frames put in one go are one write of the stream; what they held is told at once."""
    left, right = memory_stream_pair()
    sent: list[tuple[int, int]] = []
    async with trio.open_nursery() as nursery:
        outbox = Outbox(left, run_inline)
        outbox.on_sent = lambda answers, held_bytes: sent.append((answers, held_bytes))
        nursery.start_soon(outbox.run)
        for number in range(10):
            outbox.put(b"%d" % number, (b"-",), held_bytes=number)
        outbox.flush()
        await wait_all_tasks_blocked()
        assert bytes(await right.receive_some()) == b"0-1-2-3-4-5-6-7-8-9-"
        assert sent == [(9, 45)]
        nursery.cancel_scope.cancel()
