"""Options of the source, one by one, and what cannot be had."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from raftmq.errors import InvalidConfig
from spark_io.options.reader import CONSUMER, SOURCE
from spark_io.options.source import SourceOptions, source_options
from spark_io.positions import At, Earliest, Latest, Since

NEEDED = {"kafka.bootstrap.servers": "a:9292", "subscribe": "orders"}
OFFSETS = {"orders": {"0": 5, "1": 7}}


def options(given: dict[str, str], *, is_stream: bool = True) -> SourceOptions:
    """Keys as Spark hands them over."""
    return source_options(
        {name.lower(): text for name, text in {**NEEDED, **given}.items()}, is_stream=is_stream
    )


def problems(given: dict[str, str], *, is_stream: bool = True) -> list[str]:
    with pytest.raises(InvalidConfig) as caught:
        options(given, is_stream=is_stream)
    return caught.value.problems


def test_defaults() -> None:
    """Those of Spark's source for Kafka."""
    for is_stream in (True, False):
        assert options({}, is_stream=is_stream) == SourceOptions(
            bootstrap=("a:9292",),
            subscribe=("orders",),
            starting=Latest() if is_stream else Earliest(),
            ending=Latest(),
        )
    found = options({})
    assert found.fail_on_data_loss
    assert found.max_trigger_delay_seconds == 900
    assert found.retry_seconds == 60
    assert not found.include_headers
    assert pickle.loads(pickle.dumps(found)) == found


STREAM = [
    ("failOnDataLoss", "false", "fail_on_data_loss", False),
    ("maxOffsetsPerTrigger", "1000", "max_offsets_per_trigger", 1000),
    ("minOffsetsPerTrigger", "10", "min_offsets_per_trigger", 10),
    ("minPartitions", "8", "min_partitions", 8),
    ("maxRecordsPerPartition", "500", "max_records_per_partition", 500),
    ("minRecordsPerPartition", "1", "min_records_per_partition", 1),
    ("includeHeaders", "true", "include_headers", True),
    ("includeTags", "true", "include_tags", True),
    ("tags", "paid & (eu | us) & !test", "tags", "paid & (eu | us) & !test"),
    ("tags", "*", "tags", "*"),
    ("retryTimeoutMs", "1500", "retry_seconds", 1.5),
    ("kafkaConsumer.pollTimeoutMs", "120000", "retry_seconds", 120),
    ("subscribe", "orders, bills,orders,", "subscribe", ("orders", "bills")),
    ("groupIdPrefix", "etl", "client_id", "etl"),
    ("kafka.group.id", "etl", "client_id", "etl"),
    ("kafka.client.id", "etl", "client_id", "etl"),
    ("queryName", "etl", "client_id", "etl"),
    ("kafka.fetch.min.bytes", "5", "consumer", {"fetch_min_bytes": 5}),
    ("raftmq.prefetch.bytes", "4096", "consumer", {"prefetch_bytes": 4096}),
    ("startingOffsets", "EARLIEST", "starting", Earliest()),
    ("startingOffsets", "latest", "starting", Latest()),
    ("startingOffsets", json.dumps(OFFSETS), "starting", At({"orders": {0: 5, 1: 7}})),
    ("startingOffsets", '{"a": {"0": -1, "1": -2}}', "starting", At({"a": {0: -1, 1: -2}})),
    ("startingTimestamp", "1700000000000", "starting", Since(1_700_000_000_000)),
    ("startingOffsetsByTimestamp", json.dumps(OFFSETS), "starting",
     Since({"orders": {0: 5, 1: 7}})),
]  # fmt: skip
BATCH = [
    ("endingOffsets", "latest", "ending", Latest()),
    ("endingOffsets", '{"a": {"0": 5, "1": -1}}', "ending", At({"a": {0: 5, 1: -1}})),
    ("endingTimestamp", "17", "ending", Since(17, "latest")),
    ("endingOffsetsByTimestamp", '{"a": {"0": 5}}', "ending", Since({"a": {0: 5}}, "latest")),
]


@pytest.mark.parametrize(("name", "text", "field", "expected"), STREAM)
def test_options_of_a_stream(name: str, text: str, field: str, expected: object) -> None:
    """Each alone."""
    found = options({name: text})
    assert getattr(found, field) == expected
    position = getattr(found, field)
    assert not isinstance(position, (At, Since)) or position.option == name


@pytest.mark.parametrize(("name", "text", "field", "expected"), BATCH)
def test_options_of_a_batch(name: str, text: str, field: str, expected: object) -> None:
    """Each alone."""
    assert getattr(options({name: text}, is_stream=False), field) == expected


def test_every_option_is_tried_here() -> None:
    """The lists of this file are complete."""
    elsewhere = {"assign", "subscribePattern", "startingOffsetsByTimestampStrategy"}
    tried = {name for name, *_ in STREAM + BATCH} | elsewhere | {"maxTriggerDelay"}
    assert set(SOURCE) <= tried


