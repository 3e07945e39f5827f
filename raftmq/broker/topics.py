"""Topics and partitions: made, grown and deleted, as clients ask for it.

Owns these requests from their wishes to their outcomes: each topic stands for itself. An answer
comes when this broker's own metadata shows the change, or when the time is up. Who asks again for
a topic that was made learns that it exists already. That there are too few brokers is said only by
one that has asked the controller's node how much there is to know, and knows that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.broker.changes import Step, plan_each
from raftmq.broker.topic_plans import TopicDefaults, TopicPlanner
from raftmq.errors import NotController
from raftmq.metadata.commands import CreatePartitions, CreateTopic, DeleteTopic
from raftmq.rpc.reply import Reply
from raftmq.wire.apis import ApiKey
from raftmq.wire.bodies import ABSENT, TopicOutcome, clip_message
from raftmq.wire.messages.topics import (
    CreatePartitionsReply,
    CreateTopicsReply,
    DeleteTopicsReply,
    TopicCreated,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from random import Random

    from raftmq.broker.changes import Change, Changes, Outcome
    from raftmq.errors import RaftmqError
    from raftmq.metadata.image import MetadataImage
    from raftmq.metadata.placement import Assignments
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.service import Handler
    from raftmq.wire.header import Buffer
    from raftmq.wire.messages.topics import (
        CreatePartitions as CreatePartitionsRequest,
    )
    from raftmq.wire.messages.topics import (
        CreateTopics,
        DeleteTopics,
        NewTopic,
    )

DEFAULTS = TopicDefaults()


class Topics:
    """`chance` draws the ids of topics and places their replicas; `voters` are of the quorum."""

    def __init__(
        self,
        changes: Changes,
        chance: Random,
        defaults: TopicDefaults = DEFAULTS,
        *,
        voters: Collection[int] = (),
    ) -> None:
        self._changes, self._chance, self._defaults = changes, chance, defaults
        self._voters = voters

    def handlers(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.CREATE_TOPICS: self.create,
            ApiKey.CREATE_PARTITIONS: self.grow,
            ApiKey.DELETE_TOPICS: self.delete,
        }

    async def create(
        self, _context: RequestContext, request: CreateTopics, _payload: Buffer
    ) -> Reply:
        planned, timeout_ms = await self._plan(
            lambda planner: plan_each(
                request.topics, planner.plan_topic, key=lambda topic: topic.name
            ),
            request.timeout_ms,
        )
        outcomes = await self._changes.make(
            planned, timeout_ms=timeout_ms, is_dry_run=request.is_dry_run
        )
        created = [
            _refused(wanted, outcome)
            if isinstance(change, Exception)
            else _created(wanted, change, outcome)
            for wanted, change, outcome in zip(request.topics, planned, outcomes, strict=True)
        ]
        return Reply(CreateTopicsReply(tuple(created)))

    async def grow(
        self, _context: RequestContext, request: CreatePartitionsRequest, _payload: Buffer
    ) -> Reply:
        planned, timeout_ms = await self._plan(
            lambda planner: plan_each(
                request.topics, planner.plan_partitions, key=lambda topic: topic.topic_id
            ),
            request.timeout_ms,
        )
        outcomes = await self._changes.make(
            planned, timeout_ms=timeout_ms, is_dry_run=request.is_dry_run
        )
        told = [
            TopicOutcome(wanted.topic_id, outcome.code, _message(change, outcome))
            for wanted, change, outcome in zip(request.topics, planned, outcomes, strict=True)
        ]
        return Reply(CreatePartitionsReply(tuple(told)))

    async def delete(
        self, _context: RequestContext, request: DeleteTopics, _payload: Buffer
    ) -> Reply:
        image = self._changes.image
        planned = plan_each(request.topics, lambda it: (_deletion(image, it),), key=lambda it: it)
        outcomes = await self._changes.make(planned, timeout_ms=request.timeout_ms)
        told = [
            TopicOutcome(topic_id, outcome.code, outcome.message)
            for topic_id, outcome in zip(request.topics, outcomes, strict=True)
        ]
        return Reply(DeleteTopicsReply(tuple(told)))

    async def _plan(
        self, plan: Callable[[TopicPlanner], list[Change | RaftmqError]], timeout_ms: int
    ) -> tuple[list[Change | RaftmqError], int]:
        """The plans, and the milliseconds that are left for them.

        Where too few brokers are known here, they are made again once that is known to be true.
        """
        begin, doubt = trio.current_time(), None
        planner = self._planner()
        planned = plan(planner)
        if not planner.lacks_brokers:
            return planned, timeout_ms
        try:
            await self._changes.catch_up(timeout_ms=timeout_ms)
        except NotController as error:
            doubt = error
        spent_ms = int((trio.current_time() - begin) * 1000)
        return plan(self._planner(doubt)), max(0, timeout_ms - spent_ms)

    def _planner(self, doubt: RaftmqError | None = None) -> TopicPlanner:
        return TopicPlanner(
            self._changes.image, self._chance, self._defaults, voters=self._voters, doubt=doubt
        )


def _deletion(before: MetadataImage, topic_id: bytes) -> Step:
    """A topic that was here and is not is gone for good. One that was not here may be new."""

    def is_gone(image: MetadataImage) -> bool:
        return topic_id not in image.topics

    return Step(DeleteTopic(topic_id), is_gone, None if is_gone(before) else is_gone)


def _refused(wanted: NewTopic, outcome: Outcome) -> TopicCreated:
    return TopicCreated(wanted.name, outcome.code, outcome.message)


def _created(wanted: NewTopic, change: Change, outcome: Outcome) -> TopicCreated:
    """Where nobody knows whether it was made, whoever asked can look for the id."""
    create, assignments = change[0].command, _assignments(change)
    assert isinstance(create, CreateTopic), f"a topic begins with {create}"
    if outcome.error is not None:
        assignments = _assignments(change[: outcome.done])
    may_be_there = outcome.done > 0 or outcome.is_uncertain  # after a dry run it is neither
    factors = {len(replicas) for replicas in assignments}
    return TopicCreated(
        wanted.name,
        outcome.code,
        _message(change, outcome),
        topic_id=create.topic_id if may_be_there else None,
        partition_count=len(assignments),
        replication_factor=factors.pop() if len(factors) == 1 else ABSENT,
    )


def _message(change: Change | RaftmqError, outcome: Outcome) -> str:
    """Says as well what was made before the error came."""
    if isinstance(change, Exception) or outcome.error is None or not outcome.done:
        return outcome.message
    made, wanted = len(_assignments(change[: outcome.done])), len(_assignments(change))
    return clip_message(f"{made} of {wanted} partitions were made; then: {outcome.error}")


def _assignments(steps: Sequence[Step]) -> Assignments:
    """Of all partitions that these steps make."""
    made: list[tuple[int, ...]] = []
    for step in steps:
        assert isinstance(step.command, CreateTopic | CreatePartitions), f"{step.command}"
        made += step.command.assignments
    return tuple(made)
