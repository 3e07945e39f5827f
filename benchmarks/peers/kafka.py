"""Apache Kafka: its jars by Maven, three nodes of KRaft, and confluent-kafka (librdkafka)."""

from __future__ import annotations

import shutil
import threading
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

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
from benchmarks.peers.servers import free_ports, open_servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

    import anyio.abc

    from benchmarks.peers.peer import Reading, Stream

VERSION = "4.3.1"
POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>peers</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
      <version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId>
      <version>2.25.4</version>
    </dependency>
  </dependencies>
</project>
"""
LOGGING = """\
rootLogger.level=warn
rootLogger.appenderRef.stderr.ref=stderr
appender.stderr.type=Console
appender.stderr.name=stderr
appender.stderr.target=SYSTEM_ERR
appender.stderr.layout.type=PatternLayout
appender.stderr.layout.pattern=%d %p %c{1} %m%n
"""
# As Kafka's own scripts start it.
JAVA = "-server -Xms1g -Xmx1g -XX:+UseG1GC -XX:MaxGCPauseMillis=20 "
JAVA += "-XX:InitiatingHeapOccupancyPercent=35 -XX:+ExplicitGCInvokesConcurrent"
CLUSTER_ID = "cGVlcnMtYmVuY2htYXJrcw"  # 16 bytes in base64
ADMIN_SECONDS = 10.0
POLL_SECONDS = 0.1
BULK = {"linger.ms": 5, "queue.buffering.max.messages": 20_000}  # batches of up to 1 MB
# The library stops fetching for a second when it has 100,000 messages that nobody has taken.
READING = {"enable.auto.commit": False, "queued.min.messages": 1_000_000}
BATCH_RECORDS = READ_AT_ONCE = 10_000


class Kafka(Peer):
    name = "kafka"
    title = "Apache Kafka"
    acknowledged = "`acks=all`: the leader and all in-sync followers have it, two at least"
    synced = "`flush.messages=1` of the topic: each has synced it before"
    warm_up_seconds = 12.0  # until the JVM has compiled most of what a record needs
    packages = ("confluent-kafka==2.16.1",)

    def install(self) -> dict[str, str]:
        self.environment.once("server", POM, self._install_server)
        return {"server": VERSION, **self.environment.install_client(self.packages)}

    def _install_server(self) -> None:
        folder = self.environment.folder
        self.environment.run("java", "-version")
        (folder / "pom.xml").write_text(POM)
        (folder / "log4j2.properties").write_text(LOGGING)
        libraries = folder / "lib"
        shutil.rmtree(libraries, ignore_errors=True)
        command = ("mvn", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime")
        self.environment.run(*command, f"-DoutputDirectory={libraries}")

    def _java(self, *arguments: str | Path) -> list[str | Path]:
        folder = self.environment.folder
        logging = f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"
        return ["java", *JAVA.split(), logging, "-cp", f"{folder}/lib/*", *arguments]

    @contextmanager
    def open_cluster(self, folder: Path, *, is_synced: bool) -> Iterator[Cluster]:
        ports = free_ports(2 * len(NODES))
        client_ports = ports[: len(NODES)]
        configs = [_write_settings(folder, node, ports) for node in NODES]
        with open_servers() as formatters:
            for config in configs:
                format_it = ("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", config)
                formatters.start(*self._java(*format_it), log=config.with_suffix(".format"))
            formatters.wait_ended()
        with open_servers() as servers:
            for config in configs:
                servers.start(*self._java("kafka.Kafka", config), log=config.with_suffix(".log"))
            servers.wait_listening(client_ports)
            yield Cluster([f"{HOST}:{port}" for port in client_ports], servers.process_ids)

    @staticmethod
    @asynccontextmanager
    async def connect(addresses: Sequence[str], stream: Stream) -> AsyncIterator[Client]:
        import anyio

        async with anyio.create_task_group() as tasks:
            client = KafkaClient(stream, tasks, addresses)
            yield client
            client.close()


class KafkaClient(Client):
    """The library does its work in threads of its own; callbacks come to the thread that polls.

    One producer is polled by the loop itself, which then has nothing else to do; the one of the
    schedule by a thread, as the loop must not wait.
    """

    def __init__(
        self, stream: Stream, tasks: anyio.abc.TaskGroup, addresses: Sequence[str]
    ) -> None:
        super().__init__(stream, tasks)
        self._settings = {"bootstrap.servers": ",".join(addresses), "log_level": 0}
        self._alone, self._scheduled = self._producer(), self._producer()
        self._bulk = self._producer(**BULK)
        self._is_closed = False
        self._poller = threading.Thread(target=self._poll)
        self._poller.start()

    def _producer(self, **settings: object) -> Any:
        common = {**self._settings, "acks": "all", "enable.idempotence": True, "linger.ms": 0}
        return any_module("confluent_kafka").Producer({**common, **settings})

    def _poll(self) -> None:
        while not self._is_closed:
            self._scheduled.poll(POLL_SECONDS)

    def close(self) -> None:
        self._is_closed = True
        self._poller.join()

    async def prepare(self) -> None:
        admin_module = any_module("confluent_kafka.admin")
        admin, name = admin_module.AdminClient(self._settings), self.stream.name
        if name not in admin.list_topics(timeout=ADMIN_SECONDS).topics:
            config = {"min.insync.replicas": str(MIN_IN_SYNC)}
            if self.stream.is_synced:
                config["flush.messages"] = "1"
            topic = admin_module.NewTopic(name, 1, REPLICAS, config=config)
            admin.create_topics([topic], operation_timeout=ADMIN_SECONDS)[name].result()
        partitions = admin.list_topics(name, timeout=ADMIN_SECONDS).topics[name].partitions
        if len(partitions[0].isrs) < REPLICAS:
            raise NotWhole(str(partitions))

    async def send(self, value: bytes) -> None:
        outcome = list[object]()
        self._alone.produce(self.stream.name, value, on_delivery=partial(_tell, outcome.append))
        while not outcome:
            self._alone.poll(POLL_SECONDS)
        assert outcome[0] is None, outcome

    def send_soon(self, value: bytes, done: Callable[[object], None]) -> None:
        self._scheduled.produce(self.stream.name, value, on_delivery=partial(_tell, done))

    async def send_many(self, values: Iterator[bytes]) -> None:
        failed = list[object]()

        def deliver(error: object, _message: object) -> None:
            if error is not None:
                failed.append(error)

        while batch := [{"value": value} for value in islice(values, BATCH_RECORDS)]:
            while batch:
                self._bulk.produce_batch(self.stream.name, batch, on_delivery=deliver)
                batch = [{"value": each["value"]} for each in batch if "_error" in each]
                self._bulk.poll(POLL_SECONDS if batch else 0)
        while self._bulk.flush(1):
            pass
        assert not failed, failed[:3]

    async def read(self, reading: Reading) -> None:
        kafka = any_module("confluent_kafka")
        consumer = kafka.Consumer({**self._settings, "group.id": "peers", **READING})
        consumer.assign([kafka.TopicPartition(self.stream.name, 0, kafka.OFFSET_BEGINNING)])
        while reading.left > 0:
            messages = consumer.consume(min(reading.left, READ_AT_ONCE), POLL_SECONDS)
            for message in messages:
                assert message.error() is None, message.error()
                message.value()
            if messages:
                reading.take(len(messages))
        consumer.close()


def _tell(done: Callable[[object], None], error: object, _message: object) -> None:
    done(error)


def _write_settings(folder: Path, node: int, ports: Sequence[int]) -> Path:
    voters = ",".join(f"{one}@{HOST}:{ports[2 + one]}" for one in NODES)
    clients = f"PLAINTEXT://{HOST}:{ports[node - 1]}"
    settings = {
        "process.roles": "broker,controller",
        "node.id": node,
        "controller.quorum.voters": voters,
        "listeners": f"{clients},CONTROLLER://{HOST}:{ports[2 + node]}",
        "advertised.listeners": clients,
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": folder / str(node),
        "offsets.topic.replication.factor": REPLICAS,
        "log.segment.delete.delay.ms": 1000,  # files of deleted topics are in nobody's way
    }
    config = folder / f"{node}.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return config
