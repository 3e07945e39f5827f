"""One question to any broker, and what its answer says of one topic.

Owns the rule for "there is no such topic": a broker that is behind others which were heard of may
be wrong, and another one is asked; from any other it is the truth, and nobody waits for it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from raftmq.client.admin import describe_topic
from raftmq.client.routing.attempts import milliseconds_left
from raftmq.errors import RaftmqError, ServerError, UnknownTopicId, UnknownTopicOrPartition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from raftmq.client.routing.attempts import RepeatEffect
    from raftmq.client.routing.cluster import Cluster
    from raftmq.rpc.reply import Answer
    from raftmq.wire.bodies import Request
    from raftmq.wire.messages.topics import TopicCreated, TopicDescription


T = TypeVar("T")
_NOT_THERE = (UnknownTopicId, UnknownTopicOrPartition)


async def ask_any(
    cluster: Cluster,
    make: Callable[[int], Request],
    read: Callable[[Any], T],
    *,
    deadline: float,
    repeats: RepeatEffect,
) -> T:
    """What `read` makes of the body of an answer.

    Args:
        make: the request, given the milliseconds that a broker has for it.
        read: may raise what the body says; an error that is worth another try leads to one.

    Raises:
        OutcomeUnknown: a change was asked for, and may have been made.
        RaftmqError: what the last attempt met.
    """

    async def attempt(broker_id: int) -> T | RaftmqError:
        newest_version = cluster.newest_version
        body = make(milliseconds_left(deadline, now=anyio.current_time()))
        answer: Answer = await cluster.ask(broker_id, body, deadline=deadline)
        try:
            return read(answer.body)
        except _NOT_THERE as error:
            if answer.metadata_version < newest_version:
                raise
            return error

    found = await cluster.at_any(attempt, deadline=deadline, repeats=repeats)
    if isinstance(found, RaftmqError):
        raise found
    return found


@contextmanager
def naming(name: str) -> Iterator[None]:
    """A broker says that there is no such topic; whoever reads it later wants to know which."""
    try:
        yield
    except UnknownTopicOrPartition as error:
        raise UnknownTopicOrPartition(f"there is no topic {name!r}") from error


async def find_topic(cluster: Cluster, name: str, *, deadline: float) -> TopicDescription:
    """What the metadata knows of it.

    Raises:
        UnknownTopicOrPartition, RaftmqError
    """
    seconds = seconds_left(deadline)
    with naming(name):
        return await describe_topic(cluster, name, timeout_seconds=seconds)


async def find_topic_id(cluster: Cluster, name: str, *, deadline: float) -> bytes:
    """Of the topic that has this name now; what is made later under it is not meant."""
    return id_of(await find_topic(cluster, name, deadline=deadline))


def id_of(topic: TopicDescription | TopicCreated) -> bytes:
    if topic.topic_id is None:
        raise ServerError(f"a broker told of topic {topic.name!r} and left out its id")
    return topic.topic_id


def seconds_left(deadline: float) -> float:
    return max(deadline - anyio.current_time(), 0.0)


def only_one(found: tuple[T, ...], request: str) -> T:
    """Raises ServerError, which is indefinite: whoever answers for others says nothing of ours."""
    if len(found) != 1:
        raise ServerError(f"a broker answered {request} of one topic for {len(found)}")
    return found[0]


# -- Side by side ---------------------------------------------------------------------------------
# Several questions at a time, so that a topic of many partitions is not asked one by one.
#
# Owns the tasks, and leaves none behind. Errors of the tree are outcomes like any other; whatever
# else is raised comes out alone and not in a group.


CONCURRENT_MAX = 32


async def settle(asks: Iterable[Callable[[], Awaitable[T]]]) -> list[T | RaftmqError]:
    """What each of them came to, in their order."""
    waiting = list(enumerate(asks))
    outcomes: dict[int, T | RaftmqError] = {}
    failures: list[Exception] = []
    queue = iter(waiting)

    async def work() -> None:
        for number, ask in queue:
            try:
                outcomes[number] = await ask()
            except RaftmqError as error:
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
