"""RabbitMQ streams: Debian's server with its Erlang, and rstream. Three nodes, replicas 3.

The nodes find each other by a daemon of Erlang, epmd, which is one of their own here.
"""

from __future__ import annotations

from asyncio import Event
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from benchmarks.peers.peer import HOST, NODES, REPLICAS, Client, Cluster, NotWhole, Peer, any_module
from benchmarks.peers.servers import free_ports, open_servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

    import anyio.abc

    from benchmarks.peers.peer import Reading, Stream

ERLANG = "base crypto public-key asn1 mnesia runtime-tools ssl eldap inets os-mon parsetools "
ERLANG += "syntax-tools tools xmerl"
DEBIAN_PACKAGES = ("rabbitmq-server", "libwrap0", *[f"erlang-{one}" for one in ERLANG.split()])
USER = "guest"  # and its password
BATCH_RECORDS, BATCHES_IN_FLIGHT = 256, 16
COOKIE = "peers"  # with which nodes know each other


class RabbitMq(Peer):
    name = "rabbitmq"
    title = "RabbitMQ streams"
    acknowledged = "publish confirm: the leader and one replica of two have written it"
    synced = None
    packages = ("rstream==1.1.1",)

    def install(self) -> dict[str, str]:
        system = self.environment.unpack_debian(DEBIAN_PACKAGES)
        self._erlang = system / "usr/lib/erlang"
        self._epmd = self.environment.find("erts-*/bin/epmd", self._erlang)
        start = self._erlang / "bin/erl"  # Debian's knows only where it would be installed
        start.write_text(start.read_text().replace("=/usr/lib/erlang", f"={self._erlang}"))
        self._rabbit = self.environment.find("usr/lib/rabbitmq/lib/rabbitmq_server-*", system)
        return {
            "server": self._rabbit.name.partition("-")[2],
            "Erlang": self.environment.find("releases/[0-9]*", self._erlang).name,
            **self.environment.install_client(self.packages),
        }

    @contextmanager
    def open_cluster(self, folder: Path, *, is_synced: bool) -> Iterator[Cluster]:
        epmd_port, *ports = free_ports(1 + 2 * len(NODES))
        client_ports = ports[: len(NODES)]
        home = folder / "home"
        home.mkdir()
        cookie = home / ".erlang.cookie"
        cookie.write_text(COOKIE)
        cookie.chmod(0o400)
        variables = {
            "HOME": str(home),
            "PATH": f"{self._erlang / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin",
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": HOST,
        }
        with open_servers() as daemon, open_servers() as servers:
            epmd = (self._epmd, "-port", str(epmd_port))
            daemon.start(*epmd, log=folder / "epmd.log", variables=variables)
            daemon.wait_listening([epmd_port])
            for node in NODES:
                own = _node_variables(folder, node, client_ports[node - 1], ports[2 + node])
                servers.start(
                    self._rabbit / "sbin/rabbitmq-server",
                    log=folder / f"{node}.log",
                    variables={**variables, **own},
                )
            servers.wait_listening(client_ports)
            yield Cluster([f"{HOST}:{port}" for port in client_ports], servers.process_ids)

    @staticmethod
    @asynccontextmanager
    async def connect(addresses: Sequence[str], stream: Stream) -> AsyncIterator[Client]:
        import anyio

        host, _, port = addresses[0].partition(":")
        where = {"host": host, "port": int(port), "username": USER, "password": USER}
        async with (
            anyio.create_task_group() as tasks,
            any_module("rstream").Producer(**where) as producer,
        ):
            yield RabbitMqClient(stream, tasks, producer, where)


class RabbitMqClient(Client):
    def __init__(
        self,
        stream: Stream,
        tasks: anyio.abc.TaskGroup,
        producer: Any,
        where: dict[str, Any],
    ) -> None:
        super().__init__(stream, tasks)
        self._producer, self._where = producer, where

    async def prepare(self) -> None:
        name = self.stream.name
        arguments = {"initial-cluster-size": str(REPLICAS)}
        await self._producer.create_stream(name, arguments=arguments, exists_ok=True)
        client = await self._producer.default_client
        leader, replicas = await client.query_leader_and_replicas(name)
        if len(replicas) + 1 < REPLICAS:
            raise NotWhole(f"{leader}, {replicas}")

    async def send(self, value: bytes) -> None:
        await self._producer.send_wait(self.stream.name, value)

    def send_soon(self, value: bytes, done: Callable[[object], None]) -> None:
        self._tasks.start_soon(self._send_with, value, done)

    async def _send_with(self, value: bytes, done: Callable[[object], None]) -> None:
        confirm = partial(_tell, done)
        await self._producer.send_batch(self.stream.name, [value], on_publish_confirm=confirm)

    async def send_many(self, values: Iterator[bytes]) -> None:
        sent, window = 0, BATCH_RECORDS * BATCHES_IN_FLIGHT
        confirmed, failed, news = 0, list[object](), Event()

        def confirm(status: Any) -> None:
            nonlocal confirmed
            confirmed += 1
            news.set()
            if not status.is_confirmed:
                failed.append(status)

        while batch := list(islice(values, BATCH_RECORDS)):
            await self._producer.send_batch(self.stream.name, batch, on_publish_confirm=confirm)
            sent += len(batch)
            while sent - confirmed > window:
                news.clear()
                await news.wait()
        while confirmed < sent:
            news.clear()
            await news.wait()
        assert not failed, failed[:3]

    async def read(self, reading: Reading) -> None:
        end = Event()

        def take(_value: bytes, _context: object) -> None:
            if reading.take():
                end.set()

        async with any_module("rstream").Consumer(**self._where) as consumer:
            await consumer.subscribe(self.stream.name, take)
            await end.wait()


def _tell(done: Callable[[object], None], status: Any) -> None:
    done(None if status.is_confirmed else status)


def _node_variables(folder: Path, node: int, port: int, erlang_port: int) -> dict[str, str]:
    """Of one node, whose settings are written here. Its start script becomes the server."""
    names = {one: f"rabbit{one}@localhost" for one in NODES}
    settings = [
        "listeners.tcp = none",
        f"stream.listeners.tcp.1 = {HOST}:{port}",
        f"stream.advertised_host = {HOST}",
        f"stream.advertised_port = {port}",
        "cluster_formation.peer_discovery_backend = classic_config",
        *[f"cluster_formation.classic_config.nodes.{one} = {names[one]}" for one in NODES],
    ]
    config, plugins = folder / f"{node}.conf", folder / "plugins"
    config.write_text("\n".join([*settings, ""]))
    plugins.write_text("[rabbitmq_stream].\n")
    arguments = "-noinput -kernel inet_dist_use_interface {127,0,0,1}"
    return {
        "RABBITMQ_NODENAME": names[node],
        "RABBITMQ_DIST_PORT": str(erlang_port),
        "RABBITMQ_CONFIG_FILE": str(config),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
        "RABBITMQ_MNESIA_BASE": str(folder / str(node)),
        "RABBITMQ_LOG_BASE": str(folder / str(node)),
        "RABBITMQ_PID_FILE": str(folder / f"{node}.pid"),
        "RABBITMQ_ALLOW_INPUT": "1",  # or else the script stays, and is what would be killed
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": arguments,
    }
