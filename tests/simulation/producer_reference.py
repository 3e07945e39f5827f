"""A reference for the log's producer state, computed slowly and in another way, to compare with.

A second reading of the rules: back from each producer's last batch as far as everything continues,
and no further than to the last fence. Uses neither snapshots nor the log's own state.
"""

from __future__ import annotations

from itertools import groupby, takewhile
from typing import TYPE_CHECKING

from raftmq.partition.sequences import ProducerState, SequenceRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from raftmq.wire.batch.header import Account, BatchHeader

SEQUENCES = 2**31
REMEMBERED = 5


def producers_in(
    headers: Iterable[BatchHeader], accounts: Mapping[int, Account] | None = None
) -> dict[int, ProducerState]:
    """Of a whole log, or of its end. `accounts`: what batches of names say, by their offset."""
    found: dict[int, list[BatchHeader]] = {}
    said = accounts or {}
    for header in headers:
        is_said = header.base_offset in said
        if header.producer_id != -1 and (is_said or not header.is_control):
            found.setdefault(header.producer_id, []).append(header)
    return {
        producer_id: _with_account(
            _behind_fences(batches), [said.get(batch.base_offset) for batch in batches]
        )
        for producer_id, batches in found.items()
    }


def _with_account(producer: ProducerState, said: list[Account | None]) -> ProducerState:
    """`said`: with each batch of the producer. How many partitions there were, only the fences of a
    generation say, and all of them the same.
    """
    last = said[-1]
    if last is None:
        return producer
    lives = takewhile(lambda each: each and each.generation == last.generation, reversed(said))
    counts = [each.partition_count for each in lives if each is not None]
    generation, digest, _ = last
    return producer._replace(generation=generation, digest=digest, partition_count=max(counts))


def _behind_fences(batches: Sequence[BatchHeader]) -> ProducerState:
    fences = [at for at, header in enumerate(batches) if header.is_control]
    rest = batches[fences[-1] + 1 :] if fences else batches
    if rest:
        return _producer(rest)
    return ProducerState(batches[-1].producer_epoch, batches[-1].base_sequence)


def _producer(batches: Sequence[BatchHeader]) -> ProducerState:
    number = len(batches) - 1
    while number and _continues(batches[number - 1], batches[number]):
        number -= 1
    distances = [_distance(batches, at) for at in range(number, len(batches))]
    runs = [
        [batch for _, batch in group]
        for _, group in groupby(
            zip(distances, batches[number:], strict=True), key=lambda pair: pair[0]
        )
    ]
    last = batches[-1]
    return ProducerState(last.producer_epoch, _next(last), tuple(map(_run, runs[-REMEMBERED:])))


def _distance(batches: Sequence[BatchHeader], at: int) -> int:
    """How many records of others stand before this batch: the same for batches side by side."""
    return batches[at].base_offset - sum(batch.record_count for batch in batches[:at])


def _run(batches: Sequence[BatchHeader]) -> SequenceRun:
    count = sum(batch.record_count for batch in batches)
    return SequenceRun(batches[0].base_sequence, batches[0].base_offset, count)


def _continues(before: BatchHeader, header: BatchHeader) -> bool:
    return header.producer_epoch == before.producer_epoch and header.base_sequence == _next(before)


def _next(header: BatchHeader) -> int:
    return (header.base_sequence + header.record_count) % SEQUENCES
