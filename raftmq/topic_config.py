"""Topic configuration: keys, defaults, limits (retention.ms, segment.bytes, min.insync.replicas).

Owns the definition of every topic key (`TOPIC_KEYS`) and turns a mapping of dotted keys into a
checked, immutable `TopicConfig`. Owns also which names topics may have. Reads no files and no
environment. Defaults are Kafka's, except where docs/decisions/0005 gives a reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from difflib import get_close_matches
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import InvalidConfig
from raftmq.model import Durability, RecordFormat, TimestampType
from raftmq.words import counted, parse_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

DAY_MS = 86_400_000
MIB = 1 << 20
SCHEDULED_LEVEL = 5  # the feature level of scheduled records, which `metadata/commands.py` names
DELAY_LEVELS_MAX = 64

# A topic's name is part of a directory name, with its id behind it: file systems allow 255 bytes.
TOPIC_NAME_CHARS_MAX = 200
TOPIC_NAME_CHARS = f"1 to {TOPIC_NAME_CHARS_MAX} of a-z A-Z 0-9 . _ - but not . or .. alone"
_TOPIC_NAME = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_NAME_CHARS_MAX}}}")


def topic_name_problem(name: str) -> str:
    """Why no topic can have this name; empty if one can."""
    if _TOPIC_NAME.fullmatch(name) and name not in (".", ".."):
        return ""
    return (
        f"topic name {name[:TOPIC_NAME_CHARS_MAX]!r} of {len(name)} characters: allowed are"
        f" {TOPIC_NAME_CHARS}"
    )


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The configuration of one topic, checked. `-1` means no limit where a comment says so. Each
    default that is not Kafka's has its reason in decision 0005."""

    # A segment rolls before it would grow over this. Kafka has 1 GiB: retention deletes whole
    # segments, and a restart after a crash scans at most one.
    segment_bytes: int = 256 * MIB
    segment_ms: int = 7 * DAY_MS  # ... or when its first batch is this old
    # -1: keep for ever. Kafka has 7 days: a consumer that broke before a holiday finds its data.
    retention_ms: int = 14 * DAY_MS
    retention_bytes: int = -1  # of one partition; -1: no limit
    max_message_bytes: int = MIB  # one batch, as it arrives (compressed)
    index_interval_bytes: int = 4096  # an index of 0.4 % of the log, one page to walk at a lookup
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    # One hour ahead of the broker's clock: a record of the far future would never expire.
    message_timestamp_after_max_ms: int = 3_600_000
    durability: Durability = Durability.FSYNC  # decision 0002
    record_format: RecordFormat = RecordFormat.COLUMNS  # decision 0008
    # acks=all needs so many, or all replicas if there are fewer. Kafka has 1: here a record that
    # was acknowledged survives the loss of one disk.
    min_insync_replicas: int = 2
    unclean_leader_election_enable: bool = False  # elect a replica that may lack records
    delay_max_ms: int = 30 * DAY_MS  # a scheduled record takes room for so long (decision 0041)
    # RocketMQ's, for programs that know them by number; see `delay_levels_ms`.
    delay_levels: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


class TopicKey(NamedTuple):
    """One key: `name` as people type it, `field` of TopicConfig, allowed values, description.
    `form`: how a value is written that is neither a number nor one of the choices."""

    name: str
    field: str
    doc: str
    minimum: int = 0
    maximum: int = (1 << 63) - 1
    choices: tuple[str, ...] = ()
    since_level: int = 1  # the feature level from which on every node knows the key
    form: str = ""


