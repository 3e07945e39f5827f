"""A consumer as a member of a group: what is committed when, and whether its program is at work.

Owns the commit modes. Membership is `client/group/participation.py`'s, records are the consumer's.

Invariants: with "before" nothing is handed out that is not committed, and what was committed in
vain is handed out once, if at all. As long as the program waits for records, or is inside a
`processing` block, it is not late with asking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, Self, TypeVar

import anyio

from raftmq.client.consumer.batch import known_tenure, tenure_of
from raftmq.client.consumer.group_reader import end_of, epoch_before_end
from raftmq.client.group.effects import LossCause, State
from raftmq.client.group.member_shell import PAUSE_SECONDS, MemberShell
from raftmq.client.group.offsets import Position
from raftmq.client.group.pattern import PatternWatch
from raftmq.errors import IllegalGeneration, RaftmqError, RebalanceInProgress, UnknownMemberId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from random import Random
    from types import TracebackType

    from raftmq.client.consumer.batch import ConsumedBatch, PartitionOwnership, Work
    from raftmq.client.consumer.fetch_collector import FetchCollector
    from raftmq.client.consumer.group_reader import GroupReader, InFlightRecords
    from raftmq.client.consumer.options import GroupReading
    from raftmq.client.consumer.partition_state import Key
    from raftmq.client.consumer.subscription import Subscription
    from raftmq.client.group.member_options import MemberOptions
    from raftmq.client.group.offsets import MemberOffsets
    from raftmq.client.routing.cluster import Cluster


# -- Group commits --------------------------------------------------------------------------------
# Commits that a program waits for: those that it asks for, and those before it is handed more.
#
# Owns what a refusal means. While a group deals anew one is refused for a moment; that is repeated,
# as long as the partitions stay. Invariant: what was handed out in a tenure that is over is never
# committed, however long the commit waited for its turn.


# The partition may be somebody else's by now.
_REFUSED = (IllegalGeneration, RebalanceInProgress, UnknownMemberId)


class ConsumerCommits:
    def __init__(
        self, offsets: MemberOffsets, subscription: Subscription, member: MemberOptions
    ) -> None:
        self._offsets, self._subscription, self._member = offsets, subscription, member

    async def commit(self, work: Work | None) -> None:
        """Raises RaftmqError, see `Consumer.commit`."""
        if work is None:
            await self._insist(
                lambda: self._offsets.commit_done(is_all=True), self._at_stake(is_all=True)
            )
        else:
            key, tenure = (work.topic, work.partition), known_tenure(work)
            await self._insist(
                lambda: self._offsets.commit(lambda: self._positions(work)), {key: tenure}
            )

    async def commit_each(self) -> None:
        """What is done. What somebody else has now, somebody else will do again."""
        try:
            await self._insist(self._offsets.commit_done, self._at_stake(is_all=False))
        except RaftmqError as error:
            if not self._is_others_turn(error):
                raise

    async def commit_first(self, batch: ConsumedBatch) -> bool:
        """False: not now, or not any more."""
        try:
            await self._offsets.commit(lambda: self._positions(batch))
        except RaftmqError as error:
            if not (error.retriable or self._is_others_turn(error)):
                raise
            return False
        return True

    def _is_others_turn(self, error: RaftmqError) -> bool:
        """Not where somebody reads partitions of his own choice: he would wait for ever."""
        return isinstance(error, _REFUSED) and self._subscription.reads_what_is_dealt

    async def _insist(
        self,
        attempt: Callable[[], Awaitable[None]],
        at_stake: Mapping[Key, PartitionOwnership | None],
    ) -> None:
        """Until it is accepted, or one of these is over. Who is no member is refused for good."""
        refusal: RaftmqError | None = None
        while (over := self._over(at_stake)) is None:  # else nothing may be left to commit
            try:
                return await attempt()
            except _REFUSED as error:
                if not self._subscription.reads_what_is_dealt:
                    raise
                refusal = error
            if self._over(at_stake) is None:
                await anyio.sleep(PAUSE_SECONDS)
        raise too_late(over, at_stake[over], self._member) from refusal

    def _at_stake(self, *, is_all: bool) -> dict[Key, PartitionOwnership | None]:
        states = self._subscription.states
        return {key: states[key].tenure for key in self._offsets.news(is_all=is_all)}

    def _over(self, at_stake: Mapping[Key, PartitionOwnership | None]) -> Key | None:
        """One of them that is."""
        states = self._subscription.states
        for key, tenure in at_stake.items():
            if key not in states or states[key].tenure is not tenure:
                return key
        return None

    def _positions(self, work: Work) -> dict[Key, Position]:
        """Raises IllegalGeneration."""
        (key, end_offset), tenure = end_of(work), tenure_of(work)
        state = self._subscription.states.get(key)
        if state is None or tenure is None or state.tenure is not tenure or not tenure.topic_id:
            raise too_late(key, tenure, self._member)
        offset, epoch = state.behind(end_offset)
        if epoch is None:
            epoch = epoch_before_end(work)
        return {key: Position(tenure.topic_id, offset, epoch)}


# -- Processing -----------------------------------------------------------------------------------
# A block in which a program works on what it was handed out, for long or beside the iteration.


class Processing:
    """What `Consumer.processing` returns, for a `with` block."""

    def __init__(
        self,
        in_hand: InFlightRecords,
        work: Work,
        on_begun: Callable[[], None],
        on_ended: Callable[[], None],
    ) -> None:
        """Raises InvalidRequest: a copy of what was handed out."""
        known_tenure(work)
        self._in_hand, self._work = in_hand, work
        self._on_begun, self._on_ended = on_begun, on_ended
        self._token: int | None = None

    def __enter__(self) -> Self:
        assert self._token is None, "entered twice"
        self._token = self._in_hand.hold(self._work)
        self._on_begun()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._token is not None, "left before it was entered"
        self._in_hand.release(self._token, is_finished=error is None)
        self._on_ended()


# -- Group consumption ----------------------------------------------------------------------------


LEAVE_SECONDS_MAX = 5.0
LEAVE_HURRIED_SECONDS_MAX = 1.0  # after an error, or while it is cancelled
# So often it is seen how far a program is that gets records one by one.
LOOK_SECONDS_MIN, LOOK_SECONDS_MAX = 0.02, 1.0
LOOKS_PER_POLL = 20  # or more often, in `max_poll_interval_ms`

Found = TypeVar("Found")


class Way(NamedTuple, Generic[Found]):
    """In which form records are handed out: found where they lie, or made of a batch.

    Attributes:
        is_whole: all records of a batch count as handed out at once.
    """

    take: Callable[[int], Found | None]
    of_batch: Callable[[ConsumedBatch], Found]
    is_whole: bool


class BatchWait(Protocol):
    """Until `take` finds something."""

    async def __call__(self, take: Callable[[int], Found | None], records_max: int) -> Found: ...


class GroupConsumption:
    def __init__(
        self,
        cluster: Cluster,
        options: GroupReading,
        subscription: Subscription,
        reader: GroupReader,
        delivery: FetchCollector,
        *,
        random: Random,
    ) -> None:
        self._cluster, self._options, self._subscription = cluster, options, subscription
        self._reader, self._delivery = reader, delivery
        self._is_dealt = subscription.reads_what_is_dealt
        topics = subscription.topics if self._is_dealt else ()
        self._member = MemberShell(cluster, options, topics, reader, random=random)
        self._own = list(subscription.states)  # chosen by the program itself
        self._commits = ConsumerCommits(self._member.offsets, subscription, options.member)
        self._is_waiting = False  # the program, for records
        self._opened = anyio.Event()

    @property
    def problem(self) -> Exception | None:
        return self._member.problem

    @property
    def generation(self) -> int:
        return self._member.membership.generation

    @property
    def member_id(self) -> str:
        return self._member.membership.member_id

    async def run(self) -> None:
        """Until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._member.run)
            tasks.start_soon(self._watch_records)
            if self._options.pattern is not None:
                watch = PatternWatch(self._cluster, self._options.pattern, self._member.subscribe)
                tasks.start_soon(watch.run)

    async def begin(self) -> None:
        """Partitions that the program has chosen are read from where they are committed."""
        if self._own:
            await self._member.resume(self._own)

    async def leave(self, error: BaseException | None) -> Exception | None:
        """What was handed out counts as done, unless the program has failed over it: `error`.

        What has gone wrong with that, and was not told before.
        """
        known = self.problem
        is_abandoned = error is not None and not isinstance(error, Exception)
        seconds = LEAVE_SECONDS_MAX if error is None else LEAVE_HURRIED_SECONDS_MAX
        with anyio.move_on_after(seconds, shield=True):
            if is_abandoned:
                await self._member.leave_at_once()
            else:
                await self._member.leave(is_clean=error is None)
        return self.problem if known is None else None

    def on_metadata(self) -> None:
        if self._is_dealt:
            self._member.on_metadata(self._subscription.topics)

    # -- records ---------------------------------------------------------------------------

    async def next(self, way: Way[Found], records_max: int, wait_for: BatchWait) -> Found:
        """What `wait_for` finds, committed before or after as the commit mode says."""
        self._is_waiting = True
        self._member.on_asked()
        try:
            if self._options.commit == "before":
                found = await self._committed_first(way, records_max, wait_for)
            elif self._options.commit == "record":
                await self._commits.commit_each()
                found = await wait_for(way.take, 1)
            else:
                found = await wait_for(way.take, records_max)
            if not way.is_whole:
                self._opened.set()
            return found
        finally:  # also whoever has stopped waiting is at something else now
            self._is_waiting = False
            self._on_busy()

    def on_look(self) -> None:
        """For something to hand out: after a pause of the process it may be others'."""
        self._member.on_look()
        if self._member.membership.state in (State.OUTSIDE, State.LEAVING):
            self._member.on_asked()

    def _on_busy(self) -> None:
        """The program works now, unless it waits, or has said that it takes its time."""
        if not self._is_waiting and not self._reader.in_hand.is_held:
            self._member.on_handed_out()

    async def _watch_records(self) -> None:
        """Whoever gets records one by one asks for each, but tells nobody: that costs too much."""
        options, one_by_one = self._options, self._reader.one_by_one
        seconds = min(LOOK_SECONDS_MAX, options.member.poll_seconds_max / LOOKS_PER_POLL)
        if options.commit == "batch":
            seconds = min(seconds, max(LOOK_SECONDS_MIN, options.commit_interval_ms / 1000))
        while True:
            self._opened = anyio.Event()
            while one_by_one.is_open:
                await anyio.sleep(seconds)
                if one_by_one.has_moved():
                    self._reader.on_progress()
                    self._on_busy()
            await self._opened.wait()

    async def _committed_first(
        self, way: Way[Found], records_max: int, wait_for: BatchWait
    ) -> Found:
        """Whatever happens to the partition meanwhile closes the batch: then it was committed in
        vain, and whoever reads on commits that it was.
        """
        delivery = self._delivery
        while True:
            batch = await wait_for(delivery.open_batch, records_max)
            is_ours = False
            try:
                found = _made(way, batch)
                is_committed = await self._commits.commit_first(batch)
                self._member.on_look()
                is_ours = is_committed and delivery.has_open(batch)
            finally:
                if not is_ours and delivery.has_open(batch):
                    delivery.close(None)
            if is_ours and way.is_whole:
                delivery.end_batch()
            if is_ours:
                return found
            await anyio.sleep(PAUSE_SECONDS)

    # -- what a program says ---------------------------------------------------------------

    async def commit(self, work: Work | None) -> None:
        """Raises RaftmqError, see `Consumer.commit`."""
        await self._commits.commit(work)

    async def committed(self, topic: str, partition: int) -> int | None:
        """Raises RaftmqError."""
        return await self._member.offsets.find_one((topic, partition))

    def processing(self, work: Work) -> Processing:
        """Raises InvalidRequest, see `Consumer.processing`."""
        return Processing(self._reader.in_hand, work, self._member.on_asked, self._on_busy)


