"""Settings files of nodes are what a broker reads."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from jepsen_like.nodes.settings import CLUSTER_ID, Place, Ports, settings_of
from raftmq.broker.settings import parse_settings
from raftmq.model import Address


@pytest.mark.parametrize("count", [3, 5])
def test_nodes_of_a_network_share_their_ports(count: int) -> None:
    """Each has an address of its own; all vote."""
    places = {node_id: Place(f"10.77.0.{node_id}") for node_id in range(1, count + 1)}
    text = settings_of(2, Path("/data/n2"), places)
    settings = parse_settings(tomllib.loads(text))
    assert (settings.node_id, settings.cluster_id) == (2, CLUSTER_ID)
    assert settings.directory == Path("/data/n2")
    assert settings.voters == {n: Address(f"10.77.0.{n}", 9293) for n in range(1, count + 1)}
    assert [str(one.bind) for one in settings.listeners] == ["10.77.0.2:9292", "10.77.0.2:9294"]
    assert places[2].for_clients == "10.77.0.2:9292"


def test_nodes_of_one_address_have_their_own_ports() -> None:
    """On the loopback."""
    places = {n: Place("127.0.0.1", Ports(n * 10, n * 10 + 1, n * 10 + 2)) for n in (1, 2, 3)}
    settings = parse_settings(tomllib.loads(settings_of(3, Path("/d"), places)))
    assert settings.voters[1] == Address("127.0.0.1", 11)
    assert {one.name: one.bind.port for one in settings.listeners} == {"clients": 30, "brokers": 32}
    assert places[3].for_clients == "127.0.0.1:30"
