"""Names and values of options, as Spark hands them over."""

from __future__ import annotations

import pytest

from raftmq.errors import InvalidConfig
from spark_io.options.reader import (
    BOOTSTRAP,
    CONSUMER,
    KNOWN,
    PRODUCER,
    SINK,
    SOURCE,
    OptionReader,
    passed_over,
)


def problems(**options: str) -> list[str]:
    return OptionReader(options).problems


@pytest.mark.parametrize("name", sorted(KNOWN.values()))
def test_known_names_in_any_case(name: str) -> None:
    """Spark makes them lower."""
    for spelling in (name, name.lower(), name.upper()):
        reader = OptionReader({spelling: " x "})
        assert reader.problems == []
        assert reader.has(name)
        assert reader.text(name) == "x"


def test_names_do_not_collide() -> None:
    """Each option has one place in the lists."""
    names = [*SOURCE, *SINK, *BOOTSTRAP, *CONSUMER, *PRODUCER]
    assert len({name.lower() for name in names}) == len(names)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("startingofsets", "there is no option startingofsets; did you mean startingOffsets?"),
        ("maxOffsetPerTrigger", "maxoffsetpertrigger; did you mean maxOffsetsPerTrigger?"),
        ("fetch.min.bytes", "did you mean kafka.fetch.min.bytes?"),
        ("retries", "did you mean kafka.retries?"),
        ("kafka.security.providers", "options are no place for secrets"),
        ("kafka.buffer.size", "there is no option kafka.buffer.size; "),
        ("colour", "there is no option colour; leave it out"),
        (
            "group.id",
            "group.id: the source is no member of a group; for a label say kafka.group.id",
        ),
        ("kafka.auto.offset.reset", "kafka.auto.offset.reset: say where to begin with startingOff"),
        ("auto.offset.reset", "auto.offset.reset: say where"),
        ("kafka.key.deserializer", "encode and decode them in the DataFrame"),
        ("raftmq.value.deserializer", "raftmq.value.deserializer: keys and values are columns"),
        ("value.serializer", "keys and values are columns"),
        ("kafka.enable.auto.commit", "offsets are kept in Spark's checkpoint"),
        ("kafka.interceptor.classes", "change rows in the DataFrame"),
        ("kafka.group.instance.id", "the source is no member of a group"),
        ("kafka.client.rack", "is not there yet"),
        ("kafka.transactional.id", "say delivery = exactly_once, and transactionalId for an id"),
        ("kafka.partitioner.class", "say partitioner = crc32, murmur2 or consistent"),
        ("max_request_size", "did you mean kafka.max.request.size?"),
    ],
)
def test_names_that_are_refused(name: str, told: str) -> None:
    """With what may be meant, or why and what to do."""
    (problem,) = problems(**{name: "1"})
    assert told in problem


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("kafka.max.block.ms", "kafka.max.block.ms is passed over: the client has no such setting"),
        ("raftmq.metadata.max.age.ms", "raftmq.metadata.max.age.ms is passed over"),
        ("kafka.default.api.timeout.ms", "and does the same without it"),
        ("kafka.max.in.flight.requests.per.connection", "and does the same without it"),
        ("kafka.receive.buffer.bytes", "and does the same without it"),
        ("FETCHOFFSET.NUMRETRIES", "fetchOffset.numRetries is passed over: what counts here is"),
        ("fetchOffset.retryIntervalMs", "say retryTimeoutMs"),
    ],
)
def test_names_that_make_no_difference(name: str, told: str) -> None:
    assert problems(**{name: "1"}) == []
    [sentence] = passed_over([name, "kafka.linger.ms", "colour"])
    assert told in sentence


@pytest.mark.parametrize(
    "name",
    ["kafka.sasl.jaas.config", "kafka.ssl.keystore.password", "sasl.mechanism", "kafka.sasl.x"],
)
def test_a_secret_is_not_repeated(name: str) -> None:
    """Not in the error either: errors are logged."""
    with pytest.raises(InvalidConfig, match="options are no place for secrets") as caught:
        OptionReader({name: "hunter2", "sasl_password": "hunter2"}).raise_problems()
    assert "hunter2" not in str(caught.value)


