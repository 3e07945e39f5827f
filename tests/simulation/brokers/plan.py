"""The plan of a world of brokers, drawn from its seed: size, topics, timing, kinds of faults.

Owns the draw, and the list of sizes and times of the real code that a short world makes smaller.
Each seed has its own handful of faults and its own pace (swarm testing).
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from raftmq.broker.replication import replicas
from raftmq.metadata import liveness
from raftmq.partition.replica import Replica
from raftmq.partition.storage import directory
from tests.simulation.brokers.group_plan import with_groups
from tests.simulation.brokers.task_plan import with_tasks
from tests.simulation.network_pipe import Latency

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.brokers.group_plan import GroupPlan
    from tests.simulation.brokers.task_plan import TaskPlan

NETWORK_KINDS = ("cut", "cut_one_way", "isolate", "split", "reset", "half_open", "slow_link")
ROLE_KINDS = (
    "leader_off_controller", "leader_off_follower", "leader_off_clients", "leader_off_brokers",
    "controller_off",
)  # fmt: skip
PROCESS_KINDS = (
    "kill", "power", "kill_midway", "power_midway", "power_of_all", "pause", "pause_leader",
    "restart", "restart_all", "kill_leader",
)  # fmt: skip
DISK_KINDS = ("slow_disk", "frozen_disk", "failing_disk", "full_disk", "lost_disk", "lost_disk")
TOPIC_KINDS = ("churn", "delete_records", "absence", "recreate")
SCRIPT_KINDS = (
    "comeback", "newcomer", "secession", "last_one", "outsider", "blink", "darkness",
    "amnesia", "oblivion", "trimmed",
)  # fmt: skip
KINDS = (*NETWORK_KINDS, *ROLE_KINDS, *PROCESS_KINDS, *DISK_KINDS, *TOPIC_KINDS, *SCRIPT_KINDS)
# What takes away more than one page cache: a topic that trusts it may lose records by that.
POWER_KINDS = ("power_midway", "power_of_all", "blink", "darkness", "amnesia", "oblivion")
# Who lags leaves an in-sync set before who is silent is deposed; then some scripts have time.
SLOW_SESSION_KINDS = ("newcomer", "secession")
BUSY_PAIRS = 4  # of producers and partitions
SDK_SHARE = 0.5  # of worlds in which programs use the SDK, too
RETENTION_SHARE = 0.25  # of topics that have a retention
RETENTIONS = ({"retention.bytes": "3000"}, {"retention.ms": "4000", "segment.ms": "1500"})


class TopicPlan(NamedTuple):
    partition_count: int
    replication_factor: int
    configs: dict[str, str]

    @property
    def expires(self) -> bool:
        """Whether records go away by themselves."""
        return any(key.startswith("retention.") for key in self.configs)


class Plan(NamedTuple):
    """`pace` stretches faults, so that they outlast the sessions that they shall end. Clients think
    the longer the more partitions they work on, or a few worlds would take most of the time.
    """

    seconds: float  # of faults; healing comes on top
    broker_count: int
    voter_count: int
    producer_count: int
    consumer_count: int
    think_seconds: float
    padding_bytes: int
    topics: tuple[TopicPlan, ...]
    kinds: tuple[str, ...]
    gap_seconds: float  # from one fault to the next
    pace: float
    at_once: int  # faults that may be under way together
    ends_dark: bool  # all lose their power once more, after everything
    session_seconds: float
    lag_seconds: float
    latency: Latency
    disk_seconds: tuple[float, float]
    sdk_producer_count: int = 0  # of programs that use the SDK, beside the others
    sdk_consumer_count: int = 0
    groups: tuple[GroupPlan, ...] = ()
    tasks: tuple[TaskPlan, ...] = ()

    @property
    def trusts_page_cache(self) -> bool:
        return any(topic.configs["durability"] == "page_cache" for topic in self.topics)


def draw_plan(seed: int, seconds: float, wanted: tuple[str, ...] = ()) -> Plan:
    """With the faults that are `wanted`, if any, instead of those that the seed draws."""
    random = Random(f"{seed}/plan")
    broker_count = random.choice((3, 3, 3, 4, 5))
    topics = tuple(draw_topic(random, broker_count) for _ in range(random.choice((1, 1, 2))))
    kinds = wanted or tuple(random.sample(KINDS, random.randint(4, 16)))
    if not wanted and any(topic.configs["durability"] == "page_cache" for topic in topics):
        kinds = tuple(kind for kind in kinds if kind not in POWER_KINDS) or ("kill",)
    plan = Plan(
        seconds=seconds,
        broker_count=broker_count,
        voter_count=5 if broker_count == 5 and random.random() < 0.5 else 3,
        producer_count=random.randint(1, 3),
        consumer_count=random.randint(1, 2),
        think_seconds=random.choice((0.05, 0.1, 0.3)),
        padding_bytes=random.choice((0, 20, 400)),
        topics=topics,
        kinds=kinds,
        gap_seconds=random.choice((0.5, 1.5, 3.0)),
        pace=random.choice((0.5, 1.5, 2.5)),
        at_once=random.choice((1, 1, 2, 3)),
        ends_dark=random.random() < 0.4,
        session_seconds=random.choice((6.0, 2.5)),
        lag_seconds=random.choice((10.0, 2.0)),
        latency=Latency(tail_probability=random.choice((0.0, 0.01, 0.05)), tail_mean=0.05),
        disk_seconds=random.choice(((0.0, 0.0005), (0.0002, 0.002), (0.002, 0.02))),
    )
    share = plan.producer_count * sum(topic.partition_count for topic in topics) / BUSY_PAIRS
    plan = plan._replace(think_seconds=plan.think_seconds * max(1.0, share))
    plan = _with_sdk(_staged(plan, random) if wanted else plan, Random(f"{seed}/sdk"))
    plan = with_groups(plan, Random(f"{seed}/groups"), wanted)
    topic = draw_topic(Random(f"{seed}/rows"), broker_count)
    return with_tasks(plan, Random(f"{seed}/tasks"), wanted, topic)


def _with_sdk(plan: Plan, random: Random) -> Plan:
    """Its producers write columns, so there has to be a topic of such."""
    if random.random() >= SDK_SHARE:
        return plan
    first, *others = plan.topics
    if all(topic.configs["record.format"] != "columns" for topic in plan.topics):
        first = first._replace(configs={**first.configs, "record.format": "columns"})
    return plan._replace(
        topics=(first, *others),
        sdk_producer_count=random.choice((1, 1, 2)),
        sdk_consumer_count=random.choice((1, 1, 2)),
    )


def _staged(plan: Plan, random: Random) -> Plan:
    """Small and quick, for worlds with chosen faults.

    There are four brokers and as many partitions, so that each broker is without one of them: it
    may be the controller, and survive the others.
    """
    topic = draw_topic(random, 4, durability="fsync")
    is_patient = not set(plan.kinds).isdisjoint(SLOW_SESSION_KINDS)
    return plan._replace(
        broker_count=4,
        voter_count=3,
        producer_count=1,
        consumer_count=1,
        think_seconds=0.1,
        topics=(topic._replace(partition_count=4, replication_factor=3),),
        gap_seconds=0.3,
        pace=0.5,
        at_once=1,
        ends_dark=False,
        session_seconds=6.0 if is_patient else 2.5,
        lag_seconds=2.0,
    )


def draw_topic(random: Random, broker_count: int, *, durability: str = "") -> TopicPlan:
    configs = {
        "durability": durability or random.choice(("fsync", "fsync", "fsync", "page_cache")),
        "min.insync.replicas": "2",
        "segment.bytes": random.choice(("1024", "8192", "1000000")),
        "index.interval.bytes": random.choice(("0", "4096")),
        "record.format": random.choice(("columns", "kafka")),
    }
    if random.random() < RETENTION_SHARE:
        configs |= {"segment.bytes": "1024", **random.choice(RETENTIONS)}
    replication_factor = random.choice((2, 3, 3, 3, min(4, broker_count)))
    return TopicPlan(random.choice((1, 1, 2, 3, 6)), replication_factor, configs)


@contextmanager
def tuned(plan: Plan) -> Iterator[None]:
    """Times that nothing promises, short enough for a short world."""
    impatient = partial(Replica, lag_seconds_max=plan.lag_seconds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(liveness, "SESSION_SECONDS", plan.session_seconds)
        patch.setattr(replicas, "Replica", impatient)
        patch.setattr(directory, "RETENTION_CHECK_INTERVAL", 3.0)
        yield
