"""The kinds of faults by name: durations, targets, parameters and lanes, drawn from the seed. Pure.

Owns the numbers: how long, which roles, how strong. The modules that `registry` names carry faults
out. Within a lane one fault follows the other; lanes run beside each other.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

PROCESS, NETWORK, CLOCK = "process", "network", "clock"
LANES = (PROCESS, NETWORK, CLOCK)

# What a cluster may be able to do; the names of its `capabilities`.
NETWORK_LAB, DISKS, POWER_CUTS, FREEZER = "network", "disks", "power cuts", "freezer"

Params: TypeAlias = dict[str, Any]

LEADER, FOLLOWER, CONTROLLER, BOTH = "leader", "follower", "controller", "leader and controller"
COORDINATOR = "coordinator"  # of a consumer group; drawn only where there are some
ONE, MINORITY, MAJORITY, ALL, ROLLING = "one", "minority", "majority", "all", "rolling"
HALVES, RING, ONE_WAY = "halves", "ring", "one way"
FROM_CONTROLLER, FROM_FOLLOWER = "leader from controller", "leader from one follower"
FROM_FOLLOWERS, FROM_CLIENTS = "leader from followers", "clients from leader"

# Roles to draw from; the likelier ones are repeated.
_SINGLE = (LEADER, LEADER, CONTROLLER, FOLLOWER, ONE, COORDINATOR, COORDINATOR)
_SOME = (*_SINGLE, LEADER, CONTROLLER, BOTH, MINORITY, MAJORITY, COORDINATOR)

# Seconds. A broker is fenced 6 s after its last heartbeat: some pauses are shorter and stay
# unnoticed, some are longer, and leaders change.
_PAUSES = ((1.0, 7.0), (9.5, 14.0))


def _no_params(_: Random) -> Params:
    return {}


def _second_cut(random: Random) -> Params:
    """Power is lost again while the nodes still recover from the first time, now and then."""
    is_twice = random.random() < 1 / 3
    return {"second_after_seconds": round(random.uniform(0.2, 2.5), 2) if is_twice else 0.0}


def _sync_number(random: Random) -> Params:
    return {"at_sync": random.randint(1, 30)}


def _sync_delay(random: Random) -> Params:
    return {"delay_seconds": random.choice((0.05, 0.2, 0.5, 1.5, 4.0))}


def _flip(random: Random) -> Params:
    """Mostly of segments: damage there has to be read before it is noticed."""
    file = random.choice(("segment",) * 12 + _SMALL_FILES)
    params = {**_cut_short(random), "file": file, "bits": random.randint(1, 3)}
    is_running = random.random() < 1 / 2  # the node, when it happens
    return params | ({"is_running": is_running} if params["file"] == "segment" else {})


def _cut_short(random: Random) -> Params:
    """Of one log, of some, or of all that the node has."""
    file = random.choice(("segment", "segment", "segment", *_SMALL_FILES))
    return {"file": file, "logs": random.choice((1, 1, 5, 1000))}


def _journal_file(random: Random) -> Params:
    return {"file": random.choice(("journal", "journal", "snapshot")), "bits": random.randint(1, 3)}


_SMALL_FILES = ("index", "time index", "aborted index", "producers", "leader epochs", "checkpoint")


def _trouble(random: Random) -> Params:
    """What happens to the packets of a link, one way."""
    draw = random.uniform
    return random.choice(
        (
            {"delay_ms": round(draw(20, 300))},
            {"delay_ms": round(draw(10, 100)), "jitter_ms": round(draw(20, 200))},
            {"loss": round(draw(0.02, 0.3), 3)},
            {"duplicate": round(draw(0.02, 0.5), 3)},
            {"delay_ms": round(draw(500, 2000))},
            {"delay_ms": 20, "jitter_ms": 60, "loss": 0.05, "duplicate": 0.05},
        )
    )


def _absence(random: Random) -> Params:
    """A session timeout, and some seconds in which the others go on without the absent node."""
    return {"away_seconds": round(random.uniform(11.0, 17.0), 2)}


def _clock(random: Random) -> Params:
    """From 10 ms to five minutes, ahead or behind, or weeks ahead; once, or to and fro."""
    if random.random() < 1 / 3:
        params: Params = {"offset_ms": round(random.uniform(15, 30) * 86_400_000)}
    else:
        offset_ms = round(math.exp(random.uniform(math.log(10), math.log(300_000))))
        params = {"offset_ms": random.choice((-1, 1)) * offset_ms}
    if random.random() < 1 / 2:
        params["period_seconds"] = round(random.uniform(0.005, 0.5), 3)
    return params


class Kind(NamedTuple):
    """Attributes:
    needs: the capability of a cluster without which there is no such fault; may be empty.
    whom: roles to draw from.
    spans: of seconds that it lasts; one is drawn, then a number within it.
    holds_nodes: the targets must not be started by the caretaker before it is over.
    is_data_fault: loses synced data: one node at a time, and only while all others hold
        everything.
    wants_network: nothing may be wrong with the network meanwhile.
    """

    name: str
    lane: str
    needs: str
    whom: tuple[str, ...]
    spans: tuple[tuple[float, float], ...]
    draw: Callable[[Random], Params] = _no_params
    holds_nodes: bool = False
    is_data_fault: bool = False
    wants_network: bool = False

    def draw_seconds(self, random: Random) -> float:
        return round(random.uniform(*random.choice(self.spans)), 2)


_OF_DATA = ((0.5, 3.0),)
_OF_SHAPES = (
    LEADER, LEADER, CONTROLLER, ONE, HALVES, RING, ONE_WAY, FROM_CONTROLLER, FROM_FOLLOWER,
    FROM_FOLLOWERS, FROM_CLIENTS, COORDINATOR, COORDINATOR,
)  # fmt: skip
_OF_LINKS = (LEADER, CONTROLLER, ONE, ALL, COORDINATOR)
# Seconds, longer than a session: a node that is away for so long is in no ISR any more.
_OUT_OF_SYNC = ((9.5, 14.0),)

_ALL = (
    Kind("kill", PROCESS, "", (*_SOME, ALL, ROLLING), ((0.5, 4.0),), holds_nodes=True),
    Kind("pause", PROCESS, "", _SOME, _PAUSES, holds_nodes=True),
    Kind("freezer", PROCESS, FREEZER, _SOME, _PAUSES, holds_nodes=True),
    Kind("partition", NETWORK, NETWORK_LAB, _OF_SHAPES, ((2.0, 8.0), (8.0, 15.0))),
    Kind("stranded-leader", NETWORK, NETWORK_LAB, (FROM_FOLLOWERS,), _OUT_OF_SYNC),
    Kind("part-kill", NETWORK, NETWORK_LAB, (ALL,), ((1.0, 4.0),), _absence, holds_nodes=True),
    Kind("pause-kill", PROCESS, "", (ALL,), ((1.0, 4.0),), _absence, holds_nodes=True),
    Kind("reset", NETWORK, NETWORK_LAB, _OF_LINKS, ((0.3, 1.0),)),
    Kind("packets", NETWORK, NETWORK_LAB, _OF_LINKS, ((3.0, 12.0),), _trouble),
    # Never of all: clocks that are two weeks ahead together are believed, and rightly so.
    Kind("clock", CLOCK, "", (LEADER, CONTROLLER, ONE, MINORITY), ((3.0, 15.0),), _clock),
    Kind(
        "powercut", PROCESS, POWER_CUTS,
        (LEADER, CONTROLLER, ONE, MAJORITY, ALL, ALL, ROLLING, COORDINATOR),
        ((0.5, 3.0),), _second_cut, holds_nodes=True,
    ),
    Kind("fsync-kill", PROCESS, "", _SINGLE, ((2.0, 6.0),), _sync_number, holds_nodes=True),
    Kind("fsync-eio", PROCESS, "", _SINGLE, ((0.5, 4.0),)),
    Kind("fsync-slow", PROCESS, "", _SINGLE, ((3.0, 12.0),), _sync_delay),
    Kind("disk-stall", PROCESS, DISKS, _SINGLE, _PAUSES, holds_nodes=True),
    Kind("disk-full", PROCESS, DISKS, _SINGLE, ((3.0, 10.0),)),
    Kind("bitflip", PROCESS, "", _SINGLE, _OF_DATA, _flip, holds_nodes=True, is_data_fault=True),
    Kind(
        "truncate", PROCESS, "", _SINGLE, _OF_DATA, _cut_short, holds_nodes=True, is_data_fault=True
    ),
    Kind(
        "journal-damage", PROCESS, "", (CONTROLLER, LEADER, ONE), _OF_DATA, _journal_file,
        holds_nodes=True, is_data_fault=True, wants_network=True,
    ),
    Kind(
        "old-directory", PROCESS, "", (CONTROLLER, LEADER, ONE), ((2.0, 8.0),),
        holds_nodes=True, is_data_fault=True, wants_network=True,
    ),
)  # fmt: skip

KINDS = {kind.name: kind for kind in _ALL}


def parts(kinds: Iterable[str]) -> dict[str, str]:
    """The roles that these kinds may hit, by the words that people type."""
    known = sorted({whom for name in kinds for whom in KINDS[name].whom})
    return {whom.replace(" ", "-"): whom for whom in known}
