"""Options of the sink, one by one, and what cannot be had."""

from __future__ import annotations

import pickle

import pytest

from raftmq.client.producer.options import ProducerOptions
from raftmq.errors import InvalidConfig
from spark_io.names import name_of_batch_task
from spark_io.offsets import PARTITION_MAX
from spark_io.options.reader import PRODUCER, SINK
from spark_io.options.sink import ID_CHARS_MAX, SinkOptions, sink_options


def options(given: dict[str, str], *, is_stream: bool = False) -> SinkOptions:
    """Keys as Spark hands them over."""
    return sink_options(
        {"bootstrap": "a:9292", **{name.lower(): text for name, text in given.items()}},
        is_stream=is_stream,
    )


def problems(given: dict[str, str], *, is_stream: bool = False) -> list[str]:
    with pytest.raises(InvalidConfig) as caught:
        options(given, is_stream=is_stream)
    return caught.value.problems


def test_defaults() -> None:
    """What stands there already is not written twice: a microbatch is a transaction, and tasks of a
    batch have names.
    """
    batch, stream = options({}), options({}, is_stream=True)
    assert batch == SinkOptions(bootstrap=("a:9292",))
    assert batch.is_named
    assert stream == SinkOptions(bootstrap=("a:9292",), delivery="exactly_once")
    assert stream.is_transactional
    for found in (batch, stream):
        assert pickle.loads(pickle.dumps(found)) == found


EACH = [
    ("topic", " orders ", "topic", "orders"),
    ("delivery", "idempotent", "delivery", "idempotent"),
    ("delivery", "AT_LEAST_ONCE", "delivery", "at_least_once"),
    ("delivery", "exactly_once", "delivery", "exactly_once"),
    ("failOnReplayMismatch", "false", "fail_on_replay_mismatch", False),
    ("partitioner", "murmur2", "producer", {"partitioner": "murmur2"}),
    ("kafka.compression.type", "zstd", "producer", {"compression": "zstd"}),
    ("raftmq.compression.type", "none", "producer", {"compression": None}),
    ("queryName", "etl", "client_id", "etl"),
    ("kafka.client.id", "etl", "client_id", "etl"),
    ("kafka.linger.ms", "20", "producer", {"linger_ms": 20}),
]


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(("name", "text", "field", "expected"), EACH)
def test_options(name: str, text: str, field: str, expected: object, *, is_stream: bool) -> None:
    """Each alone."""
    assert getattr(options({name: text}, is_stream=is_stream), field) == expected


def test_every_option_is_tried_here() -> None:
    """The list of this file is complete."""
    together = {"transactionalId", "generation", "transactionTimeoutMs"}
    assert set(SINK) <= {name for name, *_ in EACH} | together


@pytest.mark.parametrize("prefix", ["kafka.", "raftmq."])
def test_options_of_the_producer(prefix: str) -> None:
    """With either prefix; raftmq's producer takes them as they are."""
    values = {field: 50_000 + place for place, field in enumerate(PRODUCER.values())}
    values |= {"buffer_memory": 9_000_000}
    given = {prefix + name: str(values[field]) for name, field in PRODUCER.items()}
    found = options(given).producer
    assert found == values
    assert ProducerOptions(**found, name="x", generation=0).linger_ms == values["linger_ms"]


@pytest.mark.parametrize("name", ["acks", "kafka.acks", "raftmq.acks"])
def test_acks(name: str) -> None:
    """There is one way, which may be said."""
    for text in ("all", "-1", "ALL"):
        assert options({name: text}) == options({})
    for text in ("0", "1", "2", "leader"):
        (problem,) = problems({name: text})
        assert problem == (
            f"{name} = {text!r}: expected all or -1: the sink is done with a row once every "
            "replica in sync has it"
        )


def test_a_job_with_a_name() -> None:
    """It needs a generation; a stream has one by itself."""
    found = options({"transactionalId": "nightly", "generation": "20261122"})
    assert (found.transactional_id, found.generation) == ("nightly", 20_261_122)
    found = options({"transactionalId": "nightly"}, is_stream=True)
    assert (found.transactional_id, found.generation) == ("nightly", None)


def test_the_longest_name_fits() -> None:
    """With the number of a task behind it brokers take it."""
    longest = "x" * ID_CHARS_MAX
    options({"transactionalId": longest}, is_stream=True)
    name = name_of_batch_task(longest, PARTITION_MAX, 0)
    ProducerOptions(name=name.name, generation=name.generation)


def test_without_names() -> None:
    """Then nothing is looked up."""
    assert not options({"delivery": "at_least_once"}).is_named


@pytest.mark.parametrize("is_stream", [True, False])
def test_transactions(*, is_stream: bool) -> None:
    given = {"delivery": "exactly_once"}
    found = options(given, is_stream=is_stream)
    assert found.is_transactional
    assert not found.is_named
    assert found.transaction_timeout_ms == 900_000
    given |= {"transactionTimeoutMs": "60000", "transactionalId": "etl"}
    given |= {} if is_stream else {"generation": "7"}
    found = options(given, is_stream=is_stream)
    assert (found.transaction_timeout_ms, found.transactional_id) == (60_000, "etl")


