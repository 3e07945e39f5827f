"""The plan of a world's consumer groups: members, session timeouts, fates, drawn from the seed.

Owns that part of the draw. Where the faults are those of coordinators, the world is small, and its
only group is never left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from random import Random

    from tests.simulation.brokers.plan import Plan

GROUP_KINDS = (
    "kill_coordinator", "pause_coordinator", "schism", "coordinator_off_brokers",
    "slow_coordinator", "zombie",
)  # fmt: skip
FATES = ("leave", "leave", "crash", "crash", "fail", "cut", "cut", "cut")  # of members
# A broker is replaced only when its session has ended: members have to outlast that.
SUCCESSION_KINDS = ("kill_coordinator", "pause_coordinator", "schism")
GROUP_SHARE = 0.4  # of worlds that have any, where faults are not chosen


class GroupPlan(NamedTuple):
    """Attributes:
    commit: "before", or any other way, which each member draws.
    is_static: members have names of their own.
    fates: what may become of a member, as often as it stands there; empty: nothing.
    fate_seconds: one of them, from one thing that happens to a member to the next.
    cut_seconds: one of them, for which a member is cut off.
    work_share: of the times that a member gets something, which then takes it `work_seconds`.
    """

    name: str
    member_count: int
    commit: str
    assignors: tuple[str, ...]
    session_ms: int
    rebalance_ms: int
    is_static: bool
    fates: tuple[str, ...] = FATES
    fate_seconds: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0)
    cut_seconds: tuple[float, ...] = (0.5, 2.0, 6.0)
    work_share: float = 0.05
    work_seconds: tuple[float, ...] = (0.01, 0.1, 3.0)


def with_groups(plan: Plan, random: Random, wanted: tuple[str, ...]) -> Plan:
    """Where the faults are chosen, those of groups have to be among them."""
    if wanted and set(wanted).isdisjoint(GROUP_KINDS):
        return plan
    if wanted:
        return _restless(plan, random)
    if random.random() >= GROUP_SHARE:
        return plan
    commits = random.choice((("any",), ("before",), ("any",) * 2))
    groups = (
        _draw_group(random, f"group-{number}", commit) for number, commit in enumerate(commits)
    )
    return plan._replace(groups=tuple(groups), kinds=(*plan.kinds, random.choice(GROUP_KINDS)))


def _draw_group(random: Random, name: str, commit: str) -> GroupPlan:
    """Sessions and rebalances are short, or a short world would see the end of none."""
    return GroupPlan(
        name,
        member_count=random.choice((2, 2, 3, 4)),
        commit=commit,
        assignors=random.choice(
            (("cooperative_sticky",), ("cooperative_sticky",), ("range",), ("sticky", "range"))
        ),
        session_ms=random.choice((1500, 3000)),
        rebalance_ms=random.choice((2000, 5000)),
        is_static=random.random() < 0.25,
    )


def _restless(plan: Plan, random: Random) -> Plan:
    """One group, whose members have no peace, and little else, so that such a world is cheap."""
    group = _draw_group(random, "group-0", random.choice(("any", "before")))
    group = group._replace(
        member_count=3,
        session_ms=random.choice((1000, 1500)),
        rebalance_ms=1500,
        fates=random.choice((FATES, ("leave",), ("leave", "crash"), ("leave", "cut"), ("cut",))),
        fate_seconds=(0.8, 1.6, 3.2),
        cut_seconds=(0.3, 2.0, 4.0),
        work_share=0.4,
        work_seconds=(0.05, 0.2, 0.4, 1.0),
        is_static=False,
    )
    topic = plan.topics[0]._replace(partition_count=4, replication_factor=3)
    return plan._replace(
        broker_count=3,
        consumer_count=0,
        think_seconds=0.3,
        sdk_producer_count=0,
        sdk_consumer_count=0,
        topics=(topic,),
        gap_seconds=1.5,
        groups=(group if set(plan.kinds).isdisjoint(SUCCESSION_KINDS) else _patient(group),),
    )


def _patient(group: GroupPlan) -> GroupPlan:
    """Members that outlast a broker's session, and read on during rebalances; none leaves, so that
    only the coordinator's faults cause rebalances.
    """
    return group._replace(
        assignors=("cooperative_sticky",),
        session_ms=4000,
        rebalance_ms=4000,
        fates=("",),
    )
