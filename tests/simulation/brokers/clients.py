"""Simulated programs on the wire protocol: producers, consumers, and one that makes topics.

Each is a real client on a node of its own; an error's `definite` is taken as the outcome, and
everything is recorded in the ledger.
"""

from __future__ import annotations

from itertools import count
from random import Random
from typing import TYPE_CHECKING

import trio

from raftmq.client.administration.offsets import list_offset
from raftmq.client.administration.topics import create_topic, delete_topic, wait_leaders
from raftmq.client.routing.attempts import RepeatEffect
from raftmq.client.routing.cluster import Cluster
from raftmq.errors import OffsetOutOfRange, RaftmqError, UnknownTopicOrPartition
from raftmq.metadata.commands import PartitionId
from raftmq.model import RecordFormat
from raftmq.wire.batch.records import encode_batch
from raftmq.wire.messages.offsets import EARLIEST
from raftmq.wire.messages.topics import DeleteRecords, RecordsToDelete
from tests.fetching import fetch
from tests.producing import produce
from tests.simulation.brokers.history import text_of
from tests.simulation.brokers.history_reader import Reader
from tests.simulation.brokers.hosts import NAME, now_ms
from tests.simulation.brokers.ledger import ACKS_ALL, Spot, end_of, records_in
from tests.simulation.client_network import ClientNetwork
from tests.simulation.raft.checks import demand

if TYPE_CHECKING:
    from raftmq.client.routing.routes import LeaderPlace
    from tests.simulation.brokers.ledger import Sent
    from tests.simulation.brokers.plan import TopicPlan
    from tests.simulation.brokers.world import World

BURST_MAX, BURST_SHARE = 12, 0.05
RECREATE_TRIES = 4  # a deletion may be in progress; more would only delay the world


class Program:
    """A client, connected for as long as `run` runs."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self._random = Random(f"{world.seed}/{name}")

    def _cluster(self) -> Cluster:
        NAME.set(self.name)
        network = ClientNetwork(self.world.network.node(self.name))
        addresses = [host.address for host in self.world.hosts]
        return Cluster(addresses, network, random=Random(f"{self.world.seed}/{self.name}/net"))

    async def _think(self) -> None:
        await trio.sleep(self._random.expovariate(1 / self.world.plan.think_seconds))


class Worker(Program):
    """With a task for each partition."""

    async def run(self) -> None:
        async with self._cluster() as cluster, trio.open_nursery() as nursery:
            known: set[Spot] = set()
            while not self.world.is_closing:
                for spot in self.world.spots():
                    if spot not in known:
                        known.add(spot)
                        nursery.start_soon(self._work, cluster, spot)
                await trio.sleep(0.2)

    async def _work(self, cluster: Cluster, spot: Spot) -> None:
        raise NotImplementedError


class Producer(Worker):
    """One task for each partition, and one thing after the other in it, but for bursts."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, f"p{number}")
        self._acks = self._random.choice(((ACKS_ALL,), (ACKS_ALL,), (ACKS_ALL, 1), (ACKS_ALL, 2)))
        self._numbers = count()

    async def _work(self, cluster: Cluster, spot: Spot) -> None:
        while not self.world.is_closing and self.world.is_there(spot):
            await self._think()
            if self._random.random() < BURST_SHARE:
                async with trio.open_nursery() as nursery:
                    for _ in range(self._random.randint(2, BURST_MAX)):
                        nursery.start_soon(self.send, cluster, spot)
            else:
                await self.send(cluster, spot)

    async def send(self, cluster: Cluster, spot: Spot) -> None:
        acks = self._random.choice(self._acks)
        seconds = self._random.choice((0.5, 2.0, 10.0))
        await send(self.world, cluster, spot, self._values(), acks=acks, seconds=seconds)

    def _values(self) -> tuple[bytes, ...]:
        padding = "." * self._random.randint(0, self.world.plan.padding_bytes)
        size = self._random.choice((1, 1, 2, 3))
        return tuple(f"{self.name}/{next(self._numbers)}{padding}".encode() for _ in range(size))


