"""A member's offsets: what it commits when, and where it begins.

Owns the way from what was done to what is committed. What the coordinator says of the member on
that occasion, its membership is told (`on_refused`).
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import anyio

from raftmq.client.group.committing import Committing
from raftmq.errors import UnknownTopicOrPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from raftmq.client.group.assignors.assignor import Key
    from raftmq.client.group.committing import Identity, Position
    from raftmq.client.group.coordinator import Coordinator
    from raftmq.client.group.reader import Reader
    from raftmq.client.routing.cluster import Cluster
    from raftmq.errors import RaftmqError

COMMIT_SECONDS_MAX = 30.0


class MemberOffsets:
    """
    Args:
        commits_first: what the program has in hand counts as done, always.
        on_refused: told an error that says something of the member, and its generation then.
    """

    def __init__(
        self,
        cluster: Cluster,
        coordinator: Coordinator,
        group: str,
        reader: Reader,
        identity: Callable[[], Identity],
        on_refused: Callable[[RaftmqError, int], None],
        *,
        commits_first: bool,
    ) -> None:
        self._cluster, self._reader, self._commits_first = cluster, reader, commits_first
        self._committing = Committing(coordinator, group, identity, on_refused)
        self._said: dict[Key, Position] = {}  # by the program, of what it had in hand
        self._tried: set[Key] = set()  # to be committed, whatever came of it

    async def commit_done(
        self, keys: Iterable[Key] | None = None, *, is_all: bool = False, deadline: float = inf
    ) -> None:
        """Commit how far the program has come, where that is news. Raises RaftmqError."""
        if is_all:
            self._said.update(self._reader.done(keys, is_all=True))
        is_all = is_all or self._commits_first
        await self._commit(lambda: self.news(keys, is_all=is_all), deadline=deadline)

    async def commit_passed(self) -> None:
        """The same, where that takes the group on: while records of a batch that was committed
        first are handed out one by one, the program has not come so far yet. Raises RaftmqError.
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
        """The program says so, and `find` how far: now, and again when it is its turn.

        Raises:
            RaftmqError: see `Committing.commit`; and what `find` raises if that is over by then.
        """
        self._said.update(find())
        await self._commit(find)

    async def _commit(
        self, find: Callable[[], Mapping[Key, Position]], *, deadline: float = inf
    ) -> None:
        deadline = min(deadline, anyio.current_time() + COMMIT_SECONDS_MAX)

        def find_and_note() -> Mapping[Key, Position]:
            found = find()
            self._tried.update(found)
            return found

        await self._committing.commit(find_and_note, deadline=deadline)

    def news(self, keys: Iterable[Key] | None = None, *, is_all: bool) -> dict[Key, Position]:
        """What is not committed yet, as far as anybody knows."""
        read = self._reader.done(keys, is_all=True)
        done = read if is_all else self._reader.done(keys)
        found = {key: self._or_said(key, at, read[key]) for key, at in done.items()}
        return {key: at for key, at in found.items() if self._is_news(key, at, read[key])}

    def _or_said(self, key: Key, done: Position, read: Position) -> Position:
        """What the program has said to be done is, though it may have it in hand."""
        said = self._said.get(key)
        is_more = said is not None and done.offset < said.offset <= read.offset
        return said if said is not None and is_more and said.topic_id == done.topic_id else done

    def _is_news(self, key: Key, done: Position, read: Position) -> bool:
        """Also where the program has gone back, to read something again."""
        known = self._committing.committed.get(key)
        if known is None or known.topic_id != done.topic_id:
            return True
        return done.offset > known.offset or read.offset < known.offset

    async def commit_beginnings(self) -> None:
        """Where nothing is committed: whoever reads on begins there, too. Raises RaftmqError."""
        deadline = anyio.current_time() + COMMIT_SECONDS_MAX
        await self._committing.commit(self._beginnings, deadline=deadline)

    def _beginnings(self) -> dict[Key, Position]:
        """Of what may have been committed since, nothing: the group would go back."""
        known = self._committing.committed
        return {
            key: at
            for key, at in self._reader.beginnings().items()
            if key not in self._tried and (key not in known or known[key].topic_id != at.topic_id)
        }

    async def find(self, keys: Collection[Key]) -> dict[Key, Position]:
        """What the group has committed of these. Raises RaftmqError."""
        deadline = anyio.current_time() + COMMIT_SECONDS_MAX
        topic_ids = await self._find_topic_ids(keys, deadline=deadline)
        return await self._committing.fetch(topic_ids, deadline=deadline)

    async def find_one(self, key: Key) -> int | None:
        """
        Raises:
            UnknownTopicOrPartition: there is no such partition.
            RaftmqError: nobody can tell.
        """
        found = await self.find([key])
        if key in found:
            return found[key].offset
        if self._cluster.routes.find(*key) is None:
            raise self._missing(*key)
        return None

    def _missing(self, topic: str, partition: int) -> UnknownTopicOrPartition:
        told = self._cluster.routes.topic(topic)
        count = 0 if told is None else len(told.places)
        if not count:
            return UnknownTopicOrPartition(
                f"there is no topic {topic!r}: make it first, raftmq topic create {topic}"
            )
        return UnknownTopicOrPartition(
            f"{topic}-{partition} does not exist: the topic has {count} partitions, from 0 on"
        )

    def forget(self, keys: Collection[Key]) -> None:
        """Somebody else commits these now."""
        self._committing.forget(keys)
        for key in keys:
            self._said.pop(key, None)
        self._tried.difference_update(keys)

    async def _find_topic_ids(self, keys: Collection[Key], *, deadline: float) -> dict[Key, bytes]:
        """Of those that are known to be there."""
        routes = self._cluster.routes
        for topic in sorted({topic for topic, _ in keys}):
            if any(routes.find(*key) is None for key in keys if key[0] == topic):
                await self._cluster.refresh(topic, deadline=deadline)
        places = {key: routes.find(*key) for key in keys}
        return {key: place.topic_id for key, place in places.items() if place is not None}
