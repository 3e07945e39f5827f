"""Replicas whose logs cannot be used, on their way back into service.

Owns the order of the steps (docs/decisions/0015): what is lost is told before anything is done
about it, and nothing is destroyed that nobody else has. One task for each partition that is out of
order; a disk that goes on failing is tried again, ever more rarely.

    no log        opened; if the disk cannot read it, and another one leads: begun anew
    offline       told, if anybody counts on it or it may have lost something; opened anew; goes on
    damaged       told; once another one leads (or it was elected all the same): cut; goes on
    rotten        goes on while no other one is in sync; else resigns; once another one leads: put
                  right with what that one holds; where their logs part: told, and cut; goes on

Invariants: what is cut below anything that was promised was reported before, and the report was
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

    from raftmq.broker.replication.fetch_exchange import FetchEnvironment
    from raftmq.metadata.commands import AnyCommand, AnyResult
    from raftmq.metadata.image import MetadataImage, PartitionState
    from raftmq.partition.leader import Assignment
    from raftmq.partition.replica import Replica
    from raftmq.partition.replica_environment import PartitionKey
    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.partition.storage.log import PartitionLog


logger = logging.getLogger("raftmq.broker")


PAUSES = Pauses(0.25, 15.0)
STEADY_SECONDS = 60.0  # whoever was in order for so long begins with a short pause again
UNREADABLE_TRIES = 5
# Of a follower that has lost nothing: while nobody can be told, it is better in service than out.
TELLING_SECONDS_MAX = 2.0
_UNREADABLE = (errno.EIO, errno.EUCLEAN, errno.EBADMSG)


class Ward(Protocol):
    """Where the replicas are, see `replicas.Replicas`."""

    def find(self, key: PartitionKey) -> Replica | None: ...
    def image(self) -> MetadataImage: ...
    def state_of(self, key: PartitionKey) -> PartitionState | None: ...
    def on_repaired(self, key: PartitionKey, replica: Replica) -> None: ...

    async def open_again(self, key: PartitionKey) -> None:
        """Raises StorageError: there is no log yet."""

    async def discard(self, key: PartitionKey) -> None:
        """Raises StorageError."""


class RepairPeers(Protocol):
    async def tell(self, key: PartitionKey, loss: Loss) -> None:
        """Return once the quorum has applied it, and `Ward.state_of` shows that."""


class _Case:
    """One partition.

    Attributes:
        reopened_at: the last time that its log was opened anew; soon after that it has to wait.
        told_epoch: the last report has ended it, or a later one; the ones after that count.
        unreadable: failures to read, one after the other.
        is_damage_told: the replica is trusted with nothing.
        scope: of its task, while it has one.
    """

    def __init__(self, key: PartitionKey, backoff: Backoff, *, is_damage_told: bool) -> None:
        self.key, self.backoff, self.is_damage_told = key, backoff, is_damage_told
        self.told_epoch = -1
        self.loss_told: PartitionLog | None = None  # of this object all is told
        self.must_start_over = False
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
        ward: Ward,
        directory: LogDirectory,
        reports: RepairPeers,
        peers: FetchEnvironment,
        random: Random,
    ) -> None:
        self._broker_id, self._ward, self._directory = broker_id, ward, directory
        self._reports, self._rot_repair = reports, RotRepair(peers, directory)
        self._random = random
        self._cases: dict[PartitionKey, _Case] = {}
        self._nursery: trio.Nursery | None = None

    def watch(self, key: PartitionKey, *, is_told: bool = False) -> None:
        """Its log cannot be used; may be said again and again. `is_told`: the registration said
        that its records are lost.
        """
        case = self._cases.get(key)
        now = trio.current_time()
        if case is not None and case.scope is not None:
            replica = self._ward.find(key)
            if replica is not None and replica.log.offline_reason:
                case.woken.set()  # it waited for a leader perhaps, with a log that has failed now
            return
        if case is None or now - case.steady_since > STEADY_SECONDS:
            backoff = Backoff(self._random, PAUSES)
            case = self._cases[key] = _Case(key, backoff, is_damage_told=is_told)
        self._start(case)

    def is_watched(self, key: PartitionKey) -> bool:
        case = self._cases.get(key)
        return case is not None and case.scope is not None

    def on_assignment(self, key: PartitionKey) -> None:
        """There may be a leader now from whom to get what is lost."""
        case = self._cases.get(key)
        if case is not None:
            case.woken.set()

    async def let_go(self, key: PartitionKey) -> None:
        """Return when nothing is done about it any more."""
        case = self._cases.pop(key, None)
        if case is not None and case.scope is not None:
            case.scope.cancel()
            if self._nursery is not None:
                await case.ended.wait()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                for case in self._cases.values():
                    if case.scope is not None:
                        self._nursery.start_soon(self._treat, case)
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None

    def _start(self, case: _Case) -> None:
        case.scope, case.ended = trio.CancelScope(), trio.Event()
        if self._nursery is not None:
            self._nursery.start_soon(self._treat, case)

    # -- one case --------------------------------------------------------------------------

    async def _treat(self, case: _Case) -> None:
        """Until it is in order, or let go."""
        scope = case.scope
        assert scope is not None, "not started"
        try:
            with scope:
                await self._tell_at_once(case)
                if case.steady_since > float("-inf"):  # it has failed again, and soon
                    await self._pause(case)
                while not await self._is_treated(case):
                    await self._pause(case)
                self._tell_end(case)
        finally:
            case.scope = None
            case.ended.set()
        replica = self._ward.find(case.key)
        if not scope.cancelled_caught and replica is not None and not replica.log.is_whole:
            self.watch(case.key)  # since a moment ago

    def _tell_end(self, case: _Case) -> None:
        case.steady_since, case.is_damage_told = trio.current_time(), False
        case.failures, case.unreadable, case.must_start_over = 0, 0, False
        case.has_said_rot = False
        case.loss_told = None  # or that log would live on
        replica = self._ward.find(case.key)
        if replica is not None:
            log = replica.log
            logger.info("log is in order: log=%s end_offset=%d", log.name, log.log_end_offset)

    async def _pause(self, case: _Case) -> None:
        """Somebody who waits for a leader is woken by one; the disk is given its time, and nobody
        shall wait for it meanwhile.
        """
        with trio.move_on_after(case.backoff.next_seconds()):
            while not self._waits_for_leader(case):
                await self._withdraw(case)
                await case.woken.wait()
                case.woken = trio.Event()
            await case.woken.wait()

    def _waits_for_leader(self, case: _Case) -> bool:
        replica = self._ward.find(case.key)
        return replica is not None and not replica.log.offline_reason

    async def _is_treated(self, case: _Case) -> bool:
        case.woken = trio.Event()
        try:
            return await self._step(case)
        except RaftmqError as error:
            if not case.failures:
                logger.warning("not repaired yet: %s reason=%s", _name(case.key), error)
            case.failures += 1
            return False

    async def _step(self, case: _Case) -> bool:
        """Whether all is in order. Raises RaftmqError: not yet."""
        replica = self._ward.find(case.key)
        if replica is None:
            replica = await self._open(case)
        if replica is None:
            return True  # not hosted here any more
        if replica.log.offline_reason:
            if case.loss_told is not replica.log:  # since a moment ago
                await self._tell_at_once(case)
                if trio.current_time() - case.reopened_at < STEADY_SECONDS:
                    await self._pause(case)
            await self._reopen(case, replica)
        if not replica.log.is_whole and not await self._mend(case, replica):
            return False
        return replica.log.is_whole

    # -- what is told ----------------------------------------------------------------------

    async def _tell_at_once(self, case: _Case) -> None:
        """Of a log that has just gone offline: somebody else may lead; what may be lost counts for
        nothing.
        """
        replica = self._ward.find(case.key)
        if replica is None or not replica.log.offline_reason:
            return
        case.loss_told = replica.log
        if self._may_lack(replica):
            await self._tell(case, Loss.UNSYNCED)
        elif replica.leader is not None:
            await self._hand_over(case)
        else:
            with trio.move_on_after(TELLING_SECONDS_MAX):
                await self._withdraw(case)

    def _may_lack(self, replica: Replica) -> bool:
        """Whether it has told its leader of records that only the page cache had."""
        topic = self._ward.image().topics.get(replica.key.topic_id)
        log = replica.log
        is_unsynced = log.log_end_offset > log.durable_end_offset
        return is_unsynced and (topic is None or topic.trusts_page_cache)

    async def _hand_over(self, case: _Case) -> None:
        """While the log cannot be used, another one leads, if there is one that can."""
        image, state = self._ward.image(), self._ward.state_of(case.key)
        if state is None or state.leader != self._broker_id:
            return
        others = {*state.isr, *state.eligible} - {self._broker_id}
        if state.leader_epoch > case.told_epoch and any(map(image.is_active, others)):
            await self._tell(case, Loss.NOTHING)

    async def _withdraw(self, case: _Case) -> None:
        """Its leader waits for it no more: neither in sync nor, as it had caught up, about to be.

        In the epoch that begins then it counts once it holds all that was appended before. That is
        the trial of its disk: nothing else would show that what comes next can be written.
        """
        state, replica = self._ward.state_of(case.key), self._ward.find(case.key)
        if state is None or not self._is_other_active(state.leader):
            return
        part = replica.follower if replica is not None else None
        has_told = part is not None and part.agrees and part.leader_epoch == state.leader_epoch
        if has_told or self._broker_id in state.isr:
            await self._tell(case, Loss.NOTHING)

    async def _tell(self, case: _Case, loss: Loss) -> None:
        await self._reports.tell(case.key, loss)
        state = self._ward.state_of(case.key)
        if state is not None:
            case.told_epoch = max(case.told_epoch, state.leader_epoch - 1)
        logger.info("reported: %s loss=%s", _name(case.key), loss.name)

    async def _resign(self, case: _Case) -> bool:
        """Whether this replica, with rot, neither leads nor is waited for. While nobody else is in
        sync it goes on with all that can be read: nobody would have more.

        It loses no trust: the quorum finds another leader or leaves this one, also if all replicas
        have rotted, and say so at the same time.
        """
        image, state = self._ward.image(), self._ward.state_of(case.key)
        if state is None:
            return False
        if self._broker_id not in (state.leader, *state.isr):
            return True
        # Who is only eligible may lack what this leader has acknowledged with acks=1.
        if not any(map(image.is_active, {*state.isr} - {self._broker_id})):
            self._say_rot_stays(case)
            return False
        # Not for as long as it takes: by then this one may be the last in sync.
        with trio.move_on_after(TELLING_SECONDS_MAX):
            await self._tell(case, Loss.NOTHING)
            return True
        return False

    async def _tell_parted(self, case: _Case) -> bool:
        """Whether nothing counts on this replica, so that it may be cut where rot begins."""
        state = self._ward.state_of(case.key)
        if state is None or not self._is_other_active(state.leader):
            return False
        if self._broker_id in {*state.isr, *state.eligible}:
            case.is_damage_told = False  # that was before
        with trio.move_on_after(TELLING_SECONDS_MAX):
            await self._tell_damage(case)
        return case.is_damage_told

    def _say_rot_stays(self, case: _Case) -> None:
        replica = self._ward.find(case.key)
        if replica is not None and not case.has_said_rot:
            name, rot = replica.log.name, replica.log.rotten[0]
            logger.error("rot stays, no other replica is in sync: log=%s %s", name, rot)
            case.has_said_rot = True

    async def _tell_damage(self, case: _Case) -> None:
        if not case.is_damage_told:
            await self._tell(case, Loss.RECORDS)
            case.is_damage_told = True

    # -- what is done ----------------------------------------------------------------------

    async def _open(self, case: _Case) -> Replica | None:
        try:
            await self._ward.open_again(case.key)
        except StorageError as error:
            await self._hand_over(case)
            case.unreadable = case.unreadable + 1 if _is_unreadable(error) else 0
            if case.unreadable > UNREADABLE_TRIES:
                await self._begin_anew(case)
            raise
        return self._ward.find(case.key)

    async def _begin_anew(self, case: _Case) -> None:
        """What nobody else can give may be whole yet: a disk that cannot be read has its moods."""
        state = self._ward.state_of(case.key)
        if state is None or not self._is_other_active(state.leader):
            return
        await self._tell_damage(case)
        state = self._ward.state_of(case.key)
        if state is not None and self._has_other_leader(case, state.leader, state.leader_epoch):
            logger.warning("log is given up, and fetched again: %s", _name(case.key))
            await self._ward.discard(case.key)

    async def _reopen(self, case: _Case, replica: Replica) -> None:
        """A leader begins another epoch then: what it appended in this one may be gone."""
        try:
            log = await self._directory.reopen(replica.log)
        except StorageError:
            await self._hand_over(case)
            raise
        case.reopened_at = trio.current_time()
        await replica.replace_log(log)
        self._ward.on_repaired(case.key, replica)
        known = replica.assignment
        if replica.needs_epoch and known is not None and known.leader_epoch > case.told_epoch:
            await self._tell(case, Loss.NOTHING)

    async def _mend(self, case: _Case, replica: Replica) -> bool:
        """Whether it was put right, or cut: then the controller knows that it holds nothing, and
        who has the rest.
        """
        if replica.log.damage:
            await self._tell_damage(case)
        elif not await self._put_right(case, replica):
            return False
        known = replica.assignment
        if known is None or not (
            self._has_other_leader(case, known.leader, known.leader_epoch)
            or (replica.log.damage and self._is_elected_all_the_same(case, known))
        ):
            return False
        try:
            leads = known.leader == self._broker_id
            await replica.cut_damage(leads=leads, start_over=case.must_start_over)
        except StorageError as error:
            follows = not leads
            case.must_start_over = follows and isinstance(error.__cause__, CorruptRecord)
            raise
        self._ward.on_repaired(case.key, replica)
        return True

    async def _put_right(self, case: _Case, replica: Replica) -> bool:
        """Whether no rot is left, or only where the leader's log is another one: there it is cut,
        as any other follower's is.
        """
        if not await self._resign(case):
            return False
        known = replica.assignment
        if known is None or not self._has_other_leader(case, known.leader, known.leader_epoch):
            return False
        await self._rot_repair.put_right(replica, known)
        return not replica.log.rotten or await self._tell_parted(case)

    def _has_other_leader(self, case: _Case, leader: int, leader_epoch: int) -> bool:
        """As of a time after the last report."""
        return leader_epoch > case.told_epoch and self._is_other_active(leader)

    def _is_other_active(self, leader: int) -> bool:
        is_other = leader not in (NO_LEADER, self._broker_id)
        return is_other and self._ward.image().is_active(leader)

    def _is_elected_all_the_same(self, case: _Case, known: Assignment) -> bool:
        """Uncleanly, and after the last report."""
        is_chosen = known.leader == self._broker_id and known.is_recovering
        return is_chosen and known.leader_epoch > case.told_epoch


def _is_unreadable(error: StorageError) -> bool:
    """Not for want of room, nor of a right: then all may be whole."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in _UNREADABLE


