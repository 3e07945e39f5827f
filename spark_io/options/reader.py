"""Option names and values as Spark passes them (lower-case names, texts), parsed and checked. Pure.

Owns how values are written, and what to say about options of Kafka's that raftmq does not have:
some are refused, others passed over.
Invariants: all problems are reported in one error; names in it are spelled as documented; the value
of a refused option is not repeated, as it may be a secret.
"""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar

from raftmq.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


# -- Option names ---------------------------------------------------------------------------------
# The names of all options, as they are documented, and messages for those that only Kafka has.
#
# Options of the client have a prefix, `kafka.` or `raftmq.`. Source and sink accept each other's
# names, as one dictionary of options may serve both. Pure.


PREFIXES = ("kafka.", "raftmq.")  # a query written for Kafka's source runs unchanged


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
    "minRecordsPerPartition",
    "includeHeaders",
    "includeTags",
    "tags",
)
SINK = (
    "topic",
    "delivery",
    "transactionalId",
    "generation",
    "transactionTimeoutMs",
    "failOnReplayMismatch",
    "partitioner",
)
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
_NOTHING = "the client has no such setting, and does the same without it"
_SECRETS = "raftmq has neither TLS nor access control yet, and options are no place for secrets"
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
    "interceptor.classes": "raftmq has no interceptors; change rows in the DataFrame",
    "partition.assignment.strategy": _NO_GROUP,
    "group.instance.id": _NO_GROUP,
    "client.rack": "reading from the nearest replica is not there yet; leave it out",
    "transactional.id": "say delivery = exactly_once, and transactionalId for an id of your own",
    "transaction.timeout.ms": "say delivery = exactly_once and transactionTimeoutMs",
    "partitioner.class": "say partitioner = crc32, murmur2 or consistent, or give each row a "
    "column partition",
}
# A query that was tuned for Kafka gives the same rows without them.
_PASSED_OVER = {
    **dict.fromkeys(
        (
            "auto.commit.interval.ms", "client.dns.lookup", "compression.gzip.level",
            "compression.lz4.level", "compression.zstd.level", "connections.max.idle.ms",
            "default.api.timeout.ms", "heartbeat.interval.ms", "max.block.ms",
            "max.in.flight.requests.per.connection", "max.poll.interval.ms", "metadata.max.age.ms",
            "metadata.max.idle.ms", "metrics.num.samples", "metrics.recording.level",
            "metrics.sample.window.ms", "receive.buffer.bytes", "reconnect.backoff.max.ms",
            "reconnect.backoff.ms", "send.buffer.bytes", "session.timeout.ms",
            "socket.connection.setup.timeout.max.ms", "socket.connection.setup.timeout.ms",
        ),
        _NOTHING,
    ),
    "fetchOffset.numRetries": _HOW_LONG,
    "fetchOffset.retryIntervalMs": _HOW_LONG,
}  # fmt: skip
# Prefixes of Kafka's security options: ignored, they would promise what there is not.
_SECRET_FAMILIES = ("sasl.", "ssl.", "security.")


_REFUSED_LOWER = {name.lower(): name for name in _REFUSED}
_PASSED_OVER_LOWER = {name.lower(): name for name in _PASSED_OVER}


def refusal(name: str) -> str | None:
    """A sentence on an option that only Kafka has; None: it is none of Kafka's."""
    prefix, base = _parts(name)
    if base.startswith(_SECRET_FAMILIES):
        return f"{name}: {_SECRETS}"
    if base not in _REFUSED_LOWER:
        return None
    spelling = _REFUSED_LOWER[base]
    return f"{prefix}{spelling}: {_REFUSED[spelling]}"


def _parts(name: str) -> tuple[str, str]:
    """The prefix, which may be missing, and the rest."""
    prefix = next((each for each in PREFIXES if name.startswith(each)), "")
    return prefix, name.removeprefix(prefix)


def passed_over(names: Iterable[str]) -> list[str]:
    """A sentence on each option that makes no difference."""
    found = []
    for name in map(str.lower, names):
        prefix, base = _parts(name)
        if base in _PASSED_OVER_LOWER:
            spelling = _PASSED_OVER_LOWER[base]
            found.append(f"{prefix}{spelling} is passed over: {_PASSED_OVER[spelling]}")
    return found


# -- Option reader --------------------------------------------------------------------------------


ValueT = TypeVar("ValueT")

NUMBER_MAX = (1 << 63) - 1  # int64, as on the wire
_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_DURATION = re.compile(r"([0-9]{1,15}) ?([a-z]*)", re.ASCII)
# Seconds of each unit; without one they are milliseconds, as in Spark.
_SECONDS = {
    "us": 1e-6, "ms": 1e-3, "": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0
}  # fmt: skip


