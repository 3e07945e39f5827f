"""Offsets to and from the coordinator: where a group's reading goes on.

Owns the order of commits: one is under way at a time, and each attempt has a number, so that what
comes late changes nothing. An offset belongs to a topic id: a topic of the same name made later
begins anew.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import anyio

from raftmq.client.group.coordinator import checked
from raftmq.client.routing.attempts import Repeats, milliseconds_left
from raftmq.errors import (
    FencedInstanceId,
    IllegalGeneration,
    RebalanceInProgress,
    ServerError,
    UnknownMemberId,
    error_for,
)
from raftmq.wire.bodies import ABSENT, PARTITIONS_MAX, TopicPartition
from raftmq.wire.messages.group_offsets import (
    OffsetCommit,
    OffsetCommitReply,
    OffsetFetch,
    OffsetFetchReply,
    OffsetToCommit,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from raftmq.client.consumer.partition_state import Key
    from raftmq.client.group.coordinator import Coordinator
    from raftmq.errors import RaftmqError
    from raftmq.wire.messages.group_offsets import FetchedOffset

COMMITTED_AT_ONCE_MAX = PARTITIONS_MAX
VERDICTS = (FencedInstanceId, IllegalGeneration, RebalanceInProgress, UnknownMemberId)


class Position(NamedTuple):
    """Of the next record; `leader_epoch` of the one before, -1: not known."""

    topic_id: bytes
    offset: int
    leader_epoch: int = ABSENT


class Identity(NamedTuple):
    """Who commits. `is_member`: else a program that has chosen its partitions itself, in charge of
    a group without members.
    """

    member_id: str = ""
    generation: int = ABSENT
    instance_id: str | None = None
    is_member: bool = True


class Committing:
    """
    Args:
        identity: asked when it is a commit's turn, once for the whole of it.
        on_refused: told an error that says something of the member, and its generation then.

    Attributes:
        committed: what this member knows to be committed.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        group: str,
        identity: Callable[[], Identity],
        on_refused: Callable[[RaftmqError, int], None],
    ) -> None:
        self._coordinator, self._group, self._identity = coordinator, group, identity
        self._on_refused = on_refused
        self.committed: dict[Key, Position] = {}
        self._turn = anyio.Lock()
        self._number = 0

    async def commit(self, find: Callable[[], Mapping[Key, Position]], *, deadline: float) -> None:
        """Return once they are in the quorum. `find` is asked for them when it is their turn.

        Raises:
            IllegalGeneration, UnknownMemberId, FencedInstanceId: the partitions may be others'
                now; nothing was committed.
            RebalanceInProgress: not now; nothing was committed.
            OutcomeUnknown: they may have been committed.
            RaftmqError: nothing was committed.
        """
        async with self._turn:
            positions, identity = find(), self._identity()
            keys = list(positions)
            for start in range(0, len(keys), COMMITTED_AT_ONCE_MAX):
                portion = {key: positions[key] for key in keys[start:][:COMMITTED_AT_ONCE_MAX]}
                self.forget(portion)  # unless it is answered nobody knows
                with self._told(identity):
                    await self._commit(portion, identity, deadline=deadline)
                self.committed.update(portion)

    async def _commit(
        self, positions: Mapping[Key, Position], identity: Identity, *, deadline: float
    ) -> None:
        offsets = tuple(
            OffsetToCommit(at.topic_id, partition, at.offset, at.leader_epoch)
            for (_, partition), at in positions.items()
        )

        def make() -> OffsetCommit:
            self._number += 1
            return OffsetCommit(
                self._group,
                identity.generation,
                identity.member_id,
                offsets,
                identity.instance_id,
                milliseconds_left(deadline, now=anyio.current_time()),
                self._number,
                sender="" if identity.member_id else self._coordinator.sender,
            )

        await self._coordinator.ask(
            make, _check_committed, deadline=deadline, repeats=Repeats.ACCEPTED
        )

    async def fetch(
        self, topic_ids: Mapping[Key, bytes], *, deadline: float
    ) -> dict[Key, Position]:
        """What is committed of these partitions; those of which nothing is are left out.

        Raises:
            RaftmqError: the coordinator has not answered, or does not know this member any more.
        """
        found: dict[Key, Position] = {}
        keys = list(topic_ids)
        for start in range(0, len(keys), PARTITIONS_MAX):
            portion = {key: topic_ids[key] for key in keys[start:][:PARTITIONS_MAX]}
            identity = self._identity()
            with self._told(identity):
                found |= await self._fetch(portion, identity, deadline=deadline)
        self.committed.update(found)
        return found

    async def _fetch(
        self, topic_ids: Mapping[Key, bytes], identity: Identity, *, deadline: float
    ) -> dict[Key, Position]:
        wanted = tuple(TopicPartition(topic_id, key[1]) for key, topic_id in topic_ids.items())

        def make() -> OffsetFetch:
            timeout_ms = milliseconds_left(deadline, now=anyio.current_time())
            return OffsetFetch(
                self._group,
                wanted,
                identity.generation,
                identity.member_id,
                timeout_ms,
                identity.instance_id,
            )

        reply: OffsetFetchReply = await self._coordinator.ask(
            make, checked, deadline=deadline, repeats=Repeats.HARMLESS
        )
        return _matched(topic_ids, reply.partitions)

    @contextmanager
    def _told(self, identity: Identity) -> Iterator[None]:
        try:
            yield
        except VERDICTS as error:
            self._on_refused(error, identity.generation)
            if identity.is_member or not isinstance(error, UnknownMemberId):
                raise
            raise UnknownMemberId(
                f"group {self._group!r} has members, so nobody else commits in it, and nothing was "
                "committed: read partitions of your own choice (assign=) under another group name, "
                "or once its members have left"
            ) from error

    def forget(self, keys: Iterable[Key]) -> None:
        """What is committed of these may be something else now."""
        for key in keys:
            self.committed.pop(key, None)


def _check_committed(reply: OffsetCommitReply) -> None:
    """Raises the first error that is told."""
    checked(reply)
    for one in reply.partitions:
        if one.error:
            raise error_for(one.error, f"partition {one.partition} of {one.topic_id.hex()}")


def _matched(topic_ids: Mapping[Key, bytes], told: Sequence[FetchedOffset]) -> dict[Key, Position]:
    if [(one.topic_id, one.partition) for one in told] != [
        (topic_id, key[1]) for key, topic_id in topic_ids.items()
    ]:
        raise ServerError("a coordinator was asked for offsets, and told others")
    return {
        key: Position(one.topic_id, one.offset, one.leader_epoch)
        for key, one in zip(topic_ids, told, strict=True)
        if one.offset != ABSENT
    }
