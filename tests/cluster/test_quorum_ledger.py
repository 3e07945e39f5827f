"""The rig itself: the ledger finds what is wrong, and equal images look equal in every process."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest

from raftmq.metadata.image import EMPTY_IMAGE
from tests.cluster.node_process import PROJECT
from tests.cluster.quorum_holding import holding_of, ranges_of
from tests.cluster.quorum_ledger import Ledger
from tests.cluster.quorum_words import (
    Acknowledged,
    Denied,
    Holding,
    Told,
    Uncertain,
    decode,
    encode,
)

pytestmark = pytest.mark.cluster

DIGEST_SCRIPT = """
from immutables import Map
from raftmq.metadata.image import EMPTY_IMAGE, CommittedOffset
from raftmq.metadata.commands import PartitionId
from tests.cluster.quorum_holding import GROUP, holding_of
offsets = {PartitionId(n.to_bytes(16, "big"), 0): CommittedOffset(n) for n in range(500)}
holding = holding_of(EMPTY_IMAGE._replace(offsets=Map({GROUP: Map(offsets), "other": Map()})))
assert holding.ranges == [(0, 500)]
assert not holding.wrong_values
print(holding.digest)
"""


def held(*keys: int, digest: str = "d", wrong: int = 0) -> Holding:
    return Holding(7, digest, list(ranges_of(sorted(keys))), wrong)


def test_all_is_well() -> None:
    """What was acknowledged is there, what was denied is not; what is uncertain may be."""
    ledger = Ledger()
    for told in (Acknowledged([1, 2]), Denied([3]), Uncertain([4, 5])):
        ledger.record(told)
    ledger.compare({1: held(1, 2, 4), 2: held(1, 2, 4)})
    assert not ledger.findings


@pytest.mark.parametrize(
    ("wrong", "finding"),
    [
        (held(1), "node 2 at version 7 lost acknowledged keys: 1, ['0x2']"),
        (held(1, 2, 3), "node 2 at version 7 holds keys that were denied: 1, ['0x3']"),
        (held(1, 2, wrong=1), "node 2 at version 7 holds 1 wrong values"),
        (held(1, 2, digest="e"), "the images differ: {1: 'd', 2: 'e'}"),
    ],
)
def test_what_is_wrong_is_found(wrong: Holding, finding: str) -> None:
    """Of two nodes one holds too little, too much, or something else."""
    ledger = Ledger()
    ledger.record(Acknowledged([1, 2]))
    ledger.record(Denied([3]))
    ledger.compare({1: held(1, 2), 2: wrong})
    assert ledger.findings == [finding]


def test_ranges_hold_exactly_the_keys() -> None:
    """With gaps, without, and empty."""
    for keys in ([], [5], [5, 6, 7], [1, 2, 4, 9, 10], [0, 2, 4]):
        ranges = list(ranges_of(keys))
        assert [key for first, end in ranges for key in range(first, end)] == keys
        assert all(end < first for (_, end), (first, _) in pairwise(ranges))


def test_words_survive_the_pipe() -> None:
    """One line each, back as they were."""
    words: list[Told] = [Acknowledged([1, 2]), held(1, 2, 5)]
    for word in words:
        assert encode(word).count(b"\n") == 1
        assert decode(encode(word)) == word


def test_the_digest_is_that_of_the_content() -> None:
    """Two processes with other hash seeds iterate in another order, and agree all the same."""
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST_SCRIPT],
            env={"PYTHONHASHSEED": seed}, cwd=PROJECT, capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(digests) == 1
    assert digests != {holding_of(EMPTY_IMAGE).digest + "\n"}