TOPIC_KEYS = (
    TopicKey(
        "segment.bytes",
        "segment_bytes",
        "A segment file ends before it would grow over this.",
        minimum=1024,
        maximum=1 << 30,
    ),
    TopicKey(
        "segment.ms",
        "segment_ms",
        "... or when its first batch is this old. Only whole segments are deleted.",
        minimum=1,
    ),
    TopicKey(
        "retention.ms",
        "retention_ms",
        "How long records are kept, by their timestamps; -1 for ever.",
        minimum=-1,
    ),
    TopicKey(
        "retention.bytes",
        "retention_bytes",
        "How many bytes of one partition are kept; -1 without a limit.",
        minimum=-1,
    ),
    TopicKey(
        "max.message.bytes",
        "max_message_bytes",
        "The largest batch, as it arrives (compressed).",
        minimum=61,
        maximum=32 << 20,
    ),
    TopicKey(
        "index.interval.bytes",
        "index_interval_bytes",
        "How many bytes of a log lie between two entries of its index.",
        maximum=1 << 20,
    ),
    TopicKey(
        "message.timestamp.type",
        "message_timestamp_type",
        "Whose time records bear: the producer's, or that of the broker that appends.",
        choices=("CreateTime", "LogAppendTime"),
    ),
    TopicKey(
        "message.timestamp.after.max.ms",
        "message_timestamp_after_max_ms",
        "How far a producer's time may be ahead of the broker's clock.",
    ),
    TopicKey(
        "durability",
        "durability",
        "What a broker does before it counts a record as held: sync it to the disk, or hand it to"
        " the page cache, which survives a crash of the process and no power cut.",
        choices=("fsync", "page_cache"),
    ),
    TopicKey(
        "record.format",
        "record_format",
        "How records lie in a batch: by columns, or as Kafka lays them. The producers of raftmq"
        " write columns only, and are refused by a topic with `kafka`.",
        choices=("columns", "kafka"),
    ),
    TopicKey(
        "min.insync.replicas",
        "min_insync_replicas",
        "`acks=all` needs so many replicas in sync, or all where there are fewer. As many as there"
        " are replicas means that no broker may be down.",
        minimum=1,
    ),
    TopicKey(
        "unclean.leader.election.enable",
        "unclean_leader_election_enable",
        "Whether a replica that may lack records is elected where no other one is left. Then"
        " acknowledged records are lost.",
        choices=("false", "true"),
    ),
    TopicKey(
        "delay.max.ms",
        "delay_max_ms",
        "How far ahead a record may be scheduled, by the clock of the leader.",
        since_level=SCHEDULED_LEVEL,
    ),
    TopicKey(
        "delay.levels",
        "delay_levels",
        "The delays that `delay_level` names by number, counted from 1.",
        since_level=SCHEDULED_LEVEL,
        form=f"1 to {DELAY_LEVELS_MAX} durations",
    ),
)
_NUMBER = re.compile(r"-?[0-9]{1,19}")  # 2^63-1 has 19 digits
MIN_ISR = "min.insync.replicas"
_DEFAULT_MIN_ISR = TopicConfig().min_insync_replicas
_BY_NAME = {key.name: key for key in TOPIC_KEYS}
_CHOICES: dict[str, dict[str, object]] = {
    "message.timestamp.type": {
        "CreateTime": TimestampType.CREATE_TIME,
        "LogAppendTime": TimestampType.LOG_APPEND_TIME,
    },
    "durability": {member.value: member for member in Durability},
    "record.format": {member.value: member for member in RecordFormat},
    "unclean.leader.election.enable": {"false": False, "true": True},
}
assert {key.name: key.choices for key in TOPIC_KEYS if key.choices} == {
    name: tuple(values) for name, values in _CHOICES.items()
}
assert {key.field for key in TOPIC_KEYS} == {field.name for field in fields(TopicConfig)}


def parse_topic_config(
    values: Mapping[str, object], *, feature_level: int | None = None
) -> TopicConfig:
    """Check `values` (dotted keys) and fill in the defaults.

    With `feature_level`, keys of a higher level are refused, too: nodes of an older version would
    not know them.

    Raises:
        InvalidConfig: with one line for every bad key, not only for the first.
    """
    parsed: dict[str, object] = {}
    problems: list[str] = []
    for name, value in values.items():
        try:
            key = _key_named(name)
            if feature_level is not None and key.since_level > feature_level:
                raise ValueError(_too_new(key, feature_level))
            parsed[key.field] = _parse(key, value)
        except ValueError as error:  # go on, to report all problems together
            problems.append(str(error))
    if problems:
        raise InvalidConfig(problems)
    return TopicConfig(**parsed)  # type: ignore[arg-type]  # each value was checked by _parse


