"""The tasks that fetch: one for each leader, and one that follows the metadata.

Owns tasks, waiting and cancelling. What is asked, and what an answer means, `fetch_plan.py` and
`intake.py` decide. A question that waits for news is dropped when something else is wanted of the
same broker; its answer is nothing that another one would not bring.
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

    from raftmq.client.consumer.fetch_plan import FetchPlan, PartitionRequest, PlannedRequest
    from raftmq.client.consumer.fetch_response import FetchResponses
    from raftmq.client.consumer.partition_state import ConsumedPartition
    from raftmq.client.consumer.subscription import Subscription
    from raftmq.client.routing.cluster import Cluster
    from raftmq.rpc.reply import Answer


logger = logging.getLogger("raftmq.client")


# -- Metadata watch -------------------------------------------------------------------------------
# The task that asks for fresh metadata of the topics that are read.
#
# Owns the pace. What is doubted is asked for at once (`Refreshing` makes that rarer while nothing
# new comes); what a broker says is outdated, or is not complete, now and then.


LOOK_SECONDS = 0.5  # without any other reason
OUTDATED_SECONDS_MIN = 0.5  # between two questions only because a newer version is out
REFRESH_SECONDS = 10.0  # without any reason: while nothing is fetched nobody tells of versions
ANSWER_SECONDS_MAX = 5.0


class MetadataWatch:
    """`on_metadata` is called after each answer, with the partitions that have a new error."""

    def __init__(
        self,
        cluster: Cluster,
        subscription: Subscription,
        on_metadata: Callable[[list[ConsumedPartition]], None],
    ) -> None:
        self._cluster, self._subscription = cluster, subscription
        self._on_metadata = on_metadata
        self._asked_at = float("-inf")
        self._wanted = anyio.Event()

    def look(self) -> None:
        """Something may be doubted or outdated now."""
        if not self._wanted.is_set() and self._due(anyio.current_time()):
            self._wanted.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._wanted = anyio.Event()
            due = self._due(anyio.current_time())
            if due:
                await self._ask(due)
            self._on_metadata(self._subscription.on_metadata(now=anyio.current_time()))
            with anyio.move_on_after(LOOK_SECONDS):
                await self._wanted.wait()

    def _due(self, now: float) -> list[str]:
        return [topic for topic in self._subscription.topics if self._is_due(topic, now)]

    def _is_due(self, topic: str, now: float) -> bool:
        """1. Unknown or doubted. 2. Outdated. 3. Not complete, or long ago."""
        routes, silence = self._cluster.routes, now - self._asked_at
        if not routes.use(topic):
            return True
        known = routes.topic(topic)
        assert known is not None, "used, and not known"
        if self._cluster.newest_version > known.version:
            return silence >= OUTDATED_SECONDS_MIN
        return silence >= (REFRESH_SECONDS if known.is_led else LOOK_SECONDS)

    async def _ask(self, topics: list[str]) -> None:
        self._asked_at = anyio.current_time()
        problems: list[RaftmqError] = []
        async with anyio.create_task_group() as tasks:
            for topic in topics:
                tasks.start_soon(self._refresh, topic, problems)
        if problems:
            self._subscription.on_unreachable()

    async def _refresh(self, topic: str, problems: list[RaftmqError]) -> None:
        deadline = anyio.current_time() + ANSWER_SECONDS_MAX
        try:
            await self._cluster.refresh(topic, deadline=deadline)
        except RaftmqError as error:
            problems.append(error)


# -- Fetcher --------------------------------------------------------------------------------------


# So long a question is out at least before it is dropped: a broker goes on waiting for a while.
OUT_SECONDS_MIN = 0.02
REPORT_SECONDS_MAX = 5.0


class _Leader:
    """Attributes:
    question: the scope of the one that is under way.
    is_failing: the last one was not answered.
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
            await self._woken.wait()

    def begin(self) -> None:
        """Whatever woke it up before is looked at now."""
        if self._woken.is_set():
            self._woken = anyio.Event()

    def drop_question(self) -> None:
        if self.question is not None:
            self.question.deadline = max(anyio.current_time(), self.asked_at + OUT_SECONDS_MIN)