def _made(way: Way[Found], batch: ConsumedBatch) -> Found:
    """Raises RaftmqError: what cannot be decoded is not committed, either."""
    try:
        return way.of_batch(batch)
    except RaftmqError as error:
        raise error.at(batch.topic, batch.partition) from error


# -- Refused --------------------------------------------------------------------------------------
# What a program is told whose commit comes too late: why, who has the records, what to do. Pure.
#
# Coordinators say what they think of a member, in words that a member understands; a program has
# never joined anything itself.


def too_late(
    key: Key, tenure: PartitionOwnership | None, member: MemberOptions
) -> IllegalGeneration:
    """The commit of something that was handed out in a tenure that is over."""
    where = f"{key[0]}-{key[1]}"
    cause = LossCause.OTHER if tenure is None else tenure.cause
    if cause is LossCause.OTHER:
        return IllegalGeneration(
            f"{where} is not this member's any more, or was others' since: nothing was committed, "
            "and whoever reads it now is given these records again; go on with what comes next"
        )
    why, way_out = _not_asked(member) if cause is LossCause.NOT_ASKED else _not_finished(member)
    return IllegalGeneration(
        f"{where} was taken from this member of group {member.group!r}, as its program {why}: "
        "nothing was committed, and whoever reads it now is given these records again. "
        f"{way_out}, or a smaller max_poll_records"
    )


def _not_asked(member: MemberOptions) -> tuple[str, str]:
    return (
        f"has asked for nothing for max_poll_interval_ms = {member.max_poll_interval_ms}",
        "Do what takes long inside `with consumer.processing(...)`, or take a longer "
        "max_poll_interval_ms",
    )


def _not_finished(member: MemberOptions) -> tuple[str, str]:
    return (
        "has not finished with it while the group waited, for rebalance_timeout_ms = "
        f"{member.longest_rebalance_ms}",
        "Take a longer rebalance_timeout_ms",
    )
