"""Bugs that a cluster of brokers is known to have, to be planted into ours one at a time.

Owns the bugs, each a function that patches the code through pytest's MonkeyPatch. A bug takes away
one rule, or one step; never a check. One is none: `HARMLESS` shows that worlds do not cry at
everything. How many worlds find one says

    python -m tests.simulation.brokers.planted_bugs --seeds 50
"""

from __future__ import annotations

import argparse
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from raftmq.broker.fetch import Fetching
from raftmq.broker.fetch_sessions import Bounds
from raftmq.broker.fetch_turn import Seen
from raftmq.broker.high_watermarks import HighWatermarks
from raftmq.broker.lifetime import Lifetime
from raftmq.broker.replicate import Replicating
from raftmq.metadata.apply import brokers
from raftmq.metadata.image import Pending
from raftmq.partition import acknowledgements
from raftmq.partition import replica as replica_module
from raftmq.partition.leader import Leader
from raftmq.partition.progress import FollowerProgress
from raftmq.partition.replica import Replica
from raftmq.partition.storage.log import PartitionLog
from tests.simulation.brokers.world import World
from tests.simulation.raft.checks import TooLittle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from raftmq.broker.fetch_sessions import SessionPartition

Patch = pytest.MonkeyPatch


class Case(NamedTuple):
    """Worlds, and the only faults that strike in them."""

    seeds: tuple[int, ...]
    kinds: tuple[str, ...]


# -- what is acknowledged, and what is read ----------------------------------------------------


def ack_before_followers_hold(patch: Patch) -> None:
    """acks=all waits for the leader's disk alone."""

    def reached(leader: Leader, _acks: int) -> int:
        return leader.held_end_offset

    patch.setattr(acknowledgements, "reached", reached)
    patch.setattr(replica_module, "reached", reached)


def hold_before_fsync(patch: Patch) -> None:
    """What was written counts as held, whatever the topic's durability."""
    patch.setattr(PartitionLog, "held_end_offset", PartitionLog.log_end_offset)


def read_above_the_high_watermark(patch: Patch) -> None:
    """A consumer gets all that the leader has, and is told that it is committed."""
    look = Fetching.look

    def look_further(self: Fetching, replica: Replica, partition: SessionPartition) -> Seen:
        seen, end = look(self, replica, partition), replica.log.log_end_offset
        return Seen(end, Bounds(end, seen.bounds.log_start_offset), seen.diverged)

    patch.setattr(Fetching, "look", look_further)


def answer_across_epochs(patch: Patch) -> None:
    """Who waits for an acknowledgement waits on when its leader is deposed, and is answered when
    something of a later epoch stands there.
    """

    def lay_down(self: Replica) -> None:
        self.leader = self.follower = None

    patch.setattr(Replica, "_lay_down", lay_down)


# -- replicas ----------------------------------------------------------------------------------


def skip_the_divergence_answer(patch: Patch) -> None:
    """A follower's log is taken for a part of the leader's."""
    patch.setattr(Replica, "divergence", lambda *_: None)

    def on_fetch(self: Leader, follower: int, broker_epoch: int, offset: int, *, now: float) -> Any:
        self._progress[follower].on_fetch(broker_epoch, min(offset, self.log_end_offset))
        return self._after_word_of(follower, now)

    patch.setattr(Leader, "on_fetch", on_fetch)


def trust_an_old_registration(patch: Patch) -> None:
    """What an earlier process of a broker has said counts for the one that runs now."""
    patch.setattr(Replicating, "_check_epoch", lambda *_: None)

    def on_fetch(self: FollowerProgress, broker_epoch: int, fetch_offset: int) -> None:
        self.broker_epoch, self.has_fetched = broker_epoch, True
        self.fetch_offset = max(self.fetch_offset, fetch_offset)

    patch.setattr(FollowerProgress, "on_fetch", on_fetch)


def trust_any_directory(patch: Patch) -> None:
    """A broker that lost its page cache, or records, is as good as it was."""
    patch.setattr(brokers, "_revocation", lambda known, command: Pending.NOTHING)


