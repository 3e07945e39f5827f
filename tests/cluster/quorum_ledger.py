"""What the processes promised, and the verdict on what they hold. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cluster.quorum_words import Acknowledged, Denied, Uncertain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.cluster.quorum_words import AnyTold, Holding

_SHOWN = 5


class Ledger:
    """Attributes:
    findings: what is wrong, a line each; empty if all is well.
    lost: acknowledged keys that some node did not hold at a comparison.
    """

    def __init__(self) -> None:
        self.acknowledged: set[int] = set()
        self.denied: set[int] = set()
        self.uncertain: set[int] = set()
        self.lost: set[int] = set()
        self.findings: list[str] = []
        self.comparisons = 0

    def record(self, told: AnyTold) -> None:
        match told:
            case Acknowledged(keys):
                self.acknowledged.update(keys)
            case Denied(keys):
                self.denied.update(keys)
            case Uncertain(keys):
                self.uncertain.update(keys)

    def compare(self, holdings: Mapping[int, Holding]) -> None:
        """All nodes at rest, at the same version."""
        self.comparisons += 1
        digests = {node_id: holding.digest for node_id, holding in holdings.items()}
        if len(set(digests.values())) > 1:
            self.findings.append(f"the images differ: {digests}")
        for node_id, holding in holdings.items():
            self._compare(f"node {node_id} at version {holding.version}", holding)

    def _compare(self, who: str, holding: Holding) -> None:
        keys = holding.keys()
        lost, risen = self.acknowledged - keys, self.denied & keys
        self.lost |= lost
        if lost:
            self._find(f"{who} lost acknowledged keys", lost)
        if risen:
            self._find(f"{who} holds keys that were denied", risen)
        if holding.wrong_values:
            self.findings.append(f"{who} holds {holding.wrong_values} wrong values")

    def _find(self, what: str, keys: set[int]) -> None:
        self.findings.append(f"{what}: {len(keys)}, {[hex(key) for key in sorted(keys)[:_SHOWN]]}")
