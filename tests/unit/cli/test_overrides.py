"""`-o key=value`: into tables, into lists of tables, and what is no place for a value."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from raftmq.broker.settings import parse_settings
from raftmq.cli.overrides import override
from raftmq.errors import InvalidConfig

README = Path(__file__).parents[3] / "README.md"
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


def test_the_cluster_of_the_readme() -> None:
    """One file and two command lines make three nodes that share nothing but the voters."""
    readme = README.read_text()
    [text] = re.findall(r"```toml\n(.*?)```", readme, re.DOTALL)
    commands = re.findall(r"raftmq broker --config cluster.toml((?:.*\\\n)*.*)", readme)
    nodes = []
    for command in commands:
        values = tomllib.loads(text)
        override(
            values, [word for word in shlex.split(command.replace("\\\n", "")) if word != "-o"]
        )
        nodes.append(parse_settings(values))
    assert [node.node_id for node in nodes] == [1, 2, 3]
    assert len({node.directory for node in nodes}) == 3
    binds = [listener.bind for node in nodes for listener in node.listeners]
    assert len({*binds, *nodes[0].voters.values()}) == 9
