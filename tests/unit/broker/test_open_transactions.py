"""The index of what is open: it may name too much, and never too little."""

from __future__ import annotations

from random import Random

import pytest

from raftmq.broker.transactions.open_transactions import OpenTransactions
from raftmq.metadata.image import MEMBERS_MAX
from raftmq.partition.replica_environment import PartitionKey

KEYS = [PartitionKey(bytes([topic]) * 16, number) for topic in range(2) for number in range(3)]


def test_a_decision_finds_its_partitions_and_no_others() -> None:
    """Two producers share a partition, each has another one, and one that is unknown has none."""
    index = OpenTransactions()
    for producer_id, place in ((7, 0), (7, 1), (8, 1), (8, 2)):
        index.note(KEYS[place], producer_id)
    assert dict(index.partitions_of([7])) == {KEYS[0]: {7}, KEYS[1]: {7}}
    assert dict(index.partitions_of([8, 7])) == {KEYS[0]: {7}, KEYS[1]: {7, 8}, KEYS[2]: {8}}
    assert index.partitions_of([9]) == []


def test_a_block_finds_its_members() -> None:
    index, block = OpenTransactions(), MEMBERS_MAX
    for producer_id, place in ((block, 0), (block + 5, 0), (block + 5, 1), (2 * block, 1), (7, 0)):
        index.note(KEYS[place], producer_id)
    assert dict(index.partitions_of([], [block])) == {
        KEYS[0]: {block, block + 5},
        KEYS[1]: {block + 5},
    }
    index.put(KEYS[0], set())
    index.put(KEYS[1], {2 * block})
    assert index.partitions_of([], [block, 0]) == []
    assert dict(index.partitions_of([], [2 * block])) == {KEYS[1]: {2 * block}}


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_set_of_pairs_that_were_noted_since_the_last_look(seed: int) -> None:
    """Any order of notes and looks, against a set of pairs (A11.3)."""
    random, index = Random(seed), OpenTransactions()
    pairs: set[tuple[PartitionKey, int]] = set()
    for _ in range(200):
        key, producer_id = random.choice(KEYS), random.randrange(5)
        if random.random() < 0.7:
            index.note(key, producer_id)
            pairs.add((key, producer_id))
        else:
            left = {each for each in range(5) if random.random() < 0.5}
            index.put(key, left)
            pairs -= {pair for pair in pairs if pair[0] == key}
            pairs |= {(key, each) for each in left}
        assert {(key, one) for key, its in index.all() for one in its} == pairs
        wanted = random.sample(range(5), 2)
        found = {(key, one) for key, its in index.partitions_of(wanted) for one in its}
        assert found == {pair for pair in pairs if pair[1] in wanted}
        assert sorted(index.partitions()) == sorted({key for key, _ in pairs})
