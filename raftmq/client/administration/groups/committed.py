"""A group's committed offsets at its coordinator: fetch, set with comparison, delete.

Many partitions take several requests, one after the other and in order; each request is atomic. A
failed comparison (`expected`) names the committed offset. Where some partitions were changed and
others not, the outcome counts as unknown, and the error says which.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import anyio

from raftmq.client.administration.groups.checks import find_names
from raftmq.client.group.coordinator import CoordinatorLookup, checked
from raftmq.client.routing.attempts import RepeatEffect, milliseconds_left
from raftmq.errors import (
    ErrorCode,
    IllegalGeneration,
    InvalidRequest,
    InvalidUpdateVersion,
    NonEmptyGroup,
    OutcomeUnknown,
    RaftmqError,
    RebalanceInProgress,
    ServerError,
    UnknownMemberId,
    error_for,
)
from raftmq.wire.bodies import ABSENT, PARTITIONS_MAX, TopicPartition
from raftmq.wire.messages.group_offsets import (
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetToCommit,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from raftmq.client.routing.cluster import Cluster
    from raftmq.wire.messages.group_offsets import (
        CommitOutcome,
        FetchedOffset,
        OffsetCommitReply,
        OffsetDeleteReply,
        OffsetFetchReply,
    )

COMMITS_MAX = 500  # of one request: the quorum allows 1,000 comparisons in one step
NAMED_MAX = 5  # errors in one message; more would not help its reader
# A coordinator's refusals of a commit from outside the group.
_HAS_MEMBERS = (IllegalGeneration, RebalanceInProgress, UnknownMemberId)

Key = tuple[bytes, int]  # topic id and partition


class Commit(NamedTuple):
    """One offset to commit.

    Attributes:
        expected: the offset that must be committed now; -1: nothing; None: no comparison.
    """

    topic: str
    topic_id: bytes
    partition: int
    offset: int
    expected: int | None = None

    @property
    def key(self) -> Key:
        return self.topic_id, self.partition


async def fetch_offsets(
    cluster: Cluster, group: str, *, deadline: float
) -> dict[Key, FetchedOffset]:
    """All committed offsets of a group; empty for a group that does not exist.

    If they do not fit into one answer, those of deleted topics are left out.
    """
    coordinator = CoordinatorLookup(cluster, group)
    try:
        return await _fetch(coordinator, group, None, deadline=deadline)
    except InvalidRequest:  # too many for one answer: name the partitions
        names = await find_names(cluster, deadline=deadline)
    found: dict[Key, FetchedOffset] = {}
    keys = [TopicPartition(*key) for key in names.keys()]  # noqa: SIM118  # not a mapping
    for start in range(0, len(keys), PARTITIONS_MAX):
        part = tuple(keys[start : start + PARTITIONS_MAX])
        found |= await _fetch(coordinator, group, part, deadline=deadline)
    return found


async def _fetch(
    coordinator: CoordinatorLookup,
    group: str,
    partitions: tuple[TopicPartition, ...] | None,
    *,
    deadline: float,
) -> dict[Key, FetchedOffset]:
    def make() -> OffsetFetch:
        timeout_ms = milliseconds_left(deadline, now=anyio.current_time())
        return OffsetFetch(group, partitions, timeout_ms=timeout_ms)

    def read(reply: OffsetFetchReply) -> dict[Key, FetchedOffset]:
        told = checked(reply).partitions
        return {(one.topic_id, one.partition): one for one in told if one.offset != ABSENT}

    return await coordinator.ask(make, read, deadline=deadline, repeats=RepeatEffect.HARMLESS)


async def commit(
    cluster: Cluster,
    group: str,
    commits: Sequence[Commit],
    *,
    repeats: RepeatEffect,
    deadline: float,
) -> None:
    """Commit offsets, 500 in one request.

    Args:
        repeats: ACCEPTED: an attempt with an unknown outcome is repeated, and a partition with the
            wanted offset counts as committed.

    Raises:
        InvalidUpdateVersion: another offset is committed, and nothing was changed. Definite.
        NonEmptyGroup, RaftmqError: nothing was committed. Definite.
        OutcomeUnknown: some were committed, or may have been; says which. Indefinite.
    """
    coordinator = CoordinatorLookup(cluster, group)
    numbers = count(1)
    ordered = sorted(commits, key=lambda one: one.key)
    for start in range(0, len(ordered), COMMITS_MAX):
        part = ordered[start : start + COMMITS_MAX]
        request = _Committing(
            group,
            part,
            sender=coordinator.sender,
            numbers=numbers,
            repeats=repeats,
            deadline=deadline,
        )
        try:
            refused = await coordinator.ask(
                request.make, request.read, deadline=deadline, repeats=repeats
            )
        except RaftmqError as error:
            # Earlier requests have changed something, so the call as a whole is not definite.
            if start and error.definite:
                raise _partial(group, start, [error]) from error
            raise
        if refused:  # some were committed, so the call is not definite
            raise _partial(group, start + len(part) - len(refused), refused) from refused[0]


class _Committing:
    """One request, and what its answers mean. `numbers`: a new one for each attempt of a
    `sender`.
    """

    def __init__(
        self,
        group: str,
        commits: Sequence[Commit],
        *,
        sender: str,
        numbers: Iterator[int],
        repeats: RepeatEffect,
        deadline: float,
    ) -> None:
        self._group, self._deadline = group, deadline
        self._sender, self._numbers = sender, numbers
        self._commits = {one.key: one for one in commits}
        self._may_repeat = repeats is RepeatEffect.ACCEPTED
        self._attempts = 0

    def make(self) -> OffsetCommit:
        self._attempts += 1
        wanted = tuple(
            OffsetToCommit(one.topic_id, one.partition, one.offset, expected=one.expected)
            for one in self._commits.values()
        )
        timeout_ms = milliseconds_left(self._deadline, now=anyio.current_time())
        return OffsetCommit(
            self._group,
            ABSENT,
            "",
            wanted,
            timeout_ms=timeout_ms,
            number=next(self._numbers),
            sender=self._sender,
        )

    def read(self, reply: OffsetCommitReply) -> list[RaftmqError]:
        """Refused partitions, where others were committed.

        Raises:
            RaftmqError: nothing was committed.
        """
        try:
            told = {(one.topic_id, one.partition): one for one in checked(reply).partitions}
        # The broker refuses a commit without a generation while there are members.
        except _HAS_MEMBERS as error:
            raise NonEmptyGroup(
                f"group {self._group} has members, and only they may commit: stop them first"
            ) from error
        if set(told) != set(self._commits):  # a faulty broker: its answer proves nothing
            raise ServerError(f"group {self._group}: OffsetCommit was answered for others")
        refused = [self._refusal(one, told[one.key]) for one in self._commits.values()]
        errors = [error for error in refused if error is not None]
        if errors and len(errors) == len(refused):  # nothing was committed: definite
            raise _joined(errors)
        return errors

    def _refusal(self, wanted: Commit, told: CommitOutcome) -> RaftmqError | None:
        where = f"group {self._group}: {wanted.topic}-{wanted.partition}"
        if told.error != ErrorCode.INVALID_UPDATE_VERSION:
            refused = f"{where} was refused, error {told.error}"
            return error_for(told.error, refused) if told.error else None
        # An earlier attempt, whose answer was lost, has committed it.
        if self._may_repeat and self._attempts > 1 and told.offset == wanted.offset:
            return None
        there, expected = _named(told.offset), _named(wanted.expected)
        return InvalidUpdateVersion(
            f"{where} has {there} committed now, expected was {expected}: another program has"
            " changed it meanwhile; look again"
        )


async def delete_offsets(
    cluster: Cluster, group: str, keys: Mapping[Key, str], *, deadline: float
) -> None:
    """Delete offsets; `keys` has a readable name for each partition.

    Raises:
        GroupSubscribedToTopic, RaftmqError: nothing was deleted. Definite.
        OutcomeUnknown: some were deleted, or may have been; says which. Indefinite.
    """
    coordinator = CoordinatorLookup(cluster, group)
    wanted = tuple(TopicPartition(*key) for key in sorted(keys))

    def make() -> OffsetDelete:
        timeout_ms = milliseconds_left(deadline, now=anyio.current_time())
        return OffsetDelete(group, wanted, timeout_ms)

    read = partial(_read_deleted, group, keys)
    refused = await coordinator.ask(make, read, deadline=deadline, repeats=RepeatEffect.FORBIDDEN)
    if refused:
        raise _partial(group, len(keys) - len(refused), refused) from refused[0]


def _read_deleted(
    group: str, keys: Mapping[Key, str], reply: OffsetDeleteReply
) -> list[RaftmqError]:
    told = {(one.topic_id, one.partition): one for one in checked(reply).partitions}
    if set(told) != set(keys):
        raise ServerError(f"group {group}: OffsetDelete was answered for others")
    errors = [
        error_for(one.error, f"group {group}: {keys[key]}: {one.message}".removesuffix(": "))
        for key, one in told.items()
        if one.error
    ]
    if len(errors) == len(told):  # nothing was deleted: definite
        raise _joined(errors)
    return errors


def _named(offset: int | None) -> str:
    return "nothing" if offset in (None, ABSENT) else str(offset)


def _joined(errors: Sequence[RaftmqError]) -> RaftmqError:
    """One error for all: of the class of the one that is least definite."""
    first = min(errors, key=lambda error: error.definite).copied()
    first.args = (_listed(errors),)
    return first


def _listed(errors: Sequence[RaftmqError]) -> str:
    more = len(errors) - NAMED_MAX
    told = "; ".join(str(error) for error in errors[:NAMED_MAX])
    return f"{told}; and {more} more" if more > 0 else told


def _partial(group: str, done: int, errors: Sequence[RaftmqError]) -> OutcomeUnknown:
    what = "partition was" if done == 1 else "partitions were"
    return OutcomeUnknown(
        f"group {group}: {done} {what} changed, others were not: {_listed(errors)}"
    )
