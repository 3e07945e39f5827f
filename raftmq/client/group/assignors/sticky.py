"""Sticky assignors: balanced to within one partition, moving as few as that allows. Pure.

Kafka: StickyAssignor, CooperativeStickyAssignor. Where subscriptions differ, the plan is as even as
they allow: the member with the fewest partitions cannot get another one from a member with two
more, not even by way of others.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, NamedTuple

from raftmq.client.group.assignors.assignor import claims_of, in_order
from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from raftmq.client.group.assignors.assignor import Key, Plan, Subscribed


# -- Pools of partitions --------------------------------------------------------------------------
# Pools: which members may get which partitions, and how many each has. Pure.
#
# Topics with the same subscribers are alike: together they are a pool. Members are numbered in the
# order in which they come first, so that nothing depends on the order of sets and mappings.


class Pool:
    """Partitions with the same subscribers.

    Attributes:
        subscribers: numbers of the members that may get its partitions.
        parts: by member, its partitions of the pool, the latest at the end; never empty.
        free: in order, those without an owner.
    """

    def __init__(self, subscribers: tuple[int, ...]) -> None:
        self.subscribers = subscribers
        self.parts: dict[int, list[Key]] = {}
        self.free: list[Key] = []

    def take_from(self, member: int) -> Key:
        part = self.parts[member]
        key = part.pop()
        if not part:
            del self.parts[member]
        return key


class AssignmentDraft:
    """A plan in the making. Begins with what the members claim, as far as the claim stands and is
    allowed.

    Attributes:
        loads: how many partitions each member has.
    """

    def __init__(self, partitions: Mapping[str, int], members: Sequence[Subscribed]) -> None:
        self._members = members
        self.loads = [0] * len(members)
        by_topic = _pools_by_topic(partitions, members)
        self.pools = list(dict.fromkeys(by_topic.values()))
        claims = claims_of(members)
        numbers = {member.member_id: number for number, member in enumerate(members)}
        may_have = {pool: frozenset(pool.subscribers) for pool in self.pools}
        for topic, pool in by_topic.items():
            for key in [(topic, number) for number in range(partitions[topic])]:
                owners = claims.get(key, ())
                owner = numbers[owners[0].member_id] if len(owners) == 1 else None
                # The claim stands, and the member still subscribes to the topic.
                if owner is not None and owner in may_have[pool]:
                    self.give(pool, key, owner)
                else:
                    pool.free.append(key)

    def give(self, pool: Pool, key: Key, member: int) -> None:
        pool.parts.setdefault(member, []).append(key)
        self.loads[member] += 1

    def trim(self, pool: Pool, quotas: Mapping[int, int]) -> None:
        """Partitions beyond a member's quota become free."""
        for member, quota in quotas.items():
            while len(pool.parts.get(member, ())) > quota:
                pool.free.append(pool.take_from(member))
                self.loads[member] -= 1
        pool.free.sort()

    def fill(self, pool: Pool) -> None:
        """Each free partition goes to the member with the fewest."""
        heap = [(self.loads[member], member) for member in pool.subscribers]
        heapify(heap)
        for key in pool.free:
            _, member = heap[0]
            self.give(pool, key, member)
            heapreplace(heap, (self.loads[member], member))
        pool.free = []

    def plan(self) -> Plan:
        found: dict[str, list[Key]] = {member.member_id: [] for member in self._members}
        for pool in self.pools:
            for number, part in pool.parts.items():
                found[self._members[number].member_id] += part
        return {member_id: sorted(part) for member_id, part in found.items()}


def _pools_by_topic(
    partitions: Mapping[str, int], members: Sequence[Subscribed]
) -> dict[str, Pool]:
    """Of topics with a subscriber, in order."""
    subscribers: dict[str, list[int]] = {topic: [] for topic in sorted(partitions)}
    for number, member in enumerate(members):
        for topic in _named_in(member.topics, subscribers):
            subscribers[topic].append(number)
    pools: dict[tuple[int, ...], Pool] = {}
    return {
        topic: pools.setdefault(tuple(numbers), Pool(tuple(numbers)))
        for topic, numbers in subscribers.items()
        if numbers
    }


def _named_in(topics: frozenset[str], known: Mapping[str, object]) -> Iterable[str]:
    return [topic for topic in topics if topic in known]


# -- Sticky ---------------------------------------------------------------------------------------


class StickyAssignor:
    """Eager: members give everything up before, and get most of it back."""

    name = "sticky"
    is_cooperative = False

    def assign(self, partitions: Mapping[str, int], members: Sequence[Subscribed]) -> Plan:
        """1. All members keep what they have. 2. If all subscribe to the same topics, what is above
        a quota becomes free. 3. Free partitions go to the members with the fewest. 4. Otherwise the
        surplus moves.
        """
        dealing = AssignmentDraft(partitions, in_order(members))
        if len(dealing.pools) == 1:  # equal subscriptions: quotas suffice
            dealing.trim(dealing.pools[0], _quotas(dealing.pools[0]))
        for pool in sorted(dealing.pools, key=lambda pool: len(pool.subscribers)):
            dealing.fill(pool)
        if len(dealing.pools) > 1:  # unequal ones need a search
            balance(dealing)
        return dealing.plan()


def _quotas(pool: Pool) -> dict[int, int]:
    """The quota of each member. If the division leaves a remainder, the members with the most may
    keep one more.
    """
    had = {member: len(pool.parts.get(member, ())) for member in pool.subscribers}
    low, extra = divmod(sum(had.values()) + len(pool.free), len(had))
    ranked = sorted(had, key=lambda member: (-had[member], member))
    return {member: low + (rank < extra) for rank, member in enumerate(ranked)}


