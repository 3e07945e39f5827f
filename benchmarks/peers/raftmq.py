"""raftmq as a peer like the others: this checkout, installed into an environment of its own."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.peers.environment import CHECKOUT
from benchmarks.peers.peer import (
    HOST,
    MIN_IN_SYNC,
    NODES,
    REPLICAS,
    Client,
    Cluster,
    NotWhole,
    Peer,
    any_module,
)
from benchmarks.peers.servers import START_SECONDS_MAX, free_ports, open_servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

    import anyio.abc

    from benchmarks.peers.peer import Reading, Stream

READ_AT_ONCE = 10_000


class Raftmq(Peer):
    name = "raftmq"
    title = "raftmq"
    acknowledged = "`acks=all`: the leader and all in-sync followers have it, two at least"
    synced = "`durability=fsync`: each has synced it before"
    backend = "trio"

    def install(self) -> dict[str, str]:
        self.environment.install_client(())
        self.environment.install_packages(f"{CHECKOUT}[all]")
        # The version may be the same while the code is not.
        self.environment.install_packages("--force-reinstall", "--no-deps", str(CHECKOUT))
        script = "import raftmq; print(raftmq.__version__)"
        return {"server and client": self.environment.run(self.environment.python, "-c", script)}

    @contextmanager
    def open_cluster(self, folder: Path, *, is_synced: bool) -> Iterator[Cluster]:
        ports = free_ports(3 * len(NODES))
        client_ports = ports[: len(NODES)]
        with open_servers() as servers:
            for node in NODES:
                config = folder / f"{node}.toml"
                config.write_text(_settings(folder, node, ports))
                python = self.environment.python
                command = (python, "-P", "-m", "raftmq", "broker", "--config", config)
                servers.start(*command, log=folder / f"{node}.log")
            servers.wait_listening(client_ports)
            yield Cluster([f"{HOST}:{port}" for port in client_ports], servers.process_ids)

    @staticmethod
    @asynccontextmanager
    async def connect(addresses: Sequence[str], stream: Stream) -> AsyncIterator[Client]:
        import anyio

        raftmq = any_module("raftmq")
        async with (
            anyio.create_task_group() as tasks,
            AsyncExitStack() as opened,
        ):
            mq = await _connected(raftmq, addresses, opened)
            single = await opened.enter_async_context(mq.producer(preset="low_latency"))
            bulk = await opened.enter_async_context(mq.producer(preset="high_throughput"))
            yield RaftmqClient(stream, tasks, mq, single=single, bulk=bulk)


async def _connected(raftmq: Any, addresses: Sequence[str], opened: AsyncExitStack) -> Any:
    """Once the brokers have met: they listen before that."""
    import anyio

    deadline = anyio.current_time() + START_SECONDS_MAX
    while True:
        try:
            return await opened.enter_async_context(raftmq.connect(",".join(addresses)))
        except raftmq.errors.Unreachable:
            if anyio.current_time() >= deadline:
                raise
            await anyio.sleep(0.2)


class RaftmqClient(Client):
    def __init__(
        self, stream: Stream, tasks: anyio.abc.TaskGroup, mq: Any, *, single: Any, bulk: Any
    ) -> None:
        super().__init__(stream, tasks)
        self._mq, self._single, self._bulk = mq, single, bulk

    async def prepare(self) -> None:
        name, admin = self.stream.name, self._mq.admin
        durability = "fsync" if self.stream.is_synced else "page_cache"
        config = {"durability": durability, "min.insync.replicas": MIN_IN_SYNC}
        if name not in [topic.name for topic in await admin.list_topics()]:
            await admin.create_topic(name, partitions=1, replication_factor=REPLICAS, config=config)
        described = await admin.describe_topic(name)
        if len(described.partitions[0].isr) < REPLICAS:
            raise NotWhole(str(described))

    async def send(self, value: bytes) -> None:
        await self._single.send(self.stream.name, value)

    def send_soon(self, value: bytes, done: Callable[[object], None]) -> None:
        self._single.send_nowait(self.stream.name, value, on_delivery=partial(_tell, done))

    async def send_many(self, values: Iterator[bytes]) -> None:
        await self._bulk.send_many(self.stream.name, values)

    async def read(self, reading: Reading) -> None:
        options = {"start": "earliest", "max_poll_records": READ_AT_ONCE}
        async with self._mq.consumer(self.stream.name, **options) as consumer:
            async for _ in consumer:
                if reading.take():
                    return


def _tell(done: Callable[[object], None], error: object, _metadata: object) -> None:
    done(error)


def _settings(folder: Path, node: int, ports: Sequence[int]) -> str:
    lines = [
        "[node]",
        f"id = {node}",
        'cluster_id = "peers"',
        f'directory = "{folder / str(node)}"',
        "[quorum.voters]",
        *[f'{voter} = "{HOST}:{ports[5 + voter]}"' for voter in NODES],
    ]
    for name, port in (("clients", ports[node - 1]), ("brokers", ports[2 + node])):
        lines += ["[[listeners]]", f'name = "{name}"', f'bind = "{HOST}:{port}"']
    return "\n".join([*lines, ""])
