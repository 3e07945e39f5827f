"""What brokers of a `Bureau` say of scheduled records: pending, cancelled, delivered."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from raftmq.errors import ErrorCode
from raftmq.rpc.reply import Reply
from raftmq.wire.batch.records import encode_batch
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.scheduled import (
    CancelScheduled,
    CancelScheduledReply,
    ListScheduled,
    ListScheduledReply,
    RecordCancelled,
    ScheduledRow,
)
from tests.unit.client.administration.bureau import Bureau, open_bureau

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from raftmq.client.administration.admin import Admin
    from tests.unit.client.world import Broker

DUE_MS = 1_700_000_100_000


class Scheduled:
    """One batch. Attributes: `left_out`, deltas of its records that are cancelled."""

    def __init__(self, base_offset: int, *values: bytes, due_ms: int, first_offset: int) -> None:
        self.base_offset, self.first_offset, self.due_ms = base_offset, first_offset, due_ms
        self.count, self.left_out = len(values), set[int]()
        self.data = bytes(
            encode_batch(
                values=list(values),
                keys=[b"k%d" % number for number in range(len(values))],
                headers=[{"h": b"1"}] * len(values),
                tags=[["x"]] * len(values),
                timestamp=1000,
                due_ms=due_ms,
                base_offset=base_offset,
            )
        )


class Schedules:
    """Attributes:
    batches: by topic and partition, by offset.
    told: in place of what is true, of offsets: error, message and reason.
    page: batches of a page.
    undecided: base offsets of batches whose transaction is open.
    """

    def __init__(self, bureau: Bureau) -> None:
        self._bureau = bureau
        self.batches: dict[tuple[bytes, int], list[Scheduled]] = {}
        self.told: dict[int, RecordCancelled] = {}
        self.page = 2
        self.undecided: set[int] = set()
        for broker in bureau.world.brokers.values():
            for kind, answer in ((CancelScheduled, self._cancel), (ListScheduled, self._list)):
                turn = partial(bureau._turn, broker, partial(answer, broker))
                place = broker.broker_id, kind
                broker.handlers[kind] = partial(bureau._answer, place, turn)

    def add(
        self,
        base_offset: int,
        *values: bytes,
        partition: int = 0,
        due_ms: int = DUE_MS,
        first_offset: int | None = None,
    ) -> Scheduled:
        """In topic "t"."""
        first = base_offset if first_offset is None else first_offset
        key = self._bureau.world.topics["t"].topic_id, partition
        made = Scheduled(base_offset, *values, due_ms=due_ms, first_offset=first)
        self.batches.setdefault(key, []).append(made)
        return made

    def _refusal(self, broker: Broker, body: Any, error: ErrorCode) -> dict[str, Any]:
        found = self._bureau.world.find(body.topic_id, body.partition)
        if found is None:
            return {"error": ErrorCode.UNKNOWN_TOPIC_ID, "message": "deleted"}
        if not error and found.leader != broker.broker_id:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        hint = {"leader": found.leader, "leader_epoch": found.leader_epoch}
        return {"error": error, "message": error.name, **hint} if error else {}

    def _cancel(self, broker: Broker, body: CancelScheduled, error: ErrorCode) -> Reply:
        if refusal := self._refusal(broker, body, error):
            return Reply(CancelScheduledReply(**refusal))
        key = body.topic_id, body.partition
        return Reply(
            CancelScheduledReply(records=tuple([self._cancelled(key, at) for at in body.offsets]))
        )

    def _cancelled(self, key: tuple[bytes, int], offset: int) -> RecordCancelled:
        if offset in self.told:
            return self.told[offset]
        for batch in self.batches.get(key, ()):
            delta = offset - batch.first_offset
            if 0 <= delta < batch.count:
                if delta in batch.left_out:
                    return refused("cancelled")
                batch.left_out.add(delta)
                return RecordCancelled()
        return refused("unknown")

    def _list(self, broker: Broker, body: ListScheduled, error: ErrorCode) -> Reply:
        if refusal := self._refusal(broker, body, error):
            return Reply(ListScheduledReply(**refusal))
        pending = self.batches.get((body.topic_id, body.partition), [])
        left = [one for one in pending if one.base_offset >= body.start_offset]
        page = left[: min(body.limit, self.page)]
        following = left[len(page)].base_offset if len(left) > len(page) and body.limit else ABSENT
        reply = ListScheduledReply(
            pending_count=len(pending),
            pending_bytes=sum(len(one.data) for one in pending),
            next_due_ms=min((one.due_ms for one in pending), default=ABSENT),
            next_offset=following,
            entries=tuple([self._row(one) for one in page]),
        )
        return Reply(reply, [one.data for one in page])

    def _row(self, batch: Scheduled) -> ScheduledRow:
        return ScheduledRow(
            batch.base_offset,
            batch.first_offset,
            batch.count,
            batch.due_ms,
            len(batch.data),
            tuple(sorted(batch.left_out)),
            batch.base_offset in self.undecided,
        )


def refused(reason: str) -> RecordCancelled:
    return RecordCancelled(ErrorCode.CANNOT_CANCEL, f"because {reason}", reason)


@asynccontextmanager
async def open_schedules() -> AsyncIterator[tuple[Schedules, Bureau, Admin]]:
    made: list[Schedules] = []
    async with open_bureau(lambda bureau: made.append(Schedules(bureau))) as (bureau, admin):
        yield made[0], bureau, admin
