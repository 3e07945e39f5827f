"""The plan of a world's named producers (tasks that are run again until they end).

Owns that part of the draw, which is its own: other worlds are not changed by it. There is a topic
of columns for tasks, which does not expire. Worlds with groups have no tasks: what members are
handed out is judged without gaps, and fences leave such.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from random import Random

    from tests.simulation.brokers.plan import Plan, TopicPlan

TASK_KINDS = ("late_run", "late_fence", "kill_fenced", "pause_fenced")
TASK_SHARE = 0.2  # of worlds without groups that have any, where faults are not chosen
# A recreated topic knows no names, and a task in the middle of it begins again.
UNFIT_KINDS = ("recreate",)


class TaskPlan(NamedTuple):
    """Attributes:
    rows_max: of one generation.
    patience: one of these seconds, for which a run is left alone.
    overlap_share: of runs that go on beside the next one.
    give_up_share: of generations, each time that a run of theirs was broken off.
    break_seconds: one of these, that a run takes now and then.
    """

    rows_max: int
    patience: tuple[float, ...] = (0.02, 0.1, 0.5, 2.0, 8.0)
    overlap_share: float = 0.4
    give_up_share: float = 0.1
    break_seconds: tuple[float, ...] = (0.0, 0.02, 0.2)


def with_tasks(plan: Plan, random: Random, wanted: tuple[str, ...], topic: TopicPlan) -> Plan:
    """Where the faults are chosen, those of tasks have to be among them. `topic`: for them."""
    is_chosen = not set(wanted).isdisjoint(TASK_KINDS)
    if plan.groups or (wanted and not is_chosen):
        return plan
    if random.random() >= TASK_SHARE and not is_chosen:
        return plan
    tasks = tuple(TaskPlan(random.choice((12, 60, 200))) for _ in range(random.choice((1, 2, 3))))
    if is_chosen:
        return _staged(plan._replace(tasks=tasks[:2]), topic)
    kinds = tuple(kind for kind in plan.kinds if kind not in UNFIT_KINDS)
    return plan._replace(
        tasks=tasks,
        topics=(*plan.topics, _fit(topic, plan)),
        kinds=(*kinds, random.choice(TASK_KINDS)),
    )


def _fit(topic: TopicPlan, plan: Plan) -> TopicPlan:
    """No less durable than the others."""
    kept = {key: value for key, value in topic.configs.items() if "retention" not in key}
    durability = plan.topics[0].configs["durability"]
    return topic._replace(configs={**kept, "record.format": "columns", "durability": durability})


def _staged(plan: Plan, topic: TopicPlan) -> Plan:
    """Little else happens there, so that such a world is cheap."""
    fit = _fit(topic, plan)._replace(partition_count=3, replication_factor=3)
    return plan._replace(
        broker_count=3,
        consumer_count=1,
        think_seconds=0.3,
        sdk_producer_count=0,
        sdk_consumer_count=1,
        topics=(fit,),
        gap_seconds=1.0,
    )
