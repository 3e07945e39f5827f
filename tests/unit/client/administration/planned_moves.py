"""What brokers of a `Bureau` say of moves: planned, taken back, listed. Nothing moves by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.rpc.reply import Reply
from raftmq.wire.bodies import PartitionOutcome
from raftmq.wire.messages.moves import (
    ListMoves,
    ListMovesReply,
    MoveCursor,
    MovePartitions,
    MovePartitionsReply,
    MoveRow,
    WantedMove,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.client.administration.bureau import Bureau
    from tests.unit.client.world import Broker

REPLICAS_MAX = 16
UNCERTAIN: Any = object()  # in place of an error: it is carried out, and nobody knows


class PlannedMoves:
    """Attributes:
    rows: by topic and partition, in the order in which they were planned.
    before: the replicas that a partition had when its move began.
    known: by broker the rows that it knows, if its metadata are behind.
    page: moves of a page.
    steps: what happens before each of the next lists.
    """

    def __init__(self, bureau: Bureau) -> None:
        self._bureau = bureau
        self.rows: dict[tuple[str, int], MoveRow] = {}
        self.before: dict[tuple[str, int], tuple[int, ...]] = {}
        self.known: dict[int, dict[tuple[str, int], MoveRow]] = {}
        self.page = 2
        self.steps: list[Callable[[], object]] = []

    def begin(self, name: str, number: int, waits_for: str = "") -> None:
        """It has more replicas for a while: the target, then those that will be dropped."""
        key, row = (name, number), self.rows[name, number]
        _, isr = self._bureau.placed_at(*key)
        self.before[key] = row.replicas
        replicas = (*row.target, *(one for one in row.replicas if one not in row.target))
        self._bureau.replicas[key] = replicas, isr
        leader = self._bureau.world.topics[name].partitions[number].leader
        self.rows[key] = replace(
            row, replicas=replicas, is_under_way=True, leader=leader, waits_for=waits_for
        )

    def finish(self, name: str, number: int) -> None:
        target = self.rows.pop((name, number)).target
        self.before.pop((name, number), None)
        self._bureau.replicas[name, number] = target, target
        self._bureau.world.lead(name, number, target[0])

    def adding_to(self, name: str, number: int) -> tuple[int, ...]:
        replicas, _ = self._bureau.placed_at(name, number)
        before = self.before.get((name, number), replicas)
        return tuple(one for one in replicas if one not in before)

    def removing_from(self, name: str, number: int) -> tuple[int, ...]:
        if (name, number) not in self.before:
            return ()
        target = self.rows[name, number].target
        return tuple(one for one in self.before[name, number] if one not in target)

    def change(self, body: MovePartitions, error: ErrorCode) -> Reply:
        """The errors are those of the partitions, one after the other."""
        errors = [error, *(self._bureau.next_error() for _ in body.partitions[1:])]
        told = []
        for one, refusal in zip(body.partitions, errors, strict=True):
            is_refused = refusal and refusal is not UNCERTAIN
            code, why = (refusal, refusal.name) if is_refused else self._change_one(one)
            if refusal is UNCERTAIN:
                code, why = ErrorCode.REQUEST_TIMED_OUT, "the controller has changed"
            told.append(PartitionOutcome(one.topic_id, one.partition, code, why))
        return Reply(MovePartitionsReply(tuple(told)))

    def _change_one(self, wanted: WantedMove) -> tuple[ErrorCode, str]:
        bureau, target = self._bureau, wanted.replicas
        if bureau.world.find(wanted.topic_id, wanted.partition) is None:
            code = bureau.world.missing(wanted.topic_id)
            return code, code.name
        key = bureau.name_of(wanted.topic_id), wanted.partition
        if target is None:
            return self._cancel(key)
        if problem := self._problem(target):
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"replicas {list(target)}: {problem}"
        self._cancel(key)
        replicas, _ = bureau.placed_at(*key)
        if replicas != target:
            leader = bureau.world.topics[key[0]].partitions[key[1]].leader
            self.rows[key] = MoveRow(
                wanted.topic_id, wanted.partition, replicas, target, False, leader
            )
        return ErrorCode.NONE, ""

    def _cancel(self, key: tuple[str, int]) -> tuple[ErrorCode, str]:
        if self.rows.pop(key, None) is None:
            return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "the partition does not move"
        if key in self.before:
            before = self.before.pop(key)
            _, isr = self._bureau.placed_at(*key)
            self._bureau.replicas[key] = before, tuple(one for one in isr if one in before)
        return ErrorCode.NONE, ""

    def _problem(self, target: tuple[int, ...]) -> str:
        if not 1 <= len(target) <= REPLICAS_MAX or len(set(target)) < len(target):
            return f"allowed are 1 to {REPLICAS_MAX} distinct brokers"
        unknown = [one for one in target if one not in self._bureau.registered()]
        return f"there is no broker {unknown[0]}" if unknown else ""

    def list(self, broker: Broker, body: ListMoves) -> Reply:
        """Every broker answers, from its own metadata."""
        if self.steps:
            self.steps.pop(0)()
        known = self.known.get(broker.broker_id, self.rows)
        rows: list[Any] = sorted(known.values(), key=lambda row: not row.is_under_way)
        places = [(row.topic_id, row.partition) for row in rows]
        first = body.first
        # One whose first move has ended begins at the beginning.
        is_there = first is not None and (first.topic_id, first.partition) in places
        start = places.index((first.topic_id, first.partition)) if first and is_there else 0
        end = start + min(self.page, body.moves_max)
        following = MoveCursor(*places[end]) if end < len(rows) else None
        return Reply(ListMovesReply(tuple(rows[start:end]), len(rows), following))
