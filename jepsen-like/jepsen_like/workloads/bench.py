"""What all tasks of a queue run share: settings, recorder, random numbers, process numbers, pace.

Waits for nothing but the pace.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Protocol

import trio

from jepsen_like.workloads.keys import ACKS
from jepsen_like.workloads.seen import Seen
from raftmq.client.client import Client, parse_bootstrap
from raftmq.client.network.network import AnyioTcpNetwork

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jepsen_like.history.recorder import Recorder
    from jepsen_like.workloads.keys import Keys
    from raftmq.client.network.network import AnyioNetwork

TOPIC_SECONDS_MAX = 10.0  # to create a topic


class Stop(Protocol):
    """A trio.Event, or what does the same."""

    def is_set(self) -> bool: ...
    async def wait(self) -> object: ...


@dataclass(frozen=True, kw_only=True)
class QueueSettings:
    """Attributes:
    acks: of the topics, in turn.
    rate: operations a second of all processes together, without the pulses.
    pulses_max: keys that are written to steadily, so that each gap tells of a fault.
    pulse_seconds: between two batches of a pulse.
    active_keys_max, values_per_key_max, topics_max: see `Keys`.
    topic_seconds: until there may be one more topic, so that fresh ones come in a long run, too.
    padding_bytes: of each record, behind its value.
    replication_factor, min_insync_replicas: of the topics.
    request_timeout_ms, delivery_timeout_ms: of producers.
    pulse_request_timeout_ms: of the producers of pulses, which shall find a new leader soon.
    final_seconds: for which a process reads at the end, at most.
    """

    processes: int = 6
    acks: Sequence[str] = ("all", "1", "all", "2")
    rate: float = 100.0
    pulses_max: int = 3
    pulse_seconds: float = 0.05
    active_keys_max: int = 8
    values_per_key_max: int = 1000
    topics_max: int = 40
    topic_seconds: float = 20.0
    padding_bytes: int = 0
    replication_factor: int = 3
    min_insync_replicas: int = 2
    request_timeout_ms: float = 4_000
    delivery_timeout_ms: float = 8_000
    pulse_request_timeout_ms: float = 1_500
    crash_seconds: float = 30.0
    final_seconds: float = 60.0

    @property
    def acks_names(self) -> list[str]:
        return sorted(set(self.acks), key=list(ACKS).index)


class WallClock:
    """Moments by the time of day, as records say them, in seconds since the run began."""

    def __init__(self, recorder: Recorder) -> None:
        self._began_ms = time.time() * 1000 - recorder.seconds * 1000

    def seconds(self, moment_ms: int) -> float:
        return round((moment_ms - self._began_ms) / 1000, 4)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Attributes:
    numbers: of processes; none is given twice.
    wall_clock: where records are scheduled: polls tell when these were due, and delivered.
    """

    bootstrap: str | Sequence[str]
    recorder: Recorder
    random: Random
    settings: QueueSettings
    keys: Keys
    numbers: Iterator[int] = field(default_factory=count)
    seen: Seen = field(default_factory=Seen)
    wall_clock: WallClock | None = None

    def new_network(self, _name: str) -> AnyioNetwork:
        """Of the client of that name."""
        return AnyioTcpNetwork()

    def new_client(self, name: str, network: AnyioNetwork | None = None) -> Client:
        """With connections of its own."""
        return new_client(self.bootstrap, name, self.random, network)

    async def make_topic(self, client: Client, topic: str) -> None:
        """Its keys can be used then. Raises RaftmqError: faults may prevent it."""
        await client.admin.with_timeout(TOPIC_SECONDS_MAX).create_topic(
            topic,
            partitions=self.keys.partitions,
            replication_factor=self.settings.replication_factor,
            config={"min.insync.replicas": self.settings.min_insync_replicas},
        )
        self.keys.on_made(topic)


def new_client(
    bootstrap: str | Sequence[str], name: str, random: Random, network: AnyioNetwork | None = None
) -> Client:
    return Client(
        parse_bootstrap(bootstrap),
        client_id=name,
        connect_timeout_ms=5_000,
        network=network,
        random=Random(random.getrandbits(64)),
    )


class Pace:
    """Of something that is done again and again, `seconds` apart on the average."""

    def __init__(self, random: Random, seconds: float) -> None:
        self._random, self._seconds = random, seconds
        self._next_at = 0.0

    async def wait(self) -> None:
        """A task that was late does not catch up afterwards."""
        await trio.sleep_until(max(self._next_at, trio.current_time()))
        self._next_at = trio.current_time() + self._seconds * self._random.uniform(0.5, 1.5)


async def wait_stop(stop: Stop, seconds: float) -> bool:
    """Sleep; whether it is time to stop."""
    with trio.move_on_after(seconds):
        await stop.wait()
    return stop.is_set()
