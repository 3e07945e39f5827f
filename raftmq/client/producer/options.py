"""Producer options: names, defaults, bounds, presets, `delivery`, and contradictions. Pure.

Kafka's names where the meaning is Kafka's; docs/SDK.md has the measured figures of the presets. No
option is ever switched off silently: options that exclude each other are refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypedDict

from raftmq.client.options import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    EXACTLY_ONCE,
    ONE_OR_MORE,
    bad_function,
    check_options,
    with_delivery,
)
from raftmq.client.producer.partitioners import HASHES
from raftmq.client.producer.record import Serializers
from raftmq.client.type_parameters import KeyT, ValueT
from raftmq.errors import InvalidConfig
from raftmq.model import TRANSACTION_ID_CHARS_MAX, Compression
from raftmq.wire.batch.header import GENERATION_MAX
from raftmq.wire.bodies import ACKS_ALL, NAME_CHARS_MAX, REPLICAS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from raftmq.client.options import Allowed, DeliveryName
    from raftmq.client.producer.partitioners import UserPartitioner
    from raftmq.client.producer.record import Serializer
    from raftmq.client.type_parameters import GivenKey, GivenValue

# What the options take, for editors and type checkers.
Acks: TypeAlias = int | Literal["all"]
CompressionName: TypeAlias = Literal["none", "gzip", "lz4", "zstd"]
PartitionerName: TypeAlias = Literal["crc32", "murmur2", "consistent"]
Preset: TypeAlias = Literal["high_throughput", "low_latency"]

PRESETS: dict[str, dict[str, Any]] = {
    # Measured figures of both: docs/SDK.md, "Presets". Fewer, fuller batches and requests cost the
    # client less CPU time a record. Not the defaults: a fuller batch is a longer wait for its last
    # record, and a few hundred partitions of 256 KiB fill the buffer.
    "high_throughput": {"linger_ms": 20, "batch_size": 256 << 10, "max_request_size": 4 << 20},
    "low_latency": {"linger_ms": 0, "batch_size": 16 << 10},
}
DELIVERY: Allowed = {
    # Only acks=0 never sends a record again.
    AT_MOST_ONCE: {"acks": (0,), "retries": (None, 0), "idempotence": (None, False)},
    AT_LEAST_ONCE: {
        "acks": ("all", ONE_OR_MORE),
        "retries": (None, ONE_OR_MORE),
        "idempotence": (True, None),
    },
    # And `transaction_id` or `transactions`, see `_contradictions_of_transactions`.
    EXACTLY_ONCE: {
        "acks": ("all",),
        "retries": (None,),
        "idempotence": (True, None),
        "max_in_flight": (1,),
    },
}
# The least that clusters grant. The most is the cluster's to say: by default 15 minutes.
TRANSACTION_MS_MIN, TRANSACTION_MS_MAX = 1_000, 86_400_000
# A day: brokers forget an idle producer after that, and with it its duplicates
KNOWN_MS_MAX = 86_400_000
CODECS = {None: Compression.NONE} | {codec.name.lower(): codec for codec in Compression}


@dataclass(frozen=True, kw_only=True)
class ProducerOptions:
    """Options of a producer.

    Attributes:
        name: of a producer that a program may start again: records that a run with the same name
            and generation has sent before are skipped, and an older run that still writes under the
            name is refused.
        generation: of the name, which needs one: the number of this piece of work. The same number
            means the same records again; a higher one sends all anew.
        transaction_id: of a producer that sends in transactions, `producer.transaction()`: another
            one that opens the same id ends what this one has open, and this one.
        transactions: transactions under an id of its own, which no other producer has.
        transaction_timeout_ms: how long a transaction may hold up readers of its partitions, from
            its first record on; then it is aborted.
        acks: how many replicas must hold a record before it counts as sent; "all": the whole
            in-sync set; 0: no broker answers.
        linger_ms: how long a batch waits for more records, in milliseconds.
        batch_size: bytes of records after which a batch leaves.
        buffer_memory: bytes of memory for records that wait or are in flight; each counts with 256
            bytes beside its own (docs/SDK.md).
        max_request_size: bytes of records in one request; a larger record is refused.
        max_in_flight: requests of one partition in flight. With more than one, which needs
            idempotence=False, records may change their order when a request is sent again.
        idempotence: brokers find records that are sent again, so that the log has them once. None:
            on, but for acks=0, where nothing is sent again.
        compression: None, "gzip", "lz4" or "zstd".
        partitioner: "crc32", "murmur2", "consistent", or a function of topic, key, value, headers
            and the number of partitions. A function also chooses for records without a key.
        retries: how often a batch is sent again; None: until `delivery_timeout_ms` has passed.
            Idempotence helps even with 0: a late request of an attempt that was given up is refused
            once a later batch has arrived.
        retry_backoff_ms, retry_backoff_max_ms: the first pause before a retry, and the longest.
        request_timeout_ms: how long one answer may take.
        delivery_timeout_ms: how long sending may take, from the first record of a batch on; then
            the outcome is an error, indefinite if an answer may still come. With idempotence at
            most a day: brokers find duplicates for so long.
        value_serializer, key_serializer: called with each value, or key, but None; what they return
            is sent: bytes or text, for keys also a whole number. `json.dumps` for one.
    """

    # None: an idempotent producer whose identity ends with its process.
    name: str | None = None
    generation: int | None = None
    transaction_id: str | None = None
    transactions: bool = False
    transaction_timeout_ms: int = 60_000  # Kafka's default
    acks: Acks = "all"  # Kafka's default: what is acknowledged is committed
    # Kafka's default since 4.0: fuller batches at little cost in latency.
    linger_ms: float = 5
    batch_size: int = 64 << 10  # more brings more records/s in bulk: the preset high_throughput
    buffer_memory: int = 32 << 20  # Kafka's default
    max_request_size: int = 1 << 20  # the topics' default max.message.bytes
    max_in_flight: int = 1  # keeps the order when a request is sent again (decision 0017)
    idempotence: bool | None = None
    compression: CompressionName | None = None  # Kafka's default
    partitioner: PartitionerName | UserPartitioner = "crc32"  # in C, and Spark computes the same
    retries: int | None = None  # delivery_timeout_ms is the limit that matters
    retry_backoff_ms: float = 100  # Kafka's default
    retry_backoff_max_ms: float = 1000  # Kafka's default
    request_timeout_ms: float = 30_000  # Kafka's default; longer than a leader election
    delivery_timeout_ms: float = 120_000  # Kafka's default: outlasts the restart of a broker
    value_serializer: Serializer | None = None
    key_serializer: Serializer | None = None

    def __post_init__(self) -> None:
        problems = [*_bad_names(self), *_bad_numbers(self), *_bad_choices(self)]
        # Comparisons need values of the right type.
        problems += _contradictions(self, _named_in(problems))
        if problems:
            raise InvalidConfig(problems)

    @property
    def serializers(self) -> Serializers | None:
        """None: keys and values are sent as they are handed in."""
        if self.key_serializer is None and self.value_serializer is None:
            return None
        return Serializers(self.key_serializer, self.value_serializer)

    @property
    def generation_number(self) -> int:
        """The generation of a producer with a name."""
        assert self.generation is not None, "no name, or it was not checked"
        return self.generation

    @cached_property
    def acks_number(self) -> int:
        """`acks` as a request encodes it."""
        return ACKS_ALL if isinstance(self.acks, str) else self.acks

    @property
    def is_idempotent(self) -> bool:
        """Batches carry sequence numbers."""
        return self.acks != 0 if self.idempotence is None else self.idempotence

    @property
    def is_transactional(self) -> bool:
        return self.transactions or self.transaction_id is not None

    @cached_property
    def codec(self) -> Compression:
        return CODECS[self.compression]

    @cached_property
    def linger_seconds(self) -> float:
        return self.linger_ms / 1000

    @cached_property
    def delivery_seconds(self) -> float:
        if self.is_transactional:  # what comes later than that is aborted anyway
            return min(self.delivery_timeout_ms, self.transaction_timeout_ms) / 1000
        return self.delivery_timeout_ms / 1000

    @cached_property
    def repeats_max(self) -> float:
        """How often a batch may be sent again."""
        if self.acks == 0:
            return 0
        return math.inf if self.retries is None else self.retries


class PlainMemberArguments(TypedDict, total=False):
    """Options of a member of a shared transaction as keyword arguments, for editors and type
    checkers; without serializers. How safe its records are is not for it to choose.
    """

    preset: Preset | None
    linger_ms: float
    batch_size: int
    buffer_memory: int
    max_request_size: int
    max_in_flight: int
    compression: CompressionName | None
    partitioner: PartitionerName | UserPartitioner
    retries: int | None
    retry_backoff_ms: float
    retry_backoff_max_ms: float
    request_timeout_ms: float
    delivery_timeout_ms: float


class MemberArguments(PlainMemberArguments, Generic[ValueT, KeyT], total=False):
    """With serializers."""

    value_serializer: Callable[[ValueT], GivenValue | None] | None
    key_serializer: Callable[[KeyT], GivenKey | None] | None


class PlainProducerArguments(PlainMemberArguments, total=False):
    """All options of a producer likewise."""

    delivery: DeliveryName | None
    name: str | None
    generation: int | None
    transaction_id: str | None
    transactions: bool
    transaction_timeout_ms: int
    acks: Acks
    idempotence: bool | None


class ProducerArguments(PlainProducerArguments, Generic[ValueT, KeyT], total=False):
    """With serializers."""

    value_serializer: Callable[[ValueT], GivenValue | None] | None
    key_serializer: Callable[[KeyT], GivenKey | None] | None


def producer_options(given: Mapping[str, Any]) -> ProducerOptions:
    """Options from the arguments of a call. `preset` gives defaults that other arguments replace;
    `delivery` gives values that no argument may contradict.

    Raises:
        TypeError: an unknown option; suggests the one that may be meant.
        InvalidConfig: all bad values at once.
    """
    known = [field.name for field in fields(ProducerOptions)]
    check_options("producer", given, [*known, "preset", "delivery"], later=_LATER)
    problems = [f"{name}: {_LATER[name]}" for name in given if name in _LATER]
    rest = {name: value for name, value in given.items() if name not in _LATER}
    # Checked here, as the message should name `delivery`, not the acks=0 that it sets.
    if rest.get("name") is not None and rest.get("delivery") == AT_MOST_ONCE:
        problems.append(_at_most_once_by_name(rest["name"]))
        del rest["delivery"]
    problems += _without_transactions(rest)
    try:
        rest = with_delivery(rest, DELIVERY)
    except InvalidConfig as error:
        problems += error.problems
        told = {"delivery", *_named_in(error.problems)}
        rest = {name: value for name, value in rest.items() if name not in told}
    preset = rest.pop("preset", None)
    if not _is_one_of(preset, [None, *PRESETS]):
        problems.append(f"preset = {preset!r}: expected one of {', '.join(PRESETS)}")
        preset = None
    try:
        options = ProducerOptions(**{**PRESETS.get(preset, {}), **rest})
    except InvalidConfig as error:
        problems += error.problems
    if problems:
        raise InvalidConfig(problems)
    return options


def member_options(given: Mapping[str, Any], *, transaction_timeout_ms: int) -> ProducerOptions:
    """Options of a member of a shared transaction. Raises as `producer_options` does."""
    check_options("member", given, MemberArguments.__optional_keys__)
    implied = {"transactions": True, "transaction_timeout_ms": transaction_timeout_ms}
    return producer_options({**given, **implied})


def _without_transactions(given: Mapping[str, Any]) -> list[str]:
    """What `delivery = "exactly_once"` lacks."""
    if given.get("delivery") != EXACTLY_ONCE:
        return []
    if given.get("transaction_id") is not None or given.get("transactions"):
        return []
    return [
        f'delivery = "{EXACTLY_ONCE}" without transaction_id: records count once in a transaction '
        "only; give the producer an id that the same part of the program has again after a "
        "restart, or transactions = True for one of its own"
    ]


# Names that users of other clients try, or that are reserved; each with its explanation.
_LATER = {
    "enable_idempotence": "is called idempotence here, and is on unless acks = 0",
    "transactional_id": "is called transaction_id here",
    "transactional": "is called transactions here",
}
# Lowest and highest value of each; above the highest, the unit is most likely wrong.
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
    "transaction_timeout_ms": (TRANSACTION_MS_MIN, TRANSACTION_MS_MAX),
}
# Times may be fractions of a millisecond; sizes and counts may not.
_FRACTIONS_ALLOWED = frozenset(
    name for name in _BOUNDS if name.endswith("_ms") and name != "transaction_timeout_ms"
)


def _bad_names(options: ProducerOptions) -> list[str]:
    problems = []
    name, generation = options.name, options.generation
    if name is not None and not (isinstance(name, str) and 0 < len(name) <= NAME_CHARS_MAX):
        problems.append(f"name = {name!r}: expected text of 1 to {NAME_CHARS_MAX} characters")
    # Includes surrogates, which are no valid Unicode
    elif name is not None and not name.isprintable():
        problems.append(f"name = {name!r}: expected characters that can be printed")
    is_number = isinstance(generation, int) and not isinstance(generation, bool)
    if generation is not None and not (is_number and 0 <= generation <= GENERATION_MAX):
        problems.append(f"generation = {generation!r}: expected a whole number, 0 or more")
    return [*problems, *_bad_transactions(options)]


def _bad_transactions(options: ProducerOptions) -> list[str]:
    problems = []
    given, most = options.transaction_id, TRANSACTION_ID_CHARS_MAX
    if isinstance(given, str) and len(given) > most:
        problems.append(
            f"transaction_id = {given[:40]!r}... of {len(given)} characters: expected text of 1 to"
            f" {most} characters"
        )
    elif given is not None and not (isinstance(given, str) and given):
        problems.append(f"transaction_id = {given!r}: expected text of 1 to {most} characters")
    elif given is not None and not given.isprintable():
        problems.append(f"transaction_id = {given!r}: expected characters that can be printed")
    if not isinstance(options.transactions, bool):
        problems.append(f"transactions = {options.transactions!r}: expected True or False")
    return problems


def _bad_numbers(options: ProducerOptions) -> list[str]:
    problems = []
    for name, (low, high) in _BOUNDS.items():
        value = getattr(options, name)
        if value is None and name == "retries":  # no limit
            continue
        is_fraction = isinstance(value, float) and name in _FRACTIONS_ALLOWED
        # True is an int for Python, but never meant as a number here.
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
    if not (options.idempotence is None or isinstance(options.idempotence, bool)):
        problems.append(f"idempotence = {options.idempotence!r}: expected True, False or None")
    if not callable(options.partitioner) and not _is_one_of(options.partitioner, HASHES):
        names = ", ".join(f'"{name}"' for name in HASHES)
        problems.append(f"partitioner = {options.partitioner!r}: expected {names} or a function")
    for name in ("value_serializer", "key_serializer"):
        problems += bad_function(name, getattr(options, name), "json.dumps")
    if callable(options.partitioner):
        problems += bad_function("partitioner", options.partitioner, "")
    return problems


def _is_one_of(value: object, names: Collection[object]) -> bool:
    """For any value: a list, which has no hash, cannot be looked up in a dict."""
    return (value is None or isinstance(value, str)) and value in names


_NAMED = (
    'a named producer is always acks = "all" and delivery = "at_least_once", as what the next run '
    "skips must be committed"
)


def _at_most_once_by_name(name: object) -> str:
    return f'name = {name!r} with delivery = "{AT_MOST_ONCE}": {_NAMED}; leave one of them out'


def _named_in(problems: Iterable[str]) -> set[str]:
    """The options that these are about: each begins with the name of one."""
    return {problem.partition(" = ")[0] for problem in problems}


Fine: TypeAlias = "Callable[..., bool]"  # whether options, given by their names, are fine


def _contradictions_of_name(options: ProducerOptions, fine: Fine) -> list[str]:
    problems = []
    if fine("name", "generation") and options.name is None and options.generation is not None:
        problems.append(
            f"generation = {options.generation} without name: it is that of a name; give the "
            "producer one, or leave generation out"
        )
    if fine("name", "generation") and options.name is not None and options.generation is None:
        problems.append(
            f"name = {options.name!r} without generation: rows of the same one are taken for the "
            "same rows and skipped; say the number of this piece of work, or leave name out"
        )
    if fine("name", "acks") and options.name is not None and options.acks != "all":
        problems.append(
            f"name = {options.name!r} with acks = {options.acks}: {_NAMED}; leave acks out"
        )
    if fine("name", "idempotence") and options.name is not None and options.idempotence is False:
        problems.append(
            f"name = {options.name!r} with idempotence = False: by their numbers brokers know "
            "what they have already; leave idempotence out"
        )
    return problems


def _contradictions_of_transactions(options: ProducerOptions, fine: Fine) -> list[str]:
    if not fine("transaction_id", "transactions"):
        return []
    if not options.is_transactional:
        if options.transaction_timeout_ms == ProducerOptions.transaction_timeout_ms:
            return []
        return [
            f"transaction_timeout_ms = {options.transaction_timeout_ms} without transactions: give "
            "a transaction_id, too, or leave it out"
        ]
    given = options.transaction_id
    shown = "transactions = True" if given is None else f"transaction_id = {given!r}"
    problems = []
    if fine("name") and options.name is not None:
        problems.append(
            f"{shown} with name = {options.name!r}: a named producer skips what an earlier run has "
            "sent, a transaction sends all or nothing; leave one of them out"
        )
    if fine("acks") and options.acks != "all":
        problems.append(
            f'{shown} with acks = {options.acks}: a transaction is always acks = "all", as what is '
            "committed must stay; leave acks out"
        )
    if fine("idempotence") and options.idempotence is False:
        problems.append(
            f"{shown} with idempotence = False: by their numbers brokers know what belongs to a "
            "transaction; leave idempotence out"
        )
    return problems


def _contradictions(options: ProducerOptions, bad: Collection[str]) -> list[str]:
    """Of options that are fine each by itself: `bad` are not."""

    def fine(*names: str) -> bool:
        return not any(name in bad for name in names)

    problems = _contradictions_of_name(options, fine)
    problems += _contradictions_of_transactions(options, fine)
    if fine("acks", "retries") and options.acks == 0 and options.retries:
        problems.append(
            f"retries = {options.retries} with acks = 0: no broker reports what has failed; "
            "leave retries out, or take acks = 1 or more"
        )
    if fine("acks", "idempotence") and options.idempotence and options.acks == 0:
        problems.append(
            "idempotence = True with acks = 0: nothing is ever sent again, so there is nothing to "
            "find; leave idempotence out, or take acks = 1 or more"
        )
    is_idempotent = fine("acks", "idempotence") and options.is_idempotent
    if is_idempotent and fine("max_in_flight") and options.max_in_flight > 1:
        problems.append(
            f"max_in_flight = {options.max_in_flight} with idempotence, which is on unless it is "
            "switched off: one request of a partition at a time keeps numbers and order; leave "
            "max_in_flight out, or take idempotence = False"
        )
    is_timeout_fine = fine("delivery_timeout_ms")
    if is_idempotent and is_timeout_fine and options.delivery_timeout_ms > KNOWN_MS_MAX:
        problems.append(
            f"delivery_timeout_ms = {options.delivery_timeout_ms} with idempotence, which is on "
            f"unless it is switched off: expected at most {KNOWN_MS_MAX}, after which brokers may "
            "not know what they have already; or take idempotence = False"
        )
    is_backoff_fine = fine("retry_backoff_ms", "retry_backoff_max_ms")
    if is_backoff_fine and options.retry_backoff_max_ms < options.retry_backoff_ms:
        problems.append(
            f"retry_backoff_max_ms = {options.retry_backoff_max_ms}: "
            f"below retry_backoff_ms = {options.retry_backoff_ms}"
        )
    is_linger_fine = is_timeout_fine and fine("linger_ms")
    if is_linger_fine and options.linger_ms >= options.delivery_timeout_ms:
        problems.append(
            f"linger_ms = {options.linger_ms}: not below "
            f"delivery_timeout_ms = {options.delivery_timeout_ms}, so nothing would ever leave"
        )
    is_memory_fine = fine("batch_size", "max_request_size", "buffer_memory")
    if is_memory_fine and options.buffer_memory < max(options.batch_size, options.max_request_size):
        problems.append(
            f"buffer_memory = {options.buffer_memory}: below batch_size or max_request_size"
        )
    return problems
