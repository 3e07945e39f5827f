"""The plan of a world of scheduled records, drawn from its seed: topics, delays, clients.

Owns the draw. The rest (brokers, network, timing, kinds of faults) is drawn as for any world of
brokers. Topics are of columns and are never made again; records of some are deleted, on purpose
or by their age, while others before them are pending.
"""

from __future__ import annotations

from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from raftmq.broker.replication import scheduled_delivery
from raftmq.broker.replication.fetch_exchange import FetchSettings
from raftmq.partition.storage import directory
from tests.simulation.brokers.group_plan import GROUP_KINDS
from tests.simulation.brokers.plan import RETENTIONS, draw_plan, draw_topic
from tests.simulation.brokers.task_plan import TASK_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.brokers.plan import Plan

SCHEDULE_KINDS = (
    "wrong_clock", "clock_back", "kill_due", "depose_due", "cold_disk", "rotten_list",
)  # fmt: skip
UNFIT_KINDS = frozenset({"churn", "recreate", *GROUP_KINDS, *TASK_KINDS})
RETENTION_SHARE = 0.5
# From, to, in seconds; and beyond all faults.
DELAYS = ((-5.0, 0.0), (0.0, 0.5), (0.2, 3.0), (0.2, 3.0), (2.0, 8.0))
BEYOND_SECONDS = 6.0
CARRY_SECONDS = 1.0
CHECKPOINT_SECONDS = 1.0  # lists of closed segments are written with each


class SchedulingPlan(NamedTuple):
    """Attributes:
    scheduled_share: of batches.
    beyond_share: of those that are due after all faults.
    cancel_share: of scheduled records that somebody cancels.
    transaction_ids: of owners that schedule within transactions.
    copied_bytes: of a partition, in one answer to a follower: with few it catches up in steps.
    """

    scheduler_count: int
    scheduled_share: float
    beyond_share: float
    cancel_share: float
    reader_count: int
    transaction_ids: int
    padding_bytes: int
    copied_bytes: int


def draw_scheduling(seed: int) -> SchedulingPlan:
    random = Random(f"{seed}/scheduled")
    return SchedulingPlan(
        scheduler_count=random.choice((1, 1, 2)),
        scheduled_share=random.choice((0.3, 0.6, 0.9)),
        beyond_share=random.choice((0.05, 0.2)),
        cancel_share=random.choice((0.0, 0.2, 0.5)),
        reader_count=random.choice((1, 2)),
        transaction_ids=random.choice((0, 1, 2)),
        padding_bytes=random.choice((0, 20, 400)),
        copied_bytes=random.choice((300, 1 << 20)),
    )


def draw_scheduling_world(seed: int, seconds: float, wanted: tuple[str, ...]) -> Plan:
    """With the faults that are `wanted`, if any, instead of those that the seed draws."""
    plan = draw_plan(seed, seconds, wanted)
    random = Random(f"{seed}/scheduling")
    topic = draw_topic(random, plan.broker_count, durability="fsync")
    kept = {key: value for key, value in topic.configs.items() if "retention" not in key}
    configs = {**kept, "record.format": "columns"}
    if random.random() < RETENTION_SHARE:
        configs |= {"segment.bytes": "1024", **random.choice(RETENTIONS)}
    topic = topic._replace(
        partition_count=random.choice((1, 2, 3)),
        replication_factor=min(3, plan.broker_count),
        configs=configs,
    )
    kinds = tuple(kind for kind in plan.kinds if kind not in UNFIT_KINDS)
    if not wanted:
        kinds += tuple(random.sample(SCHEDULE_KINDS, random.randint(1, len(SCHEDULE_KINDS))))
    return plan._replace(
        topics=(topic,),
        kinds=kinds or ("kill",),
        think_seconds=random.choice((0.05, 0.1, 0.3)),
        producer_count=0,
        consumer_count=0,
        sdk_producer_count=0,
        sdk_consumer_count=0,
        groups=(),
        tasks=(),
    )


@contextmanager
def tuned(plan: SchedulingPlan) -> Iterator[None]:
    """Times that nothing promises, short enough for a short world."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduled_delivery, "CARRY_SECONDS", CARRY_SECONDS)
        settings = FetchSettings(partition_bytes_max=plan.copied_bytes)
        patch.setattr(FetchSettings.__new__, "__defaults__", tuple(settings))
        patch.setattr(directory, "CHECKPOINT_INTERVAL", CHECKPOINT_SECONDS)
        yield
