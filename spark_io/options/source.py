"""Options of the source: topics, positions, limits and the consumer's, checked. Pure.

Names, defaults and meanings are those of Spark's source for Kafka (its integration guide lists
them), where raftmq has the same thing. Options without effect are refused, and so are those that
contradict each other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from raftmq.client.client import parse_bootstrap
from raftmq.client.consumer.options import ConsumerOptions
from raftmq.client.options import ISOLATIONS
from raftmq.errors import InvalidConfig
from raftmq.tag_filter import tag_filter
from spark_io.offsets import PARTITION_MAX, Key, is_whole
from spark_io.options.reader import (
    BOOTSTRAP,
    CONSUMER,
    GROUP,
    RETRY_TIMEOUT,
    OptionReader,
    client_names,
)
from spark_io.positions import positions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_io.positions import Position

TRIGGER_DELAY_SECONDS = 900.0  # Spark's default of maxTriggerDelay, 15m
RETRY_MS, RETRY_MS_MAX = 60_000, 86_400_000  # a minute outlasts a failover; a day at most
CONTACT_MS = 10_000  # where no broker has answered yet, the address may be wrong
# A task costs Spark as much CPU as reading 80,000 records of 100 B: with twice as many most of it
# is reading. Still more would take cores from what follows in the same tasks.
TASK_RECORDS_MIN = 200_000
LABEL, LABEL_CHARS_MAX = "spark", 200  # cut, as queries may have names of any length
Isolation: TypeAlias = Literal["read_committed", "read_uncommitted"]
_OF_STREAMS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Attributes:
    bootstrap: where brokers listen.
    assign: exactly these partitions; subscribe: these topics; pattern: topics whose whole name
        matches, in Python's syntax. One of the three, the others are None.
    starting: of a batch, or of a stream that has no checkpoint yet.
    ending: of a batch.
    fail_on_data_loss: records that are gone before they were read are an error; else skipped.
    max_offsets_per_trigger, min_offsets_per_trigger: records of a microbatch; the latter is waited
        for, but not longer than `max_trigger_delay_seconds`.
    min_partitions, max_records_per_partition: Spark's partitions, that is tasks.
    min_records_per_partition: ranges with fewer are read by one task, until it has so many.
    include_headers, include_tags: have a column for them.
    tags: an expression that the tags of rows satisfy; None: all rows.
    client_id: a label for the logs of brokers.
    retry_seconds: how long to retry while a partition has no leader or no broker answers.
    contact_seconds: how long the driver retries before any broker has answered.
    isolation_level: of plans and of tasks alike: a plan that ended behind the last stable offset
        would have its tasks wait for a transaction that somebody else has open.
    consumer: options of raftmq's consumer that differ from its defaults.
    """

    bootstrap: tuple[str, ...]
    assign: tuple[Key, ...] | None = None
    subscribe: tuple[str, ...] | None = None
    pattern: str | None = None
    starting: Position
    ending: Position
    fail_on_data_loss: bool = True
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_seconds: float = TRIGGER_DELAY_SECONDS
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    min_records_per_partition: int = TASK_RECORDS_MIN
    include_headers: bool = False
    include_tags: bool = False
    tags: str | None = None
    client_id: str = LABEL
    retry_seconds: float = RETRY_MS / 1000
    contact_seconds: float = CONTACT_MS / 1000
    isolation_level: Isolation = "read_committed"
    consumer: dict[str, Any] = field(default_factory=dict)


