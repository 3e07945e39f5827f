"""The plan of a world of transactions, drawn from its seed: topics, owners of ids, their pace.

Owns the draw. The rest (brokers, network, timing, kinds of faults) is drawn as for any world of
brokers. Clients are those of the transactions alone, and what faults do to topics is left out:
nothing is ever deleted, so that every record of every transaction can be judged at the end.
"""

from __future__ import annotations

from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from raftmq.metadata import transactions
from raftmq.metadata.apply import transactions as rules
from raftmq.metadata.delta import CHANGES_MAX, ChangeLog
from raftmq.metadata.transactions import LAST_EPOCH
from tests.simulation.brokers.group_plan import GROUP_KINDS
from tests.simulation.brokers.plan import TOPIC_KINDS, draw_plan, draw_topic
from tests.simulation.brokers.task_plan import TASK_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.brokers.plan import Plan

TRANSACTION_KINDS = (
    "kill_decider", "decider_off_brokers", "pause_decider", "kill_open", "kill_both",
    "power_of_open", "kill_decided", "late_metadata", "still_metadata", "rot", "wrong_clock",
)  # fmt: skip
MEMBER_KINDS = ("abort_version",)  # in worlds with a shared transaction
UNFIT_KINDS = frozenset({*TOPIC_KINDS, *GROUP_KINDS, *TASK_KINDS, "trimmed"})
GAPS_SECONDS = (0.3, 0.7, 1.5)  # from one fault to the next: what is open is so for a moment
SEGMENTS = ("1024", "8192", "1000000")  # of the smallest, each transaction spans several


class TransactionsPlan(NamedTuple):
    """Attributes:
    id_count: a third of them copy, a third has versions.
    blocks_per_second: of all of them together.
    pulse_count: of producers without transactions.
    reader_count: of readers of committed records, beside one of all records.
    delivery_timeout_ms: a short one lets sends fail, before the time of their transaction is over.
    helper_count: of programs on `raftmq.exactly_once`; 0: there are none.
    member_processes: in which tasks run that write the versions of a shared transaction; 0: nobody
        writes any.
    last_epoch: of a producer id, after which its transaction id gets another one.
    changes_max: of the metadata, that brokers remember: who is further behind is not told what
        has changed, as after a snapshot of the quorum.
    """

    id_count: int
    blocks_per_second: float
    pulse_count: int
    reader_count: int
    padding_bytes: int
    request_timeout_ms: int
    delivery_timeout_ms: int
    last_epoch: int
    changes_max: int
    helper_count: int
    member_processes: int


def draw_transactions(seed: int, wanted: tuple[str, ...] = ()) -> TransactionsPlan:
    """`wanted`: the faults, if they were chosen."""
    random = Random(f"{seed}/ids")
    request_timeout_ms, delivery_timeout_ms = random.choice(((400, 1200), (2000, 8000)))
    return TransactionsPlan(
        id_count=random.choice((3, 4, 6)),
        blocks_per_second=random.choice((4.0, 8.0)),
        pulse_count=random.choice((0, 1)),
        reader_count=random.choice((1, 2)),
        padding_bytes=random.choice((0, 0, 300)),
        request_timeout_ms=request_timeout_ms,
        delivery_timeout_ms=delivery_timeout_ms,
        last_epoch=random.choice((2, 7, LAST_EPOCH)),
        changes_max=random.choice((0, 2, CHANGES_MAX)),
        helper_count=random.choice((0, 0, 2)),
        member_processes=_draw_members(seed, wanted),
    )


def _draw_members(seed: int, wanted: tuple[str, ...]) -> int:
    """By a chance of its own: worlds without members are what they were before there were any."""
    random = Random(f"{seed}/versions")
    if wanted:
        return random.choice((2, 3)) if set(wanted) & set(MEMBER_KINDS) else 0
    return random.choice((0, 0, 2, 3))


def draw_transaction_world(seed: int, seconds: float, wanted: tuple[str, ...]) -> Plan:
    """With the faults that are `wanted`, if any, instead of those that the seed draws."""
    plan = draw_plan(seed, seconds, wanted)
    random = Random(f"{seed}/transactions")
    topic = draw_topic(random, plan.broker_count, durability="fsync")
    kept = {key: value for key, value in topic.configs.items() if "retention" not in key}
    configs = {**kept, "record.format": "columns", "segment.bytes": random.choice(SEGMENTS)}
    topic = topic._replace(
        partition_count=random.choice((2, 3)),
        replication_factor=min(3, plan.broker_count),
        configs=configs,
    )
    kinds = tuple(kind for kind in plan.kinds if kind not in UNFIT_KINDS)
    if not wanted:
        kinds += tuple(random.sample(TRANSACTION_KINDS, random.randint(3, 8)))
        kinds += MEMBER_KINDS if draw_transactions(seed).member_processes else ()
    return plan._replace(
        topics=(topic, topic),
        kinds=kinds or ("kill",),
        producer_count=0,
        consumer_count=0,
        sdk_producer_count=0,
        sdk_consumer_count=0,
        groups=(),
        tasks=(),
        gap_seconds=random.choice(GAPS_SECONDS),
        at_once=max(plan.at_once, random.choice((1, 2))),
    )


@contextmanager
def tuned(plan: TransactionsPlan) -> Iterator[None]:
    """Limits that nothing promises, low enough for a short world to meet them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transactions, "LAST_EPOCH", plan.last_epoch)
        patch.setattr(rules, "LAST_EPOCH", plan.last_epoch)
        patch.setitem(ChangeLog.__init__.__kwdefaults__, "changes_max", plan.changes_max)
        yield