def test_what_is_read() -> None:
    """Topics, a pattern, or partitions."""
    given = {"bootstrap": "a:1"}
    found = source_options({**given, "subscribePattern": "orders-.*"}, is_stream=True)
    assert (found.assign, found.subscribe, found.pattern) == (None, None, "orders-.*")
    found = source_options({**given, "assign": '{"b": [2, 0, 2], "a": [1]}'}, is_stream=True)
    assert found.assign == (("a", 1), ("b", 0), ("b", 2))
    assert (found.subscribe, found.pattern) == (None, None)


@pytest.mark.parametrize(
    "name",
    ["kafka.bootstrap.servers", "bootstrap.servers", "raftmq.bootstrap.servers", "bootstrap"],
)
def test_names_for_bootstrap(name: str) -> None:
    """All mean the same; an address that stands there twice is one."""
    found = source_options({name: "a:1, [::1]:2,a:1", "subscribe": "t"}, is_stream=True)
    assert found.bootstrap == ("a:1", "[::1]:2")
    with pytest.raises(InvalidConfig, match=rf"^{name}: address 'a': no port"):
        source_options({name: "a", "subscribe": "t"}, is_stream=True)


@pytest.mark.parametrize("prefix", ["kafka.", "raftmq."])
def test_options_of_the_consumer(prefix: str) -> None:
    """With either prefix."""
    given = {prefix + name: str(number) for number, name in enumerate(CONSUMER, start=1)}
    expected = {field: number for number, field in enumerate(CONSUMER.values(), start=1)}
    assert options(given).consumer == expected


def test_the_delay_of_triggers() -> None:
    """Belongs to the least number of offsets."""
    given = {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "30s", "maxOffsetsPerTrigger": "5"}
    assert options(given).max_trigger_delay_seconds == 30


def test_times_without_records() -> None:
    """The strategy is for either way to say times."""
    given = {"startingOffsetsByTimestampStrategy": "LATEST"}
    assert options({**given, "startingTimestamp": "5"}).starting == Since(5, "latest")
    found = options({**given, "startingOffsetsByTimestamp": '{"t": {"0": 5}}'})
    assert found.starting == Since({"t": {0: 5}}, "latest")


def test_labels() -> None:
    """The closest one, cut to what a log takes."""
    assert options({"queryName": "q", "groupIdPrefix": "g"}).client_id == "g"
    assert options({"groupIdPrefix": "g", "kafka.client.id": "c"}).client_id == "c"
    assert options({"queryName": "q" * 300}).client_id == "q" * 200
    assert options({}).client_id == "spark"


def test_isolation_levels() -> None:
    """Unlike Kafka's, the default hands out nothing of open and aborted transactions."""
    assert options({}).isolation_level == "read_committed"
    for level in ("read_committed", "read_uncommitted"):
        assert options({"kafka.isolation.level": level}).isolation_level == level
    assert options({"raftmq.isolation.level": "READ_UNCOMMITTED"}).isolation_level == level


def test_what_spark_adds_and_what_is_for_the_sink_passes() -> None:
    """A table has the options of both."""
    given = {"path": "x", "checkpointLocation": "y", "topic": "t", "kafka.linger.ms": "5"}
    assert options({**given, "kafka.security.protocol": "PLAINTEXT", "acks": "1"}) == options({})


