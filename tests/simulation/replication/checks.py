"""The invariants of replication (L1 to L5, F1 to F3), checked after every event on all disks.

Owns the promises to users (`Ledger`), and the invariants that the rules name, as far as they can be
seen from outside. Checks only what an event has touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.metadata.commands import NO_BROKER, RecoveryState
from raftmq.metadata.image import ChangeKind
from raftmq.partition.leader import StartOver
from tests.simulation.replication.following import Following
from tests.simulation.replication.leading import ACKS_ALL, Leading
from tests.simulation.replication.ledger import Ledger, demand

if TYPE_CHECKING:
    from raftmq.metadata.commands import PartitionId
    from raftmq.metadata.image import MetadataImage, PartitionState
    from raftmq.partition.leader import Truncate
    from tests.simulation.replication.disk import Record, ReplicaLog
    from tests.simulation.replication.leading import Waiting
    from tests.simulation.replication.process import Role
    from tests.simulation.replication.world import World


class Checks:
    """Attributes:
    ledgers: of all partitions.
    refused: values whose sender was told that they never happened.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.ledgers: dict[PartitionId, Ledger] = {}
        self.refused: set[int] = set()
        self.unclean_elections = self.elections = 0

    def ledger(self, key: PartitionId) -> Ledger:
        return self.ledgers.setdefault(key, Ledger())

    def _state(self, key: PartitionId) -> PartitionState:
        return self._world.quorum.image.partitions[key]

    def _log(self, broker_id: int, key: PartitionId) -> ReplicaLog | None:
        return self._world.brokers[broker_id].directory.logs.get(key)

    def trusted_log(self, broker_id: int, key: PartitionId) -> ReplicaLog | None:
        """Of a replica that may be elected, unless it has lost something and will be judged."""
        log = self._log(broker_id, key)
        return None if log is None or self._will_be_judged(broker_id, log) else log

    # After every event

    def after_event(self, touched: list[Role]) -> None:
        for role in touched:
            demand(role.log.high_watermark <= role.log.end, "L1, F3: beyond the log's end")
            if isinstance(role, Leading) and not role.process.has_ended:
                self._check_leading(role)

    def _check_leading(self, role: Leading) -> None:
        rules = role.rules
        demand(rules.high_watermark == role.log.high_watermark, "L1: it knows another one")
        demand(rules.log_end_offset == role.log.end, "it knows another end")
        demand(rules.held_end_offset <= role.log.held, "it counts what its disk does not hold")
        state = self._state(role.key)
        if state.leader_epoch == role.leader_epoch:
            hidden = set(state.isr) - set(rules.maximal_isr)
            demand(not hidden, f"L3: {hidden} are in the ISR and do not count: {state}")
        for follower in rules.assignment.replicas:
            self._check_progress(role, follower)

    def _check_progress(self, role: Leading, follower: int) -> None:
        """What a leader believes of a follower is true, if the incarnation is the same."""
        progress = role.rules.progress_of(follower)
        process = self._world.brokers[follower].process
        if progress is None:
            return
        demand(
            progress.held_offset <= progress.fetch_offset <= role.rules.log_end_offset,
            f"L5: held {progress.held_offset}, fetched {progress.fetch_offset}",
        )
        if process is None or process.broker_epoch != progress.broker_epoch:
            return
        follows = process.roles.get(role.key)
        if isinstance(follows, Following) and follows.leader_epoch == role.leader_epoch:
            demand(
                progress.held_offset <= follows.log.held,
                f"L5: {follower} holds {follows.log.held}, {progress.held_offset} are counted",
            )

    # Leaders

    def on_leader(self, role: Leading) -> None:
        ledger, state = self.ledger(role.key), self._state(role.key)
        self.check_start(role)
        if ledger.in_limbo and role.leader_epoch >= ledger.unclean_epoch:
            ledger.begin_anew(role.log)
        elif ledger.counts(role.leader_epoch) and role.leader_epoch == state.leader_epoch:
            who = f"the leader of epoch {role.leader_epoch}"
            self._check_holder(role.key, role.process.broker_id, who)

    def on_leader_high_watermark(self, role: Leading) -> None:
        rules, ledger = role.rules, self.ledger(role.key)
        end, start = rules.high_watermark, role.judged_offset
        demand(end > start, f"L1: from {start} to {end}")
        role.judged_offset = end
        if not ledger.counts(role.leader_epoch):
            return
        who = f"leader {role.process.broker_id} in epoch {role.leader_epoch}"
        assignment = rules.assignment
        demand(len(assignment.isr) >= self._world.min_isr(role.key), "L4: below min ISR")
        for member in rules.maximal_isr:
            is_leader = member == role.process.broker_id
            demand(is_leader or member in role.confirmed, f"L5: {member} counts, unasked")
            self._check_member(role, member, start, end)
        ledger.compare(role.log, start, end, who)
        is_new = end > ledger.end
        ledger.extend(role.log, end)
        if self._world.transactions is not None:
            self._world.transactions.on_stable(role)
        if is_new:
            self._check_trusted(role.key, start)

    def _check_member(self, role: Leading, member: int, start: int, end: int) -> None:
        """L2, on its disk: unless that has lost something since the member spoke."""
        log, progress = self._log(member, role.key), role.rules.progress_of(member)
        counted = None if progress is None else progress.broker_epoch
        if log is not None and counted is not None and counted <= log.lost_epoch:
            return
        held = 0 if log is None else log.held
        demand(held >= end, f"L2: {member} holds {held}, {end} is the high watermark")
        assert log is not None
        start = max(start, log.start, role.log.start)
        same = log.slice(start, end) == role.log.slice(start, end)
        demand(same, f"L2: {member} holds something else between {start} and {end}")

    def on_marker(self, role: Leading, marker: Record) -> None:
        if self._world.transactions is not None:
            self._world.transactions.on_marker(role, marker)

    def on_acknowledged(self, role: Leading, waiting: Waiting) -> None:
        ledger, offset = self.ledger(role.key), waiting.end_offset - 1
        if not ledger.counts(role.leader_epoch):
            return
        if waiting.acks == ACKS_ALL:
            is_there = offset < ledger.end and ledger.records[offset].value == waiting.value
            demand(is_there, f"value {waiting.value} is acknowledged, not committed")
            ledger.acknowledged[waiting.value] = offset
        elif role.leader_epoch == self._state(role.key).leader_epoch:
            self._check_copies(role, waiting, offset)

    def _check_copies(self, role: Leading, waiting: Waiting, offset: int) -> None:
        record = role.log.slice(offset, offset + 1)
        logs = [self._log(it, role.key) for it in role.rules.assignment.replicas]
        if any(log is not None and log.lost_epoch >= 0 for log in logs) or not record:
            return
        copies = sum(
            log is not None
            and log.held > offset
            and (log.start > offset or log.slice(offset, offset + 1) == record)
            for log in logs
        )
        demand(copies >= waiting.acks, f"{copies} hold what was acknowledged by {waiting.acks}")

    def on_read(self, role: Leading, start: int) -> int:
        """A reader gets what is between `start` and the high watermark."""
        ledger, end = self.ledger(role.key), role.rules.high_watermark
        self.check_start(role)
        if not ledger.counts(role.leader_epoch):
            return start
        start = max(start, role.log.start)
        for offset, record in enumerate(role.log.slice(start, end), start):
            before = ledger.seen.setdefault(offset, record)
            demand(before == record, f"{before} was read at {offset}, now it is {record}")
        return max(start, end)

    # Where logs start

    def on_deleted(self, key: PartitionId, start: int) -> None:
        ledger = self.ledger(key)
        ledger.deleted_to = max(ledger.deleted_to, start)

    def on_start_promised(self, role: Leading, start: int) -> None:
        promised = self.ledger(role.key).promised
        promised[role.leader_epoch] = max(promised.get(role.leader_epoch, 0), start)
        if role.process.roles.get(role.key) is role:
            self.check_start(role)

    def check_start(self, role: Leading) -> None:
        """What was deleted is not shown again, not even after an unclean election."""
        start = self.ledger(role.key).promised_start(role.leader_epoch)
        who = f"the leader of epoch {role.leader_epoch}"
        demand(role.log.start >= start, f"{who} starts at {role.log.start}, promised was {start}")

    # Followers

    def on_follower_high_watermark(self, role: Following, before: int) -> None:
        ledger, after = self.ledger(role.key), role.log.high_watermark
        if after == before or not ledger.counts(role.leader_epoch) or not role.rules.agrees:
            return
        who = f"follower {role.process.broker_id} in epoch {role.leader_epoch}"
        if not ledger.unclean_epoch:
            demand(after > before, f"F3: {who} goes back from {before} to {after}")
            demand(after <= ledger.end, f"{who} knows {after} to be committed, {ledger.end} is")
        ledger.compare(role.log, before, after, who)

    def on_shortened(self, role: Following, action: Truncate | StartOver) -> None:
        """No replica cuts what is committed; to start over it must be behind all there is."""
        ledger, log = self.ledger(role.key), role.log
        if not ledger.counts(role.leader_epoch):
            return
        if isinstance(action, StartOver) and action.offset >= log.end:
            demand(action.offset <= ledger.deleted_to, f"{action}: nobody deleted so much")
            return
        start = max(action.offset, log.start, ledger.unknown_to)
        end = min(log.end, ledger.end)
        cut = [at for at in range(start, end) if log.slice(at, at + 1) == [ledger.records[at]]]
        demand(not cut, f"{role.process.broker_id} cuts committed records at {cut[:3]}")

    # The metadata

    def on_commit(self, before: MetadataImage, after: MetadataImage) -> None:
        for change in after.changes:
            if change.kind == ChangeKind.PARTITION:
                key = change.key
                old = before.partitions.get(key)  # type: ignore[call-overload]
                self._on_partition(key, old, after.partitions[key])  # type: ignore[arg-type, index]

    def _on_partition(
        self, key: PartitionId, before: PartitionState | None, after: PartitionState
    ) -> None:
        ledger = self.ledger(key)
        if before is None:
            return
        self.on_deleted(key, after.log_start_offset)
        has_leader = after.leader not in (before.leader, NO_BROKER)
        self.elections += has_leader
        if has_leader and after.recovery_state is RecoveryState.RECOVERING:
            is_last = before.last_known_eligible == (after.leader,) or before.leader == after.leader
            is_lost = not before.isr and not before.eligible
            is_allowed = self._world.is_unclean_allowed(key)
            demand(is_allowed or is_last or is_lost, f"unclean: {before} to {after}")
            self.unclean_elections += 1
            ledger.unclean_epoch, ledger.in_limbo = after.leader_epoch, True
        if not ledger.in_limbo:
            self._check_trusted(key, 0, state=after)

    def _check_trusted(
        self, key: PartitionId, start: int, state: PartitionState | None = None
    ) -> None:
        """A replica that may be elected cleanly holds all committed records."""
        state = state or self._state(key)
        for broker_id in (*state.isr, *state.eligible):
            self._check_holder(key, broker_id, f"{broker_id}, trusted by {state},", start)

    def _will_be_judged(self, broker_id: int, log: ReplicaLog) -> bool:
        """It lost something, and the metadata has not drawn the conclusions yet."""
        return log.lost_at >= 0 and not self._world.brokers[broker_id].has_confessed(log)

    def _check_holder(self, key: PartitionId, broker_id: int, who: str, start: int = 0) -> None:
        ledger, log = self.ledger(key), self._log(broker_id, key)
        if not ledger.end or (log is not None and self._will_be_judged(broker_id, log)):
            return
        held = 0 if log is None else log.held
        demand(held >= ledger.end, f"{who} holds {held}, {ledger.end} is committed")
        assert log is not None
        demand(log.start <= max(ledger.deleted_to, 0), f"{who} begins at {log.start}")
        ledger.compare(log, start, ledger.end, who)
