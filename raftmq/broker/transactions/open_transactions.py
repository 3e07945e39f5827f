"""Which producers have something open in which of the partitions that are led on this broker. Pure.

Owns an index, so that a decision reaches its partitions without a look at all others. It may name
what is not open any more, until somebody looks at that partition (`put`), and never lacks what is.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from raftmq.metadata.transactions import block_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.partition.replica_environment import PartitionKey

NOBODY: frozenset[int] = frozenset()


class OpenTransactions:
    def __init__(self) -> None:
        # By producer id; in one order in every process, which sets of bytes have not.
        self._partitions: dict[int, dict[PartitionKey, None]] = {}
        # The producer ids of it, by what would be their block of members.
        self._blocks: dict[int, set[int]] = {}
        self._producers: dict[PartitionKey, set[int]] = {}

    def note(self, key: PartitionKey, producer_id: int) -> None:
        """The leader of that partition has something open of that producer."""
        self._add(producer_id, key)
        self._producers.setdefault(key, set()).add(producer_id)

    def put(self, key: PartitionKey, producer_ids: set[int]) -> None:
        """These producers, and no others, have something open in that partition."""
        known = self._producers.get(key, NOBODY)
        for producer_id in known - producer_ids:
            partitions = self._partitions[producer_id]
            partitions.pop(key, None)
            if not partitions:
                self._remove(producer_id)
        for producer_id in producer_ids - known:
            self._add(producer_id, key)
        if producer_ids:
            self._producers[key] = producer_ids
        else:
            self._producers.pop(key, None)

    def _add(self, producer_id: int, key: PartitionKey) -> None:
        self._partitions.setdefault(producer_id, {})[key] = None
        self._blocks.setdefault(block_of(producer_id), set()).add(producer_id)

    def _remove(self, producer_id: int) -> None:
        del self._partitions[producer_id]
        block = block_of(producer_id)
        self._blocks[block].discard(producer_id)
        if not self._blocks[block]:
            del self._blocks[block]

    def partitions(self) -> list[PartitionKey]:
        return list(self._producers)

    def all(self) -> list[tuple[PartitionKey, frozenset[int]]]:
        """Partitions, with the producers that have something open there."""
        return [(key, frozenset(found)) for key, found in self._producers.items()]

    def partitions_of(
        self, producer_ids: Iterable[int], blocks: Iterable[int] = ()
    ) -> list[tuple[PartitionKey, frozenset[int]]]:
        """The same of these producers, and of the members in these blocks, only."""
        found: dict[PartitionKey, set[int]] = defaultdict(set)
        members = (each for block in blocks for each in self._blocks.get(block, ()))
        for producer_id in (*producer_ids, *members):
            for key in self._partitions.get(producer_id, ()):
                found[key].add(producer_id)
        return [(key, frozenset(its)) for key, its in found.items()]
