"""Disasters in a row until something is wrong: what the soak commands share."""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tests.cluster.node_process import NodeFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Sized
    from random import Random

COMPARED_EVERY = 5  # rounds

D = TypeVar("D")


class Ledger(Protocol):
    findings: list[str]

    @property
    def acknowledged(self) -> Sized: ...


class Cluster(Protocol):
    @property
    def ledger(self) -> Ledger: ...
    def compare(self) -> None: ...


class Disasters(Protocol):
    random: Random

    def strike(self, disaster: Any) -> object: ...


def run_series(cluster: Cluster, disasters: Disasters, kinds: Sequence[D], rounds: int) -> str:
    """What went wrong; empty if nothing did."""
    number = 0
    try:
        for number, disaster in enumerate(islice(_series(disasters.random, kinds), rounds), 1):
            disasters.strike(disaster)
            if number % COMPARED_EVERY == 0 or number == rounds:
                cluster.compare()
            if cluster.ledger.findings:
                return "\n".join([f"round {number}, {disaster}:", *cluster.ledger.findings])
            _show(f"{number}/{rounds} rounds, {len(cluster.ledger.acknowledged)} acknowledged ")
    except NodeFailed as error:
        return f"round {number}, {disaster}: {error}"
    finally:
        sys.stderr.write("\n")
    return ""


def _series(random: Random, kinds: Sequence[D]) -> Iterator[D]:
    """Each once, in some order, and again in another."""
    while True:
        yield from random.sample(kinds, len(kinds))


def _show(text: str) -> None:
    sys.stderr.write(f"\r{text}")
    sys.stderr.flush()