REFUSED: list[tuple[dict[str, str], str]] = [
    ({"subscribePattern": "x"}, "subscribe and subscribePattern are given; leave all but one out"),
    ({"assign": '{"t": [0]}'}, "subscribe and assign are given"),
    ({"subscribe": " , "}, "subscribe = ',': expected names of topics"),
    ({"startingOffsets": "first"}, "startingOffsets = 'first': expected earliest, latest or JSON"),
    ({"startingOffsets": '{"t": {"0": -3}}'}, "t-0: -3 is no whole number from -2 on"),
    ({"startingOffsets": "{"}, "startingOffsets = '{': no JSON"),
    ({"startingTimestamp": "now"}, "startingTimestamp = 'now': expected a whole number"),
    ({"startingOffsetsByTimestamp": '{"t": {"0": -1}}'}, "-1 is no whole number from 0 on"),
    ({"startingOffsets": "latest", "startingTimestamp": "5"},
     "startingTimestamp and startingOffsets are given; leave all but one out"),
    ({"startingOffsetsByTimestampStrategy": "latest"}, "it belongs to startingTimestamp"),
    ({"startingOffsetsByTimestampStrategy": "x", "startingTimestamp": "5"},
     "expected error or latest"),
    ({"failOnDataLoss": "maybe"}, "failOnDataLoss = 'maybe': expected true or false"),
    ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger = '0': expected 1 or more"),
    ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
     "minOffsetsPerTrigger = 5 is more than maxOffsetsPerTrigger = 4"),
    ({"maxTriggerDelay": "5m"}, "maxTriggerDelay: nothing is waited for without minOffsetsPerTr"),
    ({"minPartitions": "0"}, "minPartitions = '0': expected 1 to 2147483647"),
    ({"maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition = '-1': expected 1 or more"),
    ({"tags": "eu us"}, "tags = 'eu us': expected & or | or the end at character 4: eu  >>> us"),
    ({"tags": ""}, "tags = '': expected a tag, ! or ( at character 1"),
    ({"tags": "eu & !eu"}, "matches no record: it asks for a tag and for its absence"),
    ({"retryTimeoutMs": "0"}, "retryTimeoutMs = '0': expected 1 to 86400000"),
    ({"retryTimeoutMs": "5", "kafkaConsumer.pollTimeoutMs": "5"},
     "retryTimeoutMs and kafkaConsumer.pollTimeoutMs are given"),
    ({"groupIdPrefix": "a", "kafka.group.id": "b"}, "groupIdPrefix and kafka.group.id are given"),
    ({"kafka.fetch.max.wait.ms": "0"},
     "kafka.fetch.max.wait.ms = 0: expected a whole number from 1 to 60000"),
    ({"kafka.isolation.level": "x"}, "expected read_committed or read_uncommitted"),
    ({"kafka.security.protocol": "SSL"}, "raftmq has neither TLS nor access control yet"),
    ({"kafka.auto.offset.reset": "earliest"}, "say where to begin with startingOffsets"),
    ({"kafka.bootstrap.servers": "a"}, "kafka.bootstrap.servers: address 'a': no port"),
    ({"bootstrap": "a:1"}, "kafka.bootstrap.servers and bootstrap are given"),
]  # fmt: skip
OF_STREAMS: list[tuple[dict[str, str], str]] = [
    ({"endingOffsets": "latest"}, "endingOffsets: a stream has no end"),
    ({"endingTimestamp": "5"}, "endingTimestamp: a stream has no end"),
    ({"endingOffsetsByTimestamp": "{}"}, "endingOffsetsByTimestamp: a stream has no end"),
]
OF_BATCHES: list[tuple[dict[str, str], str]] = [
    ({"startingOffsets": "latest"}, "startingOffsets: a batch cannot begin at latest"),
    ({"startingOffsets": '{"t": {"0": -1}}'}, "startingOffsets: a batch cannot begin at latest"),
    ({"endingOffsets": "earliest"}, "endingOffsets: a batch cannot end at earliest"),
    ({"endingOffsets": '{"t": {"0": -2}}'}, "endingOffsets: a batch cannot end at earliest"),
    ({"startingTimestamp": "6", "endingTimestamp": "5"}, "startingTimestamp = 6 is after ending"),
    ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger: it is for streams"),
    ({"minOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger: it is for streams"),
    ({"maxTriggerDelay": "5"}, "maxTriggerDelay: it is for streams"),
    ({"endingOffsets": "latest", "endingTimestamp": "5"},
     "endingTimestamp and endingOffsets are given"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "told"), REFUSED + OF_STREAMS)
def test_refusals_of_a_stream(given: dict[str, str], told: str) -> None:
    """One problem, one sentence."""
    (problem,) = problems(given)
    assert told in problem


@pytest.mark.parametrize(
    ("given", "told"),
    [one for one in REFUSED if not any("Trigger" in name for name in one[0])] + OF_BATCHES,
)
def test_refusals_of_a_batch(given: dict[str, str], told: str) -> None:
    """One problem, one sentence."""
    (problem,) = problems(given, is_stream=False)
    assert told in problem


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "nothing to read: name topics with subscribe"),
        ({"subscribePattern": "("}, "subscribePattern = '(': no regular expression as Python"),
        ({"subscribePattern": ""}, "expected a regular expression"),
        ({"assign": "[]"}, "assign = '[]': expected {\"topic\": [0, 1]}"),
        ({"assign": "{}"}, 'expected {"topic": [0, 1]}'),
        ({"assign": '{"t": []}'}, "no partitions of 't'"),
        ({"assign": '{"t": 0}'}, "no partitions of 't'"),
        ({"assign": '{"t": [-1]}'}, "[-1] are no partitions of 't'"),
        ({"assign": '{"t": [true]}'}, "are no partitions of 't'"),
    ],
)
def test_nothing_to_read(given: dict[str, str], told: str) -> None:
    """Without any of the three, or with one that names nothing."""
    with pytest.raises(InvalidConfig) as caught:
        source_options({"bootstrap": "a:1", **given}, is_stream=True)
    (problem,) = caught.value.problems
    assert told in problem


def test_all_problems_at_once() -> None:
    """An empty hand, and more."""
    with pytest.raises(InvalidConfig) as caught:
        source_options({"minpartitions": "x", "colour": "red"}, is_stream=False)
    told: Any = "\n".join(caught.value.problems)
    for name in ("colour", "bootstrap", "minPartitions", "nothing to read"):
        assert name in told
    assert len(caught.value.problems) == 4
