"""The shell of a follower in the simulation: it fetches, appends or truncates, and reports.

Owns the pace. Every decision is the `Follower`'s, and an answer goes to the object that asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.partition.follower import Follower
from raftmq.partition.leader import Diverged, StartOver, Truncate
from tests.simulation.replication.messages import (
    Failed,
    FetchRequest,
    OutOfRange,
    Progress,
    Records,
)

if TYPE_CHECKING:
    from raftmq.metadata.commands import PartitionId
    from raftmq.partition.leader import Assignment
    from tests.simulation.replication.disk import ReplicaLog
    from tests.simulation.replication.messages import Answer
    from tests.simulation.replication.process import Process

ANSWER_SECONDS_MAX = 0.7
IDLE_SECONDS = 0.3


class Following:
    """`rules` lives as long as the leader epoch."""

    def __init__(
        self, process: Process, key: PartitionId, log: ReplicaLog, assignment: Assignment
    ) -> None:
        self.process, self.key, self.log, self.assignment = process, key, log, assignment
        self.rules = Follower(
            assignment.leader,
            assignment.leader_epoch,
            high_watermark=log.high_watermark,
            answer_seconds_max=ANSWER_SECONDS_MAX,
        )
        self.say(f"follows {assignment.leader} from {log.end}")

    @property
    def leader_epoch(self) -> int:
        return self.rules.leader_epoch

    def say(self, text: str) -> None:
        self.process.say(f"p{self.key.partition} e{self.leader_epoch} {text}")

    def stop(self) -> None:
        """Nothing waits for it."""

    # Asking

    def poll(self) -> None:
        if self.process.roles.get(self.key) is self:
            self.fetch()
            self.process.after(IDLE_SECONDS, self.poll)

    def fetch(self) -> None:
        process, log = self.process, self.log
        fetch = self.rules.next_fetch(log.end, log.epochs.latest, now=process.now)
        if fetch is None:
            return
        request = FetchRequest(
            self.key, process.broker_id, process.broker_epoch, self.leader_epoch, fetch
        )
        process.send_fetch(
            self.rules.leader, request, lambda answer: self.on_answer(fetch.token, answer)
        )
        self.on_held()

    def on_held(self) -> None:
        """Tell the leader, once it is known that the logs agree."""
        if not self.rules.agrees:
            return
        process = self.process
        said = Progress(
            self.key, process.broker_id, process.broker_epoch, self.leader_epoch, self.log.held
        )
        process.send_progress(self.rules.leader, said)

    # Answers

    def on_answer(self, token: int, answer: Answer) -> None:
        if self.process.roles.get(self.key) is not self or not self.rules.accepts(token):
            return
        self.process.touched.append(self)
        if isinstance(answer, Records):
            self._append(answer)
        elif isinstance(answer, Failed):
            self.say(f"fails: {answer.code.name}")
        else:
            self._shorten(answer)
            self.fetch()

    def _append(self, answer: Records) -> None:
        log = self.log
        assert answer.base_offset == log.end, f"F1: {answer} does not follow {log.end}"
        log.append(answer.records)
        self.rules.on_appended(answer.high_watermark, log_end_offset=log.end)
        # First of all: where the leader has no records any more, logs cannot be compared.
        log.trim(min(answer.log_start_offset, self.rules.high_watermark))
        self._note_high_watermark()
        if answer.records:
            self.say(f"appends to {log.end}, hw {log.high_watermark}")
            self.process.on_written(log)
            self.fetch()
            self.on_held()

    def _shorten(self, answer: Diverged | OutOfRange) -> None:
        log = self.log
        action: Truncate | StartOver | None
        if isinstance(answer, Diverged):
            action = self.rules.cut(
                answer, log.epochs, log_start_offset=log.start, log_end_offset=log.end
            )
        else:
            action = self.rules.start_over(answer.log_start_offset, log_end_offset=log.end)
        if action is None:
            return
        self.say(f"has {log.start} to {log.end}, hears {answer}: {action}")
        self.process.checks.on_shortened(self, action)
        if isinstance(action, Truncate):
            log.truncate(action.offset)
        else:
            log.start_over(action.offset)
        self._note_high_watermark()

    def _note_high_watermark(self) -> None:
        before, self.log.high_watermark = self.log.high_watermark, self.rules.high_watermark
        self.process.checks.on_follower_high_watermark(self, before)
