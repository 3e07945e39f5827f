"""Names of faults, and what a cluster can do."""

from __future__ import annotations

import pytest

from jepsen_like.nemesis.registry import FAULTS, KINDS, UnknownKind, check_kinds, choose, lacking

NOTHING = dict.fromkeys(("network", "disks", "power cuts", "freezer"), "not root")


def test_every_kind_has_a_fault() -> None:
    """The table of numbers and the table of faults name the same."""
    assert list(FAULTS) == list(KINDS)


def test_names_are_sorted_and_made_unique() -> None:
    """As people type them."""
    assert check_kinds(["powercut", "kill", "kill"]) == ("kill", "powercut")
    assert check_kinds(["all"]) == tuple(KINDS)
    assert check_kinds([]) == ()


def test_an_unknown_name_is_answered_with_all_names() -> None:
    """Two wrong ones are told together."""
    with pytest.raises(
        UnknownKind, match=r"no such fault: kil, fire; there are kill, pause, .*all"
    ):
        check_kinds(["kil", "pause", "fire"])


def test_what_the_cluster_cannot_do_is_left_out_loudly() -> None:
    """Not root: what needs it is named, each with the reason."""
    said: list[str] = []
    kept = choose(["kill", "partition", "powercut", "clock"], NOTHING, said.append)
    assert kept == ("kill", "clock")
    assert said == [
        "NOT TESTED: partition: needs network: not root",
        "NOT TESTED: powercut: needs power cuts: not root",
    ]


def test_a_capability_of_which_nothing_is_said_is_missing() -> None:
    """No news is no permission."""
    assert lacking(["kill", "freezer"], {}) == {"freezer": "the cluster says nothing of it"}
    assert lacking(list(KINDS), dict.fromkeys(NOTHING, "")) == {}
