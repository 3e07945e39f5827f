"""Replica placement: assigns replicas of new partitions to brokers and racks, and balances leaders.

Owns the choice, and `creation` and `growth` that make commands of it (Kafka:
StripedReplicaPlacer). Deterministic, given the random source that the caller passes in. In this
order:

  1. Replicas of a partition are on distinct brokers, and as evenly over racks as their sizes allow.
  2. Replicas go to the brokers that host the fewest: among equal racks, equal within one.
  3. Among the replicas the leaders are chosen so that brokers have equal numbers of these
     partitions within one, those with the fewest of all partitions first: a broker that was just
     added gets replicas of a whole topic, and must not lead it alone.

A command makes at most NEW_PARTITIONS_MAX partitions; more take several commands, which the
caller proposes one after the other.
"""

from __future__ import annotations

from collections import Counter, deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import InvalidPartitions, InvalidReplicationFactor
from raftmq.metadata.apply.assignments import NEW_PARTITIONS_MAX, PARTITIONS_MAX, REPLICAS_MAX
from raftmq.metadata.commands import AddPartitions, CreateTopic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from random import Random

    from raftmq.metadata.apply.assignments import Assignments
    from raftmq.metadata.image import MetadataImage


class BrokerUsage(NamedTuple):
    """An active broker and its present load."""

    broker_id: int
    rack: str | None = None
    replica_count: int = 0
    leader_count: int = 0  # partitions whose preferred leader it is


def creation(
    topic_id: bytes, name: str, assignments: Assignments, configs: Mapping[str, str]
) -> tuple[CreateTopic | AddPartitions, ...]:
    """The commands that create a topic with these replicas."""
    made = NEW_PARTITIONS_MAX
    create = CreateTopic(topic_id, name, assignments[:made], dict(configs))
    return create, *growth(topic_id, assignments[made:], first=made)


def growth(topic_id: bytes, assignments: Assignments, *, first: int) -> tuple[AddPartitions, ...]:
    """Each expects the count that its predecessor leaves, so that none is applied out of turn."""
    step = NEW_PARTITIONS_MAX
    return tuple(
        AddPartitions(topic_id, first + start, assignments[start : start + step])
        for start in range(0, len(assignments), step)
    )


def hosts_of(image: MetadataImage) -> list[BrokerUsage]:
    """All active brokers, by id."""
    leaders = Counter(partition.replicas[0] for partition in image.partitions.values())
    return [
        BrokerUsage(broker_id, broker.rack, len(image.hosted_by(broker_id)), leaders[broker_id])
        for broker_id, broker in sorted(image.brokers.items())
        if image.is_active(broker_id)
    ]


def hosting_also(hosts: Sequence[BrokerUsage], assignments: Assignments) -> list[BrokerUsage]:
    """The load after these replicas were placed."""
    replicas = Counter(broker_id for members in assignments for broker_id in members)
    leaders = Counter(members[0] for members in assignments)
    return [
        host._replace(
            replica_count=host.replica_count + replicas[host.broker_id],
            leader_count=host.leader_count + leaders[host.broker_id],
        )
        for host in hosts
    ]


def check_room(image: MetadataImage, added: Mapping[int, int]) -> None:
    """
    Args:
        added: by broker, how many replicas are to be placed on it.

    Raises:
        InvalidPartitions: a broker has not so many file descriptors.
    """
    for broker_id, count in sorted(added.items()):
        broker, hosted = image.brokers.get(broker_id), len(image.hosted_by(broker_id))
        if broker is None or not broker.logs_max or hosted + count <= broker.logs_max:
            continue
        raise InvalidPartitions(
            f"{count} more partitions do not fit on broker {broker_id}, which has file descriptors"
            f" for {broker.logs_max} and hosts {hosted}: ask for fewer, or raise its limit"
            " (LimitNOFILE, ulimit -n) and restart it"
        )


