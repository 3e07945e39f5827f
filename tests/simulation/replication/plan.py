"""The plan of a world of replication, drawn from its seed: size, topics, network, kinds of faults.

Owns the numbers. A seed draws its own handful of faults (swarm testing): worlds in which everything
happens all the time hide bugs that need a quiet hour.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from tests.simulation.replication.network import Weather

SECONDS = 9.0
KINDS = (
    "kill", "restart", "power", "blackout", "pause", "slow_disk", "freeze", "old_directory",
    "damage", "shut_down", "cut_controller", "cut_follower", "cut_clients", "isolate", "depose",
    "reset", "storm",
)  # fmt: skip


@dataclass(frozen=True)
class Topic:
    name: str
    replicas: tuple[int, ...]
    durability: str = "fsync"
    min_isr: int = 2
    is_unclean_allowed: bool = False


@dataclass
class Plan:
    broker_count: int = 3
    topics: tuple[Topic, ...] = (Topic("orders", (0, 1, 2)),)
    kinds: tuple[str, ...] = ()
    seconds: float = SECONDS
    strike_seconds: float = 0.7  # between two faults, on the average
    request_seconds: float = 0.05
    weather: Weather = field(default_factory=Weather)
    has_transactions: bool = False


STORM = Weather(loss=0.1, doubles=0.2, strays=0.3, delay_seconds_max=0.03)


def draw_plan(seed: int, seconds: float, kinds: tuple[str, ...]) -> Plan:
    chance = Random(f"{seed}/plan")
    broker_count = chance.choice([3, 3, 4, 5])
    topics = tuple(_topic(chance, number, broker_count) for number in range(chance.choice([1, 2])))
    drawn = tuple(kind for kind in KINDS if chance.random() < 0.4) or ("kill",)
    weather = Weather(
        loss=chance.choice([0.0, 0.01, 0.1]),
        doubles=chance.choice([0.0, 0.05]),
        strays=chance.choice([0.0, 0.01, 0.05]),
        delay_seconds_max=chance.choice([0.005, 0.03]),
    )
    return Plan(
        broker_count=broker_count,
        topics=topics,
        kinds=kinds or drawn,
        seconds=seconds,
        strike_seconds=chance.choice([0.3, 0.7, 1.2]),
        request_seconds=chance.choice([0.03, 0.08]),
        weather=weather,
    )


def _topic(chance: Random, number: int, broker_count: int) -> Topic:
    replica_count = chance.choice([2, 3, 3, 3, min(4, broker_count)])
    return Topic(
        f"topic-{number}",
        tuple(chance.sample(range(broker_count), replica_count)),
        durability=chance.choice(["fsync", "fsync", "page_cache"]),
        min_isr=chance.choice([1, 2, 2, 3]),
        is_unclean_allowed=chance.random() < 0.15,
    )
