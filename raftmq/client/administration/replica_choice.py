"""Which brokers get or lose replicas when a topic's replication factor changes. Pure.

Replicas that a partition has stay where they are, as each one that is added costs a copy; the
preferred leader stays the first. Brokers place the replicas of new partitions themselves
(`raftmq/metadata/placement.py`), and move nothing without being asked. Deterministic.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import InvalidReplicationFactor
from raftmq.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Placed(NamedTuple):
    """A partition. `replicas`: those that it is to have by what was asked for before, the preferred
    leader first.
    """

    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int


class Brokers(NamedTuple):
    """Attributes:
    racks: of all brokers; those without one share one, as nothing says that they fail
        independently.
    active: which of them may get replicas.
    loads: the replicas of all topics, by broker.
    """

    racks: Mapping[int, str | None]
    active: tuple[int, ...]
    loads: Mapping[int, int]


def choose_replicas(
    partitions: Sequence[Placed], replication_factor: int, brokers: Brokers
) -> dict[int, tuple[int, ...]]:
    """The replicas that each partition is to have; those that have as many already are left out.

    Raises:
        InvalidReplicationFactor: not so many brokers are active.
    """
    choice = _Choice(partitions, brokers)
    chosen = ((one, choice.resize(one, replication_factor)) for one in partitions)
    return {one.partition: replicas for one, replicas in chosen if replicas != one.replicas}


def absence_warning(targets: Iterable[tuple[int, ...]], brokers: Brokers) -> str:
    """A warning if moves to these replicas cannot finish, as brokers are down, else ""."""
    absent = Counter(one for target in targets for one in target if one not in brokers.active)
    return "; ".join(
        f"broker {one} is down: {counted(count, 'move')} cannot finish before it is back"
        for one, count in sorted(absent.items())
    )


class _Choice:
    """Counts what it gives away, so that a topic of many partitions is spread evenly."""

    def __init__(self, partitions: Iterable[Placed], brokers: Brokers) -> None:
        self._racks, self._active = brokers.racks, brokers.active
        self._loads = Counter(brokers.loads)
        self._pairs = Counter[tuple[int, int]]()  # partitions that two brokers share
        for one in partitions:
            self._pairs.update(_pairs_of(one.replicas))

    def resize(self, partition: Placed, replication_factor: int) -> tuple[int, ...]:
        replicas = list(partition.replicas)
        while len(replicas) > replication_factor:
            self._drop_one(partition, replicas)
        while len(replicas) < replication_factor:
            self._add_one(replicas, replication_factor)
        return tuple(replicas)

    def _add_one(self, replicas: list[int], replication_factor: int) -> None:
        """Another rack before a lower load; of equal brokers the one that shares the fewest
        partitions with these, so that the load of a lost one goes to many.
        """
        in_rack = Counter(self._racks.get(one) for one in replicas)
        free = [one for one in self._active if one not in replicas]
        if not free:
            names = ", ".join(map(str, self._active)) or "none"
            raise InvalidReplicationFactor(
                f"replication factor {replication_factor}: only {len(self._active)} brokers are"
                f" active ({names}); start more, or ask for fewer replicas"
            )
        added = min(
            free,
            key=lambda one: (
                in_rack[self._racks.get(one)],
                self._loads[one],
                sum(self._pairs[_pair(one, other)] for other in replicas),
                one,
            ),
        )
        self._loads[added] += 1
        self._pairs.update(_pair(added, other) for other in replicas)
        replicas.append(added)

    def _drop_one(self, partition: Placed, replicas: list[int]) -> None:
        """1. What is not in sync. 2. Not the leader. 3. One whose rack has more of them. 4. Not the
        preferred leader. 5. One on a broker with more replicas.
        """
        in_rack = Counter(self._racks.get(one) for one in replicas)
        dropped = max(
            replicas,
            key=lambda one: (
                one not in partition.isr,
                one != partition.leader,
                in_rack[self._racks.get(one)],
                one != replicas[0],
                self._loads[one],
            ),
        )
        self._loads[dropped] -= 1
        replicas.remove(dropped)
        self._pairs.subtract(_pair(dropped, other) for other in replicas)


def _pair(one: int, other: int) -> tuple[int, int]:
    return (one, other) if one < other else (other, one)


def _pairs_of(replicas: tuple[int, ...]) -> Iterable[tuple[int, int]]:
    return (_pair(one, other) for one, other in combinations(replicas, 2))
