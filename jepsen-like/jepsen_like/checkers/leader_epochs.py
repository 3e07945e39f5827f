"""Anomaly: two nodes led one key in one leader epoch.

Counts epochs of keys. A node may log again that it leads.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from jepsen_like.checkers.finding import Finding, Findings

if TYPE_CHECKING:
    from jepsen_like.checkers.account import Account


def check(account: Account) -> list[Finding]:
    found, epochs = Findings("two-leaders"), 0
    for key in account.keys.values():
        epochs += len(key.leads)
        for epoch, nodes in sorted(key.leads.items()):
            if len(nodes) > 1:
                found.add(partial(_sentence, key.key, epoch, nodes))
    return [found.finding(epochs=epochs)]


def _sentence(key: str, epoch: int, nodes: dict[int, int]) -> str:
    said = ", ".join(f"node {node} (event {event})" for node, event in sorted(nodes.items()))
    return f"key {key!r}, epoch {epoch}: {said} said that they lead"
