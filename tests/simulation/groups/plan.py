"""The plan of a world of groups, drawn from its seed: members, timeouts, assignors, faults.

Owns the numbers. A seed draws its own handful of faults (swarm testing): worlds in which everything
happens all the time hide bugs that need a quiet hour.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from raftmq.broker.groups.phases import GroupSettings

SECONDS = 30.0  # of faults: several sessions
HEAL_SECONDS = 5.0  # for steps without a timeout in them: rebalances, saves, coordinator lookups
KINDS = (
    "crash", "crash_leader", "come", "leave", "restart", "double", "pause", "hang", "cut", "mute",
    "move", "crash_coordinator", "refuse_saves", "slow_saves", "grow", "subscribe",
    "late", "outdated_lookups",
)  # fmt: skip
# Some worlds have these as well, by a chance of their own: what the others draw does not depend on
# it.
MORE_KINDS = ("poison",)
MORE_SHARE = 0.25


COOPERATIVE = ("cooperative_sticky",)
LENIENT = ("cooperative_sticky", "sticky")  # it stops reading, among others who do not
# Each member of a world knows one of these; all of a world have one in common.
ASSIGNORS = (
    (COOPERATIVE,),
    (COOPERATIVE,),
    (COOPERATIVE, LENIENT),
    (LENIENT, ("sticky",)),
    (("sticky",),),
    (("range",), ("round_robin", "range"), ("cooperative_sticky", "range")),
)


# Expressions in normal form; empty: no filter.
FILTERS = ("", "eu", "eu & !test | us")


@dataclass(frozen=True)
class FilterPlan:
    """By what members read: most of them alike, and a share of the processes by another filter."""

    usual: str = ""
    other: str = FILTERS[1]
    other_share: float = 0.0


@dataclass(frozen=True)
class MemberPlan:
    """Of all members of a world: times, and the assignors of which each knows some."""

    assignors: tuple[tuple[str, ...], ...] = (COOPERATIVE,)
    session_seconds: float = 6.0
    rebalance_seconds: float = 6.0
    heartbeat_seconds: float = 1.0
    commit_seconds: float = 0.7
    poll_seconds: float = 20.0  # after which a program that does not ask is given up
    work_seconds: float = 0.3  # that work in hand takes
    slow_share: float = 0.0  # of times that it takes too long


@dataclass(frozen=True)
class Plan:
    member: MemberPlan = field(default_factory=MemberPlan)
    settings: GroupSettings = field(default_factory=GroupSettings)
    filters: FilterPlan = field(default_factory=FilterPlan)
    dynamic_count: int = 3
    static_count: int = 1
    partition_count: int = 5  # of the first topic; the second has one less
    kinds: tuple[str, ...] = ()
    seconds: float = SECONDS
    strike_seconds: float = 3.0  # between two faults, on the average
    delay_seconds_max: float = 0.02  # of the network
    save_seconds_max: float = 0.05

    @property
    def heal_seconds_max(self) -> float:
        """A dead member is found by a rebalance that waits for it in vain; a static one stays
        for a session after that. Who hangs gives up by itself, and who is slow comes back.
        """
        member = self.member
        seconds = member.session_seconds + member.rebalance_seconds + HEAL_SECONDS
        if "hang" in self.kinds:
            seconds += member.poll_seconds + member.session_seconds + member.rebalance_seconds
        if member.slow_share:
            seconds += max(1.5 * member.poll_seconds, 2 * member.rebalance_seconds)
        return seconds


def draw_plan(seed: int, seconds: float, kinds: tuple[str, ...]) -> Plan:
    chance = Random(f"{seed}/plan")
    member = MemberPlan(
        assignors=chance.choice(ASSIGNORS),
        session_seconds=chance.choice([3.0, 6.0]),
        rebalance_seconds=chance.choice([2.0, 6.0, 12.0]),
        heartbeat_seconds=chance.choice([0.5, 1.0]),
        work_seconds=chance.choice([0.05, 0.3, 1.0]),
        poll_seconds=chance.choice([8.0, 20.0]),
        slow_share=chance.choice([0.0, 0.0, 0.1]),
    )
    settings = GroupSettings(
        session_timeout_ms_min=1_000,
        initial_rebalance_delay_ms=chance.choice([0, 300, 1_000]),
    )
    drawn = tuple(kind for kind in KINDS if chance.random() < 0.4) or ("crash",)
    return Plan(
        member=member,
        settings=settings,
        filters=_draw_filters(Random(f"{seed}/filters")),
        dynamic_count=chance.choice([0, 1, 2, 4]),
        static_count=chance.choice([0, 1, 3]),
        partition_count=chance.choice([1, 4, 7]),
        kinds=kinds or (*drawn, *_more_kinds(Random(f"{seed}/more"))),
        seconds=seconds,
        strike_seconds=chance.choice([0.5, 2.0, 5.0]),
        delay_seconds_max=chance.choice([0.005, 0.05]),
        save_seconds_max=chance.choice([0.02, 0.3]),
    )


def _more_kinds(chance: Random) -> tuple[str, ...]:
    return tuple(kind for kind in MORE_KINDS if chance.random() < MORE_SHARE)


def _draw_filters(chance: Random) -> FilterPlan:
    usual, other = chance.sample(FILTERS, 2)
    return FilterPlan(usual, other, other_share=chance.choice([0.0, 0.0, 0.25]))
