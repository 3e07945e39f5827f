"""Offset commits of a group member: what is committed when, where reading begins.

Owns the way from finished records to committed offsets. Errors that say something of the member go
to its membership (`on_refused`).
"""

from __future__ import annotations

from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import anyio

from raftmq.client.group.coordinator import checked
from raftmq.client.group.effects import Position
from raftmq.client.group.member_requests import VERDICTS
from raftmq.client.routing.attempts import RepeatEffect, milliseconds_left
from raftmq.client.routing.routes import no_topic
from raftmq.errors import ServerError, UnknownMemberId, UnknownTopicOrPartition, error_for
from raftmq.wire.bodies import ABSENT, PARTITIONS_MAX, TopicPartition
from raftmq.wire.messages.group_offsets import (
    OffsetCommit,
    OffsetCommitReply,
    OffsetFetch,
    OffsetFetchReply,
    OffsetToCommit,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from raftmq.client.consumer.group_reader import GroupReader
    from raftmq.client.group.assignors.assignor import Key
    from raftmq.client.group.coordinator import CoordinatorLookup
    from raftmq.client.group.effects import CommitIdentity
    from raftmq.client.group.membership import GroupMembership
    from raftmq.client.routing.cluster import Cluster
    from raftmq.errors import RaftmqError
    from raftmq.wire.messages.group_offsets import FetchedOffset


# -- Offset commits -------------------------------------------------------------------------------
# OffsetCommit and OffsetFetch requests to the coordinator.
#
# Owns the order of commits: one is in flight at a time, and each attempt has a number, so that a
# late one changes nothing (decision 0025). An offset belongs to a topic id: a topic that is created
# later under the same name begins anew.


COMMITTED_AT_ONCE_MAX = PARTITIONS_MAX  # partitions in one request


class CrashesTold(NamedTuple):
    """How many members have crashed that had a partition while its committed offset was this one;
    offset -1: while nothing was committed.
    """

    offset: int
    times: int


NO_CRASHES = CrashesTold(ABSENT, 0)


class OffsetCommits:
    """Sends commits, one at a time.

    Args:
        membership: for its identity, when a commit's turn has come, once for the whole of it.
        on_refused: called with an error that says something of the member, and the generation of
            the commit.

    Attributes:
        committed: committed offsets as far as this member knows them.
        crashes: beside them, where there are any.
    """

    def __init__(
        self,
        coordinator: CoordinatorLookup,
        group: str,
        membership: GroupMembership,
        on_refused: Callable[[RaftmqError, int], None],
    ) -> None:
        self._coordinator, self._group, self._membership = coordinator, group, membership
        self._on_refused = on_refused
        self.committed: dict[Key, Position] = {}
        self.crashes: dict[Key, CrashesTold] = {}
        self._turn = anyio.Lock()
        self._number = 0

    async def commit(
        self,
        find: Callable[[], Mapping[Key, Position]],
        *,
        deadline: float,
        is_alone: bool = False,
    ) -> None:
        """Commit; returns once the offsets are in the quorum. `find` is called when it is their
        turn.

        Args:
            is_alone: the record there is handled now, and nothing else.

        Raises:
            IllegalGeneration, UnknownMemberId, FencedInstanceId: other members may own the
                partitions now; nothing was committed. Definite.
            RebalanceInProgress: not now; nothing was committed. Definite.
            OutcomeUnknown: they may have been committed. Indefinite.
            RaftmqError: nothing was committed. Definite.
        """
        # Ends when the commits before have ended, each at its deadline at the latest.
        async with self._turn:
            positions, identity = find(), self._membership.identity
            keys = list(positions)
            for start in range(0, len(keys), COMMITTED_AT_ONCE_MAX):
                portion = {key: positions[key] for key in keys[start:][:COMMITTED_AT_ONCE_MAX]}
                self.forget(portion)  # unknown until the answer comes
                with self._reporting_refusals(identity):
                    await self._commit(portion, identity, deadline=deadline, is_alone=is_alone)
                self.on_committed(portion, is_alone=is_alone)

    def on_committed(self, positions: Mapping[Key, Position], *, is_alone: bool = False) -> None:
        """The quorum has these; crashes are told beside the offset that they were counted for."""
        self.committed.update(positions)
        for key, at in positions.items():
            told = self.crashes.get(key, NO_CRASHES)
            if is_alone and told.offset == ABSENT:  # that is the beginning, then
                self.crashes[key] = CrashesTold(at.offset, told.times)
            elif told.offset != at.offset:
                self.crashes.pop(key, None)

    async def _commit(
        self,
        positions: Mapping[Key, Position],
        identity: CommitIdentity,
        *,
        deadline: float,
        is_alone: bool,
    ) -> None:
        offsets = tuple(
            OffsetToCommit(at.topic_id, partition, at.offset, at.leader_epoch, is_alone=is_alone)
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
            make, _check_committed, deadline=deadline, repeats=RepeatEffect.ACCEPTED
        )

    async def fetch(
        self, topic_ids: Mapping[Key, bytes], *, deadline: float
    ) -> dict[Key, Position]:
        """Committed offsets of these partitions; those without one are left out.

        Raises:
            RaftmqError: the coordinator has not answered, or does not know this member any more.
        """
        found: dict[Key, Position] = {}
        keys = list(topic_ids)
        for start in range(0, len(keys), PARTITIONS_MAX):
            portion = {key: topic_ids[key] for key in keys[start:][:PARTITIONS_MAX]}
            identity = self._membership.identity
            with self._reporting_refusals(identity):
                found |= await self._fetch(portion, identity, deadline=deadline)
        self.committed.update(found)
        return found

    async def _fetch(
        self, topic_ids: Mapping[Key, bytes], identity: CommitIdentity, *, deadline: float
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
            make, checked, deadline=deadline, repeats=RepeatEffect.HARMLESS
        )
        matched = _matched(topic_ids, reply.partitions)
        for key, one in matched.items():
            self.crashes.pop(key, None)
            if one.crashes:
                self.crashes[key] = CrashesTold(one.offset, one.crashes)
        return {
            key: Position(one.topic_id, one.offset, one.leader_epoch)
            for key, one in matched.items()
            if one.offset != ABSENT
        }

    @contextmanager
    def _reporting_refusals(self, identity: CommitIdentity) -> Iterator[None]:
        try:
            yield
        except VERDICTS as error:
            self._on_refused(error, identity.generation)
            if identity.is_member or not isinstance(error, UnknownMemberId):  # says enough
                raise
            raise UnknownMemberId(
                f"group {self._group!r} has members, so no other program may commit in it; nothing "
                "was committed: read partitions of your own choice (assign=) under another group "
                "name, or once its members have left"
            ) from error

    def forget(self, keys: Iterable[Key]) -> None:
        """Other members may commit these from now on."""
        for key in keys:
            self.committed.pop(key, None)

    def forget_crashes(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self.crashes.pop(key, None)


def _check_committed(reply: OffsetCommitReply) -> None:
    """Raises the first error of any partition."""
    checked(reply)
    for one in reply.partitions:
        if one.error:
            raise error_for(one.error, f"partition {one.partition} of {one.topic_id.hex()}")


def _matched(
    topic_ids: Mapping[Key, bytes], told: Sequence[FetchedOffset]
) -> dict[Key, FetchedOffset]:
    if [(one.topic_id, one.partition) for one in told] != [
        (topic_id, key[1]) for key, topic_id in topic_ids.items()
    ]:
        raise ServerError("a coordinator was asked for offsets, and told others")
    return dict(zip(topic_ids, told, strict=True))


# -- Member offsets -------------------------------------------------------------------------------


COMMIT_SECONDS_MAX = 30.0  # for all attempts at one commit: covers the move of a coordinator


class MemberOffsets:
    """What a member commits, and what it knows to be committed.

    Args:
        commits_first: records in flight always count as done (commit="before").
    """

    def __init__(
        self, cluster: Cluster, commits: OffsetCommits, reader: GroupReader, *, commits_first: bool
    ) -> None:
        self._cluster, self._reader, self._commits_first = cluster, reader, commits_first
        self._committing = commits
        # Offsets that the program has committed itself, of records in flight
        self._said: dict[Key, Position] = {}
        # Partitions of which a commit was attempted, with any outcome.
        self._tried: set[Key] = set()
        self._alone: set[Key] = set()  # whose next record is noted as handled alone

    async def commit_done(
        self, keys: Iterable[Key] | None = None, *, is_all: bool = False, deadline: float = inf
    ) -> None:
        """Commit the program's progress, where it is new. Raises RaftmqError."""
        # Remembered: a repetition must not fall back behind it.
        if is_all:
            self._said.update(self._reader.done(keys, is_all=True))
        is_all = is_all or self._commits_first
        await self._commit(lambda: self.news(keys, is_all=is_all), deadline=deadline)

    async def commit_passed(self) -> None:
        """As `commit_done`, but only forward: with commit="before" the program's position lags
        behind the committed batch. Raises RaftmqError.
        """
        await self._commit(self._passed)

    def _passed(self) -> dict[Key, Position]:
        known = self._committing.committed
        return {
            key: at
            for key, at in self.news(is_all=self._commits_first).items()
            if key not in known or known[key].offset < at.offset
        }

    async def commit(self, find: Callable[[], Mapping[Key, Position]]) -> None:
        """The program's own commit. `find` is called now, and again when its turn has come.

        Raises:
            RaftmqError: see `OffsetCommits.commit`; and what `find` raises if the ownership has
                ended by then.
        """
        self._said.update(find())
        await self._commit(find)

    async def _commit(
        self,
        find: Callable[[], Mapping[Key, Position]],
        *,
        deadline: float = inf,
        is_alone: bool = False,
    ) -> None:
        deadline = min(deadline, anyio.current_time() + COMMIT_SECONDS_MAX)

        def find_and_note() -> Mapping[Key, Position]:
            found = find()
            self._tried.update(found)
            return found

        await self._committing.commit(find_and_note, deadline=deadline, is_alone=is_alone)

    def news(self, keys: Iterable[Key] | None = None, *, is_all: bool) -> dict[Key, Position]:
        """Offsets that are not known to be committed."""
        read = self._reader.done(keys, is_all=True)
        done = read if is_all else self._reader.done(keys)
        found = {key: self._or_said(key, at, read[key]) for key, at in done.items()}
        return {key: at for key, at in found.items() if self._is_new(key, at, read[key])}

    def _or_said(self, key: Key, done: Position, read: Position) -> Position:
        """The program's own commit counts, though its records may still be in flight."""
        said = self._said.get(key)
        is_more = said is not None and done.offset < said.offset <= read.offset
        return said if said is not None and is_more and said.topic_id == done.topic_id else done

    def _is_new(self, key: Key, done: Position, read: Position) -> bool:
        """Also where the program has sought back, to read something again."""
        known = self._committing.committed.get(key)
        # Unknown, or of a deleted topic that had this name.
        if known is None or known.topic_id != done.topic_id:
            return not self._is_counted_beginning(key, done)
        return done.offset > known.offset or read.offset < known.offset

    def _is_counted_beginning(self, key: Key, done: Position) -> bool:
        """Nothing was done yet, and crashes are counted for the record there: to commit it would
        pass for progress.
        """
        told = self._committing.crashes.get(key, NO_CRASHES)
        is_counted = told.offset == ABSENT and told.times > 0
        return is_counted and done.offset == self._reader.beginning_of(key)

    async def commit_beginnings(self) -> None:
        """Commit start offsets where nothing is committed, so that the next owner begins there,
        too. Raises RaftmqError.
        """
        deadline = anyio.current_time() + COMMIT_SECONDS_MAX
        await self._committing.commit(self._beginnings, deadline=deadline)

    async def end_beginnings(self, keys: Collection[Key]) -> None:
        """Before a transaction moves these offsets: commit the beginnings that are not committed
        yet, and none later. A late attempt would undo the transaction; where a later attempt has
        succeeded, it changes nothing. Raises RaftmqError.
        """

        def find() -> dict[Key, Position]:
            return {key: at for key, at in self._beginnings().items() if key in keys}

        if not self._tried.issuperset(keys):
            deadline = anyio.current_time() + COMMIT_SECONDS_MAX
            # Also waits for a commit that is under way.
            await self._committing.commit(find, deadline=deadline)
            self._tried.update(keys)

    def on_committed(self, positions: Mapping[Key, Position]) -> None:
        """By the transaction of a producer."""
        self._committing.on_committed(positions)

    # Crashes of members

    def crashes(self, key: Key, offset: int | None = None) -> int:
        """How many members have crashed that had this partition, since its committed offset moved.
        With `offset`: of the record there, 0 if it is not the first that is not committed.
        """
        told = self._committing.crashes.get(key, NO_CRASHES)
        return told.times if offset in (None, told.offset) else 0

    async def commit_alone(self, find: Callable[[], Mapping[Key, Position]]) -> None:
        """Commit up to a record that is handled now, and nothing else: a crash counts for it.
        Raises RaftmqError: it may be noted, or not.
        """
        self._alone.update(find())
        await self._commit(find, is_alone=True)

    async def end_alone(self, find_noted: Callable[[], Mapping[Key, Position]]) -> None:
        """The record there is finished, or is not handled for now: commit how far its partition is
        done, if it is but the same offset without the note. Raises RaftmqError.
        """

        def find() -> dict[Key, Position]:
            noted, known = find_noted(), self._committing.committed
            standing = {k: at for k, at in noted.items() if known.get(k, at).offset == at.offset}
            self._committing.forget(noted)  # as in `commit_last`
            self._alone.difference_update(noted)
            # What is done is not known where the program has sought the beginning, or the end.
            return standing | self.news(noted, is_all=False)

        await self._commit(find)

    async def commit_last(
        self, keys: Collection[Key] | None = None, *, deadline: float = inf
    ) -> None:
        """As `commit_done`, of partitions that are given up: no record of them is handled alone any
        more.
        """
        ended = self._alone if keys is None else self._alone.intersection(keys)
        self._committing.forget(ended)  # the same offset, without the note, is news, too
        self._alone -= ended
        await self.commit_done(keys, deadline=deadline)

    def _beginnings(self) -> dict[Key, Position]:
        """Not of partitions of which a commit was attempted: its late success would be undone."""
        known = self._committing.committed
        return {
            key: at
            for key, at in self._reader.beginnings().items()
            if key not in self._tried and (key not in known or known[key].topic_id != at.topic_id)
        }

    async def find(self, keys: Collection[Key]) -> dict[Key, Position]:
        """Committed offsets of these. Raises RaftmqError."""
        deadline = anyio.current_time() + COMMIT_SECONDS_MAX
        topic_ids = await self._find_topic_ids(keys, deadline=deadline)
        return await self._committing.fetch(topic_ids, deadline=deadline)

    async def find_one(self, key: Key) -> int | None:
        """The committed offset of one partition; None: nothing is committed.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
            RaftmqError: the coordinator has not answered.
        """
        found = await self.find([key])
        if key in found:
            return found[key].offset
        if self._cluster.routes.find(*key) is None:  # nothing committed, because it does not exist
            raise self._missing(*key)
        return None

    def _missing(self, topic: str, partition: int) -> UnknownTopicOrPartition:
        told = self._cluster.routes.topic(topic)
        count = 0 if told is None else len(told.places)
        if not count:
            return UnknownTopicOrPartition(no_topic(topic))
        return UnknownTopicOrPartition(
            f"{topic}-{partition} does not exist: the topic has {count} partitions, from 0 on"
        )

    def forget(self, keys: Collection[Key]) -> None:
        """Another member commits these now."""
        self._committing.forget(keys)
        self._committing.forget_crashes(keys)
        self._alone.difference_update(keys)
        for key in keys:
            self._said.pop(key, None)
        self._tried.difference_update(keys)

    async def _find_topic_ids(self, keys: Collection[Key], *, deadline: float) -> dict[Key, bytes]:
        """Of partitions that exist, as far as refreshed metadata say."""
        routes = self._cluster.routes
        for topic in sorted({topic for topic, _ in keys}):
            if any(routes.find(*key) is None for key in keys if key[0] == topic):
                await self._cluster.refresh(topic, deadline=deadline)
        places = {key: routes.find(*key) for key in keys}
        return {key: place.topic_id for key, place in places.items() if place is not None}