# -- Balancing ------------------------------------------------------------------------------------
# Moves partitions from members with many to members with few, by way of others if necessary. Pure.
#
# A member can give another one what it has of a pool to which both subscribe. The member with the
# fewest is served first: once no member that can give to it, directly or by way of others, has two
# more, that is final for all of these, and they are left alone. So the result is as even as
# subscriptions allow (an optimal semi-matching: Harvey, Ladner, Lovász, Tamir, 2006).


class StickyMove(NamedTuple):
    """To which member a partition goes, and of which pool."""

    receiver: int
    pool: int


def balance(dealing: AssignmentDraft) -> None:
    search = _Search(dealing)
    poorest = [(load, member) for member, load in enumerate(dealing.loads)]
    heapify(poorest)
    while poorest:
        load, member = heappop(poorest)
        if load != dealing.loads[member] or member in search.settled:
            continue  # an outdated entry: it was served since
        giver = search.giver_to(member)
        # As even as it gets: all members that were reached are final.
        if giver is None:
            search.settled.update(search.steps)
            continue
        _move(dealing, search, giver)
        for each in (giver, member):
            heappush(poorest, (dealing.loads[each], each))


def _move(dealing: AssignmentDraft, search: _Search, giver: int) -> None:
    """Move one partition along the path that was found; each member on it passes on another one."""
    dealing.loads[giver] -= 1
    while (step := search.steps[giver]) is not None:
        pool = dealing.pools[step.pool]
        key = pool.take_from(giver)
        giver = step.receiver
        pool.parts.setdefault(giver, []).append(key)
        search.on_given(step.pool, giver)
    dealing.loads[giver] += 1


class _Search:
    """Finds a member with a partition to spare.

    Attributes:
        settled: final members: they get no more, and have nothing to spare for later ones.
        steps: of the last search: the path by which each member reached could give to the receiver.
    """

    def __init__(self, dealing: AssignmentDraft) -> None:
        self._loads, self._pools, self.settled = dealing.loads, dealing.pools, set[int]()
        self.steps: dict[int, StickyMove | None] = {}
        self._pools_of: list[list[int]] = [[] for _ in dealing.loads]
        for number, pool in enumerate(dealing.pools):
            for member in pool.subscribers:
                self._pools_of[member].append(number)
        # Of each pool its owners, those with the most first; an entry is outdated once the member
        # has given one away. A member that was served never has the most again: by then all have as
        # many.
        self._rich = [[(-self._loads[each], each) for each in pool.parts] for pool in self._pools]
        for rich in self._rich:
            heapify(rich)

    def on_given(self, pool: int, member: int) -> None:
        """The member has got a partition of that pool."""
        heappush(self._rich[pool], (-self._loads[member], member))

    def giver_to(self, receiver: int) -> int | None:
        """Of the nearest members with at least two more, the one with the most."""
        enough = self._loads[receiver] + 2
        self.steps = {receiver: None}
        richest = [(*self._richest_of(number), number) for number in self._pools_of[receiver]]
        load, giver, pool = min(richest, default=(0, receiver, 0))
        if -load >= enough:
            self.steps[giver] = StickyMove(receiver, pool)
            return giver
        return self._distant_giver_to(receiver, enough)

    def _richest_of(self, number: int) -> tuple[int, int]:
        """The pool's owner with the most partitions: its load, negative, and its number."""
        rich, parts = self._rich[number], self._pools[number].parts
        while rich:
            load, member = rich[0]
            # Outdated: it has nothing of the pool any more, or fewer partitions in all.
            if member not in parts:
                heappop(rich)
            elif -load != self._loads[member]:
                heapreplace(rich, (-self._loads[member], member))
            else:
                return rich[0]
        return 0, ABSENT

    def _distant_giver_to(self, receiver: int, enough: int) -> int | None:
        seen: set[int] = set()
        level = [receiver]
        # Breadth first: the shortest path moves the fewest partitions.
        while level and max(self._loads) >= enough:
            level = self._givers_to(level, seen)
            best = max(level, key=self._loads.__getitem__, default=receiver)
            if self._loads[best] >= enough:
                return best
        return None

    def _givers_to(self, level: list[int], seen: set[int]) -> list[int]:
        """Members that can give to one of `level`, and were not reached before."""
        reached: list[int] = []
        for receiver in level:
            for number in self._pools_of[receiver]:
                if number in seen:  # its members were reached by a shorter path
                    continue
                seen.add(number)
                for giver in self._pools[number].parts:
                    if giver not in self.steps and giver not in self.settled:
                        self.steps[giver] = StickyMove(receiver, number)
                        reached.append(giver)
        return reached


# -- Cooperative sticky ---------------------------------------------------------------------------
# The sticky plan for members that go on reading during a rebalance (KIP-429). Pure.
#
# A partition that is to move from a member that still reads it is assigned to no member this time.
# Its owner, seeing that it is not in its assignment, gives it up and joins again: then it is free.


class CooperativeStickyAssignor:
    """Cooperative: only partitions that move stop being read."""

    name = "cooperative_sticky"
    is_cooperative = True

    def assign(self, partitions: Mapping[str, int], members: Sequence[Subscribed]) -> Plan:
        target = StickyAssignor().assign(partitions, members)
        held = claims_of(member for member in members if member.is_holding)
        return {
            member_id: [
                key
                for key in keys
                if all(holder.member_id == member_id for holder in held.get(key, ()))
            ]
            for member_id, keys in target.items()
        }
