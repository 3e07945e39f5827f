"""The consumer's fetch tasks: one per leader, and one that refreshes metadata.

Owns tasks, waiting and cancelling. `fetch_plan.py` decides what is requested, `fetch_response.py`
what an answer means. An idle long poll is dropped when another partition of the same broker is
wanted; the next request brings all that its answer would have.
"""

from __future__ import annotations

import logging
from math import inf
from typing import TYPE_CHECKING

import anyio

from raftmq.errors import RaftmqError, RemoteProtocolError, UnsupportedVersion
from raftmq.wire.messages.corruption import CorruptionVerdict, ReportCorruption

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from anyio.abc import TaskGroup

    from raftmq.client.consumer.fetch_collector import FetchCollector
    from raftmq.client.consumer.fetch_plan import FetchPlan, PartitionRequest, PlannedRequest
    from raftmq.client.consumer.fetch_response import FetchResponses
    from raftmq.client.consumer.partition_state import ConsumedPartition
    from raftmq.client.consumer.subscription import Subscription
    from raftmq.client.routing.cluster import Cluster
    from raftmq.rpc.reply import Answer


logger = logging.getLogger("raftmq.client")


# -- Metadata watch -------------------------------------------------------------------------------
# The task that refreshes the metadata of the topics that are read.
#
# Owns the pace. Topics in doubt are refreshed at once (`Refreshing` slows down while nothing
# changes); outdated or incomplete ones now and then.


LOOK_SECONDS = 0.5  # how often topics without a leader are refreshed, and all are checked
OUTDATED_SECONDS_MIN = 0.5  # between two refreshes only because a broker named a newer version
# Without another reason: an idle consumer gets no answers that name versions
REFRESH_SECONDS = 10.0
ANSWER_SECONDS_MAX = 5.0  # for one refresh; the next is due soon anyway


class MetadataWatch:
    """Refreshes what is due: `refresh` and `wait` take turns. After each, new leaders are found."""

    def __init__(self, cluster: Cluster, subscription: Subscription) -> None:
        self._cluster, self._subscription = cluster, subscription
        self._asked_at = -inf
        self._wanted = anyio.Event()

    def look(self) -> None:
        """Wake the task if a topic is in doubt or outdated now."""
        # Called after each answer, so it only wakes the task when there is something to do.
        if not self._wanted.is_set() and self._due(anyio.current_time()):
            self._wanted.set()

    def wake(self) -> None:
        """A leader that is known already has no task yet."""
        self._wanted.set()

    async def refresh(self) -> list[ConsumedPartition]:
        """Refresh what is due, and apply it. Returns the partitions that have a new error."""
        self._wanted = anyio.Event()
        due = self._due(anyio.current_time())
        if due:
            await self._ask(due)
        return self._subscription.on_metadata(now=anyio.current_time())

    async def wait(self) -> None:
        """Until `wake`, until `look` finds a reason, or until half a second has passed."""
        with anyio.move_on_after(LOOK_SECONDS):
            await self._wanted.wait()

    def _due(self, now: float) -> list[str]:
        return [topic for topic in self._subscription.topics if self._is_due(topic, now)]

    def _is_due(self, topic: str, now: float) -> bool:
        """1. Unknown or in doubt. 2. Outdated. 3. Without all leaders, or long ago."""
        routes = self._cluster.routes
        if not routes.use(topic):
            return True
        known = routes.topic(topic)
        assert known is not None, "used, and not known"
        if self._cluster.newest_version > known.version:
            return now - self._asked_at >= OUTDATED_SECONDS_MIN
        # Others of this client ask, too: a consumer that begins relies on what they heard just now,
        # and asks itself soon.
        is_settled = known.is_led or self._subscription.is_awaited(topic)
        is_patient = is_settled and self._asked_at > -inf
        silence = now - max(self._asked_at, known.told_at)
        return silence >= (REFRESH_SECONDS if is_patient else LOOK_SECONDS)

    async def _ask(self, topics: list[str]) -> None:
        self._asked_at = anyio.current_time()
        problems: list[RaftmqError] = []
        async with anyio.create_task_group() as tasks:
            for topic in topics:
                tasks.start_soon(self._refresh, topic, problems)
        if problems:  # no broker answers: no topic counts as missing
            self._subscription.on_unreachable()

    async def _refresh(self, topic: str, problems: list[RaftmqError]) -> None:
        deadline = anyio.current_time() + ANSWER_SECONDS_MAX
        try:
            await self._cluster.refresh(topic, deadline=deadline)
        except RaftmqError as error:  # tried again when due
            problems.append(error)