def delay_levels_ms(text: str) -> tuple[int, ...]:
    """The delays of levels 1, 2 ... in milliseconds, of the value of delay.levels.

    Raises:
        ValueError: says what is wrong with it.
    """
    words = text.split()
    if not 1 <= len(words) <= DELAY_LEVELS_MAX:
        raise ValueError(f"{counted(len(words), 'level')}, allowed 1 to {DELAY_LEVELS_MAX}")
    delays = list(map(parse_duration, words))
    if None in delays:
        wrong = words[delays.index(None)]
        raise ValueError(f"{wrong!r} is no duration: write them like 1s 10m 1h30m")
    return tuple([delay for delay in delays if delay is not None])


def min_isr_in(configs: Mapping[str, str]) -> int:
    """min.insync.replicas of a topic, by its set keys, which have been checked, or the default."""
    return int(configs.get(MIN_ISR, _DEFAULT_MIN_ISR))


def is_page_cached(configs: Mapping[str, str]) -> bool:
    """Whether a topic with these set keys acknowledges what a power cut may take."""
    return configs.get("durability") == Durability.PAGE_CACHE.value  # not the default


def replication_warning(replication_factor: int, min_insync_replicas: int) -> str:
    """A warning if one broker that is down stops the topic, else "". A factor below 1 is unknown
    (the cluster's default)."""
    if replication_factor == 1:  # min.insync.replicas cannot help: nothing else has the records
        return (
            "one replica: while its broker is down there is no writing and no reading, and its"
            " records go with its disk"
        )
    if replication_factor < 1 or min_insync_replicas < replication_factor:  # one broker may be down
        return ""
    return (
        f"acks=all needs all {replication_factor} replicas (min.insync.replicas ="
        f" {min_insync_replicas}): one broker that is down stops it"
    )


def format_warning(configs: Mapping[str, str]) -> str:
    """A warning if producers of the SDK cannot write to a topic with these set keys, else ""."""
    if configs.get("record.format") != RecordFormat.KAFKA.value:
        return ""
    return (
        "record.format = kafka: producers of raftmq write columns, and are refused; leave it out"
        " unless other programs write Kafka's encoding"
    )


def topic_warning(replication_factor: int, configs: Mapping[str, str]) -> str:
    """Both warnings, for a topic with these keys; "": neither."""
    warnings = [
        replication_warning(replication_factor, min_isr_in(configs)),
        format_warning(configs),
    ]
    return "; ".join(filter(None, warnings))


def _key_named(name: str) -> TopicKey:
    if name in _BY_NAME:
        return _BY_NAME[name]
    if name == "compression.type":  # Kafka's; no key of ours is near to it
        raise ValueError(
            f"unknown topic config {name!r}: batches stay as their producer packs them"
        )
    close = get_close_matches(name, _BY_NAME, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(_BY_NAME))}"
    raise ValueError(f"unknown topic config {name!r}, {hint}")


def _too_new(key: TopicKey, feature_level: int) -> str:
    return (
        f"{key.name} needs feature level {key.since_level}, the cluster is at {feature_level}:"
        " raise it first"
    )


def _parse(key: TopicKey, value: object) -> object:
    if key.choices:
        return _parse_choice(key, value)
    if key.form:
        return _parse_levels(key, value)
    # int() alone accepts " 1_0", digits of other scripts, and strings of any length; and a bool is
    # an int.
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not (is_number or (isinstance(value, str) and _NUMBER.fullmatch(value))):
        raise ValueError(f"{key.name} = {value!r}: expected a whole number")
    number = int(value)  # type: ignore[call-overload]  # one of the two, as was just checked
    if not key.minimum <= number <= key.maximum:
        raise ValueError(f"{key.name} = {number}: allowed {key.minimum} to {key.maximum}")
    return number


def _parse_choice(key: TopicKey, value: object) -> object:
    text = value.value if isinstance(value, Enum) else value
    if isinstance(value, bool):  # True for "true", as programs write it
        text = "true" if value else "false"
    if text not in key.choices:
        raise ValueError(f"{key.name} = {value!r}: allowed {', '.join(key.choices)}")
    return _CHOICES[key.name][str(text)]


def _parse_levels(key: TopicKey, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key.name} = {value!r}: expected {key.form}, like '1s 10m 2h'")
    try:
        delay_levels_ms(value)
    except ValueError as error:
        raise ValueError(f"{key.name} = {value[:100]!r}: {error}") from error
    return " ".join(value.split())
