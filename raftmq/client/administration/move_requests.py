"""Requests about moves: changes of plans, and the list of moves, both answered by any broker.

A change whose outcome is not known is asked for again, for each partition by itself: the same plan
takes the place of itself, and what does not move any more is cancelled. What a list says is put
beside the metadata of all topics, which know moves by topic ids and nothing of plans.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import anyio

from raftmq.client.administration.questions import know_addresses
from raftmq.client.administration.replica_choice import Brokers, Placed
from raftmq.client.administration.topics import all_metadata
from raftmq.client.routing.attempts import RepeatEffect, milliseconds_left
from raftmq.client.routing.routes import no_topic
from raftmq.errors import (
    ErrorCode,
    NotController,
    OutcomeUnknown,
    RaftmqError,
    ServerError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
    error_for,
)
from raftmq.wire.bodies import ABSENT, PARTITIONS_MAX
from raftmq.wire.messages.moves import ListMoves, MovePartitions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from raftmq.client.administration.results import ClusterDetails, TopicPartition
    from raftmq.client.routing.cluster import Cluster
    from raftmq.wire.bodies import PartitionOutcome
    from raftmq.wire.messages.metadata import MetadataReply, TopicMetadata
    from raftmq.wire.messages.moves import (
        ListMovesReply,
        MoveCursor,
        MoveRow,
        WantedMove,
    )

Place: TypeAlias = tuple[bytes, int]  # topic id and partition
PAGES_MAX = 100  # far more than the moves of a cluster take


# -- Changes --------------------------------------------------------------------------------------


async def find_topics(
    cluster: Cluster, places: Iterable[TopicPartition], *, deadline: float
) -> dict[str, TopicMetadata]:
    """By name. Raises UnknownTopicOrPartition: also of a partition."""
    names = sorted({name for name, _ in places})
    reply = await all_metadata(cluster, names, deadline=deadline)
    topics = {one.name: one for one in reply.topics if one.topic_id is not None}
    for name, number in places:
        if name not in topics:
            raise UnknownTopicOrPartition(no_topic(name))
        last = len(topics[name].partitions) - 1
        if number > last:
            raise UnknownTopicOrPartition(f"topic {name} has partitions 0 to {last}, not {number}")
    return topics


def id_of(topic: TopicMetadata) -> bytes:
    assert topic.topic_id is not None, "a topic that is not there"
    return topic.topic_id


async def ask_changes(
    cluster: Cluster, wanted: Sequence[WantedMove], *, deadline: float
) -> dict[Place, RaftmqError]:
    """The errors of those partitions that were refused, or whose outcome is not known."""
    errors: dict[Place, RaftmqError] = {}
    for start in range(0, len(wanted), PARTITIONS_MAX):
        portion = tuple(wanted[start : start + PARTITIONS_MAX])
        try:
            errors |= await _ask_portion(cluster, portion, deadline=deadline)
        except RaftmqError as error:
            if not start:
                raise
            # The portions before are planned: the call must not look as if nothing were.
            errors |= {(one.topic_id, one.partition): error for one in portion}
    return errors


async def _ask_portion(
    cluster: Cluster, wanted: tuple[WantedMove, ...], *, deadline: float
) -> dict[Place, RaftmqError]:
    changes = _Changes(wanted)

    async def attempt(broker_id: int) -> None:
        timeout_ms = milliseconds_left(deadline, now=anyio.current_time())
        body = MovePartitions(tuple(changes.left.values()), timeout_ms)
        try:
            answer = await cluster.ask(broker_id, body, deadline=deadline)
            changes.settle(answer.body.partitions)
        except RaftmqError as error:
            if not error.definite:
                changes.doubted.update(changes.left)
            raise
        changes.check()

    try:
        await cluster.at_any(attempt, deadline=deadline, repeats=RepeatEffect.ACCEPTED)
    except RaftmqError as error:
        if len(changes.left) == len(wanted):
            raise
        return changes.errors | dict.fromkeys(changes.left, error)
    return changes.errors


class _Changes:
    """Of one request, over all of its attempts.

    Attributes:
        left: what is to be asked for again.
        doubted: what an earlier attempt may have carried out, or may yet.
        errors: of those that were refused.
    """

    def __init__(self, wanted: Iterable[WantedMove]) -> None:
        self.left: dict[Place, WantedMove] = {(one.topic_id, one.partition): one for one in wanted}
        self.doubted: set[Place] = set()
        self.errors: dict[Place, RaftmqError] = {}
        self._last: list[RaftmqError] = []  # of the last attempt, that settle nothing

    def settle(self, outcomes: Iterable[PartitionOutcome]) -> None:
        """
        Raises:
            ServerError: the broker is faulty, its answer proves nothing.
        """
        told = {(one.topic_id, one.partition): one for one in outcomes}
        if told.keys() != self.left.keys():
            raise ServerError("a broker answered MovePartitions for other partitions")
        self._last = []
        for place, one in told.items():
            if one.error == ErrorCode.NONE:
                del self.left[place]
            else:
                self._on_error(place, error_for(one.error, one.message))

    def _on_error(self, place: Place, error: RaftmqError) -> None:
        is_still = error.code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS  # there is no class for it
        is_definite = error.definite or is_still
        # The controller was not reached, or the feature level is too low, for all that are left.
        if not is_definite or isinstance(error, NotController | UnsupportedVersion):
            self._last.append(error)
            if not is_definite:
                self.doubted.add(place)
            return
        del self.left[place]
        if place not in self.doubted:
            self.errors[place] = error
        elif not is_still:  # otherwise an earlier attempt has cancelled it
            # That this attempt was refused says nothing of the ones before.
            self.errors[place] = OutcomeUnknown(f"it may have been carried out: {error}")

    def check(self) -> None:
        """
        Raises:
            RaftmqError: an error of what has to be asked for again, an indefinite one if there is.
        """
        if self._last:
            raise min(self._last, key=lambda error: error.definite)


# -- Lists ----------------------------------------------------------------------------------------


class FoundMoves(NamedTuple):
    """The moves of topics that are there, and the metadata of all topics."""

    rows: list[MoveRow]
    metadata: MetadataReply

    @property
    def names(self) -> dict[bytes, str]:
        topics = self.metadata.topics
        return {one.topic_id: one.name for one in topics if one.topic_id is not None}

    def placed(self, topic: TopicMetadata) -> list[Placed]:
        """With the replicas that it will have when the moves are done."""
        targets = {(row.topic_id, row.partition): row.target for row in self.rows}
        return [
            Placed(
                one.partition,
                targets.get((id_of(topic), one.partition), one.replicas),
                one.isr,
                one.leader,
            )
            for one in topic.partitions
        ]

    def brokers(self, details: ClusterDetails) -> Brokers:
        """With the loads that they will have then."""
        loads = Counter(
            one for topic in self.metadata.topics for it in topic.partitions for one in it.replicas
        )
        for row in self.rows:
            loads.subtract(row.replicas)
            loads.update(row.target)
        racks = {one.broker_id: one.rack for one in details.brokers}
        active = tuple(one.broker_id for one in details.brokers if one.state == "active")
        return Brokers(racks, active, loads)


async def find_moves(cluster: Cluster, *, deadline: float) -> FoundMoves:
    async def attempt(broker_id: int) -> FoundMoves:
        metadata = await all_metadata(cluster, deadline=deadline)
        controller = metadata.controller_id
        await know_addresses(cluster, {controller} - {ABSENT}, deadline=deadline)
        # Any broker answers, from what it knows, which may be older.
        asked = controller if controller in cluster.routes.addresses else broker_id
        found = FoundMoves([], metadata)
        names = found.names
        rows = await _all_pages(cluster, asked, deadline=deadline)
        found.rows.extend(row for row in rows if row.topic_id in names)
        return found

    return await cluster.at_any(attempt, deadline=deadline, repeats=RepeatEffect.HARMLESS)


async def _all_pages(cluster: Cluster, broker_id: int, *, deadline: float) -> list[MoveRow]:
    """Each move once, those under way first: a page may begin at the beginning again."""
    rows: dict[Place, MoveRow] = {}
    first: MoveCursor | None = None
    # A faulty broker must not make this loop for ever.
    for _ in range(PAGES_MAX):
        answer = await cluster.ask(broker_id, ListMoves(first=first), deadline=deadline)
        reply: ListMovesReply = answer.body
        rows |= {(row.topic_id, row.partition): row for row in reply.moves}
        first = reply.next
        if first is None:  # the last page
            return sorted(rows.values(), key=lambda row: not row.is_under_way)
    raise ServerError(f"broker {broker_id}: pages of moves that lead nowhere")