class Fetcher:
    """
    Args:
        on_news: called with partitions of which there may be something to hand out.
        on_metadata: called when something is known of topics that may not have been known before.
    """

    def __init__(
        self,
        cluster: Cluster,
        subscription: Subscription,
        plan: FetchPlan,
        intake: FetchResponses,
        on_news: Callable[[Iterable[ConsumedPartition]], None],
        on_metadata: Callable[[], None] = lambda: None,
    ) -> None:
        self._cluster, self._plan, self._intake, self._on_news = cluster, plan, intake, on_news
        self._tell_metadata = on_metadata
        self._watch = MetadataWatch(cluster, subscription, self._on_metadata)
        self._leaders: dict[int, _Leader] = {}
        self._tasks: TaskGroup | None = None

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._watch.run)
        finally:
            self._tasks = None

    def on_change(self, state: ConsumedPartition) -> None:
        """What is wanted of a partition may have changed."""
        broker_id = self._plan.leader_of(state)
        leader = None if broker_id is None else self._leaders.get(broker_id)
        if leader is None:
            return
        leader.wake()
        if leader.question is not None and self._plan.is_late_for(
            state, leader.broker_id, now=anyio.current_time()
        ):
            leader.drop_question()

    def on_topics(self) -> None:
        """Others are read now: the metadata of these is looked at."""
        self._watch.look()
        if self._tasks is not None:
            self._find_leaders()

    def _on_metadata(self, failed: list[ConsumedPartition]) -> None:
        self._find_leaders()
        self._tell_metadata()
        self._on_news(failed)

    def _find_leaders(self) -> None:
        """Somebody may lead something else now."""
        assert self._tasks is not None, "not running"
        for broker_id in self._plan.leaders() - self._leaders.keys():
            leader = self._leaders[broker_id] = _Leader(broker_id)
            self._tasks.start_soon(self._serve, leader)
        for leader in self._leaders.values():
            leader.wake()
            if self._plan.is_late(leader.broker_id, now=anyio.current_time()):
                leader.drop_question()

    async def _serve(self, leader: _Leader) -> None:
        broker_id = leader.broker_id
        while True:
            await self._cluster.wait_allowed(broker_id, deadline=inf)
            leader.begin()
            now = anyio.current_time()
            question = self._plan.ask(broker_id, now=now)
            if question is None:
                await leader.wait(self._plan.wake_at(broker_id, now=now))
            else:
                await self._ask(leader, question)

    async def _ask(self, leader: _Leader, question: PlannedRequest) -> None:
        outcome: Answer | RaftmqError | None = None
        leader.asked_at = anyio.current_time()
        seconds = question.wait_seconds + self._intake.answer_seconds(leader.broker_id)
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
        if outcome is not None:
            self._take_in(leader, question, outcome)

    def _take_in(
        self, leader: _Leader, question: PlannedRequest, outcome: Answer | RaftmqError
    ) -> None:
        now, places = anyio.current_time(), self._cluster.routes
        try:
            if isinstance(outcome, RaftmqError):
                raise outcome
            changed = self._intake.on_answer(question, outcome, now=now)
            leader.is_failing = False
        except RaftmqError as error:
            self._note_failure(leader, error)
            changed = self._intake.on_failure(question, error, now=now)
        for asked in self._intake.take_refused():
            assert self._tasks is not None, "not running"
            self._tasks.start_soon(self._report, asked)
        if any(places.find(*key) != asked.place for key, asked in question.asked.items()):
            self._find_leaders()
        self._watch.look()
        self._on_news(changed)

    async def _report(self, asked: PartitionRequest) -> None:
        """Whoever sent what failed its check should look at its disk."""
        place = asked.place
        body = ReportCorruption(place.topic_id, place.partition, asked.offset, place.leader_epoch)
        deadline = anyio.current_time() + REPORT_SECONDS_MAX
        try:
            reply = (await self._cluster.ask(place.leader, body, deadline=deadline)).body
        except UnsupportedVersion:  # it looks at nothing
            self._intake.on_verdict(asked, CorruptionVerdict.WHOLE)
        except RaftmqError as error:
            logger.info("damage is not reported: broker=%s reason=%s", place.leader, error)
        else:
            self._intake.on_verdict(asked, reply.verdict)

    def _note_failure(self, leader: _Leader, error: RaftmqError) -> None:
        if not leader.is_failing or isinstance(error, RemoteProtocolError):
            logger.warning("fetch failed: broker=%s reason=%s", leader.broker_id, error)
        leader.is_failing = True
