"""Transactions in the world of groups: offsets that are committed past the coordinator.

Owns when a process reads the offsets of what it was assigned, what it commits from there on, and
how long that is on its way: a moment, or longer than a session. Then it reaches the quorum,
whatever became of its sender meanwhile, and is accepted or refused by the real rule. Draws from
chances of its own, so that worlds are what they are without it.

    X   what a transaction commits was read by nobody else, nor anew, since it was read for it
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import NotCoordinator, RebalanceInProgress
from raftmq.metadata.commands import TransactionOffsets
from tests.simulation.groups.asks import GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from raftmq.client.group.assignors.assignor import Key
    from raftmq.client.group.membership import GroupMembership
    from tests.simulation.groups.process import Process

LATE_SHARE = 0.2
AGAIN_SECONDS = 0.3  # between attempts to read offsets


def generation_of(membership: GroupMembership) -> int:
    """As `GroupProgress.take` has it."""
    return membership.owned_partitions.generation


class Reading:
    """One ownership of a partition, and the process that has it. Compared by identity."""

    def __init__(self, process: Process, key: Key) -> None:
        self.process, self.key = process, key
        self.has_begun = False  # it knows its offset

    def __repr__(self) -> str:
        return f"{self.process.name} of {self.key}"


class End(NamedTuple):
    """The commit of a transaction: the member's offsets, and in which ownerships it read them."""

    offsets: TransactionOffsets
    readings: tuple[Reading, ...]


class Transactions:
    """Of one process."""

    def __init__(self, process: Process, chance: Random) -> None:
        self._process, self._world, self._chance = process, process.world, chance
        self._readings: dict[Key, Reading] = {}

    def on_assigned(self, keys: Iterable[Key]) -> None:
        for key in keys:
            reading = self._readings[key] = Reading(self._process, key)
            self._after(self._world.plan.delay_seconds_max, self._begin, reading)

    def on_let_go(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._readings.pop(key, None)

    def start(self) -> None:
        self._after(2 * self._process.world.plan.member.commit_seconds, self._work)

    def _begin(self, reading: Reading) -> None:
        """OffsetFetch is answered once: from then on the process reads."""
        if self._readings.get(reading.key) is not reading:
            return
        membership, group = self._process.membership, self._world.group()
        who = membership.member_id, membership.generation, self._process.instance_id
        refusal = NotCoordinator("nobody") if group is None else group.commit_refusal(*who)
        # Offsets may be read while the group rebalances.
        if refusal is not None and not isinstance(refusal, RebalanceInProgress):
            self._after(AGAIN_SECONDS, self._begin, reading)
        else:
            reading.has_begun = True
            self._world.checks.on_read(reading)

    def _work(self) -> None:
        """Commit what is in hand, and go on."""
        works_on = self._process.works_on()
        readings = tuple(
            reading
            for key, reading in sorted(self._readings.items())
            if reading.has_begun and key in works_on
        )
        if readings:
            membership = self._process.membership
            offsets = TransactionOffsets(
                GROUP,
                generation_of(membership),
                membership.member_id,
                self._process.instance_id,
                (),
            )
            # Not by the process, which may end: it has left.
            seconds = self._seconds_on_its_way()
            self._world.timeline.after(seconds, self._world.quorum.end, End(offsets, readings))
        self.start()

    def _seconds_on_its_way(self) -> float:
        is_late = self._chance.random() < LATE_SHARE
        seconds_max = 2 * self._world.plan.member.session_seconds if is_late else 0.2
        return seconds_max * self._chance.random()

    def _after(self, seconds_max: float, act: Callable[..., None], *args: object) -> None:
        seconds = seconds_max * self._chance.random()
        self._world.timeline.after(seconds, self._process.when_awake, partial(act, *args))
