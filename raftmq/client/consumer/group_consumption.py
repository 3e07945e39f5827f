"""A consumer as a member of a group: what is committed when, and whether its program is at work.

Owns the commit modes. Membership is `client/group/participation.py`'s, records are the consumer's.

Invariants: with "before" nothing is handed out that is not committed, and what was committed in
vain is handed out once, if at all. As long as the program waits for records, or is inside a
`processing` block, it is not late with asking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import anyio

from raftmq.client.consumer.group_commits import GroupCommits
from raftmq.client.consumer.processing import Processing
from raftmq.client.group.changes import PAUSE_SECONDS
from raftmq.client.group.participation import Participation
from raftmq.client.group.pattern import PatternWatch
from raftmq.client.group.states import State
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from raftmq.client.consumer.batch import ConsumedBatch
    from raftmq.client.consumer.delivery import Delivery
    from raftmq.client.consumer.group_options import GroupReading
    from raftmq.client.consumer.group_reader import GroupReader
    from raftmq.client.consumer.subscription import Subscription
    from raftmq.client.consumer.tenure import Work
    from raftmq.client.routing.cluster import Cluster

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


class Waiting(Protocol):
    """Until `take` finds something."""

    async def __call__(self, take: Callable[[int], Found | None], records_max: int) -> Found: ...


class GroupConsumption:
    def __init__(
        self,
        cluster: Cluster,
        options: GroupReading,
        subscription: Subscription,
        reader: GroupReader,
        delivery: Delivery,
        *,
        random: Random,
    ) -> None:
        self._cluster, self._options, self._subscription = cluster, options, subscription
        self._reader, self._delivery = reader, delivery
        self._is_dealt = subscription.reads_what_is_dealt
        topics = subscription.topics if self._is_dealt else ()
        self._member = Participation(cluster, options, topics, reader, random=random)
        self._own = list(subscription.states)  # chosen by the program itself
        self._commits = GroupCommits(self._member.offsets, subscription, options.member)
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

    async def next(self, way: Way[Found], records_max: int, wait_for: Waiting) -> Found:
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

    async def _committed_first(self, way: Way[Found], records_max: int, wait_for: Waiting) -> Found:
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