async def send(
    world: World,
    cluster: Cluster,
    spot: Spot,
    values: tuple[bytes, ...],
    *,
    acks: int,
    seconds: float,
) -> Sent:
    """Produce, and note what became of it."""
    ledger = world.ledger
    known = cluster.routes.find(spot.topic, spot.partition)
    epoch = known.leader_epoch if known else -1
    sent = ledger.on_send(spot, values, acks=acks, leader_epoch=epoch)
    data = bytes(
        encode_batch(
            values=list(values),
            timestamp=now_ms(),
            record_format=world.record_format_of(spot.topic),
        )
    )
    means = Meaning(world, cluster, spot)
    try:
        offset = await produce(
            cluster, spot.topic, spot.partition, data, acks=acks, timeout_seconds=seconds
        )
    except RaftmqError as error:
        if error.definite:
            ledger.on_failed(sent, repr(error))
        else:
            ledger.on_unknown(sent, is_stray=not means.this_life, why=repr(error))
        world.trace(f"{NAME.get()} {spot} {values[0][:12]!r} {type(error).__name__}")
        return sent
    if means.this_life:
        ledger.on_acknowledged(sent, offset)
    else:
        ledger.on_unknown(sent, is_stray=True)
    world.trace(f"{NAME.get()} {spot} {values[0][:12]!r} acks={acks} at {offset}")
    return sent


class Meaning:
    """Which topic a client means by a name, while it asks.

    What was sent to a topic may reach its successor, if the client has heard of that one.
    """

    def __init__(self, world: World, cluster: Cluster, spot: Spot) -> None:
        self._world, self._cluster, self._spot = world, cluster, spot
        self._before = self._topic_id

    @property
    def _topic_id(self) -> bytes | None:
        known = self._cluster.routes.topic(self._spot.topic)
        return known.topic_id if known else None

    @property
    def this_life(self) -> bool:
        """Whether it was this one from beginning to end."""
        wanted = self._world.topic_ids.get((self._spot.topic, self._spot.life))
        is_first = self._before is None and not self._spot.life
        return self._topic_id == wanted and (is_first or self._before == wanted)


class Consumer(Worker):
    """Reads every partition from its start to its end, and all over again."""

    async def _work(self, cluster: Cluster, spot: Spot) -> None:
        offset, reader = 0, Reader(self.world.history, spot)
        while not self.world.is_closing and self.world.is_there(spot):
            following = await self._read(cluster, spot, offset, reader)
            if following == offset and self._random.random() < 0.2:
                following = 0
            offset = following
            await self._think()

    async def _read(self, cluster: Cluster, spot: Spot, offset: int, reader: Reader) -> int:
        """Where to go on."""
        means = Meaning(self.world, cluster, spot)
        wait, size = self._random.choice((0.0, 0.1, 1.0)), self._random.choice((200, 5000, 1 << 20))
        reader.ask(offset)
        try:
            found = await fetch(
                cluster,
                spot.topic,
                spot.partition,
                offset,
                max_wait_seconds=wait,
                bytes_max=size,
                timeout_seconds=1.0,
            )
        except OffsetOutOfRange as error:
            reader.miss(repr(error))
            if not means.this_life:
                return 0
            return await self._start_of(cluster, spot, offset, error)
        except RaftmqError as error:
            reader.miss(repr(error))
            return offset
        if not means.this_life:
            reader.miss("another topic of that name")
            return offset
        records = [[at, text_of(value)] for at, _, value in records_in(found.data) if at >= offset]
        reader.get(records)
        self.world.ledger.on_read(spot, found.data, f"{self.name} from {offset}")
        reader.skip(end_of(found.data, offset))
        return reader.following

    async def _start_of(self, cluster: Cluster, spot: Spot, offset: int, error: RaftmqError) -> int:
        """What was read once is either still there or was deleted."""
        ledger = self.world.ledger.of(spot)
        demand(ledger.may_have_deleted(offset), f"{self.name} read {spot} up to {offset}: {error}")
        try:
            return await list_offset(
                cluster, spot.topic, spot.partition, EARLIEST, timeout_seconds=1.0
            )
        except RaftmqError:
            return offset


