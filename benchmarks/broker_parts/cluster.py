"""Three brokers in processes of their own, in a folder that is gone afterwards, as they are."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import anyio
import trio

from benchmarks.broker_parts.process import RAFTMQ, BrokerFailed, BrokerProcess, Usage
from benchmarks.log import folder
from raftmq.client.network.channel import open_channel
from raftmq.client.network.network import AnyioTcpNetwork
from raftmq.client.routing.cluster import Cluster
from raftmq.errors import RaftmqError
from raftmq.model import Address
from raftmq.wire.messages.hello import Hello
from raftmq.wire.messages.metadata import Metadata

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from pathlib import Path

    from raftmq.wire.bodies import Request
    from raftmq.wire.messages.metadata import MetadataReply

NODES = (1, 2, 3)  # voters
OBSERVER = 4  # a broker that follows the quorum; only runs where a benchmark starts it
HOST = "127.0.0.1"
WAIT_SECONDS_MAX = 180.0  # for anything that must happen
LOOK_SECONDS = 0.02
PORTS_PER_NODE = 3  # for voters, clients, brokers


class Brokers:
    """Attributes:
    running: by node id; `NODES` at first.
    """

    def __init__(
        self, root: Path, nursery: trio.Nursery, ports: list[int], entry: Sequence[str]
    ) -> None:
        self.root, self._nursery, self._entry = root, nursery, entry
        self._ports = {
            node: ports[at * PORTS_PER_NODE : (at + 1) * PORTS_PER_NODE]
            for at, node in enumerate((*NODES, OBSERVER))
        }
        self.running: dict[int, BrokerProcess] = {}
        for node in self._ports:
            self._config(node).write_text(self._settings(node))

    def addresses(self) -> list[Address]:
        """For clients."""
        return [self._address(node) for node in NODES]

    # -- what is done to them --------------------------------------------------------------

    async def start(self, nodes: Iterable[int] = NODES) -> list[float]:
        """All at once, until each has said that it is ready; seconds, of each."""
        started = [BrokerProcess(node, self._config(node), self._entry) for node in nodes]
        for process in started:
            self.running[process.node_id] = process
            self._nursery.start_soon(process.read)
        with trio.move_on_after(WAIT_SECONDS_MAX):
            return [await process.wait_ready() for process in started]
        said = "\n".join(process.last_words() for process in started)
        raise BrokerFailed(f"not ready after {WAIT_SECONDS_MAX:g} s: {said}")

    def kill(self, node: int) -> float:
        """kill -9; when that was."""
        return self.running.pop(node).kill()

    def kill_all(self) -> None:
        for node in list(self.running):
            self.kill(node)

    async def stop(self, node: int) -> None:
        """In order, as SIGTERM does."""
        await self.running.pop(node).stop()

    # -- what they say ---------------------------------------------------------------------

    async def describe(self, topics: tuple[str, ...] = ()) -> MetadataReply:
        """As the first running broker sees it."""
        reply: MetadataReply = await self._ask(min(self.running), Metadata(topics))
        return reply

    async def wait_members(self) -> None:
        """Until each has heard of each, so that any of them can place a topic."""
        for node in self.running:
            await self._wait(
                node, (), lambda reply: {one.broker_id for one in reply.brokers} >= {*self.running}
            )

    async def wait_whole(self, topic: str) -> float:
        """Until all are in sync in all partitions of `topic`, as each of them sees it; when."""
        for node in self.running:
            await self._wait(node, (topic,), is_whole)
        return time.monotonic()

    def usage(self) -> dict[int, Usage]:
        return {node: process.usage() for node, process in self.running.items()}

    def cpu_seconds(self) -> float:
        """Of all together, so far."""
        return sum(usage.cpu_seconds for usage in self.usage().values())

    # -- inside ----------------------------------------------------------------------------

    async def _wait(
        self, node: int, topics: tuple[str, ...], is_so: Callable[[MetadataReply], bool]
    ) -> None:
        deadline = trio.current_time() + WAIT_SECONDS_MAX
        problem: object = "never asked"
        while trio.current_time() < deadline:
            try:
                reply: MetadataReply = await self._ask(node, Metadata(topics))
                if is_so(reply):
                    return
                problem = reply
            except (RaftmqError, OSError, anyio.BrokenResourceError) as error:  # just started
                problem = error
            await trio.sleep(LOOK_SECONDS)
        raise BrokerFailed(f"broker {node}, after {WAIT_SECONDS_MAX:g} s: {problem!s:.2000}")

    async def _ask(self, node: int, question: Request) -> MetadataReply:
        stream = await AnyioTcpNetwork().dial(self._address(node))
        async with open_channel(stream, Hello(client_id="benchmark")) as channel:
            reply: MetadataReply = (await channel.request(question, timeout_seconds=10)).body
            return reply

    def _config(self, node: int) -> Path:
        return self.root / f"broker-{node}.toml"

    def _address(self, node: int) -> Address:
        return Address(HOST, self._ports[node][1])

    def _settings(self, node: int) -> str:
        lines = [
            "[node]",
            f"id = {node}",
            'cluster_id = "benchmark"',
            f'directory = "{self.root / f"broker-{node}"}"',
            "[quorum.voters]",
            *[f'{voter} = "{HOST}:{self._ports[voter][0]}"' for voter in NODES],
        ]
        for name, port in zip(("clients", "brokers"), self._ports[node][1:], strict=True):
            lines += ["[[listeners]]", f'name = "{name}"', f'bind = "{HOST}:{port}"']
        return "\n".join([*lines, ""])


def is_whole(reply: MetadataReply) -> bool:
    partitions = [partition for topic in reply.topics for partition in topic.partitions]
    return bool(partitions) and all(len(one.isr) == len(NODES) for one in partitions)


@asynccontextmanager
async def open_brokers(root: Path, entry: Sequence[str] = RAFTMQ) -> AsyncIterator[Brokers]:
    """Three that are ready and know of each other; `entry` is the program, as Python starts it."""
    async with open_nowhere(root, entry) as brokers:
        await brokers.start()
        await brokers.wait_members()
        yield brokers


@asynccontextmanager
async def open_nowhere(root: Path, entry: Sequence[str] = RAFTMQ) -> AsyncIterator[Brokers]:
    """None of which runs yet."""
    with folder(root) as path, ExitStack() as keeping:
        ports = keep_ports(keeping, PORTS_PER_NODE * len((*NODES, OBSERVER)))
        async with trio.open_nursery() as nursery:
            brokers = Brokers(path, nursery, ports, entry)
            try:
                yield brokers
            finally:
                brokers.kill_all()
                nursery.cancel_scope.cancel()


def keep_ports(keeping: ExitStack, count: int) -> list[int]:
    """Bound until `keeping` closes: nobody else gets one, nor is one a port to connect from.

    Bound without SO_REUSEADDR, so that no two are one; then it is set, for listeners that set it.
    """
    ports = []
    for _ in range(count):
        keeper = keeping.enter_context(socket.socket())
        keeper.bind((HOST, 0))
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ports.append(keeper.getsockname()[1])
    return ports


def open_client(brokers: Brokers) -> Cluster:
    return Cluster(brokers.addresses(), AnyioTcpNetwork(), random=Random(1), client_id="benchmark")
