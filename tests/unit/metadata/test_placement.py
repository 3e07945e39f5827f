"""Where replicas go: apart from each other, and evenly over brokers and racks."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from raftmq.errors import InvalidPartitions, InvalidReplicationFactor
from raftmq.metadata.apply.assignments import (
    NEW_PARTITIONS_MAX,
    PARTITIONS_MAX,
    Assignments,
)
from raftmq.metadata.commands import AddPartitions, CreateTopic, PartitionId
from raftmq.metadata.image import BrokerState, MetadataImage, PartitionState, TopicState
from raftmq.metadata.placement import (
    BrokerUsage,
    _Shifts,
    creation,
    growth,
    hosting_also,
    hosts_of,
    place,
)

TOPIC = b"t" * 16


def hosts(count: int, racks: int = 0) -> list[BrokerUsage]:
    return [BrokerUsage(n, f"rack {n % racks}" if racks else None) for n in range(count)]


def place_on(
    found: list[BrokerUsage], partitions: int, replicas: int, seed: int = 0
) -> Assignments:
    return place(
        found, partition_count=partitions, replication_factor=replicas, chance=Random(seed)
    )


def spread(counts: Counter[int], found: list[BrokerUsage]) -> int:
    """How many more the busiest broker has than the idlest."""
    numbers = [counts[host.broker_id] for host in found]
    return max(numbers) - min(numbers)


def replicas_in(placed: Assignments) -> Counter[int]:
    return Counter(broker_id for members in placed for broker_id in members)


def leaders_in(placed: Assignments) -> Counter[int]:
    return Counter(members[0] for members in placed)


@given(st.data(), st.integers(1, 12), st.integers(1, 60), st.integers(0, 1000))
def test_without_racks_all_brokers_have_the_same_within_one(
    data: st.DataObject, brokers: int, partitions: int, seed: int
) -> None:
    """An empty cluster gets a topic: replicas and leaders are balanced, members distinct."""
    replicas = data.draw(st.integers(1, min(brokers, 5)))
    found = hosts(brokers)
    placed = place_on(found, partitions, replicas, seed)
    assert [len(set(members)) for members in placed] == [replicas] * partitions
    assert spread(replicas_in(placed), found) <= 1
    assert spread(leaders_in(placed), found) <= 1


@given(st.data(), st.integers(1, 4), st.integers(1, 4), st.integers(1, 40), st.integers(0, 1000))
def test_equal_racks_are_balanced_as_well(
    data: st.DataObject, racks: int, size: int, partitions: int, seed: int
) -> None:
    """Each partition is in as many racks as possible, and brokers still have the same."""
    replicas = data.draw(st.integers(1, min(racks * size, 5)))
    found = hosts(racks * size, racks)
    placed = place_on(found, partitions, replicas, seed)
    for members in placed:
        in_rack = Counter(broker_id % racks for broker_id in members)
        assert len(in_rack) == min(racks, replicas)
        assert max(in_rack.values()) - min(in_rack.values()) <= 1
    assert spread(replicas_in(placed), found) <= 1
    assert spread(leaders_in(placed), found) <= 1


@given(
    st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=9),
    st.integers(1, 30),
    st.integers(1, 4),
    st.integers(0, 1000),
)
def test_unequal_racks_are_all_used(
    racks: list[str | None], partitions: int, replicas: int, seed: int
) -> None:
    """Racks of any sizes: no partition is in fewer racks than it could be."""
    found = [BrokerUsage(n, rack) for n, rack in enumerate(racks)]
    replicas = min(replicas, len(found))
    for members in place_on(found, partitions, replicas, seed):
        assert len({racks[broker_id] for broker_id in members}) == min(replicas, len(set(racks)))


@given(st.lists(st.integers(0, 20), min_size=3, max_size=6), st.integers(1, 30))
def test_who_has_more_gets_no_more_than_others(loads: list[int], partitions: int) -> None:
    """Brokers that host something already: the busiest does not get further ahead."""
    found = [BrokerUsage(n, None, load, load) for n, load in enumerate(loads)]
    placed = place_on(found, partitions, 2)
    replicas = Counter({host.broker_id: host.replica_count for host in found}) + replicas_in(placed)
    assert spread(replicas, found) <= max(max(loads) - min(loads), 1)


@given(st.data(), st.integers(2, 8), st.integers(1, 60), st.integers(0, 1000))
def test_nobody_could_pass_a_leadership_on(
    data: st.DataObject, brokers: int, partitions: int, seed: int
) -> None:
    """However uneven it was: from no leader a chain of replicas leads to one with two fewer of the
    new partitions."""
    loads = data.draw(st.lists(st.integers(0, 30), min_size=brokers, max_size=brokers))
    found = [BrokerUsage(n, None, 0, load) for n, load in enumerate(loads)]
    placed = place_on(found, partitions, data.draw(st.integers(1, min(brokers, 4))), seed)
    counts = leaders_in(placed)
    for start in range(brokers):
        reached, waiting = {start}, [start]
        while waiting:
            leader = waiting.pop()
            heirs = {it for members in placed if members[0] == leader for it in members}
            waiting.extend(heirs - reached)
            reached |= heirs
        assert counts[start] - min(counts[it] for it in reached) < 2


def test_leaderships_of_many_uneven_brokers_are_noted_once_for_each_shift(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shift changes a few partitions: what is known of the others is not made anew for it."""
    noted = 0
    note = _Shifts._note

    def count(self: _Shifts, number: int) -> None:
        nonlocal noted
        noted += 1
        note(self, number)

    monkeypatch.setattr(_Shifts, "_note", count)
    placed = place_on(hosts(10), 1000, 3)
    counts = {n: count + 20 * n for n, count in leaders_in(placed).items()}
    _Shifts(list(map(list, placed)), counts).run()
    assert 1000 < noted < 3000


