"""Requests to partition leaders: offset lookup by time, deletion of old records.

Partitions are asked concurrently. A deletion in several partitions is one call, but not atomic:
where some were carried out and others not, the outcome counts as unknown, and the error says which.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import anyio

from raftmq.client.administration.questions import find_topic, seconds_left, settle
from raftmq.client.group.coordinator import checked
from raftmq.client.routing.attempts import RepeatEffect, milliseconds_left
from raftmq.errors import (
    OutcomeUnknown,
    RaftmqError,
    ServerError,
    UnknownTopicOrPartition,
)
from raftmq.model import IsolationLevel
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.offsets import EARLIEST, LATEST, FoundOffset, ListOffsets, WantedOffset
from raftmq.wire.messages.topics import DeleteRecords, RecordsToDelete
from raftmq.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from raftmq.client.routing.cluster import Cluster
    from raftmq.client.routing.routes import LeaderPlace
    from raftmq.wire.messages.topics import RecordsDeleted


TIMEOUT_SECONDS = 30.0  # for all attempts: covers the election of a leader


async def list_offset(
    cluster: Cluster,
    topic: str,
    partition: int,
    timestamp: int,
    *,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> int:
    """The offset that belongs to a time.

    Args:
        timestamp: milliseconds since 1970-01-01 UTC; or LATEST, after the last committed record, or
            EARLIEST, where the log starts.
        isolation: READ_COMMITTED finds nothing behind the start of an open transaction, as readers
            go on there; READ_UNCOMMITTED finds all below the high watermark.

    Returns:
        The offset of the first record at or after `timestamp`; -1 if no record is so young.

    Raises:
        RaftmqError: no leader has answered; of the last attempt.
    """
    deadline = anyio.current_time() + timeout_seconds

    async def attempt(place: LeaderPlace) -> int:
        wanted = WantedOffset(place.topic_id, place.partition, place.leader_epoch, timestamp)
        found: FoundOffset
        body = ListOffsets((wanted,), isolation)
        found, _ = await cluster.ask_leader(place, body, deadline=deadline)
        return found.offset

    return await cluster.at_leader(
        topic, partition, attempt, deadline=deadline, repeats=RepeatEffect.HARMLESS
    )


# Requests at a time for the ends of a consumer's partitions, so that many do not flood the leaders
QUESTIONS_MAX = 32


async def find_ends(
    cluster: Cluster, keys: Iterable[tuple[str, int]], isolation: IsolationLevel
) -> dict[tuple[str, int], int]:
    """By pair of topic and partition, up to where a reader at this level gets records.

    Raises:
        RaftmqError: a leader has not answered, or refused.
    """
    found: dict[tuple[str, int], int] = {}
    failures: list[RaftmqError] = []
    limiter = anyio.Semaphore(QUESTIONS_MAX)

    async def find(key: tuple[str, int]) -> None:
        async with limiter:
            try:
                if not failures:  # one failure fails the call: ask no more
                    found[key] = await list_offset(cluster, *key, LATEST, isolation=isolation)
            except RaftmqError as error:
                failures.append(error.at(*key))

    async with anyio.create_task_group() as tasks:
        for key in keys:
            tasks.start_soon(find, key)
    if failures:
        raise failures[0]
    return {key: found[key] for key in sorted(found)}


# -- Offsets --------------------------------------------------------------------------------------


ENDS_SECONDS_MAX = 5.0  # for all leaders: a description without some offsets is better than none


class Ends(NamedTuple):
    """Offset of the oldest record, and one past the newest committed one; for readers of committed
    transactions the end is that of the first open transaction, if there is one.
    """

    start: int
    end: int


async def ends_of(
    cluster: Cluster,
    topic: str,
    partitions: Sequence[int],
    *,
    deadline: float,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> dict[int, Ends]:
    """Of partitions whose leaders answer within a few seconds, as such readers see them."""
    soon = min(deadline, anyio.current_time() + ENDS_SECONDS_MAX)
    asks = [
        partial(_ends, cluster, topic, number, isolation, deadline=soon) for number in partitions
    ]
    outcomes = zip(partitions, await settle(asks), strict=True)
    return {number: ends for number, ends in outcomes if not isinstance(ends, RaftmqError)}


async def _ends(
    cluster: Cluster, topic: str, partition: int, isolation: IsolationLevel, *, deadline: float
) -> Ends:
    # The start first: in the other order it could move past the end that was read.
    start = await _offset(cluster, topic, EARLIEST, partition, isolation, deadline=deadline)
    end = await _offset(cluster, topic, LATEST, partition, isolation, deadline=deadline)
    return Ends(start, end)


async def find_offsets(
    cluster: Cluster,
    topic: str,
    timestamp: int,
    partitions: Sequence[int] | None,
    *,
    deadline: float,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> dict[int, int | None]:
    """Offsets of all partitions, or of those that are named; None where no record is so young.

    Raises:
        UnknownTopicOrPartition: there is no such topic, or partition.
        RaftmqError: no leader of some partition has answered.
    """
    numbers = await partitions_of(cluster, topic, partitions, deadline=deadline)
    asks = [
        partial(_offset, cluster, topic, timestamp, one, isolation, deadline=deadline)
        for one in numbers
    ]
    found: dict[int, int | None] = {}
    for number, offset in zip(numbers, await settle(asks), strict=True):
        if isinstance(offset, RaftmqError):
            raise offset
        found[number] = None if offset == ABSENT else offset
    return found


async def _offset(
    cluster: Cluster,
    topic: str,
    timestamp: int,
    partition: int,
    isolation: IsolationLevel,
    *,
    deadline: float,
) -> int:
    seconds = seconds_left(deadline)
    return await list_offset(
        cluster, topic, partition, timestamp, isolation=isolation, timeout_seconds=seconds
    )


async def partitions_of(
    cluster: Cluster, topic: str, wanted: Sequence[int] | None, *, deadline: float
) -> Sequence[int]:
    """All partitions, or the wanted ones, which must exist.

    Raises:
        UnknownTopicOrPartition: there is no such topic, or partition; not retried.
    """
    found = await find_topic(cluster, topic, deadline=deadline)
    if wanted is None:
        return range(found.partition_count)
    missing = sorted(number for number in wanted if number >= found.partition_count)
    if missing:  # checked before any leader is asked
        has = counted(found.partition_count, "partition")
        raise UnknownTopicOrPartition(
            f"topic {topic} has {has}, counted from 0: there is no {', '.join(map(str, missing))}"
        )
    return wanted


# Deletion


async def delete_records(
    cluster: Cluster, topic: str, before: Mapping[int, int], *, deadline: float
) -> dict[int, int]:
    """Delete records. Returns where the partitions start now. Offset -1 deletes all committed
    records.

    Raises:
        OffsetOutOfRange, RaftmqError: nothing was deleted in any partition. Definite.
        OutcomeUnknown: records were deleted, or may have been; says where. Indefinite.
    """
    numbers = await partitions_of(cluster, topic, list(before), deadline=deadline)
    asks = [
        partial(_delete, cluster, topic, number, before[number], deadline=deadline)
        for number in numbers
    ]
    outcomes = dict(zip(numbers, await settle(asks), strict=True))
    failed = {at: it for at, it in outcomes.items() if isinstance(it, RaftmqError)}
    done = {at: it for at, it in outcomes.items() if not isinstance(it, RaftmqError)}
    if failed:
        raise _failure(topic, failed, done)
    return done


def _failure(topic: str, failed: Mapping[int, RaftmqError], done: Mapping[int, int]) -> RaftmqError:
    first = next(iter(failed.values()))
    # Only then nothing can have been deleted anywhere.
    if not done and all(error.definite for error in failed.values()):
        return first
    told = [f"partition {number}: {error}" for number, error in failed.items()]
    told += [f"partition {number}: starts at {start} now" for number, start in done.items()]
    error = OutcomeUnknown(f"topic {topic}: {'; '.join(told)}")
    error.__cause__ = first
    return error


async def _delete(
    cluster: Cluster, topic: str, partition: int, before_offset: int, *, deadline: float
) -> int:
    """May be sent twice: the second one finds nothing left to delete."""

    async def attempt(place: LeaderPlace) -> int:
        wanted = RecordsToDelete(place.topic_id, place.partition, before_offset)
        timeout_ms = milliseconds_left(deadline, now=anyio.current_time())
        answer = await cluster.ask(
            place.leader, DeleteRecords((wanted,), timeout_ms), deadline=deadline
        )
        told: tuple[RecordsDeleted, ...] = answer.body.partitions
        if [(one.topic_id, one.partition) for one in told] != [(place.topic_id, place.partition)]:
            raise ServerError(f"broker {place.leader} answered DeleteRecords for others")
        return checked(told[0]).log_start_offset

    return await cluster.at_leader(
        topic, partition, attempt, deadline=deadline, repeats=RepeatEffect.ACCEPTED
    )
