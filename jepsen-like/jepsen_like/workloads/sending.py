"""One send operation: some values to one key, and the outcome of each (ok, fail or info).

Owns what an outcome is. A value was acknowledged at an offset, certainly was not appended, or its
outcome is unknown; the error alone (`definite`) distinguishes the last two. The operation fails
only if no value of it was appended. No value is handed to a producer twice: copies in a log were
made by the client or the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import trio

from jepsen_like.history.event import Type
from jepsen_like.workloads.keys import acks_of, encode_value, split_key
from raftmq.errors import OutcomeUnknown, RaftmqError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jepsen_like.workloads.bench import Bench
    from jepsen_like.workloads.generator import Send
    from raftmq.client.producer.delivery import Delivery
    from raftmq.client.producer.producer import Producer
    from raftmq.client.transactions.sending import TransactionSender

HUNG_SECONDS = 5.0  # beyond delivery_timeout_ms, by when a producer promises an outcome


class Outcome(NamedTuple):
    """Attributes:
    offsets: parallel to the values; None where none was told.
    failed: the places of the values that certainly were not appended.
    """

    type: Type
    offsets: list[int | None]
    error: str | None = None
    failed: Sequence[int] = ()


def outcome_of(results: Sequence[int | RaftmqError]) -> Outcome:
    """Of the offset, or the error, of each value."""
    errors = [result for result in results if isinstance(result, RaftmqError)]
    offsets = [None if isinstance(result, RaftmqError) else result for result in results]
    if not errors:
        return Outcome(Type.OK, offsets)
    unsure = [error for error in errors if not error.definite]
    kind = Type.INFO if unsure or len(errors) < len(results) else Type.FAIL
    failed = [
        place
        for place, result in enumerate(results)
        if isinstance(result, RaftmqError) and result.definite
    ]
    return Outcome(kind, offsets, error_text((unsure or errors)[0]), failed)


def error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


async def perform_send(
    bench: Bench, process: int, producer: Producer, operation: Send, *, is_idempotent: bool = True
) -> Type:
    """Send, wait, and record both.

    Args:
        is_idempotent: what the producer was asked to be.
    """
    asked = {"key": operation.key, "acks": acks_of(operation.key), "values": operation.values}
    asked["is_idempotent"] = is_idempotent
    bench.recorder.invoke(process, "send", asked)
    repeated_before = producer.statistics.repeated_records
    outcome = outcome_of(await results_of(bench, producer, operation))
    # Without idempotence it is unknown how often a value without acknowledgement was sent.
    is_repeated = not is_idempotent and outcome.type is Type.INFO
    is_repeated |= producer.statistics.repeated_records > repeated_before
    told = {**asked, "offsets": outcome.offsets, "is_repeated": is_repeated}
    if outcome.type is Type.INFO and outcome.failed:
        told["failed"] = [operation.values[place] for place in outcome.failed]
    bench.recorder.record(process, outcome.type, "send", told, error=outcome.error)
    bench.seen.on_sent(operation.key, outcome.offsets)
    return outcome.type


async def results_of(
    bench: Bench, producer: Producer | TransactionSender, operation: Send
) -> list[int | RaftmqError]:
    """One for each value. An outcome that is later than promised is unknown, too."""
    results: list[int | RaftmqError] = []
    seconds = bench.settings.delivery_timeout_ms / 1000 + HUNG_SECONDS
    with trio.move_on_after(seconds):
        for delivery in await hand_in(bench, producer, operation):
            results.append(await result_of(delivery))  # noqa: PERF401  # kept when time is up
    missing = len(operation.values) - len(results)
    late = OutcomeUnknown(f"hung: no word within {seconds:g} s")
    return results + [late] * missing


async def hand_in(
    bench: Bench, producer: Producer | TransactionSender, operation: Send
) -> list[Delivery | RaftmqError]:
    """Without a wait for what becomes of it."""
    topic, partition = split_key(operation.key)
    deliveries: list[Delivery | RaftmqError] = []
    for value in operation.values:
        data = encode_value(value, padding_bytes=bench.settings.padding_bytes)
        try:
            deliveries.append(await producer.enqueue(topic, data, partition=partition))
        except RaftmqError as error:
            deliveries.append(error)
    return deliveries


async def result_of(delivery: Delivery | RaftmqError) -> int | RaftmqError:
    if isinstance(delivery, RaftmqError):
        return delivery
    try:
        return (await delivery).offset
    except RaftmqError as error:
        return error
