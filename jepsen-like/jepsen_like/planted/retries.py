"""Planted bugs of retries: in which order records are moved and committed, counts, pauses.

Each is a function that patches the SDK through a `Patch`. A bug takes away one rule, or one step;
never a check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from raftmq.client.consumer.group_consumption import member_that_read
from raftmq.client.dead_letters import moves
from raftmq.client.dead_letters.moves import Moves
from raftmq.client.dead_letters.rejecting import MovedRecords
from raftmq.client.processing import process
from raftmq.client.transactions.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from jepsen_like.planted.patch import Patch
    from raftmq.client.consumer.group_consumption import GroupConsumption
    from raftmq.client.consumer.record import AnyRecord
    from raftmq.client.dead_letters.moves import Move
    from raftmq.client.producer.batch import RecordMetadata

BETWEEN_SECONDS = 0.2  # for a process to die in


def commit_before_the_move(patch: Patch) -> None:
    """A record is committed, and then it is moved."""
    send = MovedRecords.send

    async def commit_and_send(
        self: MovedRecords, member: GroupConsumption, record: AnyRecord, move: Move
    ) -> RecordMetadata:
        await member.commits.commit(record)
        await anyio.sleep(BETWEEN_SECONDS)
        return await send(self, member, record, move)

    patch.setattr(MovedRecords, "send", commit_and_send)


def moves_outside_of_the_transaction(patch: Patch) -> None:
    """What a transaction moves stands there, whatever becomes of the transaction."""

    async def move_now(
        _: Transaction, _call: str, record: AnyRecord, decide: Callable[[Moves], Move]
    ) -> RecordMetadata:
        member = member_that_read(record)
        consumer: Any = member._suspects._reject.__self__  # type: ignore[attr-defined]
        placed: RecordMetadata = await consumer._moved.send(member, record, decide(member.moves))
        return placed

    patch.setattr(Transaction, "_move", move_now)


def attempts_are_not_counted_on(patch: Patch) -> None:
    """Each process that is handed out a record counts its attempts from the first one on."""

    def none_before(_record: AnyRecord, _group: str) -> int:
        return 0

    for module in (moves, process):
        patch.setattr(module, "attempts_before", none_before)


def retries_come_at_once(patch: Patch) -> None:
    """What is moved is sent without its pause."""
    retried = Moves.retried

    def retried_now(self: Moves, record: AnyRecord, error: Any, *, attempts: int) -> Move:
        return retried(self, record, error, attempts=attempts)._replace(delay=None)

    patch.setattr(Moves, "retried", retried_now)
