"""Names of keys: which one is meant, which one may have been meant."""

from __future__ import annotations

import pytest

from raftmq.broker.node_config_keys import (
    BIND,
    NODE_ID,
    NODE_KEYS,
    VOTER,
    closest_key,
    find_key,
    known_below,
)


def test_known_names() -> None:
    """What may stand in each section, in the order of the definitions."""
    assert known_below("") == [
        "node",
        "quorum",
        "listeners",
        "groups",
        "transactions",
        "reassignment",
        "limits",
        "log",
    ]
    assert known_below("node") == [
        "id",
        "cluster_id",
        "directory",
        "rack",
        "clock_difference_ms_max",
    ]
    assert known_below("quorum") == ["voters", "replace"]
    assert known_below("listeners.<name>") == ["name", "bind", "advertised"]


def test_each_key_is_found_by_its_name() -> None:
    """With anything in the places that people choose."""
    assert find_key("node.id") is NODE_ID
    assert find_key("quorum.voters.7") is VOTER
    assert find_key("listeners.inside.bind") is BIND
    assert [find_key(key.name) for key in NODE_KEYS] == list(NODE_KEYS)


@pytest.mark.parametrize("name", ["", "node", "node.idd", "quorum.voters", "listeners.a", "a.b.c"])
def test_names_that_mean_nothing(name: str) -> None:
    """Too short, too long, or misspelt."""
    assert find_key(name) is None


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("node.idd", "node.id"),
        ("node.cluster", "node.cluster_id"),
        ("quorum.voter.3", "quorum.voters.3"),
        ("listeners.inside.bnd", "listeners.inside.bind"),
        ("colour", ""),
    ],
)
def test_what_was_meant(name: str, meant: str) -> None:
    """With what stands in the chosen places kept."""
    assert closest_key(name) == meant


def test_each_key_says_what_it_is_for() -> None:
    """Names differ, and none is without a word."""
    assert len({key.name for key in NODE_KEYS}) == len(NODE_KEYS)
    assert all(key.doc.endswith(".") for key in NODE_KEYS)
