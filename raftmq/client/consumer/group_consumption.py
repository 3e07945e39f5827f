"""Commit modes of a group member, `processing` blocks, and the poll interval of its program.

Kafka: ConsumerCoordinator's offset commits. Membership itself is in `client/group/member_shell.py`,
records are the consumer's.

Invariants: with "before" nothing is handed out that is not committed, and a batch that was
committed but then revoked is handed out once at most. While the program waits for records, or is
inside a `processing` block, `max_poll_interval_ms` does not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, Self, TypeVar

import anyio

from raftmq.client.consumer.batch import known_ownership
from raftmq.client.consumer.group_commits import ConsumerCommits, GroupProgress
from raftmq.client.dead_letters.moves import Moves
from raftmq.client.group.effects import State
from raftmq.client.group.member_shell import PAUSE_SECONDS, MemberShell
from raftmq.client.group.pattern import PatternWatch
from raftmq.client.processing.alone import died, is_poison, is_suspect
from raftmq.errors import (
    IllegalGeneration,
    InvalidTransaction,
    RaftmqError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from random import Random
    from types import TracebackType

    from raftmq.client.consumer.batch import AnyBatch, ConsumedBatch, Work
    from raftmq.client.consumer.fetch_collector import FetchCollector
    from raftmq.client.consumer.group_reader import GroupReader
    from raftmq.client.consumer.options import GroupReading
    from raftmq.client.consumer.partition_state import Key
    from raftmq.client.consumer.record import AnyRecord, PartitionOwnership
    from raftmq.client.consumer.subscription import Subscription
    from raftmq.client.group.offsets import MemberOffsets
    from raftmq.client.routing.cluster import Cluster


# -- Processing blocks ----------------------------------------------------------------------------
# A block in which a program works on records for long, or beside the iteration.


class Processing:
    """What `Consumer.processing` returns, for a `with` block."""

    def __init__(
        self,
        reader: GroupReader,
        work: Work,
        on_begun: Callable[[], None],
        on_ended: Callable[[], None],
    ) -> None:
        """Raises InvalidRequest: a copy of what was handed out."""
        known_ownership(work)
        self._reader, self._work = reader, work
        self._on_begun, self._on_ended = on_begun, on_ended
        self._token: int | None = None

    def __enter__(self) -> Self:
        assert self._token is None, "entered twice"
        self._token = self._reader.in_flight_records.hold(self._work)
        self._on_begun()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._token is not None, "left before it was entered"
        newest = self._reader.one_by_one.in_flight
        self._reader.in_flight_records.release(
            self._token, is_finished=error is None, newest=newest
        )
        self._on_ended()


# -- Suspect records ------------------------------------------------------------------------------
# Records of partitions whose owners have crashed: handed out one at a time, each noted in the
# quorum before, and committed after it (`client/processing/alone.py`).


class RejectCall(Protocol):
    """`Consumer.reject`."""

    async def __call__(
        self, record: AnyRecord, error: BaseException | str | None = None, *, attempts: int = 1
    ) -> object: ...


class SuspectRecords:
    """Hands out alone what may have ended processes, and sets aside what has ended too many, where
    the consumer has a policy with dead letters.
    """

    def __init__(
        self,
        options: GroupReading,
        offsets: MemberOffsets,
        commits: ConsumerCommits,
        reader: GroupReader,
        delivery: FetchCollector,
        reject: RejectCall,
    ) -> None:
        self._options, self._offsets, self._commits = options, offsets, commits
        self._reader, self._delivery, self._reject = reader, delivery, reject
        policy = options.retry
        self._policy = policy if policy is not None and policy.dead_letters else None
        # By partition, how many more records are handed out alone in an ownership
        self._left: dict[Key, tuple[PartitionOwnership | None, int]] = {}
        self._noted: ConsumedBatch | None = None  # or may be, in the quorum
        self._is_one_next = False  # open a batch of one record next

    @property
    def are_watched(self) -> bool:
        """With one record in hand anyway, or a policy; `process` has rules of its own."""
        commit = self._options.commit
        is_asked = commit == "record" or (commit == "batch" and self._policy is not None)
        return is_asked and not self._reader.in_flight_records.are_taken_over

    async def end_alone(self) -> None:
        """More is asked for. Raises RaftmqError: what was handed out is not committed."""
        await self._take_back()
        if self._options.commit == "record":
            await self._commits.commit_each()

    async def _take_back(self) -> None:
        """Before anything else is handed out, also where what was noted is not finished: it may be
        put off, or in a `processing` block.
        """
        if self._noted is not None:
            await self._commits.end_first(self._noted)
            self._noted = None

    def open_batch(self, records_max: int) -> ConsumedBatch | None:
        """The next batch; of a suspect partition of one record."""
        is_one, self._is_one_next = self._is_one_next, False
        is_one = is_one or self._options.commit == "record"
        batch = self._delivery.open_batch(1 if is_one else records_max)
        if batch is None:  # nothing is ready: look again as before
            self._is_one_next = is_one
            return None
        key = batch.topic, batch.partition
        if is_suspect(self._offsets.crashes(key)) and not self._records_left(batch):
            self._left[key] = batch.ownership, records_max
        if len(batch) > 1 and self._records_left(batch):
            self._delivery.close(None)  # its turn comes again; until then others have one each
            self._is_one_next = True
            return self.open_batch(records_max)
        return batch

    def _records_left(self, batch: ConsumedBatch) -> int:
        """How many more of its partition are handed out alone."""
        ownership, left = self._left.get((batch.topic, batch.partition), (None, 0))
        return left if ownership is batch.ownership else 0

    async def note(self, batch: ConsumedBatch) -> bool:
        """Before it is handed out. False: not now, or not any more.

        Raises:
            RaftmqError: it is to be set aside, and cannot be.
        """
        await self._take_back()  # of one that was noted, and then not handed out
        key, left = (batch.topic, batch.partition), self._records_left(batch)
        # Beside records of a `processing` block it is not alone.
        if not left or self._reader.in_flight_records.is_held:
            return True
        deaths = self._offsets.crashes(key, batch.base_offset)
        if self._policy is not None and is_poison(deaths, self._policy.attempts):
            await self._set_aside(batch, deaths)
            return False
        self._noted = batch
        is_alone = await self._commits.note_first(batch)
        if is_alone:
            self._left[key] = batch.ownership, left - 1
        return is_alone

    async def _set_aside(self, batch: ConsumedBatch, deaths: int) -> None:
        [record] = batch.raw
        try:
            await self._reject(record, died(deaths), attempts=deaths)
        except IllegalGeneration:  # its new owner sets it aside
            return
        if self._delivery.has_open(batch):
            self._delivery.end_batch()
            await self._commits.commit_each()


# -- Group consumption ----------------------------------------------------------------------------


# For the last commit and LeaveGroup; then the session timeout ends the membership
LEAVE_SECONDS_MAX = 5.0
LEAVE_HURRIED_SECONDS_MAX = 1.0  # after an error, or when cancelled: the program wants to end
# How often the progress of a program that gets single records is checked, in seconds.
LOOK_SECONDS_MIN, LOOK_SECONDS_MAX = 0.02, 1.0
LOOKS_PER_POLL = 20  # checks in one max_poll_interval_ms: late by 5 % at most

Found = TypeVar("Found")


class HandOutForm(NamedTuple, Generic[Found]):
    """How records are handed out: taken as they are, or made from a batch.

    Attributes:
        take: with a number of records; None: there are none.
        is_whole: all records of a batch count as handed out at once.
    """

    take: Callable[[int], Found | None]
    of_batch: Callable[[AnyBatch], Found]
    is_whole: bool


class BatchWait(Protocol):
    """Waits until `take` finds something."""

    async def __call__(self, take: Callable[[int], Found | None], records_max: int) -> Found: ...


class GroupConsumption:
    """Ties a consumer's records to its group membership.

    Attributes:
        member: of the group.
        commits: those that the program waits for.
        moves: of records with which the program fails.
        is_dealt: the group assigns the partitions; else the program has chosen them (`assign`).
    """

    def __init__(
        self,
        cluster: Cluster,
        options: GroupReading,
        subscription: Subscription,
        reader: GroupReader,
        delivery: FetchCollector,
        *,
        random: Random,
        reject: RejectCall,
    ) -> None:
        self._cluster, self._options, self._subscription = cluster, options, subscription
        self._reader, self._delivery = reader, delivery
        self.is_dealt = subscription.reads_what_is_dealt
        topics = subscription.topics if self.is_dealt else ()
        self.member = MemberShell(cluster, options, topics, reader, random=random)
        self._own = list(subscription.states)  # chosen by the program itself (`assign`)
        self.commits = ConsumerCommits(self.member.offsets, subscription, options)
        self.moves = Moves(options.member.group, options.retry, random)
        self._suspects = SuspectRecords(
            options, self.member.offsets, self.commits, reader, delivery, reject
        )
        if subscription.owner is not None:
            subscription.owner.is_member(self)
        self._is_waiting = False  # the program waits for records
        self._is_in_doubt = False  # see `doubt_progress`
        self._opened = anyio.Event()

    async def run(self) -> None:
        """Runs until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.member.run)
            tasks.start_soon(self._watch_records)
            if self._options.pattern is not None:
                watch = PatternWatch(self._cluster, self._options.pattern, self._subscribe)
                tasks.start_soon(watch.run)

    def _subscribe(self, topics: Iterable[str]) -> None:
        """To those that match the pattern, and what is read along."""
        self.member.subscribe([*topics, *self._options.read_along])

    async def begin(self) -> None:
        """With `assign`: begin at the committed offsets."""
        if self._own:
            # Ends when the coordinator has answered with the committed offsets.
            await self.member.resume(self._own)

    async def leave(self, error: BaseException | None, *, is_finished: bool) -> Exception | None:
        """Commit what is done, and leave the group.

        Args:
            error: of the program.
            is_finished: what was handed out last is done, too.

        Returns:
            What has gone wrong with that, unless it was raised before.
        """
        known = self.member.problem
        # Cancelled: the member's tasks end, too.
        is_abandoned = error is not None and not isinstance(error, Exception)
        seconds = LEAVE_SECONDS_MAX if error is None else LEAVE_HURRIED_SECONDS_MAX
        # Shielded: a cancelled block still leaves the group, so that others need not wait for its
        # session.
        try:
            with anyio.move_on_after(seconds, shield=True):
                if is_abandoned:
                    await self.member.leave_at_once()
                else:
                    await self.member.leave(is_clean=is_finished)
        finally:
            self.member.end()
        return self.member.problem if known is None else None

    def on_metadata(self) -> None:
        if self.is_dealt:
            self.member.on_metadata(self._subscription.topics)

    # -- records ---------------------------------------------------------------------------

    async def next(self, way: HandOutForm[Found], records_max: int, wait_for: BatchWait) -> Found:
        """What `wait_for` finds, committed before or after as the commit mode says."""
        self._is_waiting = True
        self.member.on_asked()
        try:
            if self._options.commit == "before":
                open_batch, commit = self._delivery.open_batch, self.commits.commit_first
                found = await self._committed_first(way, records_max, wait_for, open_batch, commit)
            elif self._suspects.are_watched:
                await self._suspects.end_alone()
                find, note = self._suspects.open_batch, self._suspects.note
                found = await self._committed_first(way, records_max, wait_for, find, note)
            else:
                found = await wait_for(way.take, records_max)
            if not way.is_whole:  # single records: `_watch_records` checks their progress
                self._opened.set()
            return found
        finally:  # also when the wait was cancelled
            self._is_waiting = False
            self._on_busy()

    def on_look(self) -> None:
        """Before records are handed out: after a pause of the process, the partitions may be
        another member's.
        """
        self.member.on_look()
        # Not a member, but waiting for records: the program is ready to take part.
        if self.member.membership.state in (State.OUTSIDE, State.LEAVING):
            self.member.on_asked()

    def _on_busy(self) -> None:
        """The program works now, unless it waits or is in a `processing` block: the poll interval
        counts.
        """
        if not self._is_waiting and not self._reader.in_flight_records.is_held:
            self.member.on_handed_out()

    async def _watch_records(self) -> None:
        """Check the progress of a program that iterates over single records: a call per record
        would cost too much.
        """
        options, one_by_one = self._options, self._reader.one_by_one
        seconds = min(LOOK_SECONDS_MAX, options.member.poll_seconds_max / LOOKS_PER_POLL)
        # Progress is committed in the background, so it must be seen at least that often.
        if options.commit == "batch":
            seconds = min(seconds, max(LOOK_SECONDS_MIN, options.commit_interval_ms / 1000))
        while True:
            self._opened = anyio.Event()
            while one_by_one.is_open:
                await anyio.sleep(seconds)  # then look how far the program has come
                if one_by_one.has_moved():
                    self._reader.events.on_finished()
                    self._on_busy()
            # Until the next batch is opened.
            await self._opened.wait()

    async def _committed_first(
        self,
        way: HandOutForm[Found],
        records_max: int,
        wait_for: BatchWait,
        open_batch: Callable[[int], ConsumedBatch | None],
        commit: Callable[[ConsumedBatch], Awaitable[bool]],
    ) -> Found:
        """Commit something of a batch, then hand it out. If its partition is revoked, or sought,
        meanwhile, the batch is closed; if all of it was committed, its records are lost to the
        group, as "before" allows.

        Args:
            commit: False: not now, or not any more, or it is not to be handed out.
        """
        delivery = self._delivery
        while True:
            batch = await wait_for(open_batch, records_max)
            is_ours = False
            try:
                found = _made(way, batch)
                # A seek or rebalance during this await closes the batch.
                is_committed = await commit(batch)
                self.member.on_look()
                is_ours = is_committed and delivery.has_open(batch)
            finally:
                # Not committed, or cancelled: the batch comes again.
                if not is_ours and delivery.has_open(batch):
                    delivery.close(None)
            # A batch counts as handed out at once; single records one by one.
            if is_ours and way.is_whole:
                delivery.end_batch()
            if is_ours:
                return found
            # A refused commit: the coordinator may accept after the rebalance.
            await anyio.sleep(PAUSE_SECONDS)

    @property
    def group(self) -> str:
        """Its name."""
        return self._options.member.group

    @property
    def commits_by_transaction(self) -> bool:
        return self._options.commits_by_transaction

    def check_loop(self) -> None:
        """Raises InvalidRequest in another event loop."""
        self._cluster.check_loop()

    def doubt_progress(self) -> None:
        """Records were handed out that may be committed, or not: whatever is committed from now on
        might pass over them, or count them twice.
        """
        self._is_in_doubt = True

    def transaction_progress(self) -> GroupProgress:
        """For one transaction, empty.

        Raises:
            InvalidTransaction: the consumer commits otherwise, or its progress is in doubt.
        """
        if not self._options.commits_by_transaction:
            raise InvalidTransaction(
                f'commit="{self._options.commit}": this consumer of group '
                f"{self._options.member.group!r} commits otherwise, which a transaction must not "
                'meet; nothing was done: open it with commit="transaction", or '
                'delivery="exactly_once"'
            )
        group = self._options.member.group
        if self._is_in_doubt:
            raise InvalidTransaction(
                f"this consumer of group {group!r} may stand behind records that have no result: "
                "exactly_once has ended with records in hand, or in the midst of a commit; nothing "
                "was done: open the consumer anew, it goes on where its group stands"
            )
        return GroupProgress(group, self.commits, self.member.membership)

    def processing(self, work: Work) -> Processing:
        """Raises InvalidRequest, see `Consumer.processing`."""
        self._cluster.check_loop()
        return Processing(self._reader, work, self.member.on_asked, self._on_busy)


def _made(way: HandOutForm[Found], batch: ConsumedBatch) -> Found:
    """Raises RaftmqError: a batch that cannot be decoded must not be committed."""
    try:
        return way.of_batch(batch)
    except RaftmqError as error:
        raise error.at(batch.topic, batch.partition) from error


def member_that_read(work: Work) -> GroupConsumption:
    """The member that has handed it out.

    Raises:
        InvalidRequest: it is a copy, or not of a member of a group.
        IllegalGeneration: that consumer is gone.
    """
    owner = known_ownership(work).owner
    member = None if owner is None else owner.member
    if not isinstance(member, GroupConsumption):
        raise IllegalGeneration(
            f"{work.topic}-{work.partition}: the consumer that has handed this out is closed, and "
            "its partitions are others' now: nothing was committed"
        )
    return member
