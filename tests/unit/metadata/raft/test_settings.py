"""What a node is told about itself: sound settings pass, others are named with the way out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from raftmq.errors import InvalidConfig
from raftmq.metadata.raft.settings import NODE_ID_MAX, QuorumSettings, brief, check_settings
from raftmq.model import Address
from raftmq.wire.messages.cluster import VOTERS_MAX

VOTERS = {number: Address(f"node-{number}", 9292) for number in (1, 2, 3)}
SOUND = {"directory": Path("/quorum"), "cluster_id": "c", "node_id": 1, "voters": VOTERS}


class OtherAddress(NamedTuple):
    """Of a network that raftmq does not know."""

    pipe: str


SOUND_CASES: list[dict[str, Any]] = [
    {},
    {"cluster_id": "Größe 9/\N{SNOWMAN}"},
    {"cluster_id": "c" * 255},
    {"node_id": 0, "voters": {0: Address("::1", 1)}},
    {"node_id": NODE_ID_MAX, "voters": {NODE_ID_MAX: Address("::1", 65_535)}},
    {"voters": {1: OtherAddress("a"), 2: OtherAddress("b")}},
    {"voters": {1: Address("a", 1), 2: Address("a", 2), 3: Address("b", 1)}},
]

A_NUMBER = f"expected a whole number from 0 to {NODE_ID_MAX}"
AN_ADDRESS = "expected a raftmq.model.Address(host, port)"
BAD_CASES: list[tuple[dict[str, Any], str]] = [
    ({"directory": "/quorum"}, "directory = '/quorum': expected a pathlib.Path"),
    ({"cluster_id": None}, "cluster_id = None: expected a string"),
    ({"cluster_id": b"c"}, "cluster_id = b'c': expected a string"),
    ({"cluster_id": ""}, "cluster_id = '': 0 characters, allowed 1 to 255"),
    ({"cluster_id": "x" * 70_000}, "...: 70000 characters, allowed 1 to 255"),
    ({"cluster_id": "a\nb"}, r"cluster_id = 'a\nb': expected printable characters"),
    ({"cluster_id": "\udcff"}, r"cluster_id = '\udcff': expected printable characters"),
    ({"cluster_id": "c "}, "cluster_id = 'c ': expected printable characters, and no space at"),
    (
        {"node_id": 9},
        "node_id = 9: not one of the voters [1, 2, 3]: give it its id of these, or open",
    ),
    ({"node_id": -1}, f"node_id = -1: {A_NUMBER}"),
    ({"node_id": 10**20 - 1}, f"node_id = {10**20 - 1}: {A_NUMBER}"),
    ({"node_id": "1"}, f"node_id = '1': {A_NUMBER}"),
    ({"node_id": True}, f"node_id = True: {A_NUMBER}"),
    ({"node_id": None}, f"node_id = None: {A_NUMBER}"),
    ({"voters": None}, "voters = None: expected a mapping from node id to address"),
    ({"voters": [VOTERS[1]]}, "expected a mapping from node id to address"),
    ({"voters": {}}, "voters: 0 of them, allowed 1 to 99"),
    ({"voters": dict.fromkeys(range(VOTERS_MAX + 1))}, "voters: 100 of them, allowed 1 to 99"),
    ({"voters": {"1": VOTERS[1]}}, f"voters: id = '1': {A_NUMBER}"),
    ({"voters": {1: "node-1:9292"}}, f"voters: address of 1 = 'node-1:9292': {AN_ADDRESS}"),
    ({"voters": {1: ("node-1", 9292)}}, f"voters: address of 1 = ('node-1', 9292): {AN_ADDRESS}"),
    ({"voters": {1: None}}, f"voters: address of 1 = None: {AN_ADDRESS}"),
    ({"voters": {1: Address("", 1)}}, "voters: address of 1: host = '': expected a host name"),
    ({"voters": {1: Address("a", 0)}}, "voters: address of 1: port = 0: expected a whole number"),
    ({"voters": {1: Address("a", "1")}}, "voters: address of 1: port = '1': expected a whole"),  # type: ignore[arg-type]  # on purpose
    (
        {"voters": {1: VOTERS[1], 2: VOTERS[2], 3: VOTERS[1]}},
        "voters: 1 and 3 have the same address Address(host='node-1', port=9292): each listens at",
    ),
    ({"timing": 5}, "timing = 5: expected a Timing"),
    ({"limits": None}, "limits = None: expected a QuorumLimits"),
    ({"sync": "no"}, "sync = 'no': expected a bool"),
]


def settings(**changes: Any) -> QuorumSettings[Any]:
    return QuorumSettings(**{**SOUND, **changes})


def id_of(case: object) -> str:
    return ascii(case)[:40]


@pytest.mark.parametrize("changes", SOUND_CASES, ids=id_of)
def test_sound_settings_pass(changes: dict[str, Any]) -> None:
    """Ids and names at the ends of what is allowed, one machine with several ports."""
    check_settings(settings(**changes), is_voter=True)


@pytest.mark.parametrize(("changes", "told"), BAD_CASES, ids=id_of)
def test_bad_settings_are_named(changes: dict[str, Any], told: str) -> None:
    """The field, the value in a few words, and what was expected."""
    with pytest.raises(InvalidConfig, match=re.escape(told)) as error:
        check_settings(settings(**changes), is_voter=True)
    assert len(str(error.value)) < 300
    assert error.value.definite
    assert not error.value.retriable


def test_all_problems_are_told_together() -> None:
    """Three fields are wrong: three lines, so that nobody corrects one after the other."""
    with pytest.raises(InvalidConfig) as error:
        check_settings(settings(directory="/q", cluster_id="", node_id="1"), is_voter=True)
    fields = [problem.split(" = ")[0] for problem in error.value.problems]
    assert fields == ["directory", "cluster_id", "node_id"]


def test_an_observer_has_an_id_of_its_own() -> None:
    """That of a voter is refused, any other one is taken."""
    check_settings(settings(node_id=9), is_voter=False)
    with pytest.raises(InvalidConfig, match=r"node_id = 1: one of the voters .* open a voter"):
        check_settings(settings(), is_voter=False)


def test_a_value_is_told_in_a_few_words() -> None:
    """A long one is cut, and marked as cut; a number that Python does not print has its type."""
    assert brief(10**5000) == "<int>"
    assert brief("x" * 58) == repr("x" * 58)
    assert brief("x" * 59) == "'" + "x" * 56 + "..."