def who_joins_does_not_count(patch: Patch) -> None:
    """The high watermark does not wait for whoever was proposed to join."""
    patch.setattr(Leader, "maximal_isr", property(lambda self: self.assignment.isr))
    patch.setattr(Leader, "_is_about_to_join", lambda self, follower: False)


# -- life --------------------------------------------------------------------------------------


def stop_without_waiting(patch: Patch) -> None:
    """A broker that stops in order leaves before anybody has taken over."""

    async def stop(self: Lifetime) -> bool:
        self._stop_wanted.set()
        return True

    patch.setattr(Lifetime, "stop", stop)


def high_watermarks_are_forgotten(patch: Patch) -> None:
    """Harmless: a leader learns them again from its followers before anybody reads."""
    patch.setattr(HighWatermarks, "of", lambda self, name: 0)


# -- all of them -------------------------------------------------------------------------------

# Every bug with the faults that bring it to light, and seeds of worlds where they do. Any change of
# the code shifts the worlds: where a bug slips through all of them, run this module as a command.
_CASES: dict[Callable[[Patch], None], Case] = {
    ack_before_followers_hold: Case((2,), ("kill_leader", "leader_off_brokers")),
    hold_before_fsync: Case((2, 3), ("power_of_all", "power_midway")),
    read_above_the_high_watermark: Case((0, 3), ("leader_off_brokers", "kill_leader")),
    skip_the_divergence_answer: Case((0, 2), ("leader_off_brokers", "kill_leader")),
    trust_any_directory: Case((63,), ("power", "kill_leader")),
    stop_without_waiting: Case((0, 1), ("restart", "restart_all")),
}
# No world has found these yet: here they can be tried with other faults.
_MISSED: dict[Callable[[Patch], None], Case] = {
    answer_across_epochs: Case((), ("leader_off_brokers", "pause_leader")),
    trust_an_old_registration: Case((), ("power", "power_midway", "kill")),
    who_joins_does_not_count: Case((), ("kill_leader", "leader_off_follower")),
}
HARMLESS = high_watermarks_are_forgotten.__name__
BUGS = {bug.__name__: bug for bug in (*_CASES, *_MISSED, high_watermarks_are_forgotten)}
MISSED = {bug.__name__: case for bug, case in _MISSED.items()}
CASES = {bug.__name__: case for bug, case in _CASES.items()}
HARMLESS_CASE = Case((0, 1), ("kill", "restart", "kill_leader"))


@contextmanager
def planted(name: str) -> Iterator[None]:
    with Patch.context() as patch:
        BUGS[name](patch)
        yield


def caught(name: str, case: Case) -> dict[int, Exception]:
    """What the worlds make of the bug, by seed: of those that catch it."""
    return {seed: error for seed in case.seeds if (error := _caught(name, seed, case.kinds))}


def is_caught(name: str, case: Case) -> bool:
    return any(_caught(name, seed, case.kinds) for seed in case.seeds)


def _caught(name: str, seed: int, kinds: tuple[str, ...]) -> Exception | None:
    with planted(name):
        try:
            World(seed, kinds=kinds).play()
        except TooLittle:
            return None
        except Exception as error:
            return error
    return None


def main() -> None:
    """How many worlds catch which bug, and what the first of them say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--bug", choices=sorted(BUGS))
    parser.add_argument("--drawn", action="store_true", help="with the faults that each seed draws")
    options = parser.parse_args()
    for name in [options.bug] if options.bug else BUGS:
        kinds = () if options.drawn else {**CASES, **MISSED}.get(name, HARMLESS_CASE).kinds
        found = caught(name, Case(tuple(range(options.seeds)), kinds))
        sys.stdout.write(f"{name:30} {len(found):3} of {options.seeds}: {list(found)[:8]}\n")
        for error in list(found.values())[:3]:
            sys.stdout.write(f"      {type(error).__name__}: {str(error)[:150]}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
