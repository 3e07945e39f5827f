"""NATS JetStream: its server by the Go module proxy, and nats-py. A stream in files, replicas 3."""

from __future__ import annotations

from asyncio import Event
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.peers.peer import (
    HOST,
    NODES,
    REPLICAS,
    Client,
    Cluster,
    NotWhole,
    Peer,
    any_module,
)
from benchmarks.peers.servers import free_ports, open_servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

    import anyio.abc

    from benchmarks.peers.peer import Reading, Stream

SERVER = "github.com/nats-io/nats-server/v2@v2.15.2"
IN_FLIGHT_MAX = 4000  # of records; the default of the client
TIMEOUT_SECONDS = 30.0


class Nats(Peer):
    name = "nats"
    title = "NATS JetStream"
    acknowledged = "the leader and one follower of two have it, by JetStream's Raft"
    synced = "`sync_interval: always` on all servers"
    sync_is_of_servers = True
    packages = ("nats-py==2.16.0",)

    def install(self) -> dict[str, str]:
        binaries = self.environment.folder / "bin"
        variables = {"GOBIN": str(binaries), "GOFLAGS": "-mod=mod"}
        self.environment.once(
            "server",
            SERVER,
            lambda: self.environment.run("go", "install", SERVER, variables=variables),
        )
        return {
            "server": SERVER.rpartition("@v")[2],
            **self.environment.install_client(self.packages),
        }

    @contextmanager
    def open_cluster(self, folder: Path, *, is_synced: bool) -> Iterator[Cluster]:
        ports = free_ports(2 * len(NODES))
        client_ports, routes = ports[: len(NODES)], ports[len(NODES) :]
        with open_servers() as servers:
            for node in NODES:
                config = folder / f"{node}.conf"
                config.write_text(
                    _settings(folder, node, client_ports[node - 1], routes, is_synced=is_synced)
                )
                command = self.environment.folder / "bin/nats-server"
                servers.start(command, "-c", config, log=folder / f"{node}.log")
            servers.wait_listening(client_ports)
            yield Cluster([f"{HOST}:{port}" for port in client_ports], servers.process_ids)

    @staticmethod
    @asynccontextmanager
    async def connect(addresses: Sequence[str], stream: Stream) -> AsyncIterator[Client]:
        import anyio

        urls = [f"nats://{address}" for address in addresses]
        connection = await any_module("nats").connect(servers=urls, dont_randomize=True)
        async with anyio.create_task_group() as tasks:
            yield NatsClient(stream, tasks, connection)
        await connection.close()


class NatsClient(Client):
    def __init__(self, stream: Stream, tasks: anyio.abc.TaskGroup, connection: Any) -> None:
        super().__init__(stream, tasks)
        self._stream = connection.jetstream(
            timeout=TIMEOUT_SECONDS, publish_async_max_pending=IN_FLIGHT_MAX
        )

    async def prepare(self) -> None:
        api = any_module("nats.js.api")
        name = self.stream.name
        await self._stream.add_stream(  # the same one again is no error
            name=name, subjects=[name], num_replicas=REPLICAS, storage=api.StorageType.FILE
        )
        cluster = (await self._stream.stream_info(name)).cluster
        current = [replica for replica in cluster.replicas or () if replica.current]
        if len(current) + 1 < REPLICAS:
            raise NotWhole(str(cluster))

    async def send(self, value: bytes) -> None:
        await self._stream.publish(self.stream.name, value)

    async def send_many(self, values: Iterator[bytes]) -> None:
        name = self.stream.name
        last = [await self._stream.publish_async(name, value) for value in values]
        await self._stream.publish_async_completed()
        for one in last:
            one.result()

    async def read(self, reading: Reading) -> None:
        """By callback: six times as fast here as `fetch`, three times as iterating."""
        end = Event()

        async def take(_message: object) -> None:
            if reading.take():
                end.set()

        name = self.stream.name
        reader = await self._stream.subscribe(name, ordered_consumer=True, cb=take)
        await end.wait()
        await reader.unsubscribe()


def _settings(folder: Path, node: int, port: int, routes: Sequence[int], *, is_synced: bool) -> str:
    others = [f'"nats://{HOST}:{route}"' for route in routes]
    sync = "sync_interval: always" if is_synced else ""
    return f"""\
server_name: node{node}
listen: {HOST}:{port}
jetstream {{ store_dir: "{folder / str(node)}", {sync} }}
cluster {{ name: peers, listen: {HOST}:{routes[node - 1]}, routes: [{", ".join(others)}] }}
"""
