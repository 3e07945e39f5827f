"""The names of all options, as they are documented, and what to say of those that Kafka has. Pure.

Options of the client have a prefix, `kafka.` or `raftmq.`. Source and sink know each other's names,
as a table that is read and written has the options of both.
"""

from __future__ import annotations

PREFIXES = ("kafka.", "raftmq.")


def client_names(name: str) -> tuple[str, ...]:
    """The spellings of an option of the client."""
    return tuple(prefix + name for prefix in PREFIXES)


BOOTSTRAP = (
    "kafka.bootstrap.servers",
    "bootstrap.servers",
    "raftmq.bootstrap.servers",
    "bootstrap",
)
ACKS = ("kafka.acks", "raftmq.acks", "acks")
RETRY_TIMEOUT = ("retryTimeoutMs", "kafkaConsumer.pollTimeoutMs")  # the second one is Kafka's
GROUP = ("groupIdPrefix", *client_names("group.id"))

SOURCE = (
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "includeTags",
)
SINK = ("topic", "delivery", "transactionalId", "generation", "partitioner")
# Options of the client that raftmq's consumer and producer have, each with the name it has there.
CONSUMER = {
    "fetch.min.bytes": "fetch_min_bytes",
    "fetch.max.wait.ms": "fetch_max_wait_ms",
    "fetch.max.bytes": "fetch_max_bytes",
    "max.partition.fetch.bytes": "max_partition_fetch_bytes",
    "max.poll.records": "max_poll_records",
    "prefetch.bytes": "prefetch_bytes",
}
PRODUCER = {
    "linger.ms": "linger_ms",
    "batch.size": "batch_size",
    "buffer.memory": "buffer_memory",
    "max.request.size": "max_request_size",
    "request.timeout.ms": "request_timeout_ms",
    "delivery.timeout.ms": "delivery_timeout_ms",
    "retries": "retries",
    "retry.backoff.ms": "retry_backoff_ms",
    "retry.backoff.max.ms": "retry_backoff_max_ms",
}
_OF_BOTH = (
    "client.id",
    "compression.type",
    "enable.idempotence",
    "isolation.level",
    "security.protocol",
)
# What Spark adds for itself, or for catalogs and other parts of a query.
_OF_SPARK = (
    "path",
    "checkpointLocation",
    "queryName",
    "asyncProgressTrackingEnabled",
    "asyncProgressTrackingCheckpointIntervalMs",
    "provider",
    "location",
    "owner",
    "serialization.format",
)
KNOWN = {
    name.lower(): name
    for name in (
        *BOOTSTRAP, *ACKS, *RETRY_TIMEOUT, *GROUP, *SOURCE, *SINK, *_OF_SPARK,
        *(name for base in (*CONSUMER, *PRODUCER, *_OF_BOTH) for name in client_names(base)),
    )
}  # fmt: skip

_COLUMNS = "keys and values are columns of bytes or text; encode and decode them in the DataFrame"
_NO_GROUP = "the source is no member of a group, so this would do nothing; leave it out"
_SECRETS = "raftmq has neither TLS nor access control yet, and options are no place for secrets"
_TRANSACTIONS = "transactions are not there yet; transactionalId names a job that may run again"
_HOW_LONG = "what counts here is how long to go on trying: say retryTimeoutMs"
_REFUSED = {
    "group.id": "the source is no member of a group; for a label say kafka.group.id",
    "auto.offset.reset": "say where to begin with startingOffsets, and with failOnDataLoss what "
    "becomes of offsets that are gone",
    "key.deserializer": _COLUMNS,
    "value.deserializer": _COLUMNS,
    "key.serializer": _COLUMNS,
    "value.serializer": _COLUMNS,
    "enable.auto.commit": "offsets are kept in Spark's checkpoint; leave it out",
    "auto.commit.interval.ms": "offsets are kept in Spark's checkpoint; leave it out",
    "interceptor.classes": "raftmq has no interceptors; change rows in the DataFrame",
    "session.timeout.ms": _NO_GROUP,
    "heartbeat.interval.ms": _NO_GROUP,
    "max.poll.interval.ms": _NO_GROUP,
    "partition.assignment.strategy": _NO_GROUP,
    "group.instance.id": _NO_GROUP,
    "client.rack": "reading from the nearest replica is not there yet; leave it out",
    "transactional.id": _TRANSACTIONS,
    "transaction.timeout.ms": _TRANSACTIONS,
    "max.in.flight.requests.per.connection": "there is one request of a partition on its way at "
    "a time, which keeps order; leave it out",
    "partitioner.class": "say partitioner = crc32, murmur2 or consistent, or give each row a "
    "column partition",
    "fetchOffset.numRetries": _HOW_LONG,
    "fetchOffset.retryIntervalMs": _HOW_LONG,
}
_SECRET_FAMILIES = ("sasl.", "ssl.", "security.")


_REFUSED_LOWER = {name.lower(): name for name in _REFUSED}


def refusal(name: str) -> str | None:
    """A sentence on a name that is not known, with or without prefix; None: nobody has it."""
    prefix = next((each for each in PREFIXES if name.startswith(each)), "")
    base = name.removeprefix(prefix)
    if base.startswith(_SECRET_FAMILIES):
        return f"{name}: {_SECRETS}"
    if base not in _REFUSED_LOWER:
        return None
    spelling = _REFUSED_LOWER[base]
    return f"{prefix}{spelling}: {_REFUSED[spelling]}"
