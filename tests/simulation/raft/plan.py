"""The plan of a world of the quorum, drawn from its seed: nodes, timing, kinds of faults.

Owns the draw. Each seed has its own handful of faults and its own pace (swarm testing): a bug that
shows only where nothing else goes wrong, or only where everything does, is met by some seed.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from raftmq.metadata.raft.engine.timing import QuorumLimits, Timing
from tests.simulation.network_pipe import Latency
from tests.simulation.raft.tuning import Sizes, draw_sizes

NETWORK_KINDS = ("cut", "cut_one_way", "isolate", "split", "reset", "half_open", "slow_link")
PROCESS_KINDS = ("kill", "power", "kill_midway", "power_midway", "power_of_all", "pause")
DISK_KINDS = ("slow_disk", "failing_disk", "lost_disk", "old_copy", "rash_replacement")
SCRIPT_KINDS = ("betrayal", "betrayal", "usurpation", "usurpation", "exile", "reunion")
KINDS = (*NETWORK_KINDS, *PROCESS_KINDS, *DISK_KINDS, *SCRIPT_KINDS)
QUIET_KINDS = ("kill", "power", "kill_midway", "power_midway", "pause", "slow_disk")

_HASTY = Timing(
    tick_seconds=0.01, heartbeat_seconds=0.05, election_seconds=(0.3, 0.6),
    quick_seconds=(0.01, 0.06), retry_seconds=(0.05, 0.2),
)  # fmt: skip


class Plan(NamedTuple):
    """`padding_bytes` go with each unique write: they make snapshots large."""

    seconds: float  # of faults; healing comes on top
    voter_count: int
    client_count: int
    think_seconds: float
    padding_bytes: int
    kinds: tuple[str, ...]
    gap_seconds: float  # from one fault to the next
    pace: float  # of repairs: 1.0 takes as long as elections need, less is hasty
    at_once: int  # faults that may be under way together
    timing: Timing
    limits: QuorumLimits
    latency: Latency
    disk_seconds: tuple[float, float]
    sizes: Sizes


def draw_plan(seed: int, seconds: float, wanted: tuple[str, ...] = ()) -> Plan:
    """With the faults that are `wanted`, if any, instead of those that the seed draws."""
    random = Random(f"{seed}/plan")
    voter_count = random.choices((3, 5, 1), (8, 1, 0.5))[0]
    if not set(wanted) <= set(QUIET_KINDS):
        voter_count = max(voter_count, 3)
    kinds = KINDS if voter_count > 1 else QUIET_KINDS
    chosen = random.sample(kinds, random.randint(min(4, len(kinds)), len(kinds)))
    padding_bytes = random.choice((0, 0, 20, 2000))
    timing = random.choices((_HASTY, Timing()), (3, 1))[0]
    return Plan(
        seconds=seconds,
        voter_count=voter_count,
        client_count=random.randint(3, 6),
        think_seconds=random.choice((0.02, 0.05, 0.1)),
        padding_bytes=padding_bytes,
        kinds=wanted or tuple(chosen),
        gap_seconds=random.choice((0.1, 0.3, 0.6)),
        pace=0.5 if timing is _HASTY else 1.0,
        at_once=random.choice((1, 1, 2, 4)),
        timing=timing,
        limits=_draw_limits(random, padding_bytes),
        latency=Latency(tail_probability=random.choice((0.0, 0.01, 0.05)), tail_mean=0.05),
        disk_seconds=random.choice(((0.0, 0.0005), (0.0002, 0.002), (0.002, 0.03))),
        sizes=draw_sizes(random, padding_bytes),
    )


def _draw_limits(random: Random, padding_bytes: int) -> QuorumLimits:
    return QuorumLimits(
        applied_per_tick=random.choice((500, 500, 7)),
        in_flight_bytes=random.choice((8 << 20, 2000 + 20 * padding_bytes)),
        snapshot_entries=random.choice((20, 50, 150, 100_000)),
        trailing_entries=random.choice((0, 3, 50)),
    )
