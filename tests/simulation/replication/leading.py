"""The shell of a leader in the simulation: produce requests, follower fetches, ISR proposals.

Owns the requests that wait for an acknowledgement and the proposal in flight. Every decision is
the `Leader`'s; what is checked before it is asked stands here, in this order: the epoch, the
member, the range, the divergence. A proposal that is sent again keeps its command id, so that the
quorum applies it once or refuses it once and for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import (
    ErrorCode,
    FencedLeaderEpoch,
    OffsetNotAvailable,
    RaftmqError,
    UnknownLeaderEpoch,
)
from raftmq.metadata.commands import (
    AlterPartition,
    CommandId,
    PartitionAltered,
    ProposedIsrMember,
    RaiseLogStart,
    Refused,
)
from raftmq.metadata.transactions import outcome_of
from raftmq.partition.admission import Admission, EarlierTransactionDecided
from raftmq.partition.leader import HighWatermarkRose, Leader, ProposeIsr
from raftmq.wire.batch.header import CONTROL_BIT
from tests.simulation.replication.disk import Record
from tests.simulation.replication.messages import Failed, OutOfRange, Records
from tests.simulation.transactions.replica import header_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from raftmq.metadata.commands import AnyResult, PartitionId
    from raftmq.model import TransactionOutcome
    from raftmq.partition.leader import Assignment, LeaderEffect
    from raftmq.wire.batch.header import BatchHeader
    from tests.simulation.replication.disk import ReplicaLog
    from tests.simulation.replication.messages import Answer, FetchRequest, Progress
    from tests.simulation.replication.process import Process

ACKS_ALL = -1
LAG_SECONDS_MAX = 1.5
RECORDS_MAX = 8  # in one answer
PROPOSE_SECONDS_MAX = 0.8
Outcome = str  # "ok", "failed" (it never happened), "unknown"

# After these the proposal is void for good. All others say that this leader is behind, or deposed:
# the metadata will tell, and until then the proposal counts.
DEFINITE_REFUSALS = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST)


class Waiting(NamedTuple):
    value: int
    acks: int
    end_offset: int
    reply: Callable[[Outcome], None]


class Leading:
    """Attributes:
    confirmed: followers and the incarnation whose log agreed at its last fetch.
    judged_offset: the high watermark that was checked last.
    """

    def __init__(
        self, process: Process, key: PartitionId, log: ReplicaLog, assignment: Assignment
    ) -> None:
        self.process, self.key, self.log = process, key, log
        log.epochs.assign(assignment.leader_epoch, log.end)
        self.rules = Leader(
            process.broker_id,
            assignment,
            log_end_offset=log.end,
            held_end_offset=log.held,
            high_watermark=log.high_watermark,
            lag_seconds_max=LAG_SECONDS_MAX,
            epoch_of=process.epoch_in_isr,
            now=process.now,
        )
        self.confirmed: dict[int, int] = {}
        self.judged_offset = log.high_watermark
        self.sent: tuple[ProposeIsr, CommandId] | None = None
        self._waiting: list[Waiting] = []
        self._unsettled: ProposeIsr | None = None
        self.say(f"leads {assignment} at {log.end}, hw {log.high_watermark}")
        process.checks.on_leader(self)

    @property
    def leader_epoch(self) -> int:
        return self.rules.leader_epoch

    def say(self, text: str) -> None:
        self.process.say(f"p{self.key.partition} e{self.leader_epoch} {text}")

    def stop(self) -> None:
        self.say("leads no more")
        for waiting in self._waiting:
            waiting.reply("unknown")
        self._waiting.clear()

    # Clients

    def on_produce(self, value: int, acks: int, reply: Callable[[Outcome], None]) -> None:
        if acks == ACKS_ALL and not self.rules.has_min_isr:
            reply("failed")
            return
        self._waiting.append(Waiting(value, acks, self.log.end + 1, reply))
        self._append(Record(self.leader_epoch, value))

    def _append(self, record: Record) -> None:
        self.log.append([record])
        self.say(f"appends {record.value} at {self.log.end - 1}")
        self.rules.on_append(self.log.end)
        self.process.on_written(self.log)
        self.on_held()

    def _answer_waiting(self) -> None:
        done = [waiting for waiting in self._waiting if self.is_done(waiting)]
        for waiting in done:
            self._waiting.remove(waiting)
            self.process.checks.on_acknowledged(self, waiting)
            waiting.reply("ok")

    def is_done(self, waiting: Waiting) -> bool:
        if waiting.acks == ACKS_ALL:
            return self.rules.high_watermark >= waiting.end_offset
        return waiting.acks == 0 or self.rules.held_by(waiting.acks) >= waiting.end_offset

    # Transactions

    @property
    def last_stable_offset(self) -> int:
        return self.log.transactions.last_stable_offset(self.rules.high_watermark)

    def _outcome(self, producer_id: int, producer_epoch: int) -> TransactionOutcome:
        return outcome_of(self.process.image, producer_id, producer_epoch)

    def on_transactional(
        self, value: int, sent: BatchHeader, reply: Callable[[Outcome], None]
    ) -> None:
        """A batch of one record, which may stand here already. "failed" speaks of this try only."""
        header = sent._replace(base_offset=self.log.end)
        admission = Admission(self.log.producers, 0.0, outcome_of=self._outcome)
        try:
            original = admission.original_offset(header)
        except EarlierTransactionDecided as earlier:  # its marker first, in the same turn
            self.resolve([earlier.producer_id])
            self.on_transactional(value, sent, reply)
            return
        except RaftmqError:
            reply("failed")
            return
        if original is None and not self.rules.has_min_isr:
            reply("failed")
            return
        offset = self.log.end if original is None else original
        self._waiting.append(Waiting(value, ACKS_ALL, offset + 1, reply))
        if original is None:
            self._append(Record(self.leader_epoch, value, header))
        else:
            self._answer_waiting()

    def resolve(self, producer_ids: Iterable[int] | None = None) -> None:
        """Markers for what the metadata have decided."""
        for producer_id, epoch, kind in self.log.transactions.due(producer_ids, self._outcome):
            header = header_of(self.log.end, producer_id, epoch + 1, -1, CONTROL_BIT)
            record = Record(self.leader_epoch, self.process.new_value(), header, kind)
            self.process.checks.on_marker(self, record)
            self._append(record)

    def is_settled(
        self, leader_epoch: int, producer_ids: Sequence[int], producer_epoch: int
    ) -> bool:
        """As `Replica.is_settled`."""
        if leader_epoch != self.leader_epoch:
            is_over = leader_epoch < self.leader_epoch
            raise (FencedLeaderEpoch if is_over else UnknownLeaderEpoch)("of another epoch")
        if not self.rules.is_established:
            raise OffsetNotAvailable("what is committed is not known yet")
        return self.log.transactions.is_ended(
            producer_ids, producer_epoch, self.rules.high_watermark
        )

    # Followers

    def on_fetch(self, request: FetchRequest) -> Answer:
        problem = self.epoch_problem(request.leader_epoch)
        if problem is None and request.broker_id not in self.rules.assignment.replicas:
            problem = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if problem is not None:
            return Failed(problem)
        offset = request.fetch.fetch_offset
        if offset < self.log.start:
            return OutOfRange(self.log.start)
        follower = request.broker_id
        epochs, last_epoch = self.log.epochs, request.fetch.last_fetched_epoch
        diverged = self.rules.divergence(last_epoch, offset, epochs)
        if diverged is not None:
            self.confirmed.pop(follower, None)
            self.perform(self.rules.on_diverging_fetch(follower))
            return diverged
        self.confirmed[follower] = request.broker_epoch
        self.perform(
            self.rules.on_fetch(follower, request.broker_epoch, offset, now=self.process.now)
        )
        records = self.log.slice(offset, offset + RECORDS_MAX)
        return Records(offset, records, self.rules.high_watermark, self.log.start)

    def epoch_problem(self, leader_epoch: int) -> ErrorCode | None:
        if leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH if leader_epoch > self.leader_epoch else None

    def on_progress(self, said: Progress) -> None:
        is_member = said.broker_id in self.rules.assignment.replicas
        if said.leader_epoch == self.leader_epoch and is_member:
            self.perform(
                self.rules.on_progress(
                    said.broker_id, said.broker_epoch, said.held_offset, now=self.process.now
                )
            )

    # The own log, the metadata, the time

    def on_held(self) -> None:
        self.perform(self.rules.on_held(self.log.held))

    def on_assignment(self, assignment: Assignment) -> None:
        before = self.rules.assignment
        if assignment.partition_epoch > before.partition_epoch:
            self._unsettled = None
        self.process.begin_at(self.log, assignment.log_start_offset)
        self.perform(self.rules.on_assignment(assignment, now=self.process.now))
        if self.rules.assignment != before:
            self.say(f"sees {assignment}")

    def on_tick(self) -> None:
        self.perform(self.rules.on_tick(self.process.now))

    def retain_from(self, offset: int) -> None:
        """Retention; only committed records, without a request."""
        self.log.trim(min(offset, self.last_stable_offset))
        self.process.checks.on_deleted(self.key, self.log.start)
        self.say(f"retains from {self.log.start}")

    def delete_before(self, offset: int) -> None:
        """By request: the quorum records it, then the own disk, then the client is answered."""
        start = max(self.log.start, min(offset, self.last_stable_offset))
        self.say(f"is to start at {start}")
        command = RaiseLogStart(
            self.process.broker_id, self.process.broker_epoch, *self.key, self.leader_epoch, start
        )
        self.process.propose(command, None, lambda result: self.on_start(start, result))

    def on_start(self, start: int, result: AnyResult) -> None:
        if isinstance(result, Refused):
            self.say(f"cannot start at {start}: {result.message}")
            return
        if self.process.roles.get(self.key) is self:
            self.log.trim(start)
        self.say(f"starts at {start}, and says so")
        self.process.checks.on_start_promised(self, start)

    # Effects

    def perform(self, effects: list[LeaderEffect]) -> None:
        for effect in effects:
            if isinstance(effect, HighWatermarkRose):
                self.log.high_watermark = effect.high_watermark
                self.say(f"hw {effect.high_watermark}")
                self.log.transactions.on_high_watermark(effect.high_watermark)
                self.log.producers.release(effect.high_watermark, self._outcome)
                self.process.checks.on_leader_high_watermark(self)
            else:
                self._propose(effect)
        self.process.touched.append(self)
        self._answer_waiting()

    def _propose(self, proposal: ProposeIsr) -> None:
        assert self._unsettled in (None, proposal), f"L3: {self._unsettled} and {proposal}"
        self._unsettled = proposal
        if self.sent is None or self.sent[0] != proposal:
            self.sent = (proposal, self.process.next_command_id())
        self.say(f"proposes {proposal}")
        self.process.propose(
            self.command_of(proposal), self.sent[1], lambda result: self.on_result(proposal, result)
        )
        self.process.after(PROPOSE_SECONDS_MAX, self._on_silence, proposal)

    def command_of(self, proposal: ProposeIsr) -> AlterPartition:
        return AlterPartition(
            self.process.broker_id,
            self.process.broker_epoch,
            *self.key,
            leader_epoch=proposal.leader_epoch,
            partition_epoch=proposal.partition_epoch,
            isr=tuple(ProposedIsrMember(*member) for member in proposal.isr),
        )

    def _on_silence(self, proposal: ProposeIsr) -> None:
        if self.process.roles.get(self.key) is self:
            self.perform(self.rules.on_proposal_unknown(proposal))

    def on_result(self, proposal: ProposeIsr, result: AnyResult) -> None:
        if self.process.roles.get(self.key) is not self:
            return
        if isinstance(result, PartitionAltered):
            if result.leader_epoch == self.leader_epoch:
                self.on_assignment(
                    self.rules.assignment.altered(
                        result.partition_epoch,
                        result.isr,
                        is_recovering=bool(result.recovery_state),
                    )
                )
        elif isinstance(result, Refused) and result.code in DEFINITE_REFUSALS:
            self.say(f"is refused: {result.message}")
            if self._unsettled == proposal:  # if it comes again, it is another intention
                self._unsettled = self.sent = None
            self.perform(self.rules.on_proposal_refused(proposal))
