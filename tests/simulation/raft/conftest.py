"""Stock nodes for the tests of hazards: under virtual time, and destroyed at the end."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pysyncobj.syncobj as syncobj
import pytest

from raftmq.metadata.raft.engine import pinned
from tests.simulation.raft.stock import StockNode, VirtualTime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def stock_time(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    """The clock of every stock node in this thread; their chance is seeded, too."""
    time = VirtualTime()
    monkeypatch.setattr(pinned._running, "clock", time, raising=False)
    monkeypatch.setattr(syncobj, "random", Random(7))
    return time


@pytest.fixture
def make_stock(stock_time: VirtualTime) -> Iterator[Callable[..., StockNode]]:
    """`make_stock("A", "BC", **settings)`: node A among B and C."""
    nodes: list[StockNode] = []

    def make(
        name: str = "A", peers: str = "BC", *, kind: type[StockNode] = StockNode, **settings: Any
    ) -> StockNode:
        nodes.append(kind(stock_time, name, peers, **settings))
        return nodes[-1]

    yield make
    for node in nodes:
        node.destroy()