# -- Leaders --------------------------------------------------------------------------------------
# Which brokers are fetched from, and what wakes their tasks: state that the tasks share with what
# hands records out, seeks and assigns.


# A dropped long poll keeps occupying the broker, so it is dropped 20 ms after it was sent at the
# earliest.
OUT_SECONDS_MIN = 0.02


class _Leader:
    """A broker that leads partitions, as its fetch task sees it.

    Attributes:
        question: the cancel scope of the request in flight.
        is_failing: the last request failed.
    """

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.question: anyio.CancelScope | None = None
        self.asked_at = 0.0
        self.is_failing = False
        self._woken = anyio.Event()

    def wake(self) -> None:
        self._woken.set()

    async def wait(self, until: float) -> None:
        """Until woken, or `until`."""
        with anyio.CancelScope(deadline=until):
            # Woken by changes of a partition, or by metadata.
            await self._woken.wait()

    def begin(self) -> None:
        """Reset the wake-up: the next step sees all that caused it."""
        if self._woken.is_set():
            self._woken = anyio.Event()

    def drop_question(self, now: float) -> None:
        if self.question is not None:
            self.question.deadline = max(now, self.asked_at + OUT_SECONDS_MIN)


class FetchLeaders:
    """All leaders of one consumer.

    Args:
        now: the time, also in a callback of the loop: programs seek there.
    """

    def __init__(self, plan: FetchPlan, watch: MetadataWatch, now: Callable[[], float]) -> None:
        self._plan, self._watch, self._now = plan, watch, now
        self._by_id: dict[int, _Leader] = {}

    def on_change(self, state: ConsumedPartition) -> None:
        """What is wanted of a partition may have changed."""
        broker_id = self._plan.leader_of(state)
        # No leader is known: the metadata watch will find it.
        if broker_id is None:
            return
        leader = self._by_id.get(broker_id)
        # Assigned just now, and the first partition of this leader
        if leader is None:
            self._watch.wake()
            return
        leader.wake()
        if leader.question is not None:
            now = self._now()
            if self._plan.is_late_for(state, leader.broker_id, now=now):
                leader.drop_question(now)

    def take_new(self) -> list[_Leader]:
        """Leaders that have no task yet."""
        found = [_Leader(broker_id) for broker_id in self._plan.leaders() - self._by_id.keys()]
        self._by_id |= {leader.broker_id: leader for leader in found}
        return found

    def wake_all(self) -> None:
        """Partitions may have moved."""
        now = self._now()
        for leader in self._by_id.values():
            leader.wake()
            if self._plan.is_late(leader.broker_id, now=now):
                leader.drop_question(now)


# -- Record signal --------------------------------------------------------------------------------


class RecordSignal:
    """Wakes the program's task when there may be records to hand out, or an error to raise."""

    def __init__(self, collector: FetchCollector) -> None:
        self._collector, self._changed = collector, anyio.Event()

    def on_news(self, states: Iterable[ConsumedPartition] = ()) -> None:
        """These may have records to hand out, or an error."""
        for state in states:
            self._collector.offer(state)
        self._changed.set()

    async def wait(self) -> None:
        """Until the next news."""
        self._changed = anyio.Event()
        await self._changed.wait()  # set by `on_news`, which also the end of the consumer calls


# -- Fetcher --------------------------------------------------------------------------------------


REPORT_SECONDS_MAX = 5.0  # a report of damage is only a help for the broker


