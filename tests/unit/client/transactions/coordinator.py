"""A coordinator of transaction ids as a producer meets it: rows in a dict, and scripted answers.

Its rules are written apart from those of the quorum (`metadata/apply/transactions.py`), so that one
mistake is not made twice.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from raftmq.errors import ErrorCode
from raftmq.model import AbortReason
from raftmq.rpc.reply import Reply
from raftmq.wire.batch.header import read_header
from raftmq.wire.batch.records import RecordBatch
from raftmq.wire.messages.groups import CoordinatorRow, FindCoordinator, FindCoordinatorReply
from raftmq.wire.messages.producers import InitProducerId, InitProducerIdReply
from raftmq.wire.messages.transactions import (
    MEMBERS_MAX,
    EndTxn,
    EndTxnReply,
    JoinTransaction,
    JoinTransactionReply,
)
from tests.unit.client.producer.shell import Stage, open_stage
from tests.unit.client.world import Turn, World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.unit.client.world import Step


@dataclass
class Row:
    """What is known of one id."""

    producer_id: int
    epoch: int = 0
    owner: bytes = b""
    opening: int = 0
    last: tuple[int, int] | None = None
    last_is_committed: bool = False
    last_reason: AbortReason = AbortReason.NONE
    last_version: int = -1
    last_count: int = -1


@dataclass
class SharedRow:
    """The same of an id whose versions many producers write.

    Attributes:
        counts: rows of each version that was committed.
        decided: outcome of each block, and the numbers that count.
    """

    lineage: str
    version: int = -1  # that is open
    block: int = -1
    joined: int = 0
    timeout_ms: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    decided: dict[int, tuple[AbortReason | None, frozenset[int]]] = field(default_factory=dict)

    @property
    def last_version(self) -> int:
        return max(self.counts, default=-1)


@dataclass
class Coordinator:
    """
    Attributes:
        broker_id: who coordinates all ids.
        decided: number and outcome of each transaction.
        offsets: by group: what committed transactions say.
        asked: every request to open or to end that was carried out, or should have been.
        ends, opens, joins: steps for the next requests; without one they are carried out.
    """

    broker_id: int = 1
    rows: dict[str, Row] = field(default_factory=dict)
    decided: dict[tuple[int, int], bool] = field(default_factory=dict)
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    asked: list[Any] = field(default_factory=list)
    ends: list[Step] = field(default_factory=list)
    opens: list[Step] = field(default_factory=list)
    joins: list[Step] = field(default_factory=list)
    shared: dict[str, SharedRow] = field(default_factory=dict)
    next_id: int = 5_000
    next_block: int = MEMBERS_MAX

    @property
    def commits(self) -> list[EndTxn]:
        return [one for one in self.asked if isinstance(one, EndTxn) and one.is_commit]

    def install(self, world: World) -> None:
        for broker in world.brokers.values():
            plain = broker.handlers[InitProducerId]

            def open_id(
                context: Any,
                body: InitProducerId,
                payload: Any,
                here: Any = broker,
                plain: Any = plain,
            ) -> Any:
                if not body.transaction_id:
                    return plain(context, body, payload)
                return self._turn(self.opens, here, body, self.open, InitProducerIdReply)

            def end(_context: Any, body: EndTxn, _payload: Any, here: Any = broker) -> Any:
                rule = self.end if body.lineage is None else self.end_version
                return self._turn(self.ends, here, body, rule, EndTxnReply)

            def join(
                _context: Any, body: JoinTransaction, _payload: Any, here: Any = broker
            ) -> Any:
                return self._turn(self.joins, here, body, self.join, JoinTransactionReply)

            broker.handlers[InitProducerId] = open_id
            broker.handlers[JoinTransaction] = join
            broker.handlers[EndTxn] = end
            groups = broker.handlers.get(FindCoordinator)

            def find(
                context: Any, body: FindCoordinator, payload: Any, groups: Any = groups
            ) -> Any:
                """Of groups, where there are any, as ever."""
                if groups is not None and not body.groups[0].startswith("ephemeral"):
                    return groups(context, body, payload)
                return self._find(body)

            broker.handlers[FindCoordinator] = find

    def _find(self, body: FindCoordinator) -> Reply:
        rows = tuple(CoordinatorRow(one, broker_id=self.broker_id) for one in body.groups)
        return Reply(FindCoordinatorReply(rows))

    def _turn(self, steps: list[Step], broker: Any, body: Any, carry_out: Any, kind: Any) -> Any:
        if broker.broker_id != self.broker_id:
            return Reply(kind(ErrorCode.NOT_COORDINATOR, "not here"))
        self.asked.append(body)
        turn = Turn(
            lambda: Reply(carry_out(body)),
            lambda error, **_: Reply(kind(error, error.name)),
            broker.hang_up,
        )
        return steps.pop(0)(turn) if steps else turn.carry_out()

    # Rules

    def open(self, body: InitProducerId) -> InitProducerIdReply:
        row = self.rows.get(body.transaction_id)
        if row is None:
            row = self.rows[body.transaction_id] = Row(self.next_id)
            self.next_id += 1
        elif (row.owner, row.opening) != (body.owner, body.opening):
            if row.owner == body.owner and body.opening < row.opening:
                return InitProducerIdReply(ErrorCode.INVALID_PRODUCER_EPOCH, "late")
            self.decide(row, is_committed=False, reason=AbortReason.OWNER)
        row.owner, row.opening = body.owner, body.opening
        return InitProducerIdReply(
            producer_id=row.producer_id,
            producer_epoch=row.epoch,
            transaction_timeout_ms=body.transaction_timeout_ms,
            last_version=row.last_version,
            last_count=row.last_count,
        )

    def decide(
        self, row: Row, *, is_committed: bool, reason: AbortReason = AbortReason.NONE
    ) -> None:
        number = row.producer_id, row.epoch
        assert number not in self.decided, "decided twice"
        self.decided[number] = is_committed
        row.last, row.last_is_committed, row.last_reason = number, is_committed, reason
        row.epoch += 1

    def abort(self, transaction_id: str, reason: AbortReason) -> None:
        self.decide(self.rows[transaction_id], is_committed=False, reason=reason)

    def end(self, body: EndTxn) -> EndTxnReply:
        row = self.rows.get(body.transaction_id)
        if row is None:
            return EndTxnReply(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "never heard of it")
        number = body.producer_id, body.producer_epoch
        if number == row.last:
            return self._told(row, row.last_is_committed, row.last_reason, is_repeated=True)
        if body.owner not in (b"", row.owner):
            return EndTxnReply(ErrorCode.PRODUCER_FENCED, "another one has it")
        if number != (row.producer_id, row.epoch):
            return EndTxnReply(ErrorCode.INVALID_PRODUCER_EPOCH, "over")
        if body.is_commit and -1 < body.transaction_version <= row.last_version:
            self.decide(row, is_committed=False, reason=AbortReason.PROGRAM)
            return self._told(row, True, AbortReason.NONE, is_repeated=True)
        self.decide(row, is_committed=body.is_commit, reason=AbortReason(body.reason))
        if body.is_commit:
            for group in body.groups:
                found = self.offsets.setdefault(group.group, {})
                found.update({one.partition: one.offset for one in group.offsets})
            if body.transaction_version >= 0:
                row.last_version, row.last_count = body.transaction_version, body.count
        return self._told(row, body.is_commit, AbortReason(body.reason))

    def _told(
        self, row: Row, is_committed: bool, reason: AbortReason, *, is_repeated: bool = False
    ) -> EndTxnReply:
        return EndTxnReply(
            producer_id=row.producer_id,
            producer_epoch=row.epoch,
            is_committed=is_committed,
            is_repeated=is_repeated,
            reason=reason,
            is_settled=True,
        )

    # Rules of shared ones

    def join(self, body: JoinTransaction) -> JoinTransactionReply:
        row = self.shared.setdefault(body.transaction_id, SharedRow(body.lineage))
        version = body.transaction_version
        if row.lineage != body.lineage or body.transaction_id in self.rows:
            return JoinTransactionReply(ErrorCode.INVALID_TXN_STATE, "another's: take another id")
        if version <= row.last_version:
            return JoinTransactionReply(is_done=True, count=row.counts.get(version, -1))
        if row.version > version:
            return JoinTransactionReply(ErrorCode.PRODUCER_FENCED, "a higher version is open")
        if row.version < version:
            self.abort_version(row, AbortReason.OWNER)
            row.version, row.block, row.joined = version, self.next_block, 0
            row.timeout_ms = body.transaction_timeout_ms
            self.next_block += MEMBERS_MAX
        if row.joined == MEMBERS_MAX:
            return JoinTransactionReply(ErrorCode.INVALID_REQUEST, "as many members as may be")
        row.joined += 1
        return JoinTransactionReply(
            block=row.block, number=row.joined - 1, transaction_timeout_ms=row.timeout_ms
        )

    def abort_version(self, row: SharedRow, reason: AbortReason) -> None:
        if row.block >= 0:
            row.decided[row.block] = reason, frozenset()
        row.version = row.block = -1

    def end_version(self, body: EndTxn) -> EndTxnReply:
        row = self.shared.get(body.transaction_id)
        if row is None:
            if body.producer_id >= 0 or not body.is_commit:
                return EndTxnReply(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "never heard of it")
            row = self.shared[body.transaction_id] = SharedRow(body.lineage or "")
        version, block = body.transaction_version, body.producer_id
        if row.lineage != body.lineage:
            return EndTxnReply(ErrorCode.INVALID_TXN_STATE, "another lineage's: take another id")
        if version <= row.last_version:
            count = row.counts.get(version, -1) if version == row.last_version else -1
            return EndTxnReply(is_committed=True, is_repeated=True, count=count)
        if not body.is_commit:
            if row.version == version:
                self.abort_version(row, AbortReason(body.reason))
            return EndTxnReply(reason=AbortReason.PROGRAM)
        if block in row.decided:
            reason, _ = row.decided[block]
            return EndTxnReply(is_repeated=True, reason=reason or AbortReason.NONE)
        if row.version not in (-1, version) or (block >= 0 and block != row.block):
            return EndTxnReply(ErrorCode.INVALID_PRODUCER_EPOCH, "over")
        listed = frozenset(
            8 * place + bit
            for place, byte in enumerate(body.numbers)
            for bit in range(8)
            if byte >> bit & 1
        )
        if listed and max(listed) >= row.joined:
            return EndTxnReply(ErrorCode.INVALID_REQUEST, "who is that?")
        row.counts[version] = body.count
        row.decided[row.block] = None, listed
        row.version = row.block = -1
        return EndTxnReply(is_committed=True, is_settled=True)

    def is_listed(self, producer_id: int) -> bool:
        """A member that counts."""
        block, number = producer_id - producer_id % MEMBERS_MAX, producer_id % MEMBERS_MAX
        return any(number in row.decided.get(block, (None, ()))[1] for row in self.shared.values())


def committed_in(
    coordinator: Coordinator, world: World, partition: int = 0, *, topic: str = "t"
) -> list[str]:
    """What a reader of committed records gets."""
    found = []
    for _, _, data in world.topics[topic].partitions[partition].batches:
        header = read_header(data)
        is_fine = coordinator.decided.get((header.producer_id, header.producer_epoch), False)
        if is_fine or coordinator.is_listed(header.producer_id) or not header.is_transactional:
            found += [(value or b"").decode() for value in RecordBatch.decode(data).values]
    return found


@asynccontextmanager
async def open_transactions(brokers: int = 2) -> AsyncIterator[tuple[Coordinator, Stage]]:
    """Brokers, a client, and a coordinator of transaction ids at broker 1."""
    world, coordinator = World(brokers), Coordinator()
    coordinator.install(world)
    async with open_stage(world) as stage:
        yield coordinator, stage