def place(
    hosts: Sequence[BrokerUsage], *, partition_count: int, replication_factor: int, chance: Random
) -> Assignments:
    """The replicas of each partition, its preferred leader first.

    Raises:
        InvalidPartitions: none, or over PARTITIONS_MAX.
        InvalidReplicationFactor: below 1, over REPLICAS_MAX or over the number of hosts.
    """
    if not 1 <= partition_count <= PARTITIONS_MAX:
        raise InvalidPartitions(f"{partition_count} partitions: allowed 1 to {PARTITIONS_MAX}")
    _check_factor(hosts, replication_factor)
    racks = _Racks(hosts, chance)
    replicas = [racks.take(replication_factor) for _ in range(partition_count)]
    return _choose_leaders(replicas, {host.broker_id: host.leader_count for host in hosts})


def _check_factor(hosts: Sequence[BrokerUsage], replication_factor: int) -> None:
    if not 1 <= replication_factor <= REPLICAS_MAX:
        raise InvalidReplicationFactor(
            f"replication factor {replication_factor}: allowed 1 to {REPLICAS_MAX}"
        )
    if replication_factor > len(hosts):
        names = ", ".join(str(host.broker_id) for host in hosts) or "none"
        raise InvalidReplicationFactor(
            f"replication factor {replication_factor}: only {len(hosts)} brokers are active"
            f" ({names}); start more, or ask for fewer replicas"
        )


# Replicas


class _Rack:
    """The brokers of one rack by their number of replicas; ties are broken at random."""

    def __init__(self, chance: Random) -> None:
        self._random = chance.random
        self.size = self.load = 0  # brokers, and the replicas of all of them
        self._levels: list[int] = []  # a heap of the keys of `_brokers`
        self._brokers: dict[int, list[int]] = {}  # by their number of replicas

    def add(self, broker_id: int, replica_count: int) -> None:
        brokers = self._brokers.get(replica_count)
        if brokers is None:  # the first broker at this level
            heappush(self._levels, replica_count)
            brokers = self._brokers[replica_count] = []
        brokers.append(broker_id)

    def take(self) -> tuple[int, int]:
        """Remove one of the brokers with the fewest replicas; its id and its new replica count.

        Removed, as a partition must not get the same broker twice: the caller adds it again.
        """
        level = self._levels[0]
        brokers = self._brokers[level]
        # At random: in a fixed order the same brokers would share all of their partitions, and the
        # failure of one would move its whole load to the same few.
        chosen = int(self._random() * len(brokers))
        brokers[chosen], brokers[-1] = brokers[-1], brokers[chosen]
        broker_id = brokers.pop()
        if not brokers:  # this level is used up: the next has one replica more
            del self._brokers[heappop(self._levels)]
        self.load += 1
        return broker_id, level + 1

    def is_used_up(self) -> bool:
        return not self._levels