class OptionReader:
    """Reads options one by one, and collects the problems of all of them.

    Attributes:
        problems: so far.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = {name.lower(): text for name, text in options.items() if text is not None}
        self.problems = [problem for name in self._given if (problem := _bad_name(name))]

    def raise_problems(self) -> None:
        """Raises InvalidConfig: there are any."""
        if self.problems:
            raise InvalidConfig(self.problems)

    def has(self, *names: str) -> bool:
        return any(name.lower() in self._given for name in names)

    def tell(self, problem: str) -> None:
        # An option may be read twice, and is reported once.
        if problem not in self.problems:
            self.problems.append(problem)

    def refuse(self, *names: str, why: str) -> None:
        """Report the names that are given."""
        for name in names:
            if self.has(name):
                self.tell(f"{name}: {why}")

    # Values that may be given under one of several names

    def which(self, *names: str) -> str | None:
        given = [name for name in names if self.has(name)]
        if len(given) > 1:  # which one should win would be a guess
            self.tell(f"{' and '.join(given)} are given; leave all but one out")
        return given[0] if given else None

    def read(self, *names: str, parse: Callable[[str], ValueT]) -> ValueT | None:
        """The parsed value; None: not given. `parse` raises ValueError: what it expects."""
        name = self.which(*names)
        if name is None:
            return None
        text = self._given[name.lower()].strip()
        try:
            return parse(text)
        except ValueError as error:
            self.tell(f"{name} = {text!r}: {error}")
        return None

    def text(self, *names: str) -> str | None:
        return self.read(*names, parse=_text)

    def flag(self, *names: str, default: bool = False) -> bool:
        found = self.choice(*names, choices=("true", "false"))
        return default if found is None else found == "true"

    def choice(self, *names: str, choices: Sequence[str], why: str = "") -> str | None:
        """One of some words, in lower case."""

        def parse(text: str) -> str:
            if text.lower() not in choices:
                raise ValueError(f"expected {' or '.join(choices)}{why}")
            return text.lower()

        return self.read(*names, parse=parse)

    def number(self, *names: str, low: int = 0, high: int = NUMBER_MAX) -> int | None:
        """A whole number."""

        def parse(text: str) -> int:
            if low <= (number := _whole(text)) <= high:
                return number
            raise ValueError(f"expected {low} {'or more' if high == NUMBER_MAX else f'to {high}'}")

        return self.read(*names, parse=parse)

    def seconds(self, *names: str) -> float | None:
        """A duration as Spark writes it; without a unit it is in milliseconds."""
        return self.read(*names, parse=_seconds)

    def json(self, *names: str, parse: Callable[[object], ValueT]) -> ValueT | None:
        """`parse` raises ValueError if it is something else than expected."""
        return self.read(*names, parse=lambda text: parse(_json(text)))

    # Options that raftmq's consumer and producer check themselves

    def client_numbers(self, fields: Mapping[str, str]) -> dict[str, int]:
        """
        Args:
            fields: option of the client -> its name in raftmq's SDK.
        """
        found = {
            field: self.read(*client_names(name), parse=_whole) for name, field in fields.items()
        }
        return {field: number for field, number in found.items() if number is not None}

    def check(self, make: Callable[[], object], fields: Mapping[str, str]) -> None:
        """Report what `make` refuses, with its field names replaced by the options'."""
        try:
            make()
        except InvalidConfig as error:
            spellings = {
                field: self.which(*client_names(name)) or client_names(name)[0]
                for name, field in fields.items()
            }
            for problem in error.problems:
                self.tell(_respelled(problem, spellings))


def _bad_name(name: str) -> str:
    if name in KNOWN or passed_over([name]):
        return ""
    # 1. Kafka's, and refused. 2. The client's, without its prefix. 3. Mistyped, or unknown.
    if told := refusal(name):
        return told
    # The SDK writes them with `_`.
    prefixed = [spelling for spelling in client_names(name.replace("_", ".")) if spelling in KNOWN]
    # Stricter than difflib's 0.6, as many names share words.
    similar = prefixed or get_close_matches(name, list(KNOWN), n=1, cutoff=0.8)
    hint = f"did you mean {KNOWN[similar[0]]}?" if similar else "leave it out"
    return f"there is no option {name}; {hint}"


def _text(text: str) -> str:
    if not text:
        raise ValueError("there is nothing; say something, or leave it out")
    return text


def _whole(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError("expected a whole number")
    return int(text)


def _seconds(text: str) -> float:
    found = _DURATION.fullmatch(text.lower())
    if not found or found[2] not in _SECONDS:
        raise ValueError("expected a number with us, ms, s, m, h or d, as in 15m")
    return int(found[1]) * _SECONDS[found[2]]


def _json(text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_members)
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON ({error})") from None


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """JSON objects without repeated names, of which `json` would keep the last value only."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a name stands there twice")
    return members


def _respelled(problem: str, spellings: Mapping[str, str]) -> str:
    """Replace field names by options; common words only in front of a value."""
    patterns = [field if "_" in field else rf"{field}(?= = )" for field in spellings]
    return re.sub(rf"\b(?:{'|'.join(patterns)})(?!\w)", lambda found: spellings[found[0]], problem)
