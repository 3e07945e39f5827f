"""`delivery`: one word that sets several options, and overrules none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from raftmq.client.options import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    ONE_OR_MORE,
    with_delivery,
)
from raftmq.errors import InvalidConfig

if TYPE_CHECKING:
    from raftmq.client.options import Allowed

ALLOWED: Allowed = {
    AT_MOST_ONCE: {"commit": ("before",)},
    AT_LEAST_ONCE: {"commit": ("batch", "record", "manual"), "retries": (None, 3)},
}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"x": 1}, {"x": 1}),
        ({"delivery": None, "commit": "none"}, {"commit": "none"}),
        ({"delivery": "at_most_once"}, {"commit": "before"}),
        ({"delivery": "at_least_once", "x": 1}, {"commit": "batch", "retries": None, "x": 1}),
        ({"delivery": "at_least_once", "commit": "record"}, {"commit": "record", "retries": None}),
        ({"delivery": "at_least_once", "retries": 3}, {"commit": "batch", "retries": 3}),
    ],
)
def test_what_it_sets(given: dict[str, Any], expected: dict[str, Any]) -> None:
    """The first of the values that are allowed, unless another of them is said."""
    before = dict(given)
    assert with_delivery(given, ALLOWED) == expected
    assert given == before


def test_all_contradictions_at_once() -> None:
    """With the values that go together with the word (A11.4)."""
    with pytest.raises(InvalidConfig) as caught:
        with_delivery({"delivery": AT_LEAST_ONCE, "commit": "before", "retries": 1}, ALLOWED)
    assert caught.value.problems == [
        'commit = "before" with delivery = "at_least_once", which takes commit = "batch" or '
        '"record" or "manual": leave one of them out',
        'retries = 1 with delivery = "at_least_once", which takes retries = None or 3: '
        "leave one of them out",
    ]


@pytest.mark.parametrize(("value", "fits"), [(1, True), (7, True), (0, False), (True, False)])
def test_a_number_or_more(value: object, fits: bool) -> None:
    """A range of numbers, too, may go together with a word; True is none."""
    allowed: Allowed = {AT_LEAST_ONCE: {"acks": ("all", ONE_OR_MORE)}}
    given = {"delivery": AT_LEAST_ONCE, "acks": value}
    if fits:
        assert with_delivery(given, allowed) == {"acks": value}
        return
    with pytest.raises(InvalidConfig, match='takes acks = "all" or 1 or more'):
        with_delivery(given, allowed)


@pytest.mark.parametrize(
    "word", ["", "once", "AT_LEAST_ONCE", "exactly_once", 1, [], b"at_most_once"]
)
def test_no_such_word(word: object) -> None:
    """The ones that there are for what is asked."""
    with pytest.raises(InvalidConfig) as caught:
        with_delivery({"delivery": word}, ALLOWED)
    [problem] = caught.value.problems
    assert problem.startswith(f"delivery = {word!r}: expected ")
    assert all(each in problem for each in ALLOWED)