class Fetcher:
    """All fetch tasks of one consumer.

    Args:
        on_news: called with partitions that may have records to hand out.
    """

    def __init__(
        self,
        cluster: Cluster,
        watch: MetadataWatch,
        plan: FetchPlan,
        leaders: FetchLeaders,
        responses: FetchResponses,
        on_news: Callable[[Iterable[ConsumedPartition]], None],
    ) -> None:
        self._cluster, self._watch, self._plan, self._leaders = cluster, watch, plan, leaders
        self._responses, self._on_news = responses, on_news
        self._tasks: TaskGroup | None = None  # of `run`: only a running loop has one

    async def run(self, on_metadata: Callable[[], None]) -> None:
        """Runs until cancelled. `on_metadata` is called when metadata of a topic have come."""
        async with anyio.create_task_group() as self._tasks:
            while True:
                failed = await self._watch.refresh()
                self._find_leaders()
                on_metadata()
                self._on_news(failed)
                await self._watch.wait()

    def _find_leaders(self) -> None:
        """Start tasks for new leaders; wake all."""
        assert self._tasks is not None, "not running"
        for leader in self._leaders.take_new():
            self._tasks.start_soon(self._serve, leader)
        self._leaders.wake_all()

    async def _serve(self, leader: _Leader) -> None:
        broker_id = leader.broker_id
        while True:
            # Waits while the broker throttles this client.
            await self._cluster.wait_allowed(broker_id, deadline=inf)
            leader.begin()
            now = anyio.current_time()
            question = self._plan.ask(broker_id, now=now)
            if question is None:
                # Nothing to fetch: until a partition changes, or the next backoff is over.
                await leader.wait(self._plan.wake_at(broker_id, now=now))
            else:
                await self._ask(leader, question)

    async def _ask(self, leader: _Leader, question: PlannedRequest) -> None:
        outcome: Answer | RaftmqError | None = None
        leader.asked_at = anyio.current_time()
        seconds = question.wait_seconds + self._responses.answer_seconds(leader.broker_id)
        try:
            with anyio.CancelScope() as leader.question:
                outcome = await self._cluster.ask(
                    leader.broker_id, question.body, deadline=leader.asked_at + seconds
                )
        except RaftmqError as error:
            outcome = error
        finally:
            leader.question = None
            self._plan.end(question)
        # None: the long poll was dropped, which is no failure.
        if outcome is not None:
            self._take_in(leader, question, outcome)

    def _take_in(
        self, leader: _Leader, question: PlannedRequest, outcome: Answer | RaftmqError
    ) -> None:
        now, places = anyio.current_time(), self._cluster.routes
        try:
            if isinstance(outcome, RaftmqError):
                raise outcome
            changed = self._responses.on_answer(question, outcome, now=now)
            leader.is_failing = False
        # No answer, or one that does not fit the request.
        except RaftmqError as error:
            self._note_failure(leader, error)
            changed = self._responses.on_failure(question, error, now=now)
        for asked in self._responses.take_refused():
            assert self._tasks is not None, "not running"
            self._tasks.start_soon(self._report, asked)
        # The answer named another leader for some partition.
        if any(places.find(*key) != asked.place for key, asked in question.asked.items()):
            self._find_leaders()
        self._watch.look()
        self._on_news(changed)

    async def _report(self, asked: PartitionRequest) -> None:
        """Ask the leader that sent a batch with a wrong checksum to check its disk."""
        place = asked.place
        body = ReportCorruption(place.topic_id, place.partition, asked.offset, place.leader_epoch)
        deadline = anyio.current_time() + REPORT_SECONDS_MAX
        try:
            reply = (await self._cluster.ask(place.leader, body, deadline=deadline)).body
        except UnsupportedVersion:  # an old broker: it cannot check its disk
            self._responses.on_verdict(asked, CorruptionVerdict.WHOLE)
        # The next damaged answer is reported again.
        except RaftmqError as error:
            logger.info("damage is not reported: broker=%s reason=%s", place.leader, error)
        else:
            self._responses.on_verdict(asked, reply.verdict)

    def _note_failure(self, leader: _Leader, error: RaftmqError) -> None:
        # One warning per outage; a protocol violation is always worth one.
        if not leader.is_failing or isinstance(error, RemoteProtocolError):
            logger.warning("fetch failed: broker=%s reason=%s", leader.broker_id, error)
        leader.is_failing = True