class _Racks:
    """All racks in a heap: the one with the fewest replicas for its size first, ties at random."""

    def __init__(self, hosts: Iterable[BrokerUsage], chance: Random) -> None:
        self._random = chance.random
        racks: dict[str | None, _Rack] = {}
        for host in hosts:
            # Brokers without a rack share one, as nothing says that they fail independently.
            rack = racks.setdefault(host.rack, _Rack(chance))
            rack.size += 1
            rack.load += host.replica_count
            rack.add(host.broker_id, host.replica_count)
        self._only = next(iter(racks.values())) if len(racks) == 1 else None
        self._racks = list(racks.values())
        self._heap = [self._ranked(number) for number in range(len(self._racks))]
        heapify(self._heap)

    def _ranked(self, number: int) -> tuple[float, float, int]:
        rack = self._racks[number]
        return rack.load / rack.size, self._random(), number

    def take(self, replication_factor: int) -> list[int]:
        """The replicas of one partition."""
        if self._only is not None:  # a single rack, the usual case: no need of the heap
            return self._take_of(self._only, replication_factor)
        members: list[int] = []
        taken: list[tuple[int, int, int]] = []
        used: list[int] = []
        while len(members) < replication_factor:
            if not self._heap:  # every rack has a replica of this partition: another round
                self._put_back([number for number in used if not self._racks[number].is_used_up()])
                used = [number for number in used if self._racks[number].is_used_up()]
            _load, _chance, number = heappop(self._heap)
            broker_id, replica_count = self._racks[number].take()
            members.append(broker_id)
            taken.append((number, broker_id, replica_count))
            used.append(number)
        for number, broker_id, replica_count in taken:
            self._racks[number].add(broker_id, replica_count)
        self._put_back(used)
        return members

    def _put_back(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            heappush(self._heap, self._ranked(number))

    def _take_of(self, rack: _Rack, replication_factor: int) -> list[int]:
        taken = [rack.take() for _ in range(replication_factor)]
        for broker_id, replica_count in taken:
            rack.add(broker_id, replica_count)
        return [broker_id for broker_id, _ in taken]


# Leaders


def _choose_leaders(replicas: list[list[int]], before: Mapping[int, int]) -> Assignments:
    """Put the preferred leader first in each partition; `before`: leaderships so far, by broker."""
    counts = dict.fromkeys(before, 0)
    for members in replicas:
        leader = min(members, key=lambda it: (counts[it], before[it]))
        _put_first(members, leader)
        counts[leader] += 1
    if max(counts.values()) - min(counts.values()) > 1:  # the greedy choice was not even
        _Shifts(replicas, counts).run()
    return tuple(map(tuple, replicas))


class _Shifts:
    """Evens out preferred leaders: moves a leadership along a chain of brokers (augmenting path).

    The greedy choice can leave a broker with two more than another although they share no
    partition: then brokers between them pass one on each.
    """

    def __init__(self, replicas: list[list[int]], counts: dict[int, int]) -> None:
        self._replicas, self._counts = replicas, counts
        # Partitions by leader and follower. The search goes over pairs of brokers, of which there
        # are far fewer than partitions.
        self._followers: dict[int, dict[int, dict[int, None]]] = {it: {} for it in counts}
        for number in range(len(replicas)):
            self._note(number)

    def run(self) -> None:
        """Start from the broker with the most leaderships. If it finds no chain now, it will not
        later either: later moves are among brokers that it cannot reach.
        """
        waiting = [(-count, broker_id) for broker_id, count in self._counts.items()]
        heapify(waiting)
        while waiting:
            count, start = heappop(waiting)
            if -count != self._counts[start]:
                continue  # outdated: the heap has another entry with its present count
            if self._counts[start] - min(self._counts.values()) < 2:  # even within one: done
                return
            end = self._shift(start)
            if end is not None:
                heappush(waiting, (-self._counts[start], start))
                heappush(waiting, (-self._counts[end], end))

    def _shift(self, start: int) -> int | None:
        """Move one leadership away from `start`; the broker that gained one, None if none can."""
        enough = self._counts[start] - 2  # a broker with one fewer would only swap places with it
        came_from: dict[int, int] = {start: start}
        waiting = deque([start])
        # Breadth first: the shortest chain moves the fewest leaderships.
        while waiting:
            broker_id = waiting.popleft()
            if self._counts[broker_id] <= enough:  # it has at least two fewer than `start`
                self._hand_over(came_from, start, broker_id)
                return broker_id
            for follower in self._followers[broker_id]:
                if follower not in came_from:  # breadth-first search visits each broker once
                    came_from[follower] = broker_id
                    waiting.append(follower)
        return None

    def _hand_over(self, came_from: dict[int, int], start: int, end: int) -> None:
        self._counts[start] -= 1
        self._counts[end] += 1
        while end != start:  # back along the chain
            leader = came_from[end]
            number = next(reversed(self._followers[leader][end]))
            self._forget(number)
            _put_first(self._replicas[number], end)
            self._note(number)
            end = leader

    def _note(self, number: int) -> None:
        leader, *followers = self._replicas[number]
        for follower in followers:
            self._followers[leader].setdefault(follower, {})[number] = None

    def _forget(self, number: int) -> None:
        leader, *followers = self._replicas[number]
        for follower in followers:
            shared = self._followers[leader][follower]
            del shared[number]
            if not shared:  # an empty map would look like an edge
                del self._followers[leader][follower]


def _put_first(members: list[int], broker_id: int) -> None:
    members.remove(broker_id)
    members.insert(0, broker_id)
