"""Repair of replicas whose logs cannot be used: offline, damaged, rotten, or not to be opened.

Owns the order of the steps (decision 0015): a loss is reported before anything is done about it,
and nothing is destroyed that no other broker has. One task for each partition that is out of order;
a disk that keeps failing is tried again with growing pauses.

    no log        open it; if the disk cannot read it, and another broker leads: begin empty
    offline       report it if the leader counts on it or it may have lost records; reopen
    damaged       report it; once another broker leads (or this one was elected uncleanly): truncate
    rotten        stay in service while no other replica is in sync; else resign; once another one
                  leads: overwrite with its batches; where the logs differ: report, and truncate;
                  then read back the producers, of which rot may have hidden something

Invariants: before a log is cut below anything it promised, the loss was reported and the report
answered; a log is discarded only while another active broker leads.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, NoReturn, Protocol

import trio

from raftmq.broker.replication.rot_watch import RotRepair
from raftmq.errors import CorruptRecord, RaftmqError, StorageError
from raftmq.metadata.commands import NO_EPOCH, Done, Loss, ReportDamage
from raftmq.partition.leader import NO_LEADER
from raftmq.rpc.backoff import Backoff, Pauses

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from raftmq.broker.controller_link import ControllerLink
    from raftmq.metadata.image import MetadataImage, PartitionState
    from raftmq.partition.leader import Assignment
    from raftmq.partition.replica import Replica
    from raftmq.partition.replica_environment import PartitionKey
    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.partition.storage.log import PartitionLog
    from raftmq.rpc.peers import Peers


logger = logging.getLogger("raftmq.broker")


PAUSES = Pauses(0.25, 15.0)  # between attempts: a full disk may be freed, a broken one stays
STEADY_SECONDS = 60.0  # in order for so long: the next failure begins with the short pause again
UNREADABLE_TRIES = 5  # in a row, before a log that cannot be read is given up (decision 0015)
# For a follower that lost nothing to get its report answered; without a quorum it is better in
# service than out.
TELLING_SECONDS_MAX = 2.0
# Errors that mean the bytes themselves are gone; a full disk or a missing right is not among them.
_UNREADABLE = (errno.EIO, errno.EUCLEAN, errno.EBADMSG)


class RepairableReplicas(Protocol):
    """The replicas under repair and their metadata, see `replicas.Replicas`."""

    def find(self, key: PartitionKey) -> Replica | None: ...
    def image(self) -> MetadataImage: ...
    def state_of(self, key: PartitionKey) -> PartitionState | None: ...
    def on_repaired(self, key: PartitionKey, replica: Replica) -> None: ...

    async def open_again(self, key: PartitionKey) -> None:
        """Raises StorageError: it still fails."""

    async def discard(self, key: PartitionKey) -> None:
        """Raises StorageError."""


class _Case:
    """One partition under repair.

    Attributes:
        reopened_at: when its log was last reopened; a failure soon after that waits first.
        told_epoch: leader epoch that the last report ended; only later ones count.
        unreadable: read failures in a row.
        is_damage_told: the loss of records is reported: the replica is trusted with nothing.
        scope: of its task, while it has one.
    """

    def __init__(self, key: PartitionKey, backoff: Backoff, *, is_damage_told: bool) -> None:
        self.key, self.backoff, self.is_damage_told = key, backoff, is_damage_told
        self.told_epoch = -1
        self.loss_told: PartitionLog | None = None  # the log object whose loss is reported
        self.must_start_over = False  # truncating found more damage below: begin empty
        self.unreadable = self.failures = 0
        self.steady_since = self.reopened_at = float("-inf")
        self.has_said_rot = False
        self.scope: trio.CancelScope | None = None
        self.ended = trio.Event()
        self.woken = trio.Event()


class ReplicaRepair:
    """Nothing is repaired before `run`."""

    def __init__(
        self,
        broker_id: int,
        ward: RepairableReplicas,
        directory: LogDirectory,
        reports: DamageReports,
        peers: Peers,
        random: Random,
    ) -> None:
        self._broker_id, self._ward, self._directory = broker_id, ward, directory
        self._reports, self._rot_repair = reports, RotRepair(peers, directory)
        self._random = random
        self._cases: dict[PartitionKey, _Case] = {}
        self._nursery: trio.Nursery | None = None

    def watch(self, key: PartitionKey, *, is_told: bool = False) -> None:
        """The log cannot be used; idempotent. `is_told`: the registration has reported that
        records are lost.
        """
        case = self._cases.get(key)
        now = trio.current_time()
        # Already under repair.
        if case is not None and case.scope is not None:
            replica = self._ward.find(key)
            if replica is not None and replica.log.offline_reason:
                case.woken.set()  # it may be waiting for a leader, and the log failed meanwhile
            return
        # Steady for long enough: a new failure, with short pauses. Otherwise the pauses go on.
        if case is None or now - case.steady_since > STEADY_SECONDS:
            backoff = Backoff(self._random, PAUSES)
            case = self._cases[key] = _Case(key, backoff, is_damage_told=is_told)
        self._start(case)

    def is_watched(self, key: PartitionKey) -> bool:
        case = self._cases.get(key)
        return case is not None and case.scope is not None

    def on_assignment(self, key: PartitionKey) -> None:
        """There may be a leader now from which lost records can be fetched."""
        case = self._cases.get(key)
        if case is not None:  # a healthy replica has no case
            case.woken.set()

    async def let_go(self, key: PartitionKey) -> None:
        """Stop repairing the partition; returns when its task has ended."""
        case = self._cases.pop(key, None)
        if case is not None and case.scope is not None:  # its task may be in the middle of a repair
            case.scope.cancel()
            # The caller deletes the files next.
            if self._nursery is not None:
                await case.ended.wait()  # the task ends at its next checkpoint

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                for case in self._cases.values():
                    if case.scope is not None:  # watched before `run`
                        self._nursery.start_soon(self._treat, case)
                task_status.started()
                # Keeps the nursery open for partitions that fail later.
                await trio.sleep_forever()
        finally:
            self._nursery = None

    def _start(self, case: _Case) -> None:
        case.scope, case.ended = trio.CancelScope(), trio.Event()
        if self._nursery is not None:  # before `run`, which starts it
            self._nursery.start_soon(self._treat, case)

    # -- one case --------------------------------------------------------------------------

    async def _treat(self, case: _Case) -> None:
        """Until the log is in order, or `let_go`."""
        scope = case.scope
        assert scope is not None, "not started"
        try:
            with scope:
                # Before any pause: a leader that cannot append must not stay the leader meanwhile.
                await self._report_failure(case)
                if case.steady_since > float("-inf"):  # repaired before, and failed again soon
                    await self._pause(case)  # its pauses go on where they were
                while not await self._is_treated(case):
                    await self._pause(case)  # until a leader, a failure, or the pause is over
                self._note_repaired(case)
        finally:
            case.scope = None
            case.ended.set()
        replica = self._ward.find(case.key)
        # It failed after the last check and before `scope` was cleared, when `watch` was ignored.
        if not scope.cancelled_caught and replica is not None and not replica.log.is_whole:
            self.watch(case.key)  # since a moment ago

    def _note_repaired(self, case: _Case) -> None:
        case.steady_since, case.is_damage_told = trio.current_time(), False
        case.failures, case.unreadable, case.must_start_over = 0, 0, False
        case.has_said_rot = False
        case.loss_told = None  # it would keep the closed log alive
        replica = self._ward.find(case.key)
        if replica is not None:  # let go meanwhile otherwise
            log = replica.log
            logger.info("log is in order: log=%s end_offset=%d", log.name, log.log_end_offset)

    async def _pause(self, case: _Case) -> None:
        """Wait before the next attempt: a case that needs a leader goes on as soon as there is
        one; a failing disk gets the whole pause, and meanwhile the leader must not wait for it.
        """
        with trio.move_on_after(case.backoff.next_seconds()):
            # Each new assignment may make the leader count on this replica again: withdraw again.
            while not self._waits_for_leader(case):
                await self._withdraw(case)  # reports, if a leader counts on this replica now
                # Ends with the next assignment, or with the pause.
                await case.woken.wait()
                case.woken = trio.Event()
            await case.woken.wait()  # set by a new assignment, or by a log that has failed

    def _waits_for_leader(self, case: _Case) -> bool:
        # A log that can be read waits for another leader; one that is offline for its disk.
        replica = self._ward.find(case.key)
        return replica is not None and not replica.log.offline_reason

    async def _is_treated(self, case: _Case) -> bool:
        case.woken = trio.Event()
        try:
            return await self._step(case)
        # Not an end: the pause and another attempt follow.
        except RaftmqError as error:
            # The first failure is logged; the end of the repair is logged anyway.
            if not case.failures:
                logger.warning("not repaired yet: %s reason=%s", _name(case.key), error)
            case.failures += 1
            return False

    async def _step(self, case: _Case) -> bool:
        """One attempt; whether all is in order. Raises RaftmqError: not yet."""
        replica = self._ward.find(case.key)
        if replica is None:  # its log could not be opened yet
            replica = await self._open(case)
        if replica is None:  # let go while it was opened
            return True  # not assigned to this broker any more
        if replica.log.offline_reason:  # readable at most; reopening may cure it
            if case.loss_told is not replica.log:  # it failed after `_treat` had reported
                await self._report_failure(case)  # before the reopening, as in `_treat`
                # Failed again soon after it was reopened: doing that in a loop would wear the disk.
                if trio.current_time() - case.reopened_at < STEADY_SECONDS:
                    await self._pause(case)
            await self._reopen(case, replica)
        if not replica.log.is_whole:
            if not await self._mend(case, replica):
                return False
        elif replica.has_unread:  # the leader was lost before the end of a repair
            await replica.cut_damage()  # cuts nothing, and reads the producers back
        return replica.log.is_whole

    # -- reports ---------------------------------------------------------------------------

    async def _report_failure(self, case: _Case) -> None:
        """Report a log that has just gone offline: another replica may lead, and what may be lost
        must not count.
        """
        replica = self._ward.find(case.key)
        # Only offline logs are reported at once.
        if replica is None or not replica.log.offline_reason:
            return
        case.loss_told = replica.log
        # Three cases: records lost, a leader without loss, a follower without loss.
        if self._may_lack(replica):
            await self._tell(case, Loss.UNSYNCED)
        elif replica.leader is not None:  # a leader that lost nothing hands over
            await self._hand_over(case)
        else:
            # Without an answer it repairs all the same, and stays in the ISR.
            with trio.move_on_after(TELLING_SECONDS_MAX):
                await self._withdraw(case)

    def _may_lack(self, replica: Replica) -> bool:
        """Whether it has acknowledged records that were only in the page cache."""
        topic = self._ward.image().topics.get(replica.key.topic_id)
        log = replica.log
        is_unsynced = log.log_end_offset > log.durable_end_offset
        return is_unsynced and (topic is None or topic.trusts_page_cache)

    async def _hand_over(self, case: _Case) -> None:
        """Let another replica lead while this log cannot be used, if an active one may."""
        image, state = self._ward.image(), self._ward.state_of(case.key)
        # Not the leader (any more): nothing to hand over.
        if state is None or state.leader != self._broker_id:
            return
        others = {*state.isr, *state.eligible} - {self._broker_id}
        # Once in a leader epoch. Without another candidate a bad leader is better than none.
        if state.leader_epoch > case.told_epoch and any(map(image.is_active, others)):
            await self._tell(case, Loss.NOTHING)  # until applied: other replicas may lead then

    async def _withdraw(self, case: _Case) -> None:
        """Leave the ISR, or the line to join it, so that the leader does not wait for this replica.

        In the epoch that begins then it joins again once it holds everything appended before. That
        tests its disk: nothing else shows that the next append will work.
        """
        state, replica = self._ward.state_of(case.key), self._ward.find(case.key)
        # Without another leader the report changes nothing, and this replica may have to lead.
        if state is None or not self._is_other_active(state.leader):
            return
        part = replica.follower if replica is not None else None
        has_told = part is not None and part.agrees and part.leader_epoch == state.leader_epoch
        # About to join counts as well: the leader adds it to the maximal ISR and waits.
        if has_told or self._broker_id in state.isr:
            await self._tell(case, Loss.NOTHING)  # until applied, or the caller gives up

    async def _tell(self, case: _Case, loss: Loss) -> None:
        # Until the quorum has applied it, and this image shows it.
        await self._reports.tell(case.key, loss)
        state = self._ward.state_of(case.key)
        if state is not None:
            # The report ended the epoch before the one that the metadata shows now.
            case.told_epoch = max(case.told_epoch, state.leader_epoch - 1)
        logger.info("reported: %s loss=%s", _name(case.key), loss.name)

    async def _resign(self, case: _Case) -> bool:
        """Whether this rotten replica neither leads nor is in the ISR. While no other replica is in
        sync it stays, with all that can be read: no other one has more.

        It loses no trust: the quorum elects another leader, or keeps this one if all replicas have
        rotted and report so at the same time.
        """
        image, state = self._ward.image(), self._ward.state_of(case.key)
        if state is None:  # not in the metadata any more
            return False
        # Done already, by an earlier attempt or an election.
        if self._broker_id not in (state.leader, *state.isr):
            return True
        # An eligible replica may lack what this leader has acknowledged with acks=1.
        if not any(map(image.is_active, {*state.isr} - {self._broker_id})):
            self._say_rot_stays(case)
            return False
        # Not for as long as it takes: meanwhile this replica may become the last one in sync.
        with trio.move_on_after(TELLING_SECONDS_MAX):
            await self._tell(case, Loss.NOTHING)  # until applied, within TELLING_SECONDS_MAX
            return True
        return False

    async def _tell_parted(self, case: _Case) -> bool:
        """Whether nothing counts on this replica, so that it may be truncated where rot begins."""
        state = self._ward.state_of(case.key)
        # Without another leader its records may be the only ones.
        if state is None or not self._is_other_active(state.leader):
            return False
        # It was trusted again after the report, so the loss must be reported anew.
        if self._broker_id in {*state.isr, *state.eligible}:
            case.is_damage_told = False
        with trio.move_on_after(TELLING_SECONDS_MAX):
            await self._tell_damage(case)  # until applied, within TELLING_SECONDS_MAX
        return case.is_damage_told

    def _say_rot_stays(self, case: _Case) -> None:
        replica = self._ward.find(case.key)
        # Logged once per case.
        if replica is not None and not case.has_said_rot:
            name, rot = replica.log.name, replica.log.rotten[0]
            logger.error("rot stays, no other replica is in sync: log=%s %s", name, rot)
            case.has_said_rot = True

    async def _tell_damage(self, case: _Case) -> None:
        if not case.is_damage_told:  # once: until the replica is trusted again
            await self._tell(case, Loss.RECORDS)  # until applied: only then may records be cut
            case.is_damage_told = True

    # -- repairs ---------------------------------------------------------------------------

    async def _open(self, case: _Case) -> Replica | None:
        try:
            await self._ward.open_again(case.key)  # opening scans the log after a crash
        except StorageError as error:  # missing rights, a full disk, or unreadable
            # The partition needs a leader with a log.
            await self._hand_over(case)
            # Only errors in a row count: any other outcome shows that the disk can be read.
            case.unreadable = case.unreadable + 1 if _is_unreadable(error) else 0
            # Begin empty: another broker has the records, and this disk will not give them back.
            if case.unreadable > UNREADABLE_TRIES:
                await self._begin_anew(case)
            raise
        return self._ward.find(case.key)

    async def _begin_anew(self, case: _Case) -> None:
        """Discard the log. It may still be readable later, so only if another broker leads."""
        state = self._ward.state_of(case.key)
        # No other broker has the log: it stays.
        if state is None or not self._is_other_active(state.leader):
            return
        await self._tell_damage(case)  # before the folder goes: the loss must be known
        state = self._ward.state_of(case.key)
        # The report was answered and a later epoch has another leader: its log is complete.
        if state is not None and self._has_other_leader(case, state.leader, state.leader_epoch):
            logger.warning("log is given up, and fetched again: %s", _name(case.key))
            await self._ward.discard(case.key)  # removes the folder; a new log is made empty

    async def _reopen(self, case: _Case, replica: Replica) -> None:
        """Open the log again. A leader then needs another epoch: what it appended may be gone."""
        try:
            log = await self._directory.reopen(replica.log)  # scans what was not synced
        # The disk still refuses: another replica should lead.
        except StorageError:
            await self._hand_over(case)
            raise
        case.reopened_at = trio.current_time()
        await replica.replace_log(log)  # the old object may still be reading or flushing
        self._ward.on_repaired(case.key, replica)
        known = replica.assignment
        # Offsets of records that may be gone must not be reused in the epoch in which followers may
        # hold them.
        if replica.needs_epoch and known is not None and known.leader_epoch > case.told_epoch:
            await self._tell(case, Loss.NOTHING)

    async def _mend(self, case: _Case, replica: Replica) -> bool:
        """Overwrite rot or cut damage; whether that is done. Before the cut the controller knows
        that this replica holds nothing for certain, and which broker leads.
        """
        # Damage is reported first; rot is put right where possible, without a report.
        if replica.log.damage:
            await self._tell_damage(case)  # before the cut: the loss must be known
        elif not await self._put_right(case, replica):
            return False
        known = replica.assignment
        # No other leader yet, nor an unclean election of this replica: wait, cutting could destroy
        # the last copy.
        if known is None or not (
            self._has_other_leader(case, known.leader, known.leader_epoch)
            or (replica.log.damage and self._is_elected_all_the_same(case, known))
        ):
            return False
        try:
            leads = known.leader == self._broker_id
            # Disk work; followed by fetching, as any follower.
            await replica.cut_damage(leads=leads, start_over=case.must_start_over)
        # A follower whose log is corrupt below the cut as well starts over, empty.
        except StorageError as error:
            follows = not leads
            case.must_start_over = follows and isinstance(error.__cause__, CorruptRecord)
            raise
        self._ward.on_repaired(case.key, replica)
        return True

    async def _put_right(self, case: _Case, replica: Replica) -> bool:
        """Whether no rot is left, or only where the leader's log differs: there it is truncated,
        like any follower's.
        """
        if not await self._resign(case):
            return False
        known = replica.assignment
        # Nothing to fetch from; the next assignment goes on.
        if known is None or not self._has_other_leader(case, known.leader, known.leader_epoch):
            return False
        # Batches from the leader, written over the rot.
        await self._rot_repair.put_right(replica, known)
        return not replica.log.rotten or await self._tell_parted(case)

    def _has_other_leader(self, case: _Case, leader: int, leader_epoch: int) -> bool:
        """Another active broker leads in an epoch after the last report."""
        return leader_epoch > case.told_epoch and self._is_other_active(leader)

    def _is_other_active(self, leader: int) -> bool:
        is_other = leader not in (NO_LEADER, self._broker_id)
        return is_other and self._ward.image().is_active(leader)

    def _is_elected_all_the_same(self, case: _Case, known: Assignment) -> bool:
        """Elected uncleanly after the last report: the cluster has accepted the loss."""
        is_chosen = known.leader == self._broker_id and known.is_recovering
        return is_chosen and known.leader_epoch > case.told_epoch


def _is_unreadable(error: StorageError) -> bool:
    """The bytes are gone; without room or permission all of them may still be there."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in _UNREADABLE


