"""Which producers have something open in which of the partitions that are led on this broker. Pure.

Owns an index, so that a decision reaches its partitions without a look at all others. It may name
what is not open any more, until somebody looks at that partition (`put`), and never lacks what is.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.partition.replica_environment import PartitionKey

NOBODY: frozenset[int] = frozenset()


class OpenTransactions:
    def __init__(self) -> None:
        self._partitions: dict[int, set[PartitionKey]] = {}  # by producer id
        self._producers: dict[PartitionKey, set[int]] = {}

    def note(self, key: PartitionKey, producer_id: int) -> None:
        """The leader of that partition has something open of that producer."""
        self._partitions.setdefault(producer_id, set()).add(key)
        self._producers.setdefault(key, set()).add(producer_id)

    def put(self, key: PartitionKey, producer_ids: set[int]) -> None:
        """These producers, and no others, have something open in that partition."""
        known = self._producers.get(key, NOBODY)
        for producer_id in known - producer_ids:
            partitions = self._partitions[producer_id]
            partitions.discard(key)
            if not partitions:
                del self._partitions[producer_id]
        for producer_id in producer_ids - known:
            self._partitions.setdefault(producer_id, set()).add(key)
        if producer_ids:
            self._producers[key] = producer_ids
        else:
            self._producers.pop(key, None)

    def partitions(self) -> list[PartitionKey]:
        return list(self._producers)

    def all(self) -> list[tuple[PartitionKey, frozenset[int]]]:
        """Partitions, with the producers that have something open there."""
        return [(key, frozenset(found)) for key, found in self._producers.items()]

    def partitions_of(
        self, producer_ids: Iterable[object]
    ) -> list[tuple[PartitionKey, frozenset[int]]]:
        """The same of these producers only, which are keys of changes of the metadata."""
        found: dict[PartitionKey, set[int]] = defaultdict(set)
        for producer_id in producer_ids:
            assert isinstance(producer_id, int), f"{producer_id}"
            for key in self._partitions.get(producer_id, ()):
                found[key].add(producer_id)
        return [(key, frozenset(its)) for key, its in found.items()]