def source_options(options: Mapping[str, str], *, is_stream: bool) -> SourceOptions:
    """
    Raises:
        InvalidConfig: all problems at once.
    """
    reader = OptionReader(options)
    _refuse_misplaced(reader, is_stream=is_stream)
    bootstrap = bootstrap_of(reader)
    starting, ending = positions(reader, is_stream=is_stream)
    delay = reader.seconds("maxTriggerDelay")
    least = reader.number("minRecordsPerPartition", low=1)
    retry_ms = reader.number(*RETRY_TIMEOUT, low=1, high=RETRY_MS_MAX)
    found = SourceOptions(
        bootstrap=bootstrap,
        assign=reader.json("assign", parse=_assigned),
        subscribe=reader.read("subscribe", parse=_topics),
        pattern=reader.read("subscribePattern", parse=_pattern),
        starting=starting,
        ending=ending,
        fail_on_data_loss=reader.flag("failOnDataLoss", default=True),
        max_offsets_per_trigger=reader.number("maxOffsetsPerTrigger", low=1),
        min_offsets_per_trigger=reader.number("minOffsetsPerTrigger", low=1),
        max_trigger_delay_seconds=TRIGGER_DELAY_SECONDS if delay is None else delay,
        min_partitions=reader.number("minPartitions", low=1, high=PARTITION_MAX),
        max_records_per_partition=reader.number("maxRecordsPerPartition", low=1),
        min_records_per_partition=TASK_RECORDS_MIN if least is None else least,
        include_headers=reader.flag("includeHeaders"),
        include_tags=reader.flag("includeTags"),
        tags=reader.read("tags", parse=_tags),
        client_id=label_of(reader),
        retry_seconds=(retry_ms or RETRY_MS) / 1000,
        contact_seconds=(retry_ms or CONTACT_MS) / 1000,
        isolation_level=_isolation_level(reader),
        consumer=reader.client_numbers(CONSUMER),
    )
    _check(reader, found)
    reader.raise_problems()
    return found


def bootstrap_of(reader: OptionReader) -> tuple[str, ...]:
    """The bootstrap addresses, for source and sink."""
    text = reader.text(*BOOTSTRAP)
    name = reader.which(*BOOTSTRAP) or "bootstrap"
    if text is None:
        reader.tell(f"{name}: say where brokers listen, as in host:9292")
        return ()
    try:
        return tuple(str(address) for address in parse_bootstrap(text))
    except InvalidConfig as error:
        for problem in error.problems:
            reader.tell(f"{name}: {problem.removeprefix('bootstrap: ')}")
    return ()


def label_of(reader: OptionReader) -> str:
    """A client id for the logs of brokers: the first of several options that may name the query."""
    own, group = reader.text(*client_names("client.id")), reader.text(*GROUP)
    return (own or group or reader.text("queryName") or LABEL)[:LABEL_CHARS_MAX]


def refuse_security(reader: OptionReader) -> None:
    why = ": raftmq has neither TLS nor access control yet"
    reader.choice(*client_names("security.protocol"), choices=("plaintext",), why=why)


def _isolation_level(reader: OptionReader) -> Isolation:
    found = reader.choice(*client_names("isolation.level"), choices=tuple(ISOLATIONS))
    return cast("Isolation", found or next(iter(ISOLATIONS)))


def _assigned(found: object) -> tuple[Key, ...]:
    """Raises ValueError."""
    example = 'expected {"topic": [0, 1]}'
    if not isinstance(found, dict) or not found:
        raise ValueError(example)
    keys = set()
    for topic, partitions in found.items():
        if not topic or not isinstance(partitions, list) or not partitions:
            raise ValueError(f"no partitions of {topic!r}; {example}")
        if not all(is_whole(partition, 0, PARTITION_MAX) for partition in partitions):
            raise ValueError(f"{partitions!r} are no partitions of {topic!r}; {example}")
        keys |= {(topic, partition) for partition in partitions}
    return tuple(sorted(keys))


def _topics(text: str) -> tuple[str, ...]:
    """Raises ValueError."""
    topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
    if not topics:
        raise ValueError("expected names of topics, with commas between")
    return topics


def _pattern(text: str) -> str:
    """Raises ValueError."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"no regular expression as Python writes them ({error})") from None
    if not text:
        raise ValueError("expected a regular expression that the whole name of a topic matches")
    return text


def _tags(text: str) -> str:
    """Raises ValueError."""
    tag_filter(text)
    return text


def _refuse_misplaced(reader: OptionReader, *, is_stream: bool) -> None:
    """Refuse options that would have no effect."""
    if not is_stream:
        why = "it is for streams; leave it out, and end a batch with endingOffsets"
        reader.refuse(*_OF_STREAMS, why=why)
    elif not reader.has("minOffsetsPerTrigger"):
        reader.refuse("maxTriggerDelay", why="nothing is waited for without minOffsetsPerTrigger")
    refuse_security(reader)


def _check(reader: OptionReader, found: SourceOptions) -> None:
    if reader.which("subscribe", "assign", "subscribePattern") is None:
        reader.tell("nothing to read: name topics with subscribe, or assign or subscribePattern")
    reader.check(lambda: ConsumerOptions(**found.consumer), CONSUMER)
    least, most = found.min_offsets_per_trigger, found.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        reader.tell(f"minOffsetsPerTrigger = {least} is more than maxOffsetsPerTrigger = {most}")
