"""What a program may ask of a producer, checked. Pure.

Owns names, defaults, bounds, what contradicts what, and the two presets (docs/SDK.md has their
measured figures). Kafka's names where the meaning is Kafka's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypedDict

from raftmq.client.options import check_options
from raftmq.client.producer.partitioners import HASHES
from raftmq.errors import InvalidConfig
from raftmq.model import Compression
from raftmq.wire.bodies import ACKS_ALL, REPLICAS_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from raftmq.client.producer.partitioners import UserPartitioner

PRESETS: dict[str, dict[str, Any]] = {
    "high_throughput": {"linger_ms": 20, "batch_size": 256 << 10, "max_request_size": 4 << 20},
    "low_latency": {"linger_ms": 0, "batch_size": 16 << 10},
}
CODECS = {None: Compression.NONE} | {codec.name.lower(): codec for codec in Compression}


@dataclass(frozen=True, kw_only=True)
class ProducerOptions:
    """Attributes:
    acks: how many replicas must hold a record before it counts as sent; "all": the whole
        in-sync set; 0: nobody is asked.
    linger_ms: how long a batch waits for more records.
    batch_size: bytes of records after which a batch leaves.
    buffer_memory: bytes of memory for records that wait or are on their way; one is counted with
        256 bytes beside its own (docs/SDK.md).
    max_request_size: bytes of records in one request; a record that is larger is refused.
    max_in_flight: requests of one partition on their way at a time. With more than one, records
        may change their order when a request has to be sent again.
    compression: None, "gzip", "lz4" or "zstd".
    partitioner: "crc32", "murmur2", "consistent", or a function of topic, key, value, headers and
        the number of partitions. A function is asked about records without a key, too.
    retries: how often a batch is sent again; None: until `delivery_timeout_ms` are over.
    retry_backoff_ms, retry_backoff_max_ms: the first pause before that, and the longest.
    request_timeout_ms: how long one answer may take.
    delivery_timeout_ms: how long all of it may take, from the first record of a batch on; then
        it is told that nobody knows, even if an answer may still come.
    """

    acks: int | str = "all"
    linger_ms: float = 5
    batch_size: int = 64 << 10
    buffer_memory: int = 32 << 20
    max_request_size: int = 1 << 20
    max_in_flight: int = 1
    compression: str | None = None
    partitioner: str | UserPartitioner = "crc32"
    retries: int | None = None
    retry_backoff_ms: float = 100
    retry_backoff_max_ms: float = 1000
    request_timeout_ms: float = 30_000
    delivery_timeout_ms: float = 120_000

    def __post_init__(self) -> None:
        problems = [*_bad_numbers(self), *_bad_choices(self)]
        if not problems:
            problems = _contradictions(self)
        if problems:
            raise InvalidConfig(problems)

    @property
    def acks_number(self) -> int:
        """As a request says it."""
        return ACKS_ALL if isinstance(self.acks, str) else self.acks

    @property
    def codec(self) -> Compression:
        return CODECS[self.compression]

    @property
    def linger_seconds(self) -> float:
        return self.linger_ms / 1000

    @property
    def delivery_seconds(self) -> float:
        return self.delivery_timeout_ms / 1000

    @property
    def repeats_max(self) -> float:
        """How often a batch may be sent again."""
        if self.acks == 0:
            return 0
        return math.inf if self.retries is None else self.retries


class ProducerArguments(TypedDict, total=False):
    """The same as arguments of a call, for editors and type checkers."""

    preset: str | None
    acks: int | str
    linger_ms: float
    batch_size: int
    buffer_memory: int
    max_request_size: int
    max_in_flight: int
    compression: str | None
    partitioner: str | UserPartitioner
    retries: int | None
    retry_backoff_ms: float
    retry_backoff_max_ms: float
    request_timeout_ms: float
    delivery_timeout_ms: float


def producer_options(given: Mapping[str, Any]) -> ProducerOptions:
    """From the arguments of a call; `preset` gives defaults that others replace.

    Raises:
        TypeError: an option that is not known, and which one may be meant.
        InvalidConfig: all bad values at once.
    """
    rest = dict(given)
    preset = rest.pop("preset", None)
    known = [field.name for field in fields(ProducerOptions)]
    check_options("producer", rest, [*known, "preset"], later=_LATER)
    if later := [f"{name}: {_LATER[name]} not there yet" for name in rest if name in _LATER]:
        raise InvalidConfig(later)
    if preset is None:
        return ProducerOptions(**rest)
    if not _is_one_of(preset, PRESETS):
        raise InvalidConfig([f"preset = {preset!r}: expected one of {', '.join(PRESETS)}"])
    return ProducerOptions(**{**PRESETS[preset], **rest})


# Names that are taken already, each with what it is for.
_LATER = {
    "delivery": "semantics chosen with one word are",
    "enable_idempotence": "idempotent producers are",
    "transactional_id": "transactions are",
}
_BOUNDS = {
    "linger_ms": (0, 60_000),
    "batch_size": (1, 32 << 20),
    "buffer_memory": (64 << 10, 16 << 30),
    "max_request_size": (1, 32 << 20),
    "max_in_flight": (1, 100),
    "retries": (0, math.inf),
    "retry_backoff_ms": (1, 60_000),
    "retry_backoff_max_ms": (1, 600_000),
    "request_timeout_ms": (1, 600_000),
    "delivery_timeout_ms": (1, math.inf),
}
_FRACTIONS_ALLOWED = frozenset(name for name in _BOUNDS if name.endswith("_ms"))


def _bad_numbers(options: ProducerOptions) -> list[str]:
    problems = []
    for name, (low, high) in _BOUNDS.items():
        value = getattr(options, name)
        if value is None and name == "retries":
            continue
        is_fraction = isinstance(value, float) and name in _FRACTIONS_ALLOWED
        if isinstance(value, bool) or not (isinstance(value, int) or is_fraction):
            kind = "a number" if name in _FRACTIONS_ALLOWED else "a whole number"
            problems.append(f"{name} = {value!r}: expected {kind}")
        elif not low <= value <= high:
            problems.append(f"{name} = {value!r}: expected {low} to {high}")
    return problems


def _bad_choices(options: ProducerOptions) -> list[str]:
    problems = []
    acks = options.acks
    is_number = isinstance(acks, int) and not isinstance(acks, bool) and 0 <= acks <= REPLICAS_MAX
    if not is_number and acks != "all":
        problems.append(f'acks = {acks!r}: expected 0, 1, how many replicas, or "all"')
    if not _is_one_of(options.compression, CODECS):
        names = ", ".join(f'"{name}"' for name in CODECS if name)
        problems.append(f"compression = {options.compression!r}: expected None, {names}")
    if not callable(options.partitioner) and not _is_one_of(options.partitioner, HASHES):
        names = ", ".join(f'"{name}"' for name in HASHES)
        problems.append(f"partitioner = {options.partitioner!r}: expected {names} or a function")
    return problems


def _is_one_of(value: object, names: Collection[object]) -> bool:
    """Whatever it is: a list cannot even be looked up."""
    return (value is None or isinstance(value, str)) and value in names


def _contradictions(options: ProducerOptions) -> list[str]:
    problems = []
    if options.acks == 0 and options.retries:
        problems.append(
            f"retries = {options.retries} with acks = 0: nobody tells what has failed; "
            "leave retries out, or take acks = 1 or more"
        )
    if options.retry_backoff_max_ms < options.retry_backoff_ms:
        problems.append(
            f"retry_backoff_max_ms = {options.retry_backoff_max_ms}: "
            f"below retry_backoff_ms = {options.retry_backoff_ms}"
        )
    if options.linger_ms >= options.delivery_timeout_ms:
        problems.append(
            f"linger_ms = {options.linger_ms}: not below "
            f"delivery_timeout_ms = {options.delivery_timeout_ms}, so nothing would ever leave"
        )
    if options.batch_size > options.buffer_memory or (
        options.max_request_size > options.buffer_memory
    ):
        problems.append(
            f"buffer_memory = {options.buffer_memory}: below batch_size or max_request_size"
        )
    return problems
