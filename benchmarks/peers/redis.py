"""Redis streams: Debian's server, and redis-py. A primary, two replicas, and an append-only file.

Redis has no quorum: a program that wants more than one copy asks for it with `WAIT`. No sentinel
runs, so nothing would take the primary's place.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from benchmarks.peers.peer import HOST, NODES, REPLICAS, Client, Cluster, Peer, any_module
from benchmarks.peers.servers import free_ports, open_servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

    import anyio.abc

    from benchmarks.peers.peer import Reading, Stream

DEBIAN_PACKAGES = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1")
COPIES, WAIT_MS = REPLICAS - 1, 5000
CONNECTIONS_MAX = 64  # WAIT holds its connection; more records than that wait for one
BATCH_RECORDS, BATCHES_IN_FLIGHT = 512, 2
READ_AT_ONCE = 1000


class NotCopied(Exception):
    """A replica did not confirm in time."""


class Redis(Peer):
    name = "redis"
    title = "Redis streams"
    acknowledged = "`XADD`, then `WAIT 2`: the primary and both replicas have it in memory"
    synced = "`appendfsync always` on all three, each of which answers after its sync"
    sync_is_of_servers = True
    packages = ("redis[hiredis]==8.1.0",)

    def install(self) -> dict[str, str]:
        self._system = self.environment.unpack_debian(DEBIAN_PACKAGES)
        self._variables = {"LD_LIBRARY_PATH": ":".join(map(str, self._system.glob("usr/lib/*")))}
        server = self._system / "usr/bin/redis-server"
        said = self.environment.run(server, "--version", variables=self._variables)
        return {
            "server": said.partition("v=")[2].split()[0],
            **self.environment.install_client(self.packages),
        }

    @contextmanager
    def open_cluster(self, folder: Path, *, is_synced: bool) -> Iterator[Cluster]:
        ports = free_ports(len(NODES))
        with open_servers() as servers:
            for node, port in zip(NODES, ports, strict=True):
                data = folder / str(node)
                data.mkdir()
                options: dict[str, object] = {
                    "bind": HOST,
                    "port": port,
                    "dir": data,
                    "save": '""',
                    "appendonly": "yes",
                    "appendfsync": "always" if is_synced else "everysec",
                    "repl-diskless-sync-delay": 0,
                }
                if port != ports[0]:
                    options["replicaof"] = f"{HOST} {ports[0]}"
                config = folder / f"{node}.conf"
                lines = [f"{name} {value}\n" for name, value in options.items()]
                config.write_text("".join(lines))
                servers.start(
                    self._system / "usr/bin/redis-server",
                    config,
                    log=folder / f"{node}.log",
                    variables=self._variables,
                )
            servers.wait_listening(ports)
            yield Cluster([f"{HOST}:{ports[0]}"], servers.process_ids)

    @staticmethod
    @asynccontextmanager
    async def connect(addresses: Sequence[str], stream: Stream) -> AsyncIterator[Client]:
        import anyio

        host, _, port = addresses[0].partition(":")
        redis = any_module("redis.asyncio")
        pool = redis.BlockingConnectionPool(
            host=host, port=int(port), max_connections=CONNECTIONS_MAX, timeout=None
        )
        connection = redis.Redis.from_pool(pool)
        async with anyio.create_task_group() as tasks:
            yield RedisClient(stream, tasks, connection)
        await connection.aclose()


class RedisClient(Client):
    def __init__(self, stream: Stream, tasks: anyio.abc.TaskGroup, connection: Any) -> None:
        super().__init__(stream, tasks)
        self._connection = connection

    async def prepare(self) -> None:
        """A stream is there with its first record, copied to all."""
        await self.send(b"first")

    async def send(self, value: bytes) -> None:
        await self._add([value])

    async def _add(self, values: Sequence[bytes]) -> None:
        async with self._connection.pipeline(transaction=False) as pipeline:
            for value in values:
                pipeline.xadd(self.stream.name, {"v": value})
            pipeline.execute_command("WAIT", COPIES, WAIT_MS)
            copies = (await pipeline.execute())[-1]
        if copies < COPIES:
            raise NotCopied(f"{copies} of {COPIES} replicas have it")

    async def send_many(self, values: Iterator[bytes]) -> None:
        import anyio

        async def add() -> None:
            while batch := list(islice(values, BATCH_RECORDS)):
                await self._add(batch)

        async with anyio.create_task_group() as tasks:
            for _ in range(BATCHES_IN_FLIGHT):
                tasks.start_soon(add)

    async def read(self, reading: Reading) -> None:
        last = b"0"
        while reading.left > 0:
            count = min(reading.left, READ_AT_ONCE)
            found = await self._connection.xread({self.stream.name: last}, count=count)
            [[_, records]] = found.items() if isinstance(found, dict) else found
            last = records[-1][0]
            reading.take(len(records))
