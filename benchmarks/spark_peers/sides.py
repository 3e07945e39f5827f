"""The two sides, each a cluster and Spark's way to it: raftmq's source and sink, Kafka's connector.

In the environment of Spark.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from benchmarks.peers.peer import MIN_IN_SYNC, REPLICAS
from benchmarks.peers.servers import usage_of
from benchmarks.spark_parts.around import PARTITIONS
from benchmarks.spark_peers.table import KAFKA, KAFKA_TUNED, TUNED
from raftmq.errors import InvalidConfig
from spark_io.options.sink import sink_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from raftmq.sync import Client

DELIVERIES = ("at_least_once", "idempotent", "exactly_once")
ACKS = {"kafka.acks": "all"}
TUNED_OPTIONS = {f"kafka.{name}": value for name, value in TUNED.items()}
SETTLE_SECONDS = 0.5  # until brokers have heard of a new topic


class Way(NamedTuple):
    """How rows are written. `options`: of the sink."""

    title: str
    side: Side
    options: Mapping[str, str]


class Side(ABC):
    name: ClassVar[str]
    format: ClassVar[str]

    def __init__(
        self, spark: SparkSession, addresses: Sequence[str], process_ids: Sequence[int]
    ) -> None:
        self._spark, self._process_ids = spark, process_ids
        self._bootstrap = ",".join(addresses)
        self._numbers = 0

    @abstractmethod
    def _create(self, topic: str) -> None:
        """Of PARTITIONS partitions and REPLICAS replicas, MIN_IN_SYNC in sync; not synced."""

    @abstractmethod
    def _delete(self, topic: str) -> None: ...

    @abstractmethod
    def ways(self) -> list[Way]: ...

    @abstractmethod
    def read_pair(self, topic: str) -> DataFrame:
        """Of keys and values, as this side does it best."""

    @contextmanager
    def topic(self) -> Iterator[str]:
        """One of its own, deleted afterwards, so that its bytes are in nobody's way."""
        self._numbers += 1
        name = f"bench-{self._numbers}"
        self._create(name)
        time.sleep(SETTLE_SECONDS)
        try:
            yield name
        finally:
            self._delete(name)

    def read(self, topic: str) -> DataFrame:
        """From the beginning to the end, all columns."""
        return self._spark.read.format(self.format).options(**self._source(topic)).load()

    def read_stream(self, topic: str, **options: str) -> DataFrame:
        """Keys and values."""
        stream = self._spark.readStream.format(self.format).options(**self._source(topic))
        return stream.options(**options).load().select("key", "value")

    def sink(self, topic: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self._bootstrap, "topic": topic}

    def _source(self, topic: str) -> dict[str, str]:
        where = {"kafka.bootstrap.servers": self._bootstrap, "subscribe": topic}
        return {**where, "startingOffsets": "earliest"}

    def cpu_seconds(self) -> float:
        """Of its servers, so far."""
        return usage_of(self._process_ids).cpu_seconds


class RaftmqSide(Side):
    name, format = "raftmq", "raftmq"

    def __init__(
        self,
        spark: SparkSession,
        addresses: Sequence[str],
        process_ids: Sequence[int],
        client: Client,
    ) -> None:
        super().__init__(spark, addresses, process_ids)
        self._client = client

    def _create(self, topic: str) -> None:
        config: dict[str, str | int | bool] = {
            "durability": "page_cache",
            "min.insync.replicas": MIN_IN_SYNC,
        }
        self._client.admin.create_topic(
            topic, partitions=PARTITIONS, replication_factor=REPLICAS, config=config
        )

    def _delete(self, topic: str) -> None:
        self._client.admin.delete_topic(topic)

    def ways(self) -> list[Way]:
        return [
            Way(f"{self.name}, {delivery}", self, {**ACKS, "delivery": delivery})
            for delivery in DELIVERIES
            if _is_known(delivery)
        ]

    def read_pair(self, topic: str) -> DataFrame:
        reader = self._spark.read.format(self.format).options(**self._source(topic))
        return reader.schema("key BINARY, value BINARY").load()  # others are not even decoded


class KafkaSide(Side):
    name, format = KAFKA, "kafka"

    def __init__(
        self, spark: SparkSession, addresses: Sequence[str], process_ids: Sequence[int]
    ) -> None:
        super().__init__(spark, addresses, process_ids)
        java: Any = spark._jvm  # where the connector's own client is
        self._admin_package: Any = java.org.apache.kafka.clients.admin
        properties = java.java.util.Properties()
        properties.put("bootstrap.servers", self._bootstrap)
        self._admin = self._admin_package.AdminClient.create(properties)

    def _create(self, topic: str) -> None:
        new = self._admin_package.NewTopic(topic, PARTITIONS, REPLICAS)
        new.configs({"min.insync.replicas": str(MIN_IN_SYNC)})
        self._admin.createTopics([new]).all().get()

    def _delete(self, topic: str) -> None:
        self._admin.deleteTopics([topic]).all().get()

    def ways(self) -> list[Way]:
        return [Way(KAFKA, self, ACKS), Way(KAFKA_TUNED, self, {**ACKS, **TUNED_OPTIONS})]

    def read_pair(self, topic: str) -> DataFrame:
        return self.read(topic).select("key", "value")


def unknown_deliveries() -> list[str]:
    """Those that the sink of this checkout does not have."""
    return [one for one in DELIVERIES if not _is_known(one)]


def _is_known(delivery: str) -> bool:
    options = {"bootstrap": "127.0.0.1:1", "topic": "any", "delivery": delivery}
    try:
        sink_options(options, is_stream=False)
    except InvalidConfig:
        return False
    return True
