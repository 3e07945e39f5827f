"""How fast requests are, as a share of what bare trio sockets reach on this machine.

    python -m benchmarks.rpc [requests payloads] [--scale 0.1]

Both ends live in one process and one loop, over TCP on the loopback interface, so times hold the
work of client and server. Every ratio compares with a bare exchange of as many bytes, in turn,
round by round; medians. The bare client of `requests` sends each message on its own, as many ahead
as there are requests in flight.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import trio

from benchmarks.report import Report
from raftmq.disk.files import FileSlice, OsFiles
from raftmq.model import Address
from raftmq.rpc.context import Listener, ServerIdentity
from raftmq.rpc.network import TcpNetwork
from raftmq.rpc.reply import Reply
from raftmq.rpc.server import RpcServer
from raftmq.rpc.trio_channel import open_channel
from raftmq.wire.messages.cluster import (
    BrokerHeartbeat,
    BrokerHeartbeatReply,
    DescribeCluster,
    DescribeClusterReply,
    Propose,
    ProposeReply,
)
from raftmq.wire.messages.hello import Hello

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from raftmq.rpc.channel import Channel
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.reply import Piece

MIB = 1 << 20
ROUNDS = 5
PAYLOADS = (65_536, MIB)
PAYLOADS_IN_FLIGHT = 4
REQUEST = bytes(30)  # about as long as the frames of an empty request and its answer
BEAT = BrokerHeartbeat(1, 1, 1)
BEATEN = BrokerHeartbeatReply(is_fenced=False, may_shut_down=False)
ASK = DescribeCluster()
PROPOSED = ProposeReply(b"")


class Exchange:
    """A server over TCP; requests with a payload, and answers with `piece`."""

    def __init__(self, piece: Piece = b"") -> None:
        self._answer = Reply(DescribeClusterReply("bench"), (piece,))
        handlers = {
            BrokerHeartbeat: lambda _context, _body, _payload: Reply(BEATEN),
            Propose: self._take,
            DescribeCluster: lambda _context, _body, _payload: self._answer,
        }
        self._server = RpcServer(
            ServerIdentity("bench", 1), handlers, authorize=lambda _context, _body: None
        )

    async def serve(self, stream: trio.abc.Stream) -> None:
        await self._server.serve_stream(stream, Listener("brokers", is_for_brokers=True))

    def _take(
        self, _context: RequestContext, _body: Propose, _payload: bytes | memoryview
    ) -> Reply:
        return Reply(PROPOSED)


@asynccontextmanager
async def dialled(
    handler: Callable[[trio.abc.Stream], Awaitable[object]],
) -> AsyncIterator[trio.abc.Stream]:
    network = TcpNetwork()
    async with trio.open_nursery() as nursery:
        address = await nursery.start(network.serve, handler, Address("127.0.0.1", 0))
        async with await network.dial(address) as stream:
            yield stream
        nursery.cancel_scope.cancel()


def requests(
    count: int, in_flight: int, ask: Callable[[Channel], Awaitable[object]], piece: Piece = b""
) -> float:
    """Seconds for `count` requests, `in_flight` at a time."""

    async def some(channel: Channel) -> None:
        for _ in range(count // in_flight):
            await ask(channel)

    async def main() -> float:
        async with (
            dialled(Exchange(piece).serve) as stream,
            open_channel(stream, Hello()) as channel,
        ):
            await ask(channel)
            start = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for _ in range(in_flight):
                    nursery.start_soon(some, channel)
            return time.perf_counter() - start

    return trio.run(main)


# -- bare sockets --------------------------------------------------------------------------


async def echo(stream: trio.abc.Stream) -> None:
    while data := await stream.receive_some():
        await stream.send_all(data)


def swallow(size: int) -> Callable[[trio.abc.Stream], Awaitable[None]]:
    """A server that says one byte for each `size` bytes."""

    async def serve(stream: trio.abc.Stream) -> None:
        received = 0
        while data := await stream.receive_some(512 << 10):
            before, received = received // size, received + len(data)
            if received // size > before:
                await stream.send_all(bytes(received // size - before))

    return serve


def pour(answer: bytes) -> Callable[[trio.abc.Stream], Awaitable[None]]:
    """A server that says `answer` for each byte."""

    async def serve(stream: trio.abc.Stream) -> None:
        while data := await stream.receive_some():
            for _ in data:
                await stream.send_all(answer)

    return serve


def bare(
    count: int,
    in_flight: int,
    handler: Callable[[trio.abc.Stream], Awaitable[object]],
    message: bytes,
    answer_bytes: int,
) -> float:
    """Seconds for `count` messages, at most `in_flight` of them unanswered."""

    async def main() -> float:
        async with dialled(handler) as stream:
            window = trio.Semaphore(in_flight)

            async def send() -> None:
                for _ in range(count):
                    await window.acquire()
                    await stream.send_all(message)

            start = time.perf_counter()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                received = 0
                while received < count * answer_bytes:
                    before = received // answer_bytes
                    received += len(await stream.receive_some(512 << 10))
                    for _ in range(received // answer_bytes - before):
                        window.release()
            return time.perf_counter() - start

    return trio.run(main)


def bare_ping_pong(count: int) -> float:
    async def main() -> float:
        async with dialled(echo) as stream:
            start = time.perf_counter()
            for _ in range(count):
                await stream.send_all(REQUEST)
                await stream.receive_some()
            return time.perf_counter() - start

    return trio.run(main)


# -- sections ------------------------------------------------------------------------------


def in_turn(
    ours: Callable[[], float], theirs: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Seconds of each round."""
    times: tuple[list[float], list[float]] = [], []
    for number in range(ROUNDS):
        pair = list(zip((ours, theirs), times, strict=True))
        for run, found in pair if number % 2 else pair[::-1]:
            found.append(run())
    return times


