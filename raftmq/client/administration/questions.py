"""One admin request to any broker, when its "no such topic" counts, and requests side by side.

A broker whose metadata are behind others may be wrong about a missing topic: another one is asked.
From a broker that is not behind, the answer is final and not retried. A topic's description is
read here, too: most calls begin with its id.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import msgspec

from raftmq.client.group.coordinator import OutcomeT, checked
from raftmq.client.routing.attempts import RepeatEffect, milliseconds_left
from raftmq.errors import RaftmqError, ServerError, UnknownTopicId, UnknownTopicOrPartition
from raftmq.wire.messages.topics import DescribeTopics, TopicDescription

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator

    from raftmq.client.routing.cluster import Cluster
    from raftmq.rpc.reply import Answer
    from raftmq.wire.bodies import Request
    from raftmq.wire.messages.topics import Cursor, TopicCreated


T = TypeVar("T")
# By id or by name.
_NOT_THERE = (UnknownTopicId, UnknownTopicOrPartition)


async def ask_any(
    cluster: Cluster,
    make: Callable[[int], Request],
    read: Callable[[Any], T],
    *,
    deadline: float,
    repeats: RepeatEffect,
) -> T:
    """Send a request to any broker, again and again until it succeeds or must not. The result of
    `read`.

    Args:
        make: builds the request, given the milliseconds that a broker has for it.
        read: gets the answer's body, and may raise its error; a retriable one is repeated.

    Raises:
        OutcomeUnknown: a change may have been made. Indefinite.
        RaftmqError: of the last attempt.
    """

    async def attempt(broker_id: int) -> T | RaftmqError:
        newest_version = cluster.newest_version
        body = make(milliseconds_left(deadline, now=anyio.current_time()))
        answer: Answer = await cluster.ask(broker_id, body, deadline=deadline)
        try:
            return read(answer.body)
        except _NOT_THERE as error:
            # This broker may not have heard of the topic yet: the next attempt asks another one.
            if answer.metadata_version < newest_version:
                raise
            # Returned, not raised: `at_any` would retry it.
            return error

    found = await cluster.at_any(attempt, deadline=deadline, repeats=repeats)
    if isinstance(found, RaftmqError):
        raise found
    return found


async def know_addresses(cluster: Cluster, brokers: Collection[int], *, deadline: float) -> None:
    """Refresh the addresses if one of these brokers has become active since this client learnt
    them. An error is left to the requests that follow.
    """
    if set(brokers) - set(cluster.routes.addresses):
        with suppress(RaftmqError):
            await cluster.refresh(None, deadline=deadline)


async def find_topic(cluster: Cluster, name: str, *, deadline: float) -> TopicDescription:
    """All metadata of a topic, as of one moment, or of several for a topic of many pages.

    Raises:
        UnknownTopicOrPartition: from a broker whose metadata are at least as new as any seen.
        RaftmqError: of the last attempt.
    """

    async def attempt(broker_id: int) -> TopicDescription:
        return await _all_pages(cluster, broker_id, name, deadline=deadline)

    with naming(name):
        found = await cluster.at_any(attempt, deadline=deadline, repeats=RepeatEffect.HARMLESS)
        return checked(found)


@contextmanager
def naming(name: str) -> Iterator[None]:
    """A topic that was deleted meanwhile is missing by its id: users know it by its name."""
    try:
        yield
    except _NOT_THERE as error:
        raise UnknownTopicOrPartition(f"there is no topic {name!r}") from error


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
        page: TopicDescription = only_one(answer.body.topics, "DescribeTopics")
        # An error of a broker that is behind is retriable; one of a current broker is the result.
        if answer.metadata_version < newest_version:
            checked(page)
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


async def find_topic_id(cluster: Cluster, name: str, *, deadline: float) -> bytes:
    """Id of the topic that has this name now; a later topic of the same name is not meant."""
    return id_of(await find_topic(cluster, name, deadline=deadline))


def id_of(topic: TopicDescription | TopicCreated) -> bytes:
    if topic.topic_id is None:
        raise ServerError(f"a broker told of topic {topic.name!r} and left out its id")
    return topic.topic_id


def seconds_left(deadline: float) -> float:
    return max(deadline - anyio.current_time(), 0.0)


def only_one(found: tuple[T, ...], request: str) -> T:
    """Raises ServerError, which is indefinite: an answer for other topics says nothing of ours."""
    if len(found) != 1:
        raise ServerError(f"a broker answered {request} of one topic for {len(found)}")
    return found[0]


def only_success(found: tuple[OutcomeT, ...], request: str) -> OutcomeT:
    """`only_one`, unless it is an error, which is raised."""
    return checked(only_one(found, request))


# -- Concurrent requests --------------------------------------------------------------------------
# Several requests at a time, so that a topic of many partitions does not take one round trip each.
#
# Owns the tasks, and leaves none behind. RaftmqErrors are outcomes; any other error is raised
# alone, not in an exception group.


CONCURRENT_MAX = 32  # requests at a time, so that many partitions do not flood the leaders


async def settle(asks: Iterable[Callable[[], Awaitable[T]]]) -> list[T | RaftmqError]:
    """The outcome of each request, in their order."""
    waiting = list(enumerate(asks))
    outcomes: dict[int, T | RaftmqError] = {}
    failures: list[Exception] = []
    queue = iter(waiting)

    async def work() -> None:
        for number, ask in queue:
            try:
                outcomes[number] = await ask()
            except RaftmqError as error:  # one failure must not hide the other outcomes
                outcomes[number] = error
            except Exception as error:  # would reach the caller in a group otherwise
                failures.append(error)
                tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for _ in range(min(CONCURRENT_MAX, len(waiting))):
            tasks.start_soon(work)
    if failures:
        raise failures[0]
    return [outcomes[number] for number, _ in waiting]