def _name(key: PartitionKey) -> str:
    return f"topic={key.topic_id.hex()} partition={key.partition}"


# -- Damage reports -------------------------------------------------------------------------------
# Word to the controller of replicas that cannot be used, until it has taken it.
#
# Owns what is to be told: many partitions by one command, again and again, under whatever
# registration holds by then. Whoever tells waits until the answer is there: from that version of
# the metadata on the replica leads nothing that another one can lead, and is in no in-sync set,
# unless it has lost nothing and may have to lead. Who gives up waiting has nothing to tell any
# more.


TOLD_MAX = 500  # partitions of one command: it blocks every node while it is applied
PAUSE_SECONDS = 1.0


class DamageReportLink(Protocol):
    async def propose(self, command: AnyCommand) -> AnyResult:
        """On whichever node leads the quorum; raises RaftmqError."""


class DamageReports:
    """Tells nothing before `run`."""

    def __init__(
        self,
        broker_id: int,
        link: DamageReportLink,
        *,
        broker_epoch: Callable[[], int],
        catch_up: Callable[[], Awaitable[None]],
    ) -> None:
        """`catch_up()` returns once this node's image shows what was applied before the call."""
        self._broker_id, self._link, self._broker_epoch = broker_id, link, broker_epoch
        self._catch_up = catch_up
        self._waiting: dict[tuple[Loss, PartitionKey], trio.Event] = {}
        self._woken = trio.Event()

    async def tell(self, key: PartitionKey, loss: Loss) -> None:
        """Return once the quorum has applied it, and this node's image shows that."""
        told = self._waiting.setdefault((loss, key), trio.Event())
        self._woken.set()
        try:
            await told.wait()
        finally:
            if not told.statistics().tasks_waiting:
                self._forget(key, loss, told)

    def _forget(self, key: PartitionKey, loss: Loss, told: trio.Event) -> None:
        """The same may have been said anew since: that is told by another command."""
        if self._waiting.get((loss, key)) is told:
            del self._waiting[loss, key]

    async def run(self) -> NoReturn:
        while True:
            await self._woken.wait()
            self._woken = trio.Event()
            while self._waiting:
                problem = await self._tell_some()
                if problem:
                    logger.warning("damage not reported yet: reason=%s", problem)
                    await trio.sleep(PAUSE_SECONDS)

    async def _until_caught_up(self) -> None:
        """An image from before the report may name a leader that has been replaced."""
        while True:
            try:
                await self._catch_up()
            except RaftmqError as error:
                logger.warning("not known what became of a report: reason=%s", error)
                await trio.sleep(PAUSE_SECONDS)
            else:
                return

    async def _tell_some(self) -> str:
        """What is the matter; empty: it was applied. The gravest first."""
        loss = max(loss for loss, _ in self._waiting)
        keys = sorted(key for other, key in self._waiting if other is loss)[:TOLD_MAX]
        broker_epoch = self._broker_epoch()
        if broker_epoch == NO_EPOCH:
            return "this broker is not registered"
        command = ReportDamage(self._broker_id, broker_epoch, tuple(keys), loss)
        told = [self._waiting[loss, key] for key in keys]
        try:
            result = await self._link.propose(command)
        except RaftmqError as error:
            return str(error)
        if not isinstance(result, Done):
            return f"{result}"  # registered anew meanwhile: again, under that epoch
        await self._until_caught_up()
        for key, event in zip(keys, told, strict=True):
            self._forget(key, loss, event)
            event.set()
        return ""