def test_what_spark_adds_and_what_is_for_the_source_passes() -> None:
    """A table has the options of both."""
    given = {"path": "x", "checkpointLocation": "y", "subscribe": "t", "kafka.fetch.min.bytes": "0"}
    given |= {"kafka.enable.idempotence": "true", "includeHeaders": "true"}
    given |= {"failOnDataLoss": "false"}  # rows of the sink are not dropped by that
    assert options(given) == options({})


REFUSED: list[tuple[dict[str, str], str]] = [
    ({"topic": " "}, "topic = '': there is nothing"),
    ({"delivery": "at_most_once"},
     "delivery = 'at_most_once': expected idempotent or at_least_once or exactly_once"),
    ({"transactionTimeoutMs": "60000", "delivery": "idempotent"},
     "transactionTimeoutMs: only delivery = exactly_once has"),
    ({"transactionTimeoutMs": "999", "delivery": "exactly_once"},
     "transactionTimeoutMs = '999': expected 1000 or more"),
    ({"partitioner": "random"}, "partitioner = 'random': expected crc32 or murmur2 or consistent"),
    ({"kafka.compression.type": "snappy"}, "expected none or gzip or lz4 or zstd"),
    ({"kafka.linger.ms": "60001"}, "kafka.linger.ms = 60001: expected 0 to 60000"),
    ({"raftmq.linger.ms": "1.5"}, "raftmq.linger.ms = '1.5': expected a whole number"),
    ({"kafka.retries": "-1"}, "kafka.retries = -1: expected 0"),
    ({"kafka.linger.ms": "60", "kafka.delivery.timeout.ms": "50"},
     "kafka.linger.ms = 60: not below kafka.delivery.timeout.ms = 50"),
    ({"kafka.buffer.memory": "100000"}, "below kafka.batch.size or kafka.max.request.size"),
    ({"kafka.enable.idempotence": "false"}, "brokers always find what the client sends twice"),
    ({"kafka.security.protocol": "SASL_SSL"}, "raftmq has neither TLS nor access control yet"),
    ({"kafka.transactional.id": "x"}, "say delivery = exactly_once, and transactionalId for an id"),
    ({"kafka.transaction.timeout.ms": "5"}, "delivery = exactly_once and transactionTimeoutMs"),
    ({"kafka.key.serializer": "x"}, "encode and decode them in the DataFrame"),
    ({"generation": "1", "delivery": "at_least_once"}, "generation: with delivery = at_least_once"),
    ({"transactionalId": "x", "delivery": "at_least_once"},
     "transactionalId: with delivery = at_least_once nothing is looked up by name"),
    ({"topics": "x"}, "there is no option topics; did you mean topic?"),
    ({"kafka.bootstrap.servers": "a:1"}, "kafka.bootstrap.servers and bootstrap are given"),
]  # fmt: skip
OF_BATCHES: list[tuple[dict[str, str], str]] = [
    ({"transactionalId": "x"}, "transactionalId = 'x' without generation"),
    ({"generation": "5"}, "generation: it is that of a transactionalId"),
    ({"transactionalId": "x", "delivery": "exactly_once"}, "transactionalId = 'x' without generat"),
    ({"transactionalId": "x", "generation": "-1"}, "generation = '-1': expected 0 or more"),
    ({"transactionalId": "x" * 201, "generation": "1"}, "expected 1 to 200 characters"),
    ({"transactionalId": "a\nb", "generation": "1"}, "that can be printed"),
]
OF_STREAMS: list[tuple[dict[str, str], str]] = [
    ({"generation": "5"}, "generation: in a stream it is the number of the microbatch"),
    ({"generation": "5", "delivery": "exactly_once"}, "in a stream it is the number of the micro"),
    ({"transactionalId": "x", "generation": "5"}, "in a stream it is the number of the microbatch"),
    ({"transactionalId": "a\nb"}, "that can be printed"),
]


@pytest.mark.parametrize(("given", "told"), REFUSED + OF_BATCHES)
def test_refusals_of_a_batch(given: dict[str, str], told: str) -> None:
    """One problem, one sentence."""
    (problem,) = problems(given)
    assert told in problem


@pytest.mark.parametrize(("given", "told"), REFUSED + OF_STREAMS)
def test_refusals_of_a_stream(given: dict[str, str], told: str) -> None:
    """One problem, one sentence."""
    (problem,) = problems(given, is_stream=True)
    assert told in problem


def test_all_problems_at_once() -> None:
    """From brokers that are missing to a codec."""
    with pytest.raises(InvalidConfig) as caught:
        sink_options({"kafka.compression.type": "x", "kafka.acks": "0", "a": "b"}, is_stream=True)
    assert len(caught.value.problems) == 4