def _name(key: PartitionKey) -> str:
    return f"topic={key.topic_id.hex()} partition={key.partition}"


# -- Damage reports -------------------------------------------------------------------------------
# Reports of replicas that cannot be used, repeated until the controller has applied them.
#
# Owns what is to be reported: many partitions in one command, under the present registration. The
# caller waits for the answer: from that version of the metadata on the replica leads nothing that
# another one can lead, and is in no ISR, unless it has lost nothing and may have to lead. A caller
# that gives up waiting withdraws its report.


TOLD_MAX = 500  # partitions of one command: applying it blocks every node for that long
PAUSE_SECONDS = 1.0  # between attempts: an election takes one or two


class DamageReports:
    """Reports nothing before `run`."""

    def __init__(
        self,
        broker_id: int,
        link: ControllerLink,
        *,
        broker_epoch: Callable[[], int],
        catch_up: Callable[[], Awaitable[None]],
    ) -> None:
        """`catch_up()` returns once this image shows all that was applied before the call."""
        self._broker_id, self._link, self._broker_epoch = broker_id, link, broker_epoch
        self._catch_up = catch_up
        self._waiting: dict[tuple[Loss, PartitionKey], trio.Event] = {}
        self._woken = trio.Event()

    async def tell(self, key: PartitionKey, loss: Loss) -> None:
        """Returns once the report is applied and this image shows it."""
        told = self._waiting.setdefault((loss, key), trio.Event())
        self._woken.set()
        try:
            # Ends when `_report_some` has reported it; the caller may give up sooner.
            await told.wait()
        finally:
            # The last caller has given up: the report would come too late, and do harm.
            if not told.statistics().tasks_waiting:
                self._forget(key, loss, told)

    def _forget(self, key: PartitionKey, loss: Loss, told: trio.Event) -> None:
        """Only this very report: the same may have been asked anew, which is another one."""
        if self._waiting.get((loss, key)) is told:
            del self._waiting[loss, key]

    async def run(self) -> NoReturn:
        while True:
            # Until something is to be reported.
            await self._woken.wait()
            self._woken = trio.Event()
            while self._waiting:
                problem = await self._report_some()
                if problem:  # no controller, or not registered: all of it again
                    logger.warning("damage not reported yet: reason=%s", problem)
                    # A quorum without a leader needs one or two seconds.
                    await trio.sleep(PAUSE_SECONDS)

    async def _until_caught_up(self) -> None:
        """An older image may still name a leader that the report has replaced."""
        while True:
            try:
                await self._catch_up()  # a read barrier, then this image
            # The report is applied, but this node does not know it yet.
            except RaftmqError as error:
                logger.warning("not known what became of a report: reason=%s", error)
                await trio.sleep(PAUSE_SECONDS)  # the report counts only once this image shows it
            else:
                return

    async def _report_some(self) -> str:
        """Returns why not; empty if applied. The gravest loss first."""
        loss = max(loss for loss, _ in self._waiting)
        keys = sorted(key for other, key in self._waiting if other is loss)[:TOLD_MAX]
        broker_epoch = self._broker_epoch()
        # Without an epoch the command would be refused; `Lifetime` registers again.
        if broker_epoch == NO_EPOCH:
            return "this broker is not registered"
        command = ReportDamage(self._broker_id, broker_epoch, tuple(keys), loss)
        told = [self._waiting[loss, key] for key in keys]
        try:
            result = await self._link.propose(command)
        except RaftmqError as error:  # refused or unknown; reporting again is harmless
            return str(error)
        # Refused, as this process was registered anew meanwhile: again under that epoch.
        if not isinstance(result, Done):
            return f"{result}"
        await self._until_caught_up()  # the callers look at the metadata next
        for key, event in zip(keys, told, strict=True):
            self._forget(key, loss, event)
            event.set()
        return ""