def test_a_new_broker_is_filled_first() -> None:
    """Two brokers have ten replicas each, a third has none: it is in every new partition, and
    leads no fewer than each of them."""
    found = [BrokerUsage(0, None, 10, 5), BrokerUsage(1, None, 10, 5), BrokerUsage(2)]
    placed = place_on(found, 5, 2)
    assert replicas_in(placed)[2] == 5
    assert sorted(leaders_in(placed).items())[2] == (2, 2)


@pytest.mark.parametrize("partitions", [1, 2, 3, 4, 6, 9])
def test_a_new_broker_does_not_lead_a_topic_alone(partitions: int) -> None:
    """A fourth broker was just added: it leads its share of the next topic, and of what is left
    over the first."""
    found = [*(BrokerUsage(n, None, 30, 10) for n in range(3)), BrokerUsage(3)]
    for seed in range(20):
        leaders = leaders_in(place_on(found, partitions, 3, seed))
        assert spread(leaders, found) <= 1
        assert leaders[3] == -(-partitions // 4)


def test_small_topics_even_out_what_large_ones_leave() -> None:
    """Topics of one partition, one after the other: each is led by the broker with the fewest."""
    found = [BrokerUsage(n, None, 10, load) for n, load in enumerate((4, 1, 0))]
    for _ in range(7):
        found = hosting_also(found, place_on(found, 1, 3))
    assert [host.leader_count for host in found] == [4, 4, 4]


def test_the_same_chance_is_the_same_placement() -> None:
    """A command is made again from the same image and seed; another seed mixes otherwise."""
    found = hosts(5)
    assert place_on(found, 20, 3, seed=1) == place_on(found, 20, 3, seed=1)
    assert place_on(found, 20, 3, seed=1) != place_on(found, 20, 3, seed=2)


def test_the_load_of_a_lost_broker_spreads() -> None:
    """Broker 0 dies: what it led is not led by one other broker alone."""
    placed = place_on(hosts(4), 40, 2)
    heirs = Counter(members[1] for members in placed if members[0] == 0)
    assert len(heirs) == 3


@pytest.mark.parametrize(
    ("replicas", "text"),
    [
        (3, "replication factor 3: only 2 brokers are active (0, 1); start more, or ask for fewer"),
        (0, "replication factor 0: allowed 1 to 16"),
        (17, "replication factor 17: allowed 1 to 16"),
    ],
)
def test_a_factor_that_cannot_be(replicas: int, text: str) -> None:
    """The error names the number, who is there, and the way out."""
    with pytest.raises(InvalidReplicationFactor) as raised:
        place_on(hosts(2), 1, replicas)
    assert text in str(raised.value)


@pytest.mark.parametrize("partitions", [-1, 0, PARTITIONS_MAX + 1])
def test_a_number_of_partitions_that_cannot_be(partitions: int) -> None:
    """Refused before anything is computed, however large the number is."""
    with pytest.raises(InvalidPartitions, match=f"{partitions} partitions: allowed 1 to 10000"):
        place_on(hosts(2), partitions, 1)


# From an image


def broker(broker_id: int, **changes: object) -> BrokerState:
    fields: dict[str, object] = {"fenced": False, "rack": None} | changes
    return BrokerState(broker_id, 1, b"i", b"d", **fields)  # type: ignore[arg-type]


def image_of(*brokers: BrokerState, replicas: tuple[int, ...] = ()) -> MetadataImage:
    """With one topic of one partition, if it has replicas."""
    image = MetadataImage(brokers=Map({found.broker_id: found for found in brokers}))
    if not replicas:
        return image
    key = PartitionId(TOPIC, 0)
    return image._replace(
        topics=Map({TOPIC: TopicState(TOPIC, "orders", 1)}),
        partitions=Map({key: PartitionState(replicas, replicas, replicas[0])}),
        hosted=Map({broker_id: Map({key: None}) for broker_id in replicas}),
    )


def test_hosts_are_the_active_brokers_with_their_load() -> None:
    """One broker is fenced, one is stopping; of the others one leads and one follows."""
    image = image_of(
        broker(4, rack="r"),
        broker(1),
        broker(2, fenced=True),
        broker(3, in_controlled_shutdown=True),
        replicas=(4, 1),
    )
    assert hosts_of(image) == [BrokerUsage(1, None, 1, 0), BrokerUsage(4, "r", 1, 1)]


def test_a_topic_is_placed() -> None:
    """A request for a topic becomes a command with assignments."""
    placed = place_on(hosts_of(image_of(broker(1), broker(2))), 2, 2)
    [command] = creation(TOPIC, "orders", placed, {"retention.ms": "1"})
    assert isinstance(command, CreateTopic)
    assert (command.topic_id, command.name) == (TOPIC, "orders")
    assert command.configs == {"retention.ms": "1"}
    assert sorted(command.assignments) == [(1, 2), (2, 1)]


def test_many_partitions_are_made_by_many_commands() -> None:
    """One command for 2,500 partitions would hold up every node: each makes 1,000 at most."""
    found = hosts_of(image_of(broker(1), broker(2)))
    wanted = place_on(found, 2 * NEW_PARTITIONS_MAX + 500, 1)
    create, *more = creation(TOPIC, "orders", wanted, {})
    assert isinstance(create, CreateTopic)
    assert all(isinstance(command, AddPartitions) for command in more)
    assert [len(command.assignments) for command in (create, *more)] == [1000, 1000, 500]
    assert [command.expected_count for command in more] == [1000, 2000]  # type: ignore[union-attr]
    placed = [members for command in (create, *more) for members in command.assignments]
    assert leaders_in(tuple(placed)) == {1: 1250, 2: 1250}


def test_growth_by_many_commands_goes_on_where_the_topic_ends() -> None:
    """A topic of one partition grows by 1,001: the second command expects the first one's end."""
    more = growth(TOPIC, place_on(hosts(2), 1001, 1), first=1)
    assert [(it.expected_count, len(it.assignments)) for it in more] == [(1, 1000), (1001, 1)]
