"""`-o key=value` and variables: into tables, into lists of tables, and what is no place for one."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from raftmq.broker.node_config_keys import NODE_KEYS
from raftmq.broker.settings import SettingOrigin, parse_settings
from raftmq.cli.nodes.overrides import override, override_by_variables, variable_of
from raftmq.errors import InvalidConfig

FILE = """
[node]
id = 1
[[listeners]]
name = "clients"
bind = "a:1"
"""


def overridden(*overrides: str) -> dict[str, Any]:
    values = tomllib.loads(FILE)
    override(values, overrides)
    return values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2", 2),
        ('"2"', "2"),
        ("/var/raftmq", "/var/raftmq"),
        ("127.0.0.1:9292", "127.0.0.1:9292"),
        ("[::1]:9292", "[::1]:9292"),
        ("a=b", "a=b"),
        ("1\nother = 2", "1\nother = 2"),
        ("", ""),
    ],
)
def test_a_value_is_toml_or_else_a_text(text: str, expected: object) -> None:
    """Addresses and paths need no quotes; a number that is meant as a text does."""
    assert overridden(f"node.id={text}")["node"] == {"id": expected}


def test_the_last_one_counts() -> None:
    """As with any option that is given twice; blanks around the key do not matter."""
    assert overridden("node.id=2", " node.id = 3")["node"] == {"id": 3}


def test_missing_sections_are_made() -> None:
    """A file need not mention what each node sets for itself."""
    assert overridden("quorum.voters.1=a:1")["quorum"] == {"voters": {"1": "a:1"}}


def test_listeners_go_by_their_names() -> None:
    """One that is there is changed, another one added."""
    values = overridden("listeners.clients.bind=b:2", "listeners.brokers.bind=c:3")
    assert values["listeners"] == [
        {"name": "clients", "bind": "b:2"},
        {"name": "brokers", "bind": "c:3"},
    ]


def test_every_problem_is_told() -> None:
    """No value, no key, and a way through something that is no section."""
    with pytest.raises(InvalidConfig) as caught:
        overridden("node.id", "=2", "node..id=2", "node.id.x=2")
    assert caught.value.problems == [
        "-o node.id: expected key=value, like node.id=2",
        "-o =2: expected key=value, like node.id=2",
        "-o node..id=2: expected key=value, like node.id=2",
        "-o node.id.x=2: node.id is no section",
    ]


def test_listeners_of_a_file_that_has_none() -> None:
    """They become a list, as in a file."""
    values: dict[str, Any] = {}
    override(values, ["listeners.clients.bind=b:2"])
    assert values == {"listeners": [{"name": "clients", "bind": "b:2"}]}


def with_variables(**variables: str) -> tuple[dict[str, Any], dict[str, SettingOrigin]]:
    values, origins = tomllib.loads(FILE), dict[str, SettingOrigin]()
    override_by_variables(values, variables, origins)
    return values, origins


def test_variables_of_the_environment() -> None:
    """Two underscores for each dot; where each value comes from is known afterwards."""
    values, origins = with_variables(
        RAFTMQ_NODE__ID="2",
        RAFTMQ_NODE__CLUSTER_ID=" orders ",
        RAFTMQ_QUORUM__VOTERS__3="c:3",
        RAFTMQ_LISTENERS__CLIENTS__BIND="b:2",
        RAFTMQ_LISTENERS__INSIDE_1__BIND="c:4",
    )
    assert values == {
        "node": {"id": 2, "cluster_id": "orders"},
        "quorum": {"voters": {"3": "c:3"}},
        "listeners": [{"name": "clients", "bind": "b:2"}, {"name": "inside_1", "bind": "c:4"}],
    }
    assert origins["node.id"] == SettingOrigin("RAFTMQ_NODE__ID", "2")
    assert origins["listeners.inside_1.bind"].source == "RAFTMQ_LISTENERS__INSIDE_1__BIND"


def test_variables_of_others() -> None:
    """The client's, a container's, and whatever else has no two underscores."""
    values, origins = with_variables(
        RAFTMQ_BOOTSTRAP="a:1", RAFTMQ_SERVICE_HOST="10.0.0.1", RAFTMQ="1", OTHER__KEY="2"
    )
    assert (values, origins) == (tomllib.loads(FILE), {})


def test_variables_that_mean_nothing() -> None:
    """Each is named, with what may have been meant."""
    with pytest.raises(InvalidConfig) as caught:
        with_variables(
            RAFTMQ_NODE__IDD="2",
            RAFTMQ_NODE__="2",
            RAFTMQ_LISTENERS__CLIENTS__BIN="b:2",
            RAFTMQ_COLOUR__OF__THE__SEA="green",
        )
    assert caught.value.problems == [
        "RAFTMQ_COLOUR__OF__THE__SEA: means no setting",
        "RAFTMQ_LISTENERS__CLIENTS__BIN: means no setting, did you mean"
        " RAFTMQ_LISTENERS__CLIENTS__BIND?",
        "RAFTMQ_NODE__: means no setting, did you mean RAFTMQ_NODE__ID?",
        "RAFTMQ_NODE__IDD: means no setting, did you mean RAFTMQ_NODE__ID?",
    ]


def test_each_key_has_a_variable() -> None:
    """As docs/CONFIGURATION.md lists them."""
    assert [variable_of(key.name) for key in NODE_KEYS[:2]] == [
        "RAFTMQ_NODE__ID",
        "RAFTMQ_NODE__CLUSTER_ID",
    ]


def test_a_wrong_value_names_its_variable() -> None:
    """Nobody looks for it in the file."""
    values, origins = with_variables(RAFTMQ_NODE__ID="two", RAFTMQ_NODE__RACK="3")
    override(values, ["listeners.clients.bind=x"], origins)
    with pytest.raises(InvalidConfig) as caught:
        parse_settings(values, origins)
    assert (
        "node.id = 'two' from RAFTMQ_NODE__ID: expected a whole number from 0 to 2147483647"
        in caught.value.problems
    )
    assert "listeners.clients.bind = 'x' from -o: no port; write host:port" in caught.value.problems
    assert not any(problem.startswith("node.rack") for problem in caught.value.problems)
