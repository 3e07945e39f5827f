"""What strikes when: rhythm, mixture, and that a seed means the same everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from jepsen_like.nemesis.kinds import KINDS, NETWORK, PROCESS
from jepsen_like.nemesis.schedule import ALONE, FaultEvent, every_kind, schedule

EVERYTHING = tuple(KINDS)
SEEDS = range(60)


def drawn(seed: int = 1, *, seconds: float = 300, **others: object) -> list[FaultEvent]:
    given = {"kinds": EVERYTHING, "node_count": 3, **others}
    return schedule(seed=seed, seconds=seconds, **given)  # type: ignore[arg-type]


def of_lane(events: list[FaultEvent], lane: str) -> list[FaultEvent]:
    return [event for event in events if event.lane == lane]


def overlap(one: FaultEvent, other: FaultEvent) -> bool:
    return one.at < other.at + other.seconds and other.at < one.at + one.seconds


def test_a_seed_always_gives_the_same_strokes() -> None:
    """The same seed twice, in whatever order the kinds are named, and another seed."""
    assert drawn(7) == drawn(7) == drawn(7, kinds=EVERYTHING[::-1])
    assert drawn(7) != drawn(8)


def test_a_seed_gives_the_same_strokes_under_another_hash_seed() -> None:
    """Another process, whose strings hash differently."""
    program = (
        "from tests.jepsen_like.nemesis.test_schedule import drawn, every_kind, EVERYTHING\n"
        "print(drawn(3), every_kind(2, seed=3, kinds=EVERYTHING, node_count=3))"
    )
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": f"{root}:{root / 'jepsen-like'}"}
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            capture_output=True,
            cwd=root,
            env={**environment, "PYTHONHASHSEED": hash_seed},
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(said) == 1


@pytest.mark.parametrize("seconds", [20, 45, 60, 300])
def test_strokes_of_a_lane_follow_each_other_and_end_in_time(seconds: float) -> None:
    """Any seed: no fault begins before the one before it in its lane is over."""
    for seed in SEEDS:
        events = drawn(seed, seconds=seconds)
        assert [event.at for event in events] == sorted(event.at for event in events)
        assert all(event.at + event.seconds <= seconds + 0.01 for event in events)
        for lane in (PROCESS, NETWORK, "clock"):
            for one, following in pairwise(of_lane(events, lane)):
                assert one.at + one.seconds < following.at


def test_coordinators_are_hit_where_there_are_some() -> None:
    """Only then; of each kind that aims at parts, one after the other or as chance will have it."""
    kinds = ("kill", "pause", "partition")
    asked: dict[str, Any] = {"seed": 1, "kinds": kinds, "node_count": 3}
    for nobody in ((), ("coordinator",)):
        drawn_by_chance = schedule(seconds=600, nobody=nobody, **asked)
        in_turn = every_kind(20, nobody=nobody, **asked)
        for events in (drawn_by_chance, in_turn):
            hit = {event.kind for event in events if event.whom == "coordinator"}
            assert hit == (set() if nobody else set(kinds))
    assert "coordinator" not in {event.whom for event in schedule(seconds=600, **asked)}


def test_a_short_run_is_hit_early_and_often() -> None:
    """Twenty seconds, any seed: something within three seconds, and at least four faults."""
    for seed in SEEDS:
        events = drawn(seed, seconds=20)
        assert events[0].at <= 3
        assert len(events) >= 4
        assert PROCESS in {event.lane for event in events}


@pytest.mark.parametrize("name", EVERYTHING)
def test_a_kind_that_is_wanted_alone_strikes_in_a_short_run(name: str) -> None:
    """Only one kind, forty seconds."""
    for seed in range(10):
        assert {event.kind for event in drawn(seed, seconds=40, kinds=(name,))} == {name}


def test_the_pace_is_the_mean_pause() -> None:
    """A long run of one lane: from the end of a fault to the next one it takes four seconds."""
    events = drawn(seconds=3000, kinds=("kill",))
    pauses = [after.at - one.at - one.seconds for one, after in pairwise(events)]
    short = [pause for pause in pauses if pause < 6.1]  # else a quiet season lies between
    assert 3.5 < sum(short) / len(short) < 4.5
    assert len(drawn(seconds=3000, kinds=("kill",), pace=1.0)) > 1.5 * len(events)


def test_a_quarter_of_the_seasons_is_quiet() -> None:
    """Many runs of ten seasons: how many of them begin no fault."""
    seasons = Counter((seed, int(event.at // 30)) for seed in range(100) for event in drawn(seed))
    assert 0.15 < 1 - len(seasons) / 1000 < 0.32


def test_the_network_fails_in_half_of_the_seasons_of_processes() -> None:
    """Many runs with kills and partitions: both together, and kills alone, are common."""
    both = alone = 0
    for seed in range(100):
        events = drawn(seed, kinds=("kill", "partition"))
        for season in range(1, 10):
            lanes = {event.lane for event in events if int(event.at // 30) == season}
            both += lanes == {PROCESS, NETWORK}
            alone += lanes == {PROCESS}
    assert 0.35 < both / (both + alone) < 0.6


def test_lanes_overlap() -> None:
    """Any long run: some fault of the process lane falls into a partition."""
    events = drawn()
    network, processes = of_lane(events, NETWORK), of_lane(events, PROCESS)
    assert any(overlap(one, other) for one in network for other in processes)


def test_pauses_are_shorter_and_longer_than_a_session() -> None:
    """Sessions last nine seconds: some pauses are slept through, some are noticed."""
    lasts = [event.seconds for event in drawn(seconds=3000, kinds=("pause",))]
    assert min(lasts) < 8
    assert max(lasts) > 9.5


def test_every_kind_strikes_equally_often() -> None:
    """A table of recoveries: three of each kind, one after the other, different victims."""
    events = every_kind(3, seed=5, kinds=EVERYTHING, node_count=3, pace=10.0)
    assert Counter(event.kind for event in events) == dict.fromkeys(EVERYTHING, 3)
    assert {event.lane for event in events} == {ALONE}
    for one, following in pairwise(events):
        assert following.at >= one.at + one.seconds + 9.9
    assert len({event.whom for event in events if event.kind == "kill"}) == 3


def test_two_nodes_have_no_minority() -> None:
    """A cluster of two: nobody aims at what is not there."""
    events = every_kind(9, seed=1, kinds=("kill",), node_count=2)
    assert "minority" not in {event.whom for event in events}


def test_nothing_wanted_gives_nothing() -> None:
    """A quiet run."""
    assert drawn(kinds=()) == []
    assert every_kind(3, seed=1, kinds=(), node_count=3) == []
