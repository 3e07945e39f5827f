"""Single topic requests: create, delete, describe, and wait until all partitions have leaders.

Any broker is asked; it forwards changes to the controller. A change is never sent again when the
first request may have been carried out. `administration/` builds the public admin calls on these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio
import msgspec

from raftmq.client.routing.attempts import RepeatEffect, milliseconds_left
from raftmq.errors import LeaderNotAvailable, RaftmqError, ServerError, error_for
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.topics import (
    CreateTopics,
    DeleteTopics,
    DescribeTopics,
    NewTopic,
    TopicCreated,
    TopicDescription,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftmq.client.routing.cluster import Cluster
    from raftmq.wire.bodies import TopicOutcome
    from raftmq.wire.messages.topics import Cursor

TIMEOUT_SECONDS = 30.0  # for all attempts together; a new controller is elected well within it
T = TypeVar("T")


async def create_topic(
    cluster: Cluster,
    name: str,
    *,
    partition_count: int = ABSENT,
    replication_factor: int = ABSENT,
    configs: Mapping[str, str] | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> TopicCreated:
    """Create a topic. Its partitions have leaders a little later: `wait_leaders`.

    Args:
        partition_count, replication_factor: -1: the cluster's default.
        timeout_seconds: for all attempts together.

    Raises:
        OutcomeUnknown: it may exist now, or soon. Indefinite.
        TopicAlreadyExists, RaftmqError: nothing was created. Definite.
    """
    deadline = anyio.current_time() + timeout_seconds
    wanted = NewTopic(name, partition_count, replication_factor, configs=dict(configs or {}))

    async def attempt(broker_id: int) -> TopicCreated:
        timeout_ms = milliseconds_left(deadline, now=anyio.current_time())
        body = CreateTopics((wanted,), timeout_ms)
        answer = await cluster.ask(broker_id, body, deadline=deadline)
        created: TopicCreated = _only_one(answer.body.topics, "CreateTopics", broker_id)
        _raise_error_of(created)
        return created

    return await cluster.at_any(attempt, deadline=deadline, repeats=RepeatEffect.FORBIDDEN)


async def delete_topic(
    cluster: Cluster, name: str, *, timeout_seconds: float = TIMEOUT_SECONDS
) -> None:
    """Delete the topic that has this name now, and no other that may get the name later.

    Raises:
        OutcomeUnknown: it may be gone, or soon be. Indefinite.
        UnknownTopicOrPartition, RaftmqError: nothing was deleted. Definite.
    """
    deadline = anyio.current_time() + timeout_seconds
    # Deleting by id cannot hit a topic that is created under the name in the meantime.
    topic_id = (await describe_topic(cluster, name, timeout_seconds=timeout_seconds)).topic_id
    if topic_id is None:
        raise ServerError(f"a broker described topic {name!r} and left out its id")

    async def attempt(broker_id: int) -> None:
        timeout_ms = milliseconds_left(deadline, now=anyio.current_time())
        body = DeleteTopics((topic_id,), timeout_ms)
        answer = await cluster.ask(broker_id, body, deadline=deadline)
        outcome: TopicOutcome = _only_one(answer.body.topics, "DeleteTopics", broker_id)
        _raise_error_of(outcome)

    await cluster.at_any(attempt, deadline=deadline, repeats=RepeatEffect.FORBIDDEN)


async def describe_topic(
    cluster: Cluster, name: str, *, timeout_seconds: float = TIMEOUT_SECONDS
) -> TopicDescription:
    """All metadata of a topic, as of one moment, or of several for a topic of many pages.

    Raises:
        UnknownTopicOrPartition: from a broker whose metadata are at least as new as any seen.
        RaftmqError: of the last attempt.
    """
    deadline = anyio.current_time() + timeout_seconds

    async def attempt(broker_id: int) -> TopicDescription:
        return await _all_pages(cluster, broker_id, name, deadline=deadline)

    found = await cluster.at_any(attempt, deadline=deadline, repeats=RepeatEffect.HARMLESS)
    _raise_error_of(found)
    return found


async def wait_leaders(
    cluster: Cluster, name: str, *, timeout_seconds: float = TIMEOUT_SECONDS
) -> None:
    """Wait until every partition of the topic has a leader.

    Raises:
        LeaderNotAvailable, UnknownTopicOrPartition, RaftmqError: the last problem when the time was
            over.
    """
    deadline = anyio.current_time() + timeout_seconds
    attempts = cluster.new_attempts(deadline=deadline, repeats=RepeatEffect.HARMLESS)
    while True:
        try:
            await cluster.refresh(name, deadline=deadline)
            _check_led(cluster, name)
            return
        # Retried while the topic, or some leader, is missing; other errors are raised here.
        except RaftmqError as error:
            pause = attempts.on_failure(error, now=anyio.current_time())
        await anyio.sleep(pause)
        attempts.check_time(anyio.current_time())


def _check_led(cluster: Cluster, name: str) -> None:
    cluster.routes.topic_id(name)
    topic = cluster.routes.topic(name)
    if topic is None or not topic.is_led:
        raise LeaderNotAvailable(f"{name}: not every partition has a leader")


async def _all_pages(
    cluster: Cluster, broker_id: int, name: str, *, deadline: float
) -> TopicDescription:
    """All pages from one broker; another broker's metadata may be of another version.

    Raises:
        RaftmqError: also the topic's own error, if that broker is behind others.
    """
    newest_version = cluster.newest_version
    pages: list[TopicDescription] = []
    first: Cursor | None = None
    while True:
        body = DescribeTopics((name,), first=first)
        answer = await cluster.ask(broker_id, body, deadline=deadline)
        page: TopicDescription = _only_one(answer.body.topics, "DescribeTopics", broker_id)
        # An error of a broker that is behind is retriable; one of a current broker is the result.
        if answer.metadata_version < newest_version:
            _raise_error_of(page)
        pages.append(page)
        following: Cursor | None = answer.body.next
        if following is None:  # the last page
            break
        # A faulty broker must not make this loop for ever.
        if first is not None and following.partition <= first.partition:
            raise ServerError(f"broker {broker_id}: pages of {name!r} that lead nowhere")
        first = following
    partitions = tuple(found for page in pages for found in page.partitions)
    return msgspec.structs.replace(pages[0], partitions=partitions)


def _only_one(topics: tuple[T, ...], request: str, broker_id: int) -> T:
    """Raises ServerError, which is indefinite: an answer for other topics says nothing of ours."""
    if len(topics) != 1:
        raise ServerError(f"broker {broker_id} answered {request} of 1 topic for {len(topics)}")
    return topics[0]


def _raise_error_of(answer: TopicCreated | TopicOutcome | TopicDescription) -> None:
    if answer.error:
        raise error_for(answer.error, answer.message)
