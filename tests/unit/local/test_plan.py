"""What a local cluster is made of: ports that never meet, settings that a broker takes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from raftmq.broker.settings import parse_settings
from raftmq.cli import dev
from raftmq.errors import BrokerIdNotRegistered, InvalidConfig
from raftmq.local.plan import NODES_MAX, PORT_MAX, ClusterPlan, Layout, check_wishes


def plan(brokers: int = 3, port: int = 9292) -> ClusterPlan:
    return ClusterPlan(cluster_id="local-1", brokers=brokers, port=port)


def test_ports_are_counted_from_the_base() -> None:
    """As the help says: clients, 10 above them the brokers, 20 above them the voters."""
    ports = [(one.node_id, one.purpose, one.port) for one in plan(2).endpoints()]
    assert ports == [
        (1, "clients", 9292), (1, "other brokers", 9302), (1, "other voters", 9312),
        (2, "clients", 9293), (2, "other brokers", 9303), (2, "other voters", 9313),
    ]  # fmt: skip
    assert plan().bootstrap == "127.0.0.1:9292,127.0.0.1:9293,127.0.0.1:9294"


def test_the_largest_cluster_on_the_highest_ports() -> None:
    """No port is needed twice, and none is above the last one."""
    ports = [one.port for one in plan(NODES_MAX, PORT_MAX).endpoints()]
    assert len(set(ports)) == 3 * NODES_MAX
    assert max(ports) == 65_535


def test_the_command_line_knows_the_same_limits() -> None:
    """They stand there as numbers, so that help is there at once."""
    assert (dev.BROKERS_MAX, dev.PORT_MAX) == (NODES_MAX, PORT_MAX)


@pytest.mark.parametrize("name", ["plain", 'quo"te\\', "ünï 日本 🚀"])
def test_settings_are_what_a_broker_takes(name: str) -> None:
    """All of them fit together, whatever the directory is called."""
    layout = Layout(Path("/data") / name)
    for node_id in plan().node_ids:
        settings = parse_settings(tomllib.loads(plan().settings(node_id, layout)))
        assert (settings.node_id, settings.cluster_id) == (node_id, "local-1")
        assert settings.directory == layout.data(node_id)
        assert settings.groups.rules.initial_rebalance_delay_ms == 0
        assert {each: at.port for each, at in settings.voters.items()} == {
            1: 9312, 2: 9313, 3: 9314,
        }  # fmt: skip
        binds = {one.name: one.bind.port for one in settings.listeners}
        assert binds == {"clients": 9291 + node_id, "brokers": 9301 + node_id}


@pytest.mark.parametrize(
    ("brokers", "node_id", "are"),
    [(3, 0, "are brokers 1 to 3"), (3, 4, "are brokers 1 to 3"), (1, 2, "is broker 1 alone")],
)
def test_a_broker_that_is_not_there(brokers: int, node_id: int, are: str) -> None:
    """The error says which there are."""
    with pytest.raises(BrokerIdNotRegistered, match=f"there is no broker {node_id}; there {are}"):
        plan(brokers).check_node(node_id)


def test_all_wrong_wishes_are_told_at_once() -> None:
    """With what would be right."""
    with pytest.raises(InvalidConfig) as caught:
        check_wishes(10, 65_508)
    assert caught.value.problems == [
        "brokers = 10: expected 1 to 9",
        "port = 65508: expected 1 to 65507, as others follow, or 0 for free ones",
    ]


@pytest.mark.parametrize(("brokers", "port"), [(None, None), (1, 0), (9, 1), (9, PORT_MAX)])
def test_good_wishes(brokers: int | None, port: int | None) -> None:
    """Up to the limits, and none at all."""
    check_wishes(brokers, port)
