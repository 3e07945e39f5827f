"""What brokers do about topics, settings, old records and leaders, on top of a `World`.

Owns what a World has no word for: configurations, replicas, brokers that are down. What goes wrong
is scripted: `errors` holds one for each of the next changes, and `LOST` is one that is carried out
before the connection ends.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from raftmq.client.administration.admin import Admin
from raftmq.errors import ErrorCode, InvalidConfig
from raftmq.rpc.reply import Reply
from raftmq.topic_config import TOPIC_KEYS, parse_topic_config
from raftmq.wire.bodies import Body, PartitionOutcome, TopicOutcome
from raftmq.wire.messages import cluster as about_cluster
from raftmq.wire.messages import configs as about_configs
from raftmq.wire.messages import topics as about_topics
from raftmq.wire.messages import transactions as about_transactions
from raftmq.wire.messages.corruption import DescribeDamage, DescribeDamageReply
from raftmq.wire.messages.metadata import Metadata
from raftmq.wire.messages.moves import ListMoves, MovePartitions
from tests.unit.client.administration.planned_moves import PlannedMoves
from tests.unit.client.world import CLUSTER, Partition, World, never, open_world, page_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from raftmq.wire.bodies import Request
    from raftmq.wire.messages.metadata import PartitionMetadata
    from tests.unit.client.world import Broker, Topic

LOST = object()
PAGE = 2  # topics, of a list


class Bureau:
    """Attributes:
    errors: of the next changes.
    configs: what was set, by the name of the topic.
    min_isr: by topic; else brokers do not tell, as older ones.
    replicas: replicas and in-sync set, by topic and partition; else the leader is alone.
    down: broker ids.
    elsewhere: ids of brokers that are registered, and that no client reaches.
    racks: by broker.
    copied: bytes that a replica has, by broker, topic and partition; else as many as its leader.
    leader: of new partitions.
    instead: what a broker answers in place of the truth, by broker and request.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.errors: list[Any] = []
        self.configs: dict[str, dict[str, str]] = {}
        self.min_isr: dict[str, int] = {}
        self.replicas: dict[tuple[str, int], tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self.down: set[int] = set()
        self.elsewhere: set[int] = set()
        self.racks: dict[int, str] = {}
        self.copied: dict[tuple[int, str, int], int] = {}
        self.clocks_ahead_ms: dict[int, int] = {}
        self.leader = 1
        self.instead: dict[tuple[int, type[Request]], Body] = {}
        self.voters: tuple[about_cluster.VoterAddress, ...] = ()
        self.controller_id = 1
        self.moves = PlannedMoves(self)
        for broker in world.brokers.values():
            self._employ(broker)

    def count(self, kind: type[Any]) -> int:
        return sum(broker.count(kind) for broker in self.world.brokers.values())

    def asked(self, kind: type[Any]) -> list[Any]:
        bodies = [body for broker in self.world.brokers.values() for body in broker.asked]
        return [body for body in bodies if isinstance(body, kind)]

    def _employ(self, broker: Broker) -> None:
        changes: dict[type[Request], Callable[[Any, Any], Reply]] = {
            about_topics.CreateTopics: self._create,
            about_topics.DeleteTopics: self._delete,
            about_topics.CreatePartitions: self._grow,
            about_configs.AlterConfigs: self._alter,
            about_topics.DeleteRecords: partial(self._trim, broker),
            about_topics.ElectLeaders: self._elect,
            MovePartitions: self.moves.change,
        }
        reads: dict[type[Request], Callable[[Any], Any]] = {
            Metadata: self._metadata,
            about_topics.DescribeTopics: self._describe,
            about_configs.DescribeConfigs: self._describe_configs,
            about_cluster.DescribeCluster: self._describe_cluster,
            about_topics.DescribeLogs: partial(self._describe_logs, broker),
            ListMoves: partial(self.moves.list, broker),
            DescribeDamage: lambda _body: Reply(DescribeDamageReply()),
            about_transactions.DescribeOverdue: lambda _body: Reply(
                about_transactions.DescribeOverdueReply()
            ),
            about_transactions.ListTransactions: lambda _body: Reply(
                about_transactions.ListTransactionsReply()
            ),
            about_transactions.DescribeTransactions: _describe_no_transaction,
        }
        for key, change in changes.items():
            reads[key] = partial(self._turn, broker, change)
        for key, answer in reads.items():
            broker.handlers[key] = partial(self._answer, (broker.broker_id, key), answer)

    def _answer(
        self,
        place: tuple[int, type[Request]],
        answer: Callable[[Any], Any],
        _c: Any,
        body: Any,
        _p: Any,
    ) -> Any:
        return Reply(self.instead[place]) if place in self.instead else answer(body)

    def lie(self, key: type[Request], told: Body, *brokers: int) -> None:
        """All brokers, unless some are named."""
        self.instead |= {(broker_id, key): told for broker_id in brokers or self.world.brokers}

    def _turn(self, broker: Broker, change: Callable[[Any, Any], Reply], body: Any) -> Any:
        error = self.next_error()
        reply = change(body, ErrorCode.NONE if error is LOST else error)
        if error is not LOST:
            return reply
        broker.hang_up()
        return never()

    def next_error(self) -> Any:
        return self.errors.pop(0) if self.errors else ErrorCode.NONE

    # Changes

    def _create(self, body: about_topics.CreateTopics, error: ErrorCode) -> Reply:
        (wanted,) = body.topics
        error = error or refusal_of(wanted.configs)
        if wanted.name in self.world.topics:
            error = ErrorCode.TOPIC_ALREADY_EXISTS
        if error:
            told = about_topics.TopicCreated(wanted.name, error, f"{error.name} {wanted.name}")
            return Reply(about_topics.CreateTopicsReply((told,)))
        count = 1 if wanted.partition_count < 0 else wanted.partition_count
        topic = self.world.add_topic(wanted.name, *[self.leader] * count)
        self.configs[wanted.name] = dict(wanted.configs)
        told = about_topics.TopicCreated(wanted.name, 0, "", topic.topic_id, count, 1)
        return Reply(about_topics.CreateTopicsReply((told,)))

    def _delete(self, body: about_topics.DeleteTopics, error: ErrorCode) -> Reply:
        (topic_id,) = body.topics
        error = error or self._missing(topic_id)
        if not error:
            del self.world.topics[self.name_of(topic_id)]
            self.world.version += 1
        outcome = TopicOutcome(topic_id, error, error.name if error else "")
        return Reply(about_topics.DeleteTopicsReply((outcome,)))

    def _grow(self, body: about_topics.CreatePartitions, error: ErrorCode) -> Reply:
        (wanted,) = body.topics
        error = error or self._missing(wanted.topic_id)
        if not error:
            partitions = self._topic(wanted.topic_id).partitions
            if wanted.partition_count <= len(partitions):
                error = ErrorCode.INVALID_PARTITIONS
        if not error:
            partitions += [Partition(1) for _ in range(len(partitions), wanted.partition_count)]
            self.world.version += 1
        outcome = TopicOutcome(wanted.topic_id, error, error.name if error else "")
        return Reply(about_topics.CreatePartitionsReply((outcome,)))

    def _alter(self, body: about_configs.AlterConfigs, error: ErrorCode) -> Reply:
        (wanted,) = body.topics
        error = error or self._missing(wanted.topic_id)
        if not error:
            name = self.name_of(wanted.topic_id)
            wishes = self.configs.get(name, {}) | wanted.changes
            kept = {key: value for key, value in wishes.items() if value is not None}
            error = refusal_of(kept)
            self.configs[name] = self.configs.get(name, {}) if error else kept
        outcome = TopicOutcome(wanted.topic_id, error, error.name if error else "")
        return Reply(about_configs.AlterConfigsReply((outcome,)))

    def _trim(self, broker: Broker, body: about_topics.DeleteRecords, error: ErrorCode) -> Reply:
        (wanted,) = body.partitions
        partition = self.world.find(wanted.topic_id, wanted.partition)
        if partition is None:
            error = self.world.missing(wanted.topic_id)
        elif partition.leader != broker.broker_id:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif wanted.before_offset > partition.end_offset:
            error = ErrorCode.OFFSET_OUT_OF_RANGE
        start = -1
        if not error and partition is not None:
            before = partition.end_offset if wanted.before_offset < 0 else wanted.before_offset
            partition.log_start_offset = start = max(partition.log_start_offset, before)
        told = about_topics.RecordsDeleted(
            wanted.topic_id,
            wanted.partition,
            error,
            error.name if error else "",
            start,
        )
        return Reply(about_topics.DeleteRecordsReply((told,)))

    def _elect(self, body: about_topics.ElectLeaders, error: ErrorCode) -> Reply:
        """The errors are those of the partitions, one after the other."""
        errors = [error, *self.errors][: len(body.partitions)]
        self.errors = self.errors[len(body.partitions) - 1 :]
        errors += [ErrorCode.NONE] * (len(body.partitions) - len(errors))
        told = []
        for one, code in zip(body.partitions, errors, strict=True):
            code = code or self._elect_one(one.topic_id, one.partition)
            told.append(PartitionOutcome(one.topic_id, one.partition, code, code.name))
        return Reply(about_topics.ElectLeadersReply(tuple(told)))

    def _elect_one(self, topic_id: bytes, number: int) -> ErrorCode:
        """The first of its replicas leads."""
        partition = self.world.find(topic_id, number)
        if partition is None:
            return self.world.missing(topic_id)
        name = self.name_of(topic_id)
        replicas, _ = self.replicas.get((name, number), ((partition.leader,), ()))
        if partition.leader == replicas[0]:
            return ErrorCode.ELECTION_NOT_NEEDED
        self.world.lead(name, number, replicas[0])
        return ErrorCode.NONE

    # Questions

    def _metadata(self, body: Any) -> Reply:
        """All topics come in pages."""
        topics_max = PAGE if body.topics is None else len(body.topics)
        reply = page_of(self.world.metadata(body.topics), body, topics_max=topics_max)
        placed = tuple(
            replace(
                one,
                partitions=tuple(self._placed(one.name, it) for it in one.partitions),
                min_insync_replicas=self.min_isr.get(one.name, -1),
            )
            for one in reply.topics
        )
        return Reply(
            replace(
                reply,
                controller_id=self.controller_id,
                brokers=tuple(one for one in reply.brokers if one.broker_id not in self.down),
                topics=placed,
            )
        )

    def _placed(self, name: str, found: PartitionMetadata) -> PartitionMetadata:
        alone = ((found.leader,), (found.leader,)) if found.leader >= 0 else ((), ())
        replicas, isr = self.replicas.get((name, found.partition), alone)
        offline = tuple(one for one in replicas if one in self.down)
        return replace(found, replicas=replicas, isr=isr, offline=offline)

    def _describe(self, body: about_topics.DescribeTopics) -> Reply:
        (name,) = body.topics
        topic = self.world.topics.get(name)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            unknown = about_topics.TopicDescription(name, code, "no such topic")
            return Reply(about_topics.DescribeTopicsReply((unknown,)))
        partitions = tuple(self._described(name, at) for at in range(len(topic.partitions)))
        found = about_topics.TopicDescription(
            name, 0, "", topic.topic_id, len(partitions), partitions, self.configs.get(name, {})
        )
        return Reply(about_topics.DescribeTopicsReply((found,)))

    def _described(self, name: str, number: int) -> about_topics.PartitionDescription:
        found = self.world.topics[name].partitions[number]
        replicas, isr = self.replicas.get((name, number), ((1,), (1,)))
        return about_topics.PartitionDescription(
            number,
            found.leader,
            found.leader_epoch,
            0,
            replicas,
            isr,
            adding=self.moves.adding_to(name, number),
            removing=self.moves.removing_from(name, number),
        )

    def _describe_logs(self, broker: Broker, body: about_topics.DescribeLogs) -> Reply:
        """In pages of one. A record has ten bytes."""
        rows = sorted(
            (topic.topic_id, number, found, name)
            for name, topic in self.world.topics.items()
            for number, found in enumerate(topic.partitions)
            if broker.broker_id in self.placed_at(name, number)[0]
            and (body.topics is None or topic.topic_id in body.topics)
        )
        if body.first is not None:
            rows = [row for row in rows if row[:2] >= (body.first.topic_id, body.first.partition)]
        told = tuple(
            about_topics.LogRow(
                topic_id,
                number,
                self.copied.get(
                    (broker.broker_id, name, number),
                    10 * (found.end_offset - found.log_start_offset),
                ),
                found.log_start_offset,
                found.end_offset,
            )
            for topic_id, number, found, name in rows[:1]
        )
        following = about_topics.LogCursor(*rows[1][:2]) if rows[1:] else None
        return Reply(about_topics.DescribeLogsReply(told, following))

    def placed_at(self, name: str, number: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Replicas and in-sync set."""
        leader = self.world.topics[name].partitions[number].leader
        return self.replicas.get((name, number), ((leader,), (leader,)))

    def _describe_configs(self, body: about_configs.DescribeConfigs) -> Reply:
        (topic_id,) = body.topics
        if error := self._missing(topic_id):
            unknown = about_configs.TopicConfigDescription(topic_id, error, error.name)
            return Reply(about_configs.DescribeConfigsReply((unknown,)))
        known = self.configs.get(self.name_of(topic_id), {})
        entries = tuple(
            about_configs.ConfigEntry(key.name, known.get(key.name, "0"), key.name not in known)
            for key in TOPIC_KEYS
        )
        told = about_configs.TopicConfigDescription(topic_id, config_epoch=1, entries=entries)
        return Reply(about_configs.DescribeConfigsReply((told,)))

    def _describe_cluster(self, _body: Any) -> Reply:
        brokers = tuple(
            about_cluster.BrokerDescription(
                broker.broker_id,
                1,
                (
                    about_cluster.ListenerAddress("brokers", "inside", 1000 + broker.broker_id),
                    about_cluster.ListenerAddress("clients", *broker.address),
                ),
                rack=self.racks.get(broker.broker_id),
                is_fenced=broker.broker_id in self.down,
                clock_ahead_ms=self.clocks_ahead_ms.get(broker.broker_id),
                software_version="0.1.0" if broker.broker_id == 1 else "",
            )
            for broker in self.world.brokers.values()
        )
        brokers += tuple(
            about_cluster.BrokerDescription(one, 1, (), self.racks.get(one))
            for one in sorted(self.elsewhere)
        )
        return Reply(
            about_cluster.DescribeClusterReply(
                CLUSTER, self.controller_id, self.world.version, 1, brokers, self.voters
            )
        )

    def registered(self) -> set[int]:
        return {*self.world.brokers, *self.elsewhere}

    def _missing(self, topic_id: bytes) -> ErrorCode:
        is_there = any(topic.topic_id == topic_id for topic in self.world.topics.values())
        return ErrorCode.NONE if is_there else ErrorCode.UNKNOWN_TOPIC_ID

    def _topic(self, topic_id: bytes) -> Topic:
        return self.world.topics[self.name_of(topic_id)]

    def name_of(self, topic_id: bytes) -> str:
        found = [n for n, topic in self.world.topics.items() if topic.topic_id == topic_id]
        return found[0]


def refusal_of(configs: dict[str, str]) -> ErrorCode:
    try:
        parse_topic_config(configs)
    except InvalidConfig as error:
        return error.code
    return ErrorCode.NONE


@asynccontextmanager
async def open_bureau(
    prepare: Callable[[Bureau], object] = lambda _bureau: None,
    *,
    brokers: int = 2,
) -> AsyncIterator[tuple[Bureau, Admin]]:
    """Brokers 1 to `brokers`, and topic "t", whose partition 0 broker 1 leads.

    `prepare` is called before brokers listen, as handlers stay as they are from then on.
    """
    world = World(brokers)
    bureau = Bureau(world)
    prepare(bureau)
    async with open_world(world), world.client() as cluster:
        yield bureau, Admin(cluster, timeout_seconds=10)


def _describe_no_transaction(body: about_transactions.DescribeTransactions) -> Reply:
    error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    told = [
        about_transactions.TransactionDescribed(name, error, f"there is no {name}")
        for name in body.transaction_ids
    ]
    return Reply(about_transactions.DescribeTransactionsReply(tuple(told)))
