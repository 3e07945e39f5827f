"""Transactions: what is judged, in histories without a wrong and with one thing wrong."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from jepsen_like.checkers.activity import Demands
from jepsen_like.checkers.transaction_activity import TransactionCounts
from jepsen_like.checkers.verdict import OF_TRANSACTIONS, Result, judge
from tests.jepsen_like.checkers.plants import Tampered
from tests.jepsen_like.checkers.script import Script
from tests.jepsen_like.checkers.transaction_model import clean_transaction_history
from tests.jepsen_like.checkers.transaction_plants import TRANSACTION_PLANTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from jepsen_like.checkers.verdict import Verdict

SEEDS, PLANTED, SEEDS_MAX = 250, 20, 400
ANY_SHARE = Demands(ok_share_min=0.0)


def found_in(verdict: Verdict) -> set[str]:
    return {found.name for found in verdict.failures}


def test_where_nothing_is_wrong_nothing_is_found() -> None:
    """Outcomes are never told, owners replaced, leaders late: all of it is legal."""
    figures = dict.fromkeys(("decisions", "aborts", "take overs", "late", "never told"), 0)
    results = 0
    for seed in range(SEEDS):
        verdict = judge(clean_transaction_history(Random(seed)), ANY_SHARE)
        assert not verdict.failures, f"seed {seed}: {verdict}"
        assert verdict.not_looked_at.isdisjoint(OF_TRANSACTIONS)
        for name in figures:
            figures[name] += verdict.figures[name]
        (effects,) = (one for one in verdict.findings if one.name == "duplicate-effect")
        results += effects.figures["results seen"]
    assert results > SEEDS
    assert all(count > SEEDS for count in figures.values()), figures


@pytest.mark.parametrize(
    ("name", "plant"),
    TRANSACTION_PLANTS,
    ids=[plant.__name__ for _, plant in TRANSACTION_PLANTS],
)
def test_what_is_planted_is_found(name: str, plant: Callable[[Tampered], None]) -> None:
    """Twenty times, in twenty histories."""
    count = 0
    for seed in range(SEEDS_MAX):
        history = Tampered(clean_transaction_history(Random(seed)), Random(seed))
        try:
            plant(history)
        except IndexError:
            continue
        count += 1
        verdict = judge(history.events, ANY_SHARE)
        assert name in found_in(verdict), f"seed {seed}: {verdict}"
        assert verdict.result is Result.FAIL
        if count == PLANTED:
            return
    pytest.fail(f"only {count} histories had a place for it")


def test_too_few_transactions_prove_nothing() -> None:
    """A run that did not reach what was wanted is no success."""
    wanted = TransactionCounts(decisions=1_000, installed=5)
    demands = Demands(ok_share_min=0.0, transactions=wanted)
    verdict = judge(clean_transaction_history(Random(1)), demands)
    assert verdict.result is Result.UNKNOWN
    decided, installed = verdict.reasons
    assert decided.endswith("transactions were decided, 1000 are wanted")
    assert installed == "0 snapshots of the quorum were installed, 5 are wanted"


def test_what_asks_nobody_may_come_from_a_replaced_owner() -> None:
    """A block in which nothing was sent is committed by the SDK alone."""
    script = Script()
    for process in (1, 2):
        if process == 2:
            script.begin(1, "begin", {"tx": 1, "version": None})
            script.end(1, "begin", {"tx": 1, "version": None})
        script.begin(process, "open", {"id": "a"})
        script.end(process, "open", {"id": "a"})
    script.begin(1, "end", {"tx": 1, "commit": True, "offsets": []})
    script.end(1, "end", {"outcome": "committed"})
    assert script.found() == {}