class Operator(Program):
    """Makes topics, deletes some, deletes records."""

    cluster: Cluster

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._half_deleted: set[str] = set()  # it may have been done, or not

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with self._cluster() as self.cluster:
            task_status.started()
            await trio.sleep_forever()

    async def make_topic(
        self, plan: TopicPlan, *, name: str = "", life: int = 0, seconds: float = 10.0
    ) -> bool:
        """Under a new name, or again under an old one."""
        world, name = self.world, name or f"topic-{len(self.world.topics)}"
        world.topics[name] = world.topics.get(name, 0)
        world.formats[name] = RecordFormat(plan.configs["record.format"])
        if plan.expires:
            world.ledger.expiring.add(name)
        world.trace(f"create {name} {life} {plan}")
        try:
            created = await create_topic(
                self.cluster,
                name,
                partition_count=plan.partition_count,
                replication_factor=plan.replication_factor,
                configs=plan.configs,
                deadline=trio.current_time() + seconds,
            )
        except RaftmqError as error:
            world.trace(f"create {name}: {error!r}")
            return False
        world.on_topic(name, life, plan, created.topic_id)
        try:
            await wait_leaders(self.cluster, name, deadline=trio.current_time() + seconds)
        except RaftmqError as error:
            world.trace(f"create {name}: {error!r}")
            return False
        return True

    async def delete_topic(self, name: str) -> None:
        """Any answer counts as unknown: the record may be deleted meanwhile."""
        self.world.deleted.add(name)
        await self._delete(name)

    async def _delete(self, name: str) -> bool:
        """Whether it is certainly gone."""
        self.world.trace(f"delete {name}")
        try:
            await delete_topic(self.cluster, name, deadline=trio.current_time() + 5.0)
        except UnknownTopicOrPartition as error:
            was_made = self.world.topics[name] and name not in self._half_deleted
            demand(not was_made, f"{name} was made: {error!r}")
        except RaftmqError as error:
            self.world.trace(f"delete {name}: {error!r}")
            self._half_deleted.add(name)
            return False
        self._half_deleted.discard(name)
        return True

    async def recreate_topic(self, name: str) -> None:
        """Delete a topic, and make another one of that name; clients go on meanwhile."""
        world = self.world
        world.deleted.add(name)
        world.reborn.add(name)
        try:
            for _ in range(RECREATE_TRIES):
                if await self._delete(name):
                    plan, life = world.topic_plans[name], world.lives[name]
                    await self.make_topic(plan, name=name, life=life + 1)
                    return
        finally:
            world.reborn.discard(name)

    async def delete_records(self, spot: Spot, before_offset: int) -> None:
        ledger = self.world.ledger.of(spot)
        deadline = trio.current_time() + 5.0

        async def attempt(place: LeaderPlace) -> int:
            wanted = RecordsToDelete(place.topic_id, place.partition, before_offset)
            request = DeleteRecords((wanted,), 5000)
            answer = await self.cluster.ask(place.leader, request, deadline=deadline)
            told = answer.body.partitions[0]
            key = PartitionId(told.topic_id, told.partition)
            state = self.world.newest_image().partitions.get(key)
            if not told.error and state is not None:
                start = told.log_start_offset
                self.world.promised_starts.promise(key, state.leader_epoch, start)
            return int(told.error)

        ledger.deleted_to = max(ledger.deleted_to, before_offset)
        try:
            error = await self.cluster.at_leader(
                spot.topic,
                spot.partition,
                attempt,
                deadline=deadline,
                repeats=RepeatEffect.ACCEPTED,
            )
        except RaftmqError as problem:
            self.world.trace(f"delete records of {spot}: {problem!r}")
        else:
            self.world.trace(f"delete records of {spot} before {before_offset}: {error}")
