"""The judge of one consumer group: ownership, hand-outs, finished records and commits.

Owns the promises to groups, judged at once and at the end:

* No two members own a partition at the same moment, by their own clocks; except a member that goes
  on in an old generation of a coordinator that was replaced, and does not know it yet.
* A new owner begins at the committed offset, or behind.
* What an owner gets of a partition comes in order and without gaps.
* Only finished records are committed, and each record is finished by some member; the committed
  offset never goes back.
* Where commits come first, records are committed before they are handed out, and none comes twice.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from typing import TYPE_CHECKING

import trio

from raftmq.metadata.commands import PartitionId
from raftmq.metadata.image import slot_of
from tests.simulation.brokers.group_life import may_share
from tests.simulation.brokers.ledger import Spot
from tests.simulation.raft.checks import demand

if TYPE_CHECKING:
    from raftmq.client.group.effects import Rebalance
    from tests.simulation.brokers.group_life import Key, Life, Offsets
    from tests.simulation.brokers.group_plan import GroupPlan
    from tests.simulation.brokers.world import World

LOOK_SECONDS = 0.05  # between checks of the ownerships
BEFORE = "before"


class GroupLedger:
    """Attributes:
    lives: of the members that are there.
    handed: how many records were.
    """

    def __init__(self, world: World, plan: GroupPlan) -> None:
        self._world, self.plan = world, plan
        self.lives: list[Life] = []
        self.handed = 0
        self._handed: defaultdict[Spot, set[int]] = defaultdict(set)
        self._done: defaultdict[Spot, set[int]] = defaultdict(set)
        self._committed: dict[tuple[bytes, int], int] = {}
        self._version = 0  # of the image that says so
        self._runs: list[int] = []  # of brokers, when they all had the same image

    # What members say

    def on_rebalance(self, life: Life, rebalance: Rebalance) -> None:
        life.on_rebalance(rebalance, self._offsets())

    def on_handed_out(self, life: Life, key: Key, offset: int, value: bytes) -> None:
        now, who = trio.current_time(), life.name
        may = life.membership.may_hand_out(key, now=now)
        demand(may, f"{who}: {key} {offset} is not its own any more")
        self._judge_alone(life, key, now)
        spot = self._spot(key, life.topic_id(key))
        expected, life.expected[key] = life.expected.get(key), offset + 1
        if spot is None:  # of a topic that the ledger does not know
            return
        ledger = self._world.ledger.of(spot)
        if expected is not None and offset != expected:
            may_skip = offset > expected and ledger.may_have_deleted(expected)
            demand(may_skip, f"{who}: {spot} goes on at {offset}, expected {expected}")
        if expected is None:
            self._judge_begin(life, key, spot, offset)
        if self.plan.commit == BEFORE:
            self._judge_committed_before(spot, offset, who)
        self._handed[spot].add(offset)
        life.hand.append((spot, offset))
        life.stale.discard((spot, offset))
        self.handed += 1
        self._world.ledger.reads += 1
        ledger.see(offset, value, who)

    def _judge_begin(self, life: Life, key: Key, spot: Spot, offset: int) -> None:
        known = life.committed[key].get(self._partition_of(spot))
        if known is not None:
            what = f"{life.name}: {spot} begins at {offset}, and committed was {known.offset}"
            demand(offset >= known.offset, what)

    def _judge_committed_before(self, spot: Spot, offset: int, who: str) -> None:
        is_new = offset not in self._handed[spot]
        demand(is_new, f"{who}: {spot} {offset} was handed out before")
        if self._is_all_known():
            found = self._offsets().get(self._partition_of(spot))
            is_committed = found is not None and found.offset > offset
            demand(is_committed, f"{who}: {spot} {offset} is handed out, committed is {found}")

    def on_done(self, found: list[tuple[Spot, int]]) -> None:
        """A member has finished these records."""
        for spot, offset in found:
            self._done[spot].add(offset)
        found.clear()

    def _spot(self, key: Key, topic_id: bytes | None) -> Spot | None:
        for (topic, life), known in self._world.topic_ids.items():
            if topic == key[0] and known == topic_id:
                return Spot(topic, key[1], life)
        return None

    def _partition_of(self, spot: Spot) -> PartitionId:
        return PartitionId(self._world.topic_ids[spot.topic, spot.life], spot.partition)

    def _offsets(self) -> Offsets:
        return self._world.newest_image().offsets.get(self.plan.name, {})

    def _is_all_known(self) -> bool:
        """No broker has died since all knew the same: some broker knows each answer."""
        return bool(self._runs) and self._runs == self._runs_of_all()

    def _runs_of_all(self) -> list[int]:
        """Nothing while a broker is down."""
        hosts = self._world.hosts
        are_all_up = all(host.quorum is not None and not host.end for host in hosts)
        return [host.runs for host in hosts] if are_all_up else []

    # While it goes on

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            self.look()
            await trio.sleep(LOOK_SECONDS)

    def look(self) -> None:
        now = trio.current_time()
        coordinator = self._world.newest_image().slots[slot_of(self.plan.name)].broker_id
        for life in self.lives:
            life.hear(coordinator)
        for one, other in combinations(self.lives, 2):
            both = one.holds(now) & other.holds(now)
            is_fine = not both or may_share(one, other)
            demand(is_fine, f"{one.name} and {other.name} have {sorted(both)}")
        self._look_at_commits()
        if len({host.quorum.image.version for host in self._world.hosts if host.quorum}) == 1:
            self._runs = self._runs_of_all()

    def _judge_alone(self, life: Life, key: Key, now: float) -> None:
        others = [one for one in self.lives if one is not life and key in one.holds(now)]
        names = [one.name for one in others if not may_share(life, one)]
        demand(not names, f"{life.name}: {key} was handed out, and {names} have it, too")

    def _look_at_commits(self) -> None:
        image = self._world.newest_image()
        if image.version <= self._version:  # the broker that knew more has died
            return
        self._version = image.version
        for (topic_id, partition), found in self._offsets().items():
            if found.offset < 0:  # crashes are counted, and nothing was committed yet
                continue
            before = self._committed.get((topic_id, partition), 0)
            if found.offset != before:
                self._committed[topic_id, partition] = found.offset
                self._judge_commit(topic_id, partition, before, found.offset)

    def _judge_commit(self, topic_id: bytes, partition: int, before: int, offset: int) -> None:
        names = [name for (name, _), known in self._world.topic_ids.items() if known == topic_id]
        spot = self._spot((names[0], partition), topic_id) if names else None
        if spot is None:
            return
        what = f"{self.plan.name}: {spot} committed {offset}"
        if self.plan.commit == BEFORE:  # what was not handed out then may be taken back
            last = max(self._handed[spot], default=-1)
            demand(offset > last, f"{what}, and {last} was handed out")
            return
        demand(offset > before, f"{what} after {before}")
        ledger, done = self._world.ledger.of(spot), self._done[spot]
        undone = [
            at for at in range(before, offset) if at not in done and not ledger.may_have_deleted(at)
        ]
        demand(not undone, f"{what}, and nobody has finished {undone[:5]}")

    # In the end

    @property
    def record_count(self) -> int:
        """How many have been handed out, once or more often."""
        return sum(map(len, self._handed.values()))

    def unsettled(self, ends: dict[Spot, int], member_count: int) -> str:
        """Why the group does not stand as it should when all is well; empty: it does."""
        if len(self.lives) != member_count:
            return f"{len(self.lives)} members of {member_count}"
        generations = {life.membership.generation for life in self.lives}
        if len(generations) != 1:
            return f"generations {generations}"
        return next(filter(None, (self._behind(*each) for each in ends.items())), "")

    def _behind(self, spot: Spot, end: int) -> str:
        key, now = (spot.topic, spot.partition), trio.current_time()
        owners = [life for life in self.lives if key in life.holds(now)]
        if len(owners) != 1:
            return f"{spot} is read by {[life.name for life in owners]}"
        if key not in owners[0].consumer.assignment:
            return f"{spot}: {owners[0].name} has just got it"
        position = owners[0].consumer.position(*key)
        if position is None or position < end:
            return f"{spot}: {owners[0].name} is at {position} of {end}"
        return ""

    def ends(self) -> dict[Spot, int]:
        """Of what stands for ever by now."""
        ledgers = ((spot, self._world.ledger.of(spot)) for spot in self._world.spots())
        return {spot: max(ledger.stands, default=-1) + 1 for spot, ledger in ledgers}

    def judge(self, ends: dict[Spot, int]) -> None:
        """All members have left."""
        self.look()
        for spot, end in ends.items():
            if self.plan.commit == BEFORE:
                self._judge_committed_first(spot)
            else:
                self._judge_done(spot, end)

    def _judge_done(self, spot: Spot, end: int) -> None:
        ledger, done = self._world.ledger.of(spot), self._done[spot]
        missing = [
            at
            for at in sorted(ledger.stands)
            if at < end and at not in done and not ledger.may_have_deleted(at)
        ]
        demand(not missing, f"{self.plan.name}: nobody has finished {spot} {missing[:5]}")

    def _judge_committed_first(self, spot: Spot) -> None:
        last = max(self._handed[spot], default=-1)
        committed = self._committed.get(self._partition_of(spot), 0)
        what = f"{self.plan.name}: {spot} {last} was handed out"
        demand(committed > last, f"{what}, and committed is {committed}")
