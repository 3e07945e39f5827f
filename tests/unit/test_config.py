"""Topic configuration: what people type becomes a checked TopicConfig, or one clear complaint."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from raftmq.errors import InvalidConfig
from raftmq.metadata.commands import FeatureLevel
from raftmq.model import Durability, RecordFormat, TimestampType
from raftmq.topic_config import (
    DELAY_LEVELS_MAX,
    SCHEDULED_LEVEL,
    TOPIC_KEYS,
    TopicConfig,
    TopicKey,
    delay_levels_ms,
    parse_topic_config,
    replication_warning,
)

NUMBERS = [key for key in TOPIC_KEYS if not (key.choices or key.form)]
CHOICES = [(key, choice) for key in TOPIC_KEYS for choice in key.choices]
RECORD = Path(__file__).parents[2] / "docs/decisions/0005-defaults.md"
ROW = re.compile(r"^\| `([a-z.]+)` \| [^|]+ \| `([^`]+)`[^|]* \| `([^`]+)` \|", re.MULTILINE)
TYPED = {TimestampType.CREATE_TIME: "CreateTime", TimestampType.LOG_APPEND_TIME: "LogAppendTime"}


@pytest.mark.parametrize(
    ("factor", "min_isr", "warned"),
    [
        (-1, 2, ""),
        (1, 1, "one replica: "),
        (1, 2, "one replica: "),
        (2, 1, ""),
        (2, 2, "acks=all needs all 2 replicas (min.insync.replicas = 2): "),
        (2, 3, "acks=all needs all 2 replicas (min.insync.replicas = 3): "),
        (3, 2, ""),
        (3, 3, "acks=all needs all 3 "),
    ],
)
def test_what_one_broker_that_is_down_does(factor: int, min_isr: int, warned: str) -> None:
    """Nothing, where there is one replica more than have to be in sync."""
    found = replication_warning(factor, min_isr)
    assert found.startswith(warned)
    assert bool(found) == bool(warned)


def key_id(key: TopicKey) -> str:
    return key.name


def problems_of(values: dict[str, object]) -> list[str]:
    with pytest.raises(InvalidConfig) as caught:
        parse_topic_config(values)
    return caught.value.problems


def typed(value: object) -> str:
    """A parsed value as people type it."""
    if isinstance(value, bool):
        return str(value).lower()
    return TYPED[value] if isinstance(value, TimestampType) else str(value)


def allowed(key: TopicKey) -> str:
    if key.choices or key.form:
        return key.form or ", ".join(key.choices)
    return f"{key.minimum}.." if key.maximum == (1 << 63) - 1 else f"{key.minimum}..{key.maximum}"


def test_nothing_set_gives_the_defaults() -> None:
    """A topic without configuration keeps 14 days, synced, in segments of 256 MiB."""
    config = parse_topic_config({})
    assert config == TopicConfig()
    assert (config.retention_ms, config.segment_bytes) == (1_209_600_000, 268_435_456)
    assert (config.durability, config.record_format) == (Durability.FSYNC, RecordFormat.COLUMNS)
    assert (config.min_insync_replicas, config.unclean_leader_election_enable) == (2, False)


def test_the_table_of_defaults_in_the_docs_is_true() -> None:
    """Decision 0005 lists every key with the default and the range that the code has."""
    rows = {
        name: (default, legal) for name, default, legal in ROW.findall(RECORD.read_text("utf-8"))
    }
    assert rows == {
        key.name: (typed(getattr(TopicConfig(), key.field)), allowed(key)) for key in TOPIC_KEYS
    }


def test_one_key_changes_one_field() -> None:
    """What is not named keeps its default."""
    assert parse_topic_config({"retention.ms": 1000}) == TopicConfig(retention_ms=1000)


@pytest.mark.parametrize("key", NUMBERS, ids=key_id)
def test_numbers_may_come_as_text(key: TopicKey) -> None:
    """The command line and the environment know text only."""
    config = parse_topic_config({key.name: "12345"})
    assert getattr(config, key.field) == 12345


@pytest.mark.parametrize("key", NUMBERS, ids=key_id)
def test_both_bounds_are_allowed(key: TopicKey) -> None:
    """Minimum and maximum are legal values."""
    for value in (key.minimum, key.maximum):
        assert getattr(parse_topic_config({key.name: value}), key.field) == value


@pytest.mark.parametrize("key", NUMBERS, ids=key_id)
def test_one_beyond_a_bound_is_refused_with_the_bounds(key: TopicKey) -> None:
    """The complaint says what would have been allowed."""
    for value in (key.minimum - 1, key.maximum + 1):
        text = f"{key.name} = {value}: allowed {key.minimum} to {key.maximum}"
        assert problems_of({key.name: value}) == [text]


@pytest.mark.parametrize("value", [True, False, 1.5, "1.5", "ten", "", None, b"1", [1]])
@pytest.mark.parametrize("key", NUMBERS, ids=key_id)
def test_what_is_no_whole_number_is_refused(key: TopicKey, value: object) -> None:
    """True is no 1 and 1.5 is not rounded: a slip must not become a setting."""
    assert problems_of({key.name: value}) == [f"{key.name} = {value!r}: expected a whole number"]


@pytest.mark.parametrize(("key", "choice"), CHOICES, ids=str)
def test_every_choice_is_understood(key: TopicKey, choice: str) -> None:
    """Each documented word is accepted and becomes the enum member of that name, or a bool."""
    value = getattr(parse_topic_config({key.name: choice}), key.field)
    assert isinstance(value, TimestampType | Durability | RecordFormat | bool)
    assert typed(value) == choice


def test_a_member_of_an_enum_is_a_choice_too() -> None:
    """Programs may pass Durability.PAGE_CACHE as well as its name."""
    config = parse_topic_config({"durability": Durability.PAGE_CACHE})
    assert config.durability is Durability.PAGE_CACHE


@pytest.mark.parametrize("value", [True, False])
def test_a_bool_is_a_choice_of_true_and_false(value: bool) -> None:
    """Programs pass True where people type `true`."""
    config = parse_topic_config({"unclean.leader.election.enable": value})
    assert config.unclean_leader_election_enable is value


@pytest.mark.parametrize("value", ["True", "yes", "1", 1, 0, "", None])
def test_what_is_neither_true_nor_false_is_refused(value: object) -> None:
    """An unclean election loses records: nothing is guessed here."""
    name = "unclean.leader.election.enable"
    assert problems_of({name: value}) == [f"{name} = {value!r}: allowed false, true"]


@pytest.mark.parametrize("value", ["FSYNC", "never", "", True, 1, None])
def test_an_unknown_choice_is_refused_with_the_choices(value: object) -> None:
    """The complaint lists the words that exist; case matters."""
    text = f"durability = {value!r}: allowed fsync, page_cache"
    assert problems_of({"durability": value}) == [text]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("retention.sm", "retention.ms"),
        ("retention_ms", "retention.ms"),
        ("segment.byte", "segment.bytes"),
        ("message.timestamp.typ", "message.timestamp.type"),
    ],
)
def test_a_slip_in_a_key_brings_a_suggestion(name: str, meant: str) -> None:
    """Underscores and swapped letters are answered with the key that was meant."""
    assert problems_of({name: 1}) == [f"unknown topic config {name!r}, did you mean {meant!r}?"]


def test_a_key_like_no_other_brings_no_suggestion() -> None:
    """A far-fetched guess would be worse than none: all there are stand there; nor for Kafka's
    compression."""
    [problem] = problems_of({"zzz": 1})
    assert problem.startswith(
        "unknown topic config 'zzz', there are delay.levels, delay.max.ms, durability, "
    )
    [problem] = problems_of({"compression.type": "zstd"})
    assert problem.endswith("batches stay as their producer packs them")


def test_every_bad_key_is_reported_at_once() -> None:
    """Three slips need one correction, not three attempts; good keys are not mentioned."""
    problems = problems_of(
        {"segment.bytes": 1, "retention.ms": 5, "durability": "never", "retention.byte": 1}
    )
    assert [line.split()[0] for line in problems] == ["segment.bytes", "durability", "unknown"]


# -- delays ---------------------------------------------------------------------------------------


def test_the_levels_of_delays() -> None:
    """RocketMQ's eighteen, by number from 1 on, if a topic has no others (A12.3)."""
    levels = delay_levels_ms(TopicConfig().delay_levels)
    assert (len(levels), levels[0], levels[4], levels[-1]) == (18, 1000, 60_000, 7_200_000)
    config = parse_topic_config({"delay.levels": "  10s 1h30m\t2d 500ms 0s "})
    assert config.delay_levels == "10s 1h30m 2d 500ms 0s"
    assert delay_levels_ms(config.delay_levels) == (10_000, 5_400_000, 172_800_000, 500, 0)
    many = " ".join(["1s"] * DELAY_LEVELS_MAX)
    assert len(delay_levels_ms(parse_topic_config({"delay.levels": many}).delay_levels)) == 64


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("", "delay.levels = '': 0 levels, allowed 1 to 64"),
        (" ".join(["1s"] * 65), ": 65 levels, allowed 1 to 64"),
        ("1s 10 2h", "delay.levels = '1s 10 2h': '10' is no duration: write them like"),
        ("1s,5s", "'1s,5s' is no duration"),
        ("-1s", "'-1s' is no duration"),
        (10, "delay.levels = 10: expected 1 to 64 durations, like"),
        (True, "delay.levels = True: expected"),
    ],
)
def test_levels_that_are_none(value: object, told: str) -> None:
    """The complaint says which word it is, and how durations are written."""
    [problem] = problems_of({"delay.levels": value})
    assert told in problem


def test_delays_need_their_level() -> None:
    """A node of the version before would refuse the topic's configuration, and stop."""
    assert SCHEDULED_LEVEL == FeatureLevel.SCHEDULED
    for key, value in (("delay.max.ms", 1000), ("delay.levels", "1s")):
        parse_topic_config({key: value}, feature_level=SCHEDULED_LEVEL)
        with pytest.raises(InvalidConfig, match=f"{key} needs feature level 5, the cluster"):
            parse_topic_config({key: value}, feature_level=SCHEDULED_LEVEL - 1)
