"""Moves of replicas that clients ask for: planned, taken back, and listed (decision 0044).

Owns the requests. Each partition stands for itself, and is answered once its move is planned: the
controller starts it when its turn comes. What may be planned, the metadata's rules say; here is
checked what they do not know, that the brokers have room for what is planned altogether.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import trio

from raftmq.broker.metadata_changes import ChangeStep, each_planned
from raftmq.broker.requests.levels import check_level
from raftmq.errors import ErrorCode, NotController, RaftmqError
from raftmq.metadata.commands import (
    NO_EPOCH,
    NO_VERSION,
    CancelMove,
    FeatureLevel,
    PartitionId,
    PlanMove,
)
from raftmq.metadata.controller.moves import (
    CopiesUnderWay,
    in_line,
    why_planned_waits,
    why_under_way_waits,
)
from raftmq.metadata.placement import check_room
from raftmq.rpc.reply import Reply
from raftmq.wire.bodies import PartitionOutcome
from raftmq.wire.messages.moves import (
    ListMoves,
    ListMovesReply,
    MoveCursor,
    MovePartitions,
    MovePartitionsReply,
    MoveRow,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from raftmq.broker.metadata_changes import Change, ChangeOutcome, MetadataChanges
    from raftmq.metadata.image import MetadataImage, PartitionState
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.server import Handlers
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.messages.moves import WantedMove

ROWS_AT_ONCE = 500  # told or planned in one step: a few milliseconds


class MoveRequests:
    """`voters`: of the quorum."""

    def __init__(self, changes: MetadataChanges, *, voters: Collection[int] = ()) -> None:
        self._changes, self._voters = changes, voters

    def handlers(self) -> Handlers:
        return {MovePartitions: self.move, ListMoves: self.tell}

    async def move(
        self, _context: RequestContext, request: MovePartitions, _payload: Buffer
    ) -> Reply:
        deadline = trio.current_time() + request.timeout_ms / 1000
        outcomes = await self._plan(request.partitions, deadline)
        late = [
            number
            for number, outcome in enumerate(outcomes)
            if outcome.code == ErrorCode.INVALID_UPDATE_VERSION
        ]
        if late and await self._has_caught_up(deadline):  # once more, by what is there now
            again = await self._plan([request.partitions[number] for number in late], deadline)
            for number, outcome in zip(late, again, strict=True):
                outcomes[number] = outcome
        told = [
            PartitionOutcome(wanted.topic_id, wanted.partition, outcome.code, outcome.message)
            for wanted, outcome in zip(request.partitions, outcomes, strict=True)
        ]
        return Reply(MovePartitionsReply(tuple(told)))

    async def _plan(self, wishes: Sequence[WantedMove], deadline: float) -> list[ChangeOutcome]:
        image = self._changes.image
        room = _Room(image)
        planned: list[Change | RaftmqError] = []

        def plan(wanted: WantedMove) -> Change:
            if wanted.replicas is not None:
                room.take(PartitionId(wanted.topic_id, wanted.partition), wanted.replicas)
            return (_step(image, wanted),)

        try:
            check_level(image, FeatureLevel.MOVES, voters=self._voters, what="moving replicas")
        except RaftmqError as error:
            planned += [error for _ in wishes]
        else:
            for one in each_planned(wishes, plan, key=lambda it: (it.topic_id, it.partition)):
                planned.append(one)
                if not len(planned) % ROWS_AT_ONCE:
                    await trio.lowlevel.checkpoint()
        return await self._changes.make(planned, timeout_ms=_ms_until(deadline))

    async def _has_caught_up(self, deadline: float) -> bool:
        try:
            await self._changes.catch_up(timeout_ms=_ms_until(deadline))
        except NotController:
            return False
        return True

    async def tell(self, _context: RequestContext, request: ListMoves, _payload: Buffer) -> Reply:
        image = self._changes.image
        under_way = CopiesUnderWay(image)
        keys = sorted(image.moving)
        keys += [key for key in in_line(image) if key not in image.moving]
        first = 0 if request.first is None else _place(keys, request.first)
        after = first + request.moves_max
        rows: list[MoveRow] = []
        for start in range(first, min(after, len(keys)), ROWS_AT_ONCE):
            page = keys[start : min(start + ROWS_AT_ONCE, after)]
            rows += [_row(image, key, under_way) for key in page]
            await trio.lowlevel.checkpoint()
        following = MoveCursor(*keys[after]) if after < len(keys) else None
        return Reply(ListMovesReply(tuple(rows), len(keys), following))


def _ms_until(deadline: float) -> int:
    return max(0, round(1000 * (deadline - trio.current_time())))


def _step(image: MetadataImage, wanted: WantedMove) -> ChangeStep:
    """It shows in that the wanted state holds, or in that the plan is another one than before: it
    may have been replaced again already. The command says what was seen here, as a copy of it may
    come late, after others that were acknowledged.
    """
    key, replicas = PartitionId(wanted.topic_id, wanted.partition), wanted.replicas
    known, partition = image.moves.get(key), image.partitions.get(key)
    seen = (
        NO_VERSION if known is None else known.planned_at,
        NO_EPOCH if partition is None else partition.partition_epoch,
    )

    def is_shown(now: MetadataImage) -> bool:
        state, plan = now.partitions.get(key), now.moves.get(key)
        if state is None or plan != known:
            return True
        if replicas is None:
            return plan is None and not state.is_moving
        return replicas in (state.target, plan and plan.replicas)

    command = CancelMove(*key, *seen) if replicas is None else PlanMove(*key, replicas, *seen)
    return ChangeStep(command, is_shown)


class _Room:
    """The replicas that each broker is to get by all plans, those of one request included."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._planned: Counter[int] | None = None

    def take(self, key: PartitionId, replicas: Iterable[int]) -> None:
        """
        Raises:
            InvalidPartitions: a broker has no room for it.
        """
        image, partition = self._image, self._image.partitions.get(key)
        if partition is None:  # the plan is refused, with the reason
            return
        if self._planned is None:  # counted once: there may be thousands of plans
            self._planned = Counter()
            for other, plan in image.moves.items():
                self._planned.update(_new(image.partitions[other], plan.replicas))
        before = image.moves.get(key)
        replaced = _new(partition, () if before is None else before.replicas)
        added = _new(partition, replicas)
        check_room(image, {b: self._planned[b] + 1 - (b in replaced) for b in added})
        self._planned.subtract(replaced)
        self._planned.update(added)


def _new(partition: PartitionState, replicas: Iterable[int]) -> set[int]:
    return {broker_id for broker_id in replicas if broker_id not in partition.replicas}


# Listing


def _place(keys: list[PartitionId], first: MoveCursor) -> int:
    """Where the page begins; at the beginning, if that move has ended meanwhile."""
    key = PartitionId(first.topic_id, first.partition)
    return keys.index(key) if key in keys else 0


def _row(image: MetadataImage, key: PartitionId, under_way: CopiesUnderWay) -> MoveRow:
    """Of a partition that moves, and is to move elsewhere after that, what waits is told."""
    state, plan = image.partitions[key], image.moves.get(key)
    if plan is None:
        target, waits_for = state.target, why_under_way_waits(image, key)
    else:
        target, waits_for = plan.replicas, why_planned_waits(image, key, under_way)
    return MoveRow(*key, state.replicas, target, state.is_moving, state.leader, waits_for)
