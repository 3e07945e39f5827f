"""The schedule of faults, drawn from the seed before the run begins. Pure.

Owns the rhythm: the same arguments give the same faults on every machine. Which node has which role
is not known yet, so a fault event names a role, which is resolved when it begins.

    process    --kill--    ---pause---     -powercut-            (quiet)
    network         ----partition----   -reset-
    clock       -----strobe-----     --bump--
               |<------- season ------->|<------- season ------->|
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

from jepsen_like.nemesis.kinds import COORDINATOR, KINDS, LANES, MINORITY, NETWORK, PROCESS, Params

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

# Between faults of a lane, on the average: some overlap, and clients do get work done.
PACE_SECONDS = 4.0
SEASON_SECONDS = 30.0  # with one mixture of kinds; a minute sees two
QUIET_SHARE = 1 / 4  # of a season without faults: recovery must be seen to complete, too
# Probabilities of other faults alone, with network faults, network faults alone: recovery mostly
# needs a network that works.
_MIXTURES = (0.45, 0.4, 0.15)
SHORT_RUN_SECONDS = 60.0  # in a run up to this no fault lasts more than a quarter of it
LAST_EVENT_SECONDS = 1.0  # before the end: one that begins later would not be felt
ALONE = "alone"  # the one lane of faults that never overlap


class FaultEvent(NamedTuple):
    """One fault to come.

    Attributes:
        at: seconds since faults began to strike.
        lane: whose faults follow each other.
        whom: the role of its targets.
        seconds: that it lasts.
    """

    at: float
    lane: str
    kind: str
    whom: str
    seconds: float
    params: Params


class Season(NamedTuple):
    """`[begin, end)` in which these kinds strike."""

    begin: float
    end: float
    kinds: tuple[str, ...]

    def of_lane(self, lane: str) -> tuple[str, ...]:
        return tuple(name for name in self.kinds if KINDS[name].lane == lane)


def schedule(
    *,
    seed: int | str,
    kinds: Sequence[str],
    seconds: float,
    node_count: int,
    pace: float = PACE_SECONDS,
    nobody: Collection[str] = (COORDINATOR,),
) -> list[FaultEvent]:
    """In the order in which they begin.

    Args:
        seconds: for which faults are injected; all are over by then.
        nobody: roles that no node has.
        pace: seconds between two faults of a lane, on the average.
    """
    names = tuple(sorted(kinds))
    seasons = list(_seasons(Random(f"seasons/{seed}"), names, seconds))
    longest = seconds / 4 if seconds <= SHORT_RUN_SECONDS else seconds
    events: list[FaultEvent] = []
    for lane in LANES:
        random = Random(f"{lane}/{seed}")
        drawing = _Lane(random, lane, node_count, pace, longest, frozenset(nobody))
        events += drawing.events(seasons, seconds)
    return sorted(events, key=lambda event: (event.at, LANES.index(event.lane)))


def every_kind(
    count: int,
    *,
    seed: int | str,
    kinds: Sequence[str],
    node_count: int,
    pace: float = PACE_SECONDS,
    nobody: Collection[str] = (COORDINATOR,),
) -> list[FaultEvent]:
    """`count` faults of each kind, against all of its roles in turn, one after the other."""
    random = Random(f"every kind/{seed}")
    names = sorted(kinds)
    victims = {name: _shuffled(random, _whom(name, node_count, nobody)) for name in names}
    events: list[FaultEvent] = []
    at = 0.0
    for turn in range(count):
        for name in _shuffled(random, names):
            whom = victims[name][turn % len(victims[name])]
            event = _event(random, round(at, 2), ALONE, name, whom)
            events.append(event)
            at += event.seconds + pace
    return events


def _shuffled(random: Random, items: Sequence[str]) -> list[str]:
    return random.sample(items, len(items))


def _whom(name: str, node_count: int, nobody: Collection[str]) -> list[str]:
    """Each once; of two nodes there is no minority."""
    left_out = {*nobody, *((MINORITY,) if node_count <= 2 else ())}
    return [whom for whom in dict.fromkeys(KINDS[name].whom) if whom not in left_out]


def _event(random: Random, at: float, lane: str, name: str, whom: str) -> FaultEvent:
    kind = KINDS[name]
    return FaultEvent(at, lane, name, whom, kind.draw_seconds(random), kind.draw(random))


def _seasons(random: Random, kinds: tuple[str, ...], seconds: float) -> Iterator[Season]:
    """The first has all kinds: a short run is no reason to see few."""
    count = max(1, round(seconds / SEASON_SECONDS))
    length = seconds / count
    for number in range(count):
        begin, end = number * length, (number + 1) * length
        if number == 0:
            yield from _first_season(random, end, kinds)
        elif count > 2 and random.random() < QUIET_SHARE:
            yield Season(begin, end, ())
        else:
            yield Season(begin, end, _mixture(random, kinds))


def _first_season(random: Random, end: float, kinds: tuple[str, ...]) -> Iterator[Season]:
    """The network is broken in one half of it."""
    whole = Season(0.0, end, kinds)
    if not (whole.of_lane(PROCESS) and whole.of_lane(NETWORK)):
        yield whole
        return
    halves = [kinds, _without_network(kinds)]
    random.shuffle(halves)
    yield Season(0.0, end / 2, halves[0])
    yield Season(end / 2, end, halves[1])


def _mixture(random: Random, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Some of the kinds; those of the network together with others, or others only, or alone."""
    network = _subset(random, tuple(name for name in kinds if KINDS[name].lane == NETWORK))
    others = _subset(random, _without_network(kinds))
    if not (network and others):
        return network or others
    return random.choices((others, network + others, network), _MIXTURES)[0]


def _subset(random: Random, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Not empty, unless there are none."""
    drawn = tuple(name for name in kinds if random.random() < 1 / 2)
    return drawn or (random.choice(kinds),) if kinds else ()


def _without_network(kinds: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in kinds if KINDS[name].lane != NETWORK)


class _Lane:
    """Draws the faults of one lane. Kinds come out of a bag, so that none is left out for long."""

    def __init__(
        self,
        random: Random,
        lane: str,
        node_count: int,
        pace: float,
        longest: float,
        nobody: frozenset[str],
    ) -> None:
        self._random, self._lane, self._node_count = random, lane, node_count
        self._nobody = nobody
        self._pace, self._longest = pace, longest
        self._bag: list[str] = []
        self._free_at = random.uniform(0, pace / 2)

    def events(self, seasons: Sequence[Season], seconds: float) -> Iterator[FaultEvent]:
        for season in seasons:
            kinds = season.of_lane(self._lane)
            self._free_at = max(self._free_at, season.begin)
            while kinds and self._free_at < min(season.end, seconds - LAST_EVENT_SECONDS):
                yield self._next(kinds, seconds)

    def _next(self, kinds: tuple[str, ...], seconds: float) -> FaultEvent:
        drawn = _event(self._random, round(self._free_at, 2), self._lane, *self._pick(kinds))
        lasts = min(drawn.seconds, self._longest, seconds - drawn.at)
        event = drawn._replace(seconds=round(lasts, 2))
        self._free_at = event.at + event.seconds + self._pace * self._random.uniform(0.5, 1.5)
        return event

    def _pick(self, kinds: tuple[str, ...]) -> tuple[str, str]:
        if not any(name in kinds for name in self._bag):
            self._bag = _shuffled(self._random, kinds)
        name = next(name for name in self._bag if name in kinds)
        self._bag.remove(name)
        there = set(_whom(name, self._node_count, self._nobody))  # asked, never walked through
        return name, self._random.choice([whom for whom in KINDS[name].whom if whom in there])
