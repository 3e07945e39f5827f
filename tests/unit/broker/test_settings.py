"""The settings of a node: a whole file, and every problem of a bad one at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftmq.broker.settings import BROKERS, load_settings, parse_settings
from raftmq.errors import InvalidConfig
from raftmq.model import Address

GOOD = """
[node]
id = 1
cluster_id = "orders"
directory = "/var/raftmq"
rack = "a"

[quorum.voters]
1 = "10.0.0.1:9293"
2 = "[2001:db8::2]:9293"

[[listeners]]
name = "clients"
bind = "0.0.0.0:9292"
advertised = "broker1:9292"

[[listeners]]
name = "brokers"
bind = "10.0.0.1:9294"
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_whole_file(tmp_path: Path) -> None:
    """Everything that can be said, said; what is advertised defaults to what is bound."""
    settings = load_settings(write(tmp_path / "node.toml", GOOD))
    assert (settings.node_id, settings.cluster_id, settings.rack) == (1, "orders", "a")
    assert settings.directory == Path("/var/raftmq")
    assert settings.voters == {1: Address("10.0.0.1", 9293), 2: Address("2001:db8::2", 9293)}
    clients, brokers = settings.listeners
    assert (clients.name, clients.advertised) == ("clients", Address("broker1", 9292))
    assert not clients.listener.is_for_brokers
    assert (brokers.name, brokers.advertised) == (BROKERS, Address("10.0.0.1", 9294))
    assert brokers.listener.is_for_brokers
    assert settings.is_voter


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    """Misspelt, missing, and of the wrong kind: one line for each, with its key."""
    text = GOOD.replace("rack", "rakc").replace("id = 1", 'id = "1"').replace("10.0.0.1:9293", "x")
    with pytest.raises(InvalidConfig) as error:
        load_settings(write(tmp_path / "node.toml", text))
    message = str(error.value)
    assert "node.rakc: unknown, did you mean node.rack?" in message
    assert "node.id = '1': expected a whole number" in message
    assert "quorum.voters.1: " in message


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "[node]: this section is missing"),
        ("[node", "node.toml: "),
        (GOOD.replace('"brokers"', '"others"'), 'exactly one must be named "brokers"'),
        (GOOD.replace('"brokers"', '"clients"'), "names must differ"),
        (GOOD.replace("1 =", "one ="), "quorum.voters.one: expected a node id"),
        (GOOD.replace('bind = "10.0.0.1:9294"', ""), "listeners[1].bind = None"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, problem: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(InvalidConfig) as error:
        load_settings(write(tmp_path / "node.toml", text))
    assert problem in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """The path stands in the message."""
    with pytest.raises(InvalidConfig, match="no-such-file"):
        load_settings(tmp_path / "no-such-file")


def test_listeners_must_be_tables() -> None:
    """A text in place of a list of tables."""
    with pytest.raises(InvalidConfig, match="listeners"):
        parse_settings({"node": {}, "quorum": {}, "listeners": "0.0.0.0:1"})
