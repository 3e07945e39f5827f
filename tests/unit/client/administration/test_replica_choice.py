"""Which brokers get or lose replicas when a topic's replication factor changes (A10.2)."""

from __future__ import annotations

from collections import Counter

import pytest

from raftmq.client.administration.replica_choice import (
    Brokers,
    Placed,
    absence_warning,
    choose_replicas,
)
from raftmq.errors import InvalidReplicationFactor

RACKS = {1: "a", 2: "a", 3: "b", 4: "c"}


def brokers(*active: int, racks: dict[int, str | None] | None = None, **loads: int) -> Brokers:
    known: dict[int, str | None] = dict.fromkeys(active) if racks is None else racks
    return Brokers(known, active, {int(name[1:]): load for name, load in loads.items()})


def placed(*replicas: int, isr: tuple[int, ...] | None = None, number: int = 0) -> Placed:
    in_sync = replicas if isr is None else isr
    return Placed(number, replicas, in_sync, in_sync[0] if in_sync else -1)


def chosen(partition: Placed, factor: int, among: Brokers) -> tuple[int, ...] | None:
    return choose_replicas([partition], factor, among).get(partition.partition)


def test_what_has_so_many_is_left_alone() -> None:
    """Nothing is planned for it."""
    assert choose_replicas([placed(1, 2)], 2, brokers(1, 2, 3)) == {}


def test_the_brokers_with_the_fewest_get_more() -> None:
    """The present ones stay, and the preferred leader stays the first."""
    among = brokers(1, 2, 3, 4, _1=9, _2=5, _3=4, _4=3)
    assert chosen(placed(1), 3, among) == (1, 4, 3)


def test_other_racks_come_first() -> None:
    """Also where a broker of the same rack has fewer; then the rest."""
    among = brokers(1, 2, 3, 4, racks=dict(RACKS), _3=9, _4=8)
    assert chosen(placed(1), 2, among) == (1, 4)
    assert chosen(placed(1), 4, among) == (1, 4, 3, 2)


def test_brokers_that_are_down_get_none() -> None:
    """What is on one stays there."""
    among = Brokers({1: None, 2: None, 3: None}, (1, 2), {})
    assert chosen(placed(3, isr=()), 3, among) == (3, 1, 2)
    with pytest.raises(InvalidReplicationFactor, match=r"only 2 brokers are active \(1, 2\)"):
        chosen(placed(1), 3, among)
    with pytest.raises(InvalidReplicationFactor, match="none"):
        chosen(placed(1), 2, Brokers({}, (), {}))


def test_brokers_that_are_down_are_told() -> None:
    """Where a move to them, or one that keeps them, waits for them."""
    among = Brokers({}, (1, 2), {})
    assert absence_warning([(1, 2)], among) == ""
    assert absence_warning([(4, 1), (3, 1), (1, 3)], among) == (
        "broker 3 is down: 2 moves cannot finish before it is back;"
        " broker 4 is down: 1 move cannot finish before it is back"
    )


@pytest.mark.parametrize(
    ("partition", "factor", "kept"),
    [
        (placed(1, 2, 3, isr=(1, 3)), 2, (1, 3)),  # not in sync
        (placed(1, 2, 3, isr=(3,)), 1, (3,)),  # nothing but the leader is in sync
        (placed(1, 2, 3, 4), 3, (1, 3, 4)),  # 1 and 2 share a rack, and 1 leads
        (placed(2, 3, 4), 2, (2, 4)),  # of equal racks the broker with more
        (placed(1, 2, 3, 4), 1, (1,)),
    ],
)
def test_what_goes_first(partition: Placed, factor: int, kept: tuple[int, ...]) -> None:
    """Not in sync; then not the leader; then whose rack has more; then who has more to do."""
    among = brokers(1, 2, 3, 4, racks=dict(RACKS), _3=1)
    assert chosen(partition, factor, among) == kept


def test_the_preferred_leader_stays_while_another_one_leads() -> None:
    """It gets its leadership back."""
    partition = Placed(0, (1, 2, 3), (2, 1, 3), 2)
    assert chosen(partition, 2, brokers(1, 2, 3)) == (1, 2)


def test_a_topic_is_spread_evenly() -> None:
    """Each broker gets as many, and the load of each that is lost goes to several."""
    partitions = [placed(1 + number % 4, number=number) for number in range(12)]
    result = choose_replicas(partitions, 2, brokers(1, 2, 3, 4, _1=3, _2=3, _3=3, _4=3))
    assert Counter(one for replicas in result.values() for one in replicas) == {
        1: 6, 2: 6, 3: 6, 4: 6,
    }  # fmt: skip
    assert {frozenset(replicas) for replicas in result.values()} == {
        frozenset(pair) for pair in [(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)]
    }
    back = choose_replicas(
        [Placed(number, replicas, replicas, replicas[0]) for number, replicas in result.items()],
        1,
        brokers(1, 2, 3, 4, _1=6, _2=6, _3=6, _4=6),
    )
    assert back == {one.partition: one.replicas for one in partitions}
