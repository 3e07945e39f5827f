"""`MoveCalls`: the public admin calls on moves: partitions get replicas on other brokers.

A move is planned by a call and carried out by the controller, as its limits allow (decision 0044).
Which moves there are, the controller knows; how far a copy is, the brokers that copy. (Kafka:
alterPartitionReassignments, listPartitionReassignments)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import anyio

from raftmq.client.administration import checks
from raftmq.client.administration.clusters import cluster_details
from raftmq.client.administration.move_requests import (
    ask_changes,
    find_moves,
    find_topics,
    id_of,
)
from raftmq.client.administration.replica_choice import absence_warning, choose_replicas
from raftmq.client.administration.sizes import gather_logs
from raftmq.client.routing.routes import no_topic
from raftmq.errors import ErrorCode, UnknownTopicOrPartition
from raftmq.topic_config import replication_warning
from raftmq.wire.bodies import ABSENT, TOPICS_MAX
from raftmq.wire.messages.moves import WantedMove

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from raftmq.client.administration.move_requests import FoundMoves
    from raftmq.client.administration.results import TopicPartition
    from raftmq.client.administration.sizes import Logs
    from raftmq.client.routing.cluster import Cluster
    from raftmq.errors import RaftmqError
    from raftmq.wire.messages.metadata import PartitionMetadata, TopicMetadata
    from raftmq.wire.messages.moves import MoveRow

CancelOutcome: TypeAlias = Literal["cancelled", "not moving", "failed", "unknown"]


# -- Results --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestedMove:
    """What was asked for of one partition.

    Attributes:
        replicas: broker ids, as they are when it is asked for, the preferred leader first.
        target: those that it is to have.
        error: why nothing was planned; an indefinite one: it may be planned, or soon be; None: it
            is planned.
    """

    topic: str
    partition: int
    replicas: tuple[int, ...]
    target: tuple[int, ...]
    error: RaftmqError | None = None


@dataclass(frozen=True, slots=True)
class CancelledMove:
    """The outcome of a cancel for one partition. "not moving": there is no move of it, or none any
    more; "unknown": it may be cancelled, or soon be; `error`: why it failed, or is not known.
    """

    topic: str
    partition: int
    outcome: CancelOutcome
    error: RaftmqError | None = None


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """A move that waits for its turn, or is under way.

    Attributes:
        replicas: broker ids; while it is under way the new ones among them.
        target: those that it is to have, the preferred leader first.
        adding: those of the target that have no replica yet, or one that is not in sync.
        leader: None: it has none, so nothing can be copied.
        waits_for: why it has not begun, or does not go on, in words; empty: it does.
        bytes_done: what these new replicas have, without indexes; None: it has not begun, or a
            broker that would know has not answered.
        bytes_total: what they will have, by the leader's log now; None likewise.
    """

    topic: str
    partition: int
    replicas: tuple[int, ...]
    target: tuple[int, ...]
    adding: tuple[int, ...]
    is_under_way: bool
    leader: int | None
    waits_for: str
    bytes_done: int | None = None
    bytes_total: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicationChange:
    """A topic whose replication factor is to change.

    Attributes:
        moves: of the partitions that do not have, and are not about to have, so many replicas.
        warning: which brokers are down, without which a move cannot finish; and what one broker
            that is down will do to the topic, as in `CreatedTopic`. Empty: nothing.
    """

    topic: str
    replication_factor: int
    moves: tuple[RequestedMove, ...]
    warning: str


# -- Calls ----------------------------------------------------------------------------------------


class MoveCalls:
    """The calls of `mq.admin` on moves; see `Admin` for what holds for all calls."""

    def __init__(self, cluster: Cluster, *, timeout_seconds: float) -> None:
        self._cluster, self._timeout_seconds = cluster, timeout_seconds

    async def move_partitions(
        self, moves: Mapping[TopicPartition, Collection[int]]
    ) -> tuple[RequestedMove, ...]:
        """Give partitions replicas on other brokers. Returns when the moves are planned; the
        cluster carries them out, a few at a time, and goes on when brokers or this program end:
        see `moves`.

        New replicas are copied while the present ones serve; these are dropped when all new ones
        are in sync. A plan takes the place of an earlier one for the same partition.

        Args:
            moves: by topic and partition the ids of the brokers that are to have it, the preferred
                leader first, like {("orders", 3): [2, 4, 5]}.

        Returns:
            The outcome for each partition; where it has a definite error, nothing was planned.

        Raises:
            UnknownTopicOrPartition: there is no such topic, or partition; nothing was planned.
                Definite.
            InvalidReplicaAssignment: no broker, or one twice, or too many. Definite. For a broker
                that does not exist it is the error of the outcome.
            UnsupportedVersion: some voter or broker is of an older version. Definite.
            OutcomeUnknown: some moves may be planned, or soon be. Indefinite.
        """
        wanted = checks.check_moves(moves)
        deadline = self._deadline()
        topics = await find_topics(self._cluster, wanted, deadline=deadline)
        return await _plan(self._cluster, topics, wanted, deadline=deadline)

    async def cancel_moves(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> tuple[CancelledMove, ...]:
        """Take back moves that wait or are under way: the partitions keep the replicas that they
        had before. One under way is refused while that would leave no replica in sync, as when the
        brokers that had the partition are down.

        Args:
            partitions: by topic and number. None: all that wait or are under way.

        Returns:
            The outcome for each partition.

        Raises:
            UnknownTopicOrPartition: there is no such topic, or partition; nothing was cancelled.
                Definite.
            UnsupportedVersion: some voter or broker is of an older version. Definite.
            OutcomeUnknown: some may be cancelled, or soon be. Indefinite.
        """
        deadline = self._deadline()
        if partitions is None:
            found = await find_moves(self._cluster, deadline=deadline)
            names = found.names
            places = {(row.topic_id, row.partition): names[row.topic_id] for row in found.rows}
        else:
            wanted = checks.check_places(partitions)
            topics = await find_topics(self._cluster, wanted, deadline=deadline)
            places = {(id_of(topics[name]), number): name for name, number in wanted}
        asked = [WantedMove(*place) for place in places]
        errors = await ask_changes(self._cluster, asked, deadline=deadline)
        return tuple(
            _cancelled(name, place[1], errors.get(place)) for place, name in places.items()
        )

    async def moves(self) -> tuple[PartitionMove, ...]:
        """The moves that are under way, with how far they are, then those that wait for their
        turn, in the order in which they will begin.

        Raises:
            UnsupportedVersion: some voter or broker is of an older version. Definite.
        """
        deadline = self._deadline()
        found = await find_moves(self._cluster, deadline=deadline)
        return await _with_sizes(self._cluster, found, deadline=deadline)

    async def alter_replication_factor(
        self, topic: str, replication_factor: int, *, dry_run: bool = False
    ) -> ReplicationChange:
        """Give each partition of a topic so many replicas. Returns when the moves are planned; see
        `move_partitions`.

        More replicas come to the active brokers that have the fewest, of other racks first. Fewer:
        those go first that are not in sync, never the leader while there is another, and last those
        that are alone in their rack.

        Args:
            dry_run: only say what would be planned.

        Returns:
            The moves, each with its outcome; a topic that has so many replicas has none.

        Raises:
            UnknownTopicOrPartition: there is no such topic. Definite.
            InvalidReplicationFactor: not so many brokers are active; names those that are.
                Definite.
            UnsupportedVersion: some voter or broker is of an older version. Definite.
            OutcomeUnknown: some moves may be planned, or soon be. Indefinite.
        """
        checks.check_topic(topic)
        checks.check_replication_factor(replication_factor)
        deadline = self._deadline()
        details = await cluster_details(self._cluster, deadline=deadline)
        found = await find_moves(self._cluster, deadline=deadline)
        there = {one.name: one for one in found.metadata.topics}.get(topic)
        if there is None or there.topic_id is None:
            raise UnknownTopicOrPartition(no_topic(topic))
        brokers = found.brokers(details)
        chosen = choose_replicas(found.placed(there), replication_factor, brokers)
        wanted = {(topic, number): replicas for number, replicas in chosen.items()}
        planned = await _plan(
            self._cluster, {topic: there}, wanted, is_dry=dry_run, deadline=deadline
        )
        warnings = (
            absence_warning(chosen.values(), brokers),
            replication_warning(replication_factor, there.min_insync_replicas),
        )
        warning = "; ".join(filter(None, warnings))
        return ReplicationChange(topic, replication_factor, planned, warning)

    def _deadline(self) -> float:
        return anyio.current_time() + self._timeout_seconds


async def _plan(
    cluster: Cluster,
    topics: Mapping[str, TopicMetadata],
    wanted: Mapping[TopicPartition, tuple[int, ...]],
    *,
    is_dry: bool = False,
    deadline: float,
) -> tuple[RequestedMove, ...]:
    places = {(name, number): (id_of(topics[name]), number) for name, number in wanted}
    asked = [] if is_dry else [WantedMove(*places[one], ids) for one, ids in wanted.items()]
    errors = await ask_changes(cluster, asked, deadline=deadline)
    planned = []
    for (name, number), target in wanted.items():
        error = errors.get(places[name, number])
        replicas = topics[name].partitions[number].replicas
        told = None if error is None else error.at(name, number)
        planned.append(RequestedMove(name, number, replicas, target, told))
    return tuple(planned)


def _cancelled(topic: str, partition: int, error: RaftmqError | None) -> CancelledMove:
    if error is None:
        return CancelledMove(topic, partition, "cancelled")
    if error.code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
        return CancelledMove(topic, partition, "not moving")
    outcome: CancelOutcome = "failed" if error.definite else "unknown"
    return CancelledMove(topic, partition, outcome, error.at(topic, partition))


# -- Progress --------------------------------------------------------------------------------------


async def _with_sizes(
    cluster: Cluster, found: FoundMoves, *, deadline: float
) -> tuple[PartitionMove, ...]:
    """Asks the leaders, and the brokers that copy, of what is under way."""
    partitions = {
        (topic.topic_id, one.partition): one
        for topic in found.metadata.topics
        for one in topic.partitions
    }
    adding = {
        place: _adding(row, partitions.get(place))
        for row in found.rows
        for place in [(row.topic_id, row.partition)]
    }
    copied = [row for row in found.rows if row.is_under_way]
    brokers = {row.leader for row in copied} - {ABSENT}
    brokers |= {one for row in copied for one in adding[row.topic_id, row.partition]}
    topics = tuple({row.topic_id for row in copied})
    told = _Sizes({}, set())
    if brokers:
        few = topics if len(topics) <= TOPICS_MAX else None
        told = _Sizes(*await gather_logs(cluster, brokers, few, deadline=deadline))
    names = found.names
    return tuple(
        PartitionMove(
            names[row.topic_id],
            row.partition,
            row.replicas,
            row.target,
            new := adding[row.topic_id, row.partition],
            row.is_under_way,
            None if row.leader == ABSENT else row.leader,
            row.waits_for,
            *(told.progress(row, new) if row.is_under_way else ()),
        )
        for row in found.rows
    )


def _adding(row: MoveRow, known: PartitionMetadata | None) -> tuple[int, ...]:
    there = row.replicas
    if row.is_under_way:  # the new ones are among its replicas
        there = () if known is None else known.isr
    return tuple(one for one in row.target if one not in there)


class _Sizes(NamedTuple):
    """`told`: the brokers that have told of all their logs."""

    logs: Logs
    told: set[int]

    def progress(self, row: MoveRow, adding: Sequence[int]) -> tuple[int | None, int | None]:
        """Bytes that the new replicas have, and will have."""
        whole = self._size(row.leader, row)
        if whole is None:
            return None, None
        sizes = [self._size(one, row) for one in adding]
        known = [min(size, whole) for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None, whole * len(sizes)

    def _size(self, broker_id: int, row: MoveRow) -> int | None:
        log = self.logs.get((broker_id, row.topic_id, row.partition))
        if log is not None:
            return log.size_bytes
        return 0 if broker_id in self.told else None  # its folder is not made yet
