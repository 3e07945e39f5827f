"""Nobody has two more than another, and everybody keeps as much as that allows. Pure.

Where subscriptions differ, it is as even as they allow: whoever has least cannot get another one
from somebody who has two more, not even over others.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, NamedTuple

from raftmq.client.group.assignors.assignor import claims_of, in_order
from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from raftmq.client.group.assignors.assignor import Key, Plan, Subscribed


# -- Dealing --------------------------------------------------------------------------------------
# Partitions on their way to members: who may have which, and who has how many. Pure.
#
# Topics with the same subscribers are alike: together they are a pool. Members are numbers, in the
# order in which they come first, so that nothing depends on the order of sets and mappings.


class Pool:
    """Attributes:
    subscribers: who may have its partitions.
    parts: by member, what it has of them, the last got at the end; never empty.
    free: in order, what nobody has.
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


class Dealing:
    """Begins with what everybody claims, as far as the claim stands and is allowed.

    Attributes:
        loads: how many each member has.
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
                if owner is not None and owner in may_have[pool]:
                    self.give(pool, key, owner)
                else:
                    pool.free.append(key)

    def give(self, pool: Pool, key: Key, member: int) -> None:
        pool.parts.setdefault(member, []).append(key)
        self.loads[member] += 1

    def trim(self, pool: Pool, quotas: Mapping[int, int]) -> None:
        """What is beyond is free."""
        for member, quota in quotas.items():
            while len(pool.parts.get(member, ())) > quota:
                pool.free.append(pool.take_from(member))
                self.loads[member] -= 1
        pool.free.sort()

    def fill(self, pool: Pool) -> None:
        """Whatever is free goes to whoever has least."""
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
    """Of topics that anybody subscribes to, in order."""
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
    name = "sticky"
    is_cooperative = False

    def assign(self, partitions: Mapping[str, int], members: Sequence[Subscribed]) -> Plan:
        """1. Everybody keeps what it has. 2. If all subscribe to the same, what is too much of that
        becomes free. 3. What is free goes to whoever has least. 4. Else what is too much moves.
        """
        dealing = Dealing(partitions, in_order(members))
        if len(dealing.pools) == 1:
            dealing.trim(dealing.pools[0], _quotas(dealing.pools[0]))
        for pool in sorted(dealing.pools, key=lambda pool: len(pool.subscribers)):
            dealing.fill(pool)
        if len(dealing.pools) > 1:
            balance(dealing)
        return dealing.plan()


def _quotas(pool: Pool) -> dict[int, int]:
    """Where it does not come out even, those that have most may keep one more."""
    had = {member: len(pool.parts.get(member, ())) for member in pool.subscribers}
    low, extra = divmod(sum(had.values()) + len(pool.free), len(had))
    ranked = sorted(had, key=lambda member: (-had[member], member))
    return {member: low + (rank < extra) for rank, member in enumerate(ranked)}


# -- Balancing ------------------------------------------------------------------------------------
# Moving partitions from who has much to who has little, over others where it takes that. Pure.
#
# A member can give to another one what it has of a pool to which both subscribe. Whoever has least
# is served first: once nobody that can give to it, directly or over others, has two more, that is
# so for all of those for good, and they are left alone. So what comes out is as even as
# subscriptions allow (an optimal semi-matching: Harvey, Ladner, Lovász, Tamir, 2006).


class StickyMove(NamedTuple):
    """To whom a member gives, and of which pool."""

    receiver: int
    pool: int


def balance(dealing: Dealing) -> None:
    search = _Search(dealing)
    poorest = [(load, member) for member, load in enumerate(dealing.loads)]
    heapify(poorest)
    while poorest:
        load, member = heappop(poorest)
        if load != dealing.loads[member] or member in search.settled:
            continue  # it was served meanwhile
        giver = search.giver_to(member)
        if giver is None:
            search.settled.update(search.steps)
            continue
        _move(dealing, search, giver)
        for each in (giver, member):
            heappush(poorest, (dealing.loads[each], each))


def _move(dealing: Dealing, search: _Search, giver: int) -> None:
    """One partition along the way that was found, each member handing on another one."""
    dealing.loads[giver] -= 1
    while (step := search.steps[giver]) is not None:
        pool = dealing.pools[step.pool]
        key = pool.take_from(giver)
        giver = step.receiver
        pool.parts.setdefault(giver, []).append(key)
        search.on_given(step.pool, giver)
    dealing.loads[giver] += 1


class _Search:
    """Attributes:
    settled: these get no more, and have nothing to spare for those that come later.
    steps: of the last search: how what each member reached could give comes to the receiver.
    """

    def __init__(self, dealing: Dealing) -> None:
        self._loads, self._pools, self.settled = dealing.loads, dealing.pools, set[int]()
        self.steps: dict[int, StickyMove | None] = {}
        self._pools_of: list[list[int]] = [[] for _ in dealing.loads]
        for number, pool in enumerate(dealing.pools):
            for member in pool.subscribers:
                self._pools_of[member].append(number)
        # Of each pool who has of it, the richest first; outdated where somebody has given since.
        # Who was served is never rich again: by then everybody has as much.
        self._rich = [[(-self._loads[each], each) for each in pool.parts] for pool in self._pools]
        for rich in self._rich:
            heapify(rich)

    def on_given(self, pool: int, member: int) -> None:
        """It has something of that pool."""
        heappush(self._rich[pool], (-self._loads[member], member))

    def giver_to(self, receiver: int) -> int | None:
        """The richest of the nearest that have at least two more."""
        enough = self._loads[receiver] + 2
        self.steps = {receiver: None}
        richest = [(*self._richest_of(number), number) for number in self._pools_of[receiver]]
        load, giver, pool = min(richest, default=(0, receiver, 0))
        if -load >= enough:
            self.steps[giver] = StickyMove(receiver, pool)
            return giver
        return self._distant_giver_to(receiver, enough)

    def _richest_of(self, number: int) -> tuple[int, int]:
        """Its load, negative, and who it is."""
        rich, parts = self._rich[number], self._pools[number].parts
        while rich:
            load, member = rich[0]
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
        while level and max(self._loads) >= enough:
            level = self._givers_to(level, seen)
            best = max(level, key=self._loads.__getitem__, default=receiver)
            if self._loads[best] >= enough:
                return best
        return None

    def _givers_to(self, level: list[int], seen: set[int]) -> list[int]:
        """Who can give to one of `level`, and was not reached before."""
        reached: list[int] = []
        for receiver in level:
            for number in self._pools_of[receiver]:
                if number in seen:
                    continue
                seen.add(number)
                for giver in self._pools[number].parts:
                    if giver not in self.steps and giver not in self.settled:
                        self.steps[giver] = StickyMove(receiver, number)
                        reached.append(giver)
        return reached


# -- Cooperative sticky ---------------------------------------------------------------------------
# Sticky, for members that go on reading while the group deals anew. Pure.
#
# What is to move from one that is still reading it to another is given to nobody this time. Its
# owner, seeing that it is not in its part, gives it up and joins again: then it is free.


class CooperativeStickyAssignor:
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
