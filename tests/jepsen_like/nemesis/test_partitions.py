"""The shapes of partitions, as sets of one-way cuts."""

from __future__ import annotations

from random import Random

import pytest

from jepsen_like.nemesis import kinds as parts
from jepsen_like.nemesis.packets import Packets, Reset, links_of
from jepsen_like.nemesis.partitions import Cuts, Partition, grudge
from tests.jepsen_like.nemesis.scripted_machines import ScriptedMachines, scene

FIVE = (1, 2, 3, 4, 5)
THREE = (1, 2, 3)


def cuts(shape: str, players: tuple[int, ...], nodes: tuple[int, ...] = THREE) -> set[Cuts]:
    return {grudge(shape, players, nodes, Random(seed)) for seed in range(20)}


def both(*pairs: str) -> Cuts:
    there = {tuple(pair.split("-")) for pair in pairs}
    return frozenset({(one, other) for one, other in there} | {(b, a) for a, b in there})


def seen_by(node: int, cut: Cuts, nodes: tuple[int, ...]) -> set[int]:
    """Whom it hears and who hears it, itself included."""
    name = f"n{node}"
    return {
        other
        for other in nodes
        if (name, f"n{other}") not in cut and (f"n{other}", name) not in cut
    }


def test_one_is_alone_with_or_without_the_clients() -> None:
    """A leader is isolated: clients reach it still, or only the others."""
    near = both("n1-n2", "n1-n3")
    assert cuts(parts.LEADER, (1,)) == {near, near | both("n1-clients")}


def test_halves_do_not_reach_each_other() -> None:
    """Five nodes, two of them on their side."""
    for cut in cuts(parts.HALVES, (2, 4), FIVE):
        assert seen_by(2, cut, FIVE) == {2, 4}
        assert seen_by(5, cut, FIVE) == {1, 3, 5}


def test_in_a_ring_of_five_everybody_sees_another_majority() -> None:
    """No two nodes agree on who is there."""
    [cut] = cuts(parts.RING, (3, 1, 5, 2, 4), FIVE)
    seen = [frozenset(seen_by(node, cut, FIVE)) for node in FIVE]
    assert {len(each) for each in seen} == {3}
    assert len(set(seen)) == 5


def test_in_a_ring_of_three_each_is_deaf_to_one() -> None:
    """Three nodes cannot each see another majority by links that work both ways."""
    assert cuts(parts.RING, (2, 1, 3)) == {frozenset({("n2", "n1"), ("n1", "n3"), ("n3", "n2")})}


def test_one_way_is_deaf_or_mute() -> None:
    """Its peers do not hear it, or it does not hear them; never both."""
    mute = frozenset({("n2", "n1"), ("n2", "n3")})
    deaf = frozenset({("n1", "n2"), ("n3", "n2")})
    assert cuts(parts.ONE_WAY, (2,)) == {mute, deaf}


@pytest.mark.parametrize("shape", [parts.FROM_CONTROLLER, parts.FROM_FOLLOWER])
def test_a_pair_is_heard_by_everybody_else(shape: str) -> None:
    """The leader and one other do not reach each other."""
    assert cuts(shape, (3, 1)) == {both("n3-n1")}


def test_clients_lose_their_leader() -> None:
    """Nodes reach each other: nobody elects another leader."""
    assert cuts(parts.FROM_CLIENTS, (3,)) == {both("n3-clients")}


def test_a_partition_is_cut_and_healed_once() -> None:
    """The fault on scripted links: ended twice, healed once; told in words."""
    machines = ScriptedMachines()
    fault = Partition(scene(machines, 1, whom=parts.FROM_CLIENTS))
    assert fault.end() == {}
    assert fault.begin() == {"cuts": ["clients>n1", "n1>clients"]}
    assert machines.links is not None
    assert machines.links.cuts == {("clients", "n1"), ("n1", "clients")}
    fault.end()
    fault.end()
    assert not machines.links.cuts
    assert machines.calls.count("heal") == 1


def test_trouble_is_on_every_link_of_a_node_once() -> None:
    """One node of three: its links to the two others and to the clients."""
    machines = ScriptedMachines()
    assert links_of(scene(machines, 2)) == [("n1", "n2"), ("n2", "n3"), ("n2", "clients")]
    assert len(links_of(scene(machines, 1, 2, 3))) == 6


def test_packets_are_in_trouble_both_ways_until_the_end() -> None:
    """Loss and delay on a node."""
    machines = ScriptedMachines()
    given = scene(machines, 2)._replace(params={"loss": 0.1, "delay_ms": 20})
    fault = Packets(given)
    fault.begin()
    assert machines.links is not None
    assert machines.links.shapes["clients", "n2"] == {"loss": 0.1, "delay_ms": 20}
    assert len(machines.links.shapes) == 6
    fault.end()
    assert machines.is_well()


def test_a_reset_breaks_connections() -> None:
    """Each link of the node is told once."""
    machines = ScriptedMachines()
    fault = Reset(scene(machines, 3, kind="reset"))
    fault.begin()
    fault.end()
    resets = ["reset n1-n3", "reset n2-n3", "reset n3-clients"]
    assert machines.calls == [*resets, "heal"]