def ratio(ours: list[float], theirs: list[float]) -> float:
    return round(median(b / a for a, b in zip(ours, theirs, strict=True)), 2)


async def beat(channel: Channel) -> None:
    await channel.request(BEAT, timeout_seconds=30)


async def describe(channel: Channel) -> None:
    await channel.request(ASK, timeout_seconds=30)


def bench_requests(report: Report, scale: float) -> None:
    for in_flight in (1, 64):
        count = max(64, int(scale * (6_000 if in_flight == 1 else 30_000)) // 64 * 64)

        def bare_run(count: int = count, in_flight: int = in_flight) -> float:
            if in_flight == 1:
                return bare_ping_pong(count)
            return bare(count, in_flight, echo, REQUEST, len(REQUEST))

        def run(count: int = count, in_flight: int = in_flight) -> float:
            return requests(count, in_flight, beat)

        times, bare_times = in_turn(run, bare_run)
        report.row(
            what=f"empty requests, {in_flight} in flight",
            requests_s=round(count / median(times)),
            bare_s=round(count / median(bare_times)),
            ratio=ratio(times, bare_times),
            request_us=round(median(times) / count * 1e6, 1),
        )


def bench_payloads(report: Report, scale: float) -> None:
    for size in PAYLOADS:
        payload = os.urandom(size)
        count = max(16, int(scale * 512 * MIB / size) // 16 * 16)

        async def propose(channel: Channel, payload: bytes = payload) -> None:
            await channel.request(Propose(b""), (payload,), timeout_seconds=30)

        def up(count: int = count, ask: Callable[[Channel], Awaitable[None]] = propose) -> float:
            return requests(count, PAYLOADS_IN_FLIGHT, ask)

        def bare_up(count: int = count, payload: bytes = payload) -> float:
            return bare(count, PAYLOADS_IN_FLIGHT, swallow(len(payload)), payload, 1)

        def bare_down(count: int = count, payload: bytes = payload) -> float:
            return bare(count, PAYLOADS_IN_FLIGHT, pour(payload), b"x", len(payload))

        def down(count: int = count, piece: Piece = payload) -> float:
            return requests(count, PAYLOADS_IN_FLIGHT, describe, piece)

        payload_row(report, "payload in the request", size, count, in_turn(up, bare_up))
        payload_row(report, "payload in the answer", size, count, in_turn(down, bare_down))
        with tempfile.TemporaryDirectory() as folder:
            file = OsFiles().open(Path(folder, "records"), create=True)
            file.write(0, [payload])
            part = FileSlice(file, 0, size)
            times = in_turn(lambda count=count, part=part: down(count, part), bare_down)
        payload_row(report, "file in the answer", size, count, times)


def payload_row(
    report: Report, what: str, size: int, count: int, times: tuple[list[float], list[float]]
) -> None:
    ours, theirs = times
    report.row(
        what=what,
        payload_bytes=size,
        mb_s=round(size * count / 1e6 / median(ours)),
        bare_mb_s=round(size * count / 1e6 / median(theirs)),
        ratio=ratio(ours, theirs),
    )


SECTIONS = {"requests": bench_requests, "payloads": bench_payloads}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], default=[])
    parser.add_argument("--scale", type=float, default=1.0)
    arguments = parser.parse_args()
    for name in arguments.sections or SECTIONS:
        report = Report(f"rpc-{name}")
        SECTIONS[name](report, arguments.scale)
        report.finish()


if __name__ == "__main__":
    main()
