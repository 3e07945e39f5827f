"""Partitions on their way to members: who may have which, and who has how many. Pure.

Topics with the same subscribers are alike: together they are a pool. Members are numbers, in the
order in which they come first, so that nothing depends on the order of sets and mappings.
"""

from __future__ import annotations

from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

from raftmq.client.group.assignors.claims import claims_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from raftmq.client.group.assignors.assignor import Key, Plan, Subscribed


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
