"""The judge of named producers in a log: fences, epochs, generations and sequence numbers.

Owns the rules of a whole log, from its first batch to its last. Of each name: fences begin epochs,
and every batch behind one is of its epoch and generation, until the next; a fence of the same
generation says how many records of it are there, one of a higher one none, and there is none of a
lower one; records are numbered without gaps, and are the rows of their numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.wire.batch.header import is_named, iter_batches, named_producer_id
from raftmq.wire.batch.records import RecordBatch, account_of
from tests.simulation.brokers.examination import content_of, replicas_of
from tests.simulation.raft.checks import demand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftmq.wire.batch.header import BatchHeader
    from tests.simulation.brokers.ledger import Spot
    from tests.simulation.brokers.world import World

    Rows = Mapping[tuple[int, int], list[bytes]]  # by producer id and generation


class _Known(NamedTuple):
    """Of one name, so far."""

    epoch: int
    generation: int
    count: int


def judge_names(world: World) -> None:
    for spot in world.spots() if world.tasks else ():
        rows = {
            (named_producer_id(task.ledger.name), generation.label.generation): generation.of(spot)
            for task in world.tasks
            for generation in task.ledger.generations
        }
        # Of what may have been deleted names may be forgotten.
        if not world.ledger.of(spot).may_have_deleted(0):
            replica = next(iter(replicas_of(world, spot).values()))
            judge_log(spot, content_of(replica, replica.log.log_start_offset), rows)


def judge_log(spot: Spot, data: bytes, rows: Rows) -> None:
    known: dict[int, _Known] = {}
    for position, header in iter_batches(data):
        account = account_of(data, position, header) if is_named(header.producer_id) else None
        if account is None:
            continue
        who, before = f"{spot} {header.base_offset}", known.get(header.producer_id)
        found = _Known(header.producer_epoch, account.generation, header.base_sequence)
        if header.is_control:
            _judge_fence(who, before, found)
        else:
            demand(found == before, f"{who}: rows of {found}, where {before} is fenced")
            wanted = rows[header.producer_id, account.generation]
            _judge_rows(who, header, RecordBatch.decode(data, position), wanted)
            found = found._replace(count=found.count + header.record_count)
        known[header.producer_id] = found


def _judge_fence(who: str, before: _Known | None, fence: _Known) -> None:
    is_first = before is None or before.generation < fence.generation
    is_fit = fence.count == (0 if is_first or before is None else before.count)
    if before is not None:
        is_fit &= before.generation <= fence.generation and before.epoch != fence.epoch
    demand(is_fit, f"{who}: the fence of {fence} stands behind {before}")


def _judge_rows(who: str, header: BatchHeader, batch: RecordBatch, wanted: list[bytes]) -> None:
    first = header.base_sequence
    found = [bytes(value or b"") for value in batch.values]
    are_these = found == wanted[first : first + len(found)]
    demand(are_these, f"{who}: {found[:3]} are not rows {first} to {first + len(found)}")
