"""What the conformance scenarios of brokers need: brokers to ask, and things to say.

`Harness` is the border to an implementation: the cluster that keeps its logs in lists
(`tests/unit/client/world.py`), with what `Bureau` and `Registry` put on top of it; or whole
brokers. A scenario asks as clients do, over the client's own connections, and looks at answers
alone. Time is virtual: tests take `autojump_clock`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import trio

from raftmq.wire.batch.records import encode_batch
from raftmq.wire.messages.fetch import Fetch, FetchPartition, PartitionFetched
from raftmq.wire.messages.metadata import Metadata
from raftmq.wire.messages.produce import PartitionProduced, Produce, ProducePartition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from raftmq.rpc.reply import Answer
    from raftmq.wire.bodies import Request

ACKS_ALL = -1
PATIENCE_SECONDS = 30.0
BYTES_MAX = 1 << 20
TIMESTAMP = 1_700_000_000_000  # of records, unless a scenario says otherwise


class Harness(Protocol):
    """A cluster of two brokers or more, without topics at the start."""

    async def ask(self, broker_id: int, request: Request, *payload: bytes) -> Answer:
        """Raises what a client would see."""

    async def add_topic(self, name: str, partition_count: int) -> None:
        """It has leaders when this returns."""

    async def move_leader(self, name: str) -> None:
        """Another broker leads partition 0, in a later epoch, and all that run know it."""


class Place(NamedTuple):
    """A partition, as its metadata has it. `other`: a broker that does not lead it."""

    topic_id: bytes
    partition: int
    leader: int
    leader_epoch: int
    other: int


Scenario: TypeAlias = "Callable[[Harness], Awaitable[None]]"


def collect_into(scenarios: list[Scenario]) -> Callable[[Scenario], Scenario]:
    def collect(scenario: Scenario) -> Scenario:
        scenarios.append(scenario)
        return scenario

    return collect


# Questions


async def metadata_of(here: Harness, *topics: str, broker_id: int = 1) -> Any:
    return (await here.ask(broker_id, Metadata(topics))).body


async def place_of(here: Harness, name: str = "t", partition: int = 0, by: int = 1) -> Place:
    """Once it has a leader, by the word of broker `by`."""
    with trio.fail_after(PATIENCE_SECONDS):
        while True:
            told = await metadata_of(here, name, broker_id=by)
            found = told.topics[0].partitions[partition]
            if found.leader >= 0:
                break
            await trio.sleep(0.1)
    other = next(row.broker_id for row in told.brokers if row.broker_id != found.leader)
    return Place(told.topics[0].topic_id, partition, found.leader, found.leader_epoch, other)


async def topic(here: Harness, name: str = "t") -> Place:
    """A new one, of one partition."""
    await here.add_topic(name, 1)
    return await place_of(here, name)


def batch(*values: bytes, timestamp: int = TIMESTAMP, **options: Any) -> bytes:
    return bytes(encode_batch(values=values, timestamp=timestamp, **options))


async def produce(
    here: Harness, place: Place, *batches: bytes, acks: int = ACKS_ALL, by: int | None = None
) -> PartitionProduced:
    """One request about one partition."""
    data = b"".join(batches)
    wanted = ProducePartition(place.topic_id, place.partition, place.leader_epoch, len(data))
    broker_id = place.leader if by is None else by
    answer = await here.ask(broker_id, Produce(acks, 5000, (wanted,)), data)
    (found,) = answer.body.partitions
    assert (found.topic_id, found.partition) == (place.topic_id, place.partition)
    return found


class Fetched(NamedTuple):
    told: PartitionFetched
    data: bytes


async def fetch(
    here: Harness,
    place: Place,
    offset: int,
    *,
    last_fetched_epoch: int = -1,
    bytes_max: int = BYTES_MAX,
    max_wait_ms: int = 0,
    by: int | None = None,
) -> Fetched:
    """One request about one partition."""
    wanted = FetchPartition(
        place.topic_id, place.partition, offset, place.leader_epoch, last_fetched_epoch, bytes_max
    )
    request = Fetch(max_wait_ms, 1, BYTES_MAX, partitions=(wanted,))
    answer = await here.ask(place.leader if by is None else by, request)
    (found,) = answer.body.partitions
    assert found.length == len(answer.payload)
    assert (found.topic_id, found.partition) == (place.topic_id, place.partition)
    return Fetched(found, bytes(answer.payload))
