"""Options of the sink: topic, delivery, transactionalId, generation, producer options. Pure.

Invariant: there is no option by which a row counts as written before every in-sync replica has it.
Kafka's names where the meaning is Kafka's; `delivery`, `transactionalId`, `generation`,
`transactionTimeoutMs`, `failOnReplayMismatch` and `partitioner` are raftmq's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

from raftmq.client.producer.options import ProducerOptions
from raftmq.client.producer.partitioners import HASHES
from spark_io.options.reader import ACKS, PRODUCER, OptionReader, client_names
from spark_io.options.source import LABEL, bootstrap_of, label_of, refuse_security

if TYPE_CHECKING:
    from collections.abc import Mapping

Delivery: TypeAlias = Literal["idempotent", "at_least_once", "exactly_once"]
DELIVERIES: tuple[Delivery, ...] = get_args(Delivery)
# A microbatch is short, and its plan may have a shuffle, whose rows come in any order. A batch may
# take longer than a transaction may stay open, and readers would wait for all of it.
OF_STREAMS: Delivery = "exactly_once"
OF_BATCHES: Delivery = "idempotent"

ID_CHARS_MAX = 200  # task names, which add a slash and a number, must fit a producer name
# The longest that a cluster allows by itself: longer than any microbatch should take.
TRANSACTION_TIMEOUT_MS, TRANSACTION_TIMEOUT_MS_MIN = 900_000, 1000
CODECS = ("none", "gzip", "lz4", "zstd")  # Kafka's but for snappy, which raftmq does not write


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """Attributes:
    bootstrap: where brokers listen.
    topic: of all rows; None: each row has a column for it.
    delivery: "exactly_once": all rows of a microbatch or job are one transaction. "idempotent":
        rows that an earlier attempt has written are skipped, if they come in the same order; other
        rows are an error. "at_least_once": they are written again.
    transactional_id: names a job, or a stream in place of its query id, over all its runs.
    generation: of a batch with `transactional_id`: which rows, as the number of the nightly run.
    transaction_timeout_ms: with "exactly_once": how long it may take from the first row to the
        commit.
    fail_on_replay_mismatch: with "exactly_once": a microbatch or job that was committed before with
        another number of rows is an error; else these rows are passed over.
    checkpoint: of a stream, where its options name it: Spark keeps the id of the query there.
    client_id: a label for the logs of brokers.
    producer: options of raftmq's producer that differ from its defaults.
    """

    bootstrap: tuple[str, ...]
    topic: str | None = None
    delivery: Delivery = OF_BATCHES
    transactional_id: str | None = None
    generation: int | None = None
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    fail_on_replay_mismatch: bool = True
    checkpoint: str | None = None
    client_id: str = LABEL
    producer: dict[str, Any] = field(default_factory=dict)

    @property
    def is_named(self) -> bool:
        """Tasks are named producers, so that brokers recognise the rows of an earlier attempt."""
        return self.delivery == "idempotent"

    @property
    def is_transactional(self) -> bool:
        """All rows are one transaction, which the driver commits."""
        return self.delivery == "exactly_once"


def sink_options(options: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """
    Raises:
        InvalidConfig: all problems at once.
    """
    reader = OptionReader(options)
    _check_fixed(reader)
    delivery = _delivery(reader, OF_STREAMS if is_stream else OF_BATCHES)
    found = SinkOptions(
        bootstrap=bootstrap_of(reader),
        topic=reader.text("topic"),
        delivery=delivery,
        transactional_id=_transactional_id(reader),
        generation=reader.number("generation"),
        transaction_timeout_ms=_transaction_timeout_ms(reader, delivery),
        fail_on_replay_mismatch=reader.flag("failOnReplayMismatch", default=True),
        checkpoint=reader.text("checkpointLocation") if is_stream else None,
        client_id=label_of(reader),
        producer=_producer(reader),
    )
    _check_name(reader, found, is_stream=is_stream)
    reader.check(lambda: ProducerOptions(**found.producer), PRODUCER)
    reader.raise_problems()
    return found


def _check_fixed(reader: OptionReader) -> None:
    """Options with one possible value may be given with that value."""
    acks = ": the sink is done with a row once every replica in sync has it"
    reader.choice(*ACKS, choices=("all", "-1"), why=acks)
    idempotence = ": brokers always find what the client sends twice"
    reader.choice(*client_names("enable.idempotence"), choices=("true",), why=idempotence)
    refuse_security(reader)


def _delivery(reader: OptionReader, default: Delivery) -> Delivery:
    return cast("Delivery", reader.choice("delivery", choices=DELIVERIES) or default)


def _transaction_timeout_ms(reader: OptionReader, delivery: Delivery) -> int:
    name = "transactionTimeoutMs"
    if delivery != "exactly_once":
        reader.refuse(name, why="only delivery = exactly_once has transactions; leave it out")
    found = reader.number(name, low=TRANSACTION_TIMEOUT_MS_MIN)
    return TRANSACTION_TIMEOUT_MS if found is None else found


def _transactional_id(reader: OptionReader) -> str | None:
    text = reader.text("transactionalId")
    if text is not None and not (text.isprintable() and len(text) <= ID_CHARS_MAX):
        limit = f"1 to {ID_CHARS_MAX} characters that can be printed"
        reader.tell(f"transactionalId = {text!r}: expected {limit}")
    return text


def _producer(reader: OptionReader) -> dict[str, Any]:
    found: dict[str, Any] = dict(reader.client_numbers(PRODUCER))
    if codec := reader.choice(*client_names("compression.type"), choices=CODECS):
        found["compression"] = None if codec == "none" else codec
    if partitioner := reader.choice("partitioner", choices=tuple(HASHES)):
        found["partitioner"] = partitioner
    return found


def _check_name(reader: OptionReader, found: SinkOptions, *, is_stream: bool) -> None:
    """Check `transactionalId` and `generation` against each other."""
    if found.delivery == "at_least_once":
        why = "with delivery = at_least_once nothing is looked up by name; leave one of them out"
        reader.refuse("transactionalId", "generation", why=why)
    elif is_stream:
        reader.refuse(
            "generation", why="in a stream it is the number of the microbatch; leave it out"
        )
    elif found.transactional_id is None:
        reader.refuse("generation", why="it is that of a transactionalId; say one, or leave it out")
    elif not reader.has("generation"):
        reader.tell(
            f"transactionalId = {found.transactional_id!r} without generation: a run with the same "
            "one is taken for the same rows, which are skipped; say the number of this piece of "
            "work, such as 20261122 of a nightly run"
        )