def test_all_problems_are_told_in_one_error() -> None:
    """Names and values, each once."""
    reader = OptionReader({"colour": "red", "minpartitions": "x", "includeheaders": "no"})
    assert reader.number("minPartitions") is None
    assert reader.number("minPartitions") is None
    assert reader.flag("includeHeaders", default=True)
    with pytest.raises(InvalidConfig) as caught:
        reader.raise_problems()
    assert caught.value.problems == [
        "there is no option colour; leave it out",
        "minPartitions = 'x': expected a whole number",
        "includeHeaders = 'no': expected true or false",
    ]


def test_no_problems() -> None:
    """Nothing is raised."""
    OptionReader({}).raise_problems()
    assert OptionReader({"topic": None}).text("topic") is None  # type: ignore[dict-item]


def test_one_option_under_two_names() -> None:
    """None of them wins in silence."""
    reader = OptionReader({"bootstrap": "a:1", "kafka.bootstrap.servers": "a:1"})
    reader.text(*BOOTSTRAP)
    (problem,) = reader.problems
    assert problem == "kafka.bootstrap.servers and bootstrap are given; leave all but one out"


@pytest.mark.parametrize(("text", "expected"), [("true", True), ("FALSE", False), (" True ", True)])
def test_flags(text: str, expected: bool) -> None:
    """As Spark writes them."""
    assert OptionReader({"includeTags": text}).flag("includeTags") is expected


@pytest.mark.parametrize("text", ["", "-1", "0", "1.5", "1e3", "٣", "1_000", "11", "0x1", "9" * 20])
def test_numbers_that_are_none(text: str) -> None:
    """Or beyond their bounds."""
    reader = OptionReader({"minPartitions": text})
    assert reader.number("minPartitions", low=1, high=10) is None
    (problem,) = reader.problems
    assert problem.startswith(f"minPartitions = {text!r}: expected ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("15m", 900), ("15min", 900), ("2 h", 7200), ("1d", 86_400), ("30S", 30), ("500ms", 0.5),
     ("250", 0.25), ("0", 0), ("10us", 1e-5)],
)  # fmt: skip
def test_durations(text: str, expected: float) -> None:
    """As Spark writes them."""
    assert OptionReader({"maxTriggerDelay": text}).seconds("maxTriggerDelay") == pytest.approx(
        expected
    )


@pytest.mark.parametrize("text", ["soon", "5 weeks", "-5s", "1.5h", ""])
def test_durations_that_are_none(text: str) -> None:
    """With an example."""
    reader = OptionReader({"maxTriggerDelay": text})
    assert reader.seconds("maxTriggerDelay") is None
    assert "as in 15m" in reader.problems[0]


@pytest.mark.parametrize("text", ["{", "{'a': 1}", '{"a": 1, "a": 2}', ""])
def test_json_that_is_none(text: str) -> None:
    """A name that stands there twice is no mistake to pass over."""
    reader = OptionReader({"assign": text})
    assert reader.json("assign", parse=lambda found: found) is None
    assert len(reader.problems) == 1


def test_what_the_client_refuses_is_told_in_words_of_options() -> None:
    """With the prefix that was given; a word that is a name, too, stays a word."""
    options = {"raftmq.linger.ms": "5", "kafka.batch.size": "x"}
    reader = OptionReader(options)
    assert reader.client_numbers(PRODUCER) == {"linger_ms": 5}

    def refuse() -> None:
        raise InvalidConfig(["linger_ms = 5: above delivery_timeout_ms", "retries = 1: no retries"])

    reader.check(refuse, PRODUCER)
    assert reader.problems == [
        "kafka.batch.size = 'x': expected a whole number",
        "raftmq.linger.ms = 5: above kafka.delivery.timeout.ms",
        "kafka.retries = 1: no retries",
    ]
