"""Committed transactions survive power cuts as a whole, and aborted ones stay away (A11.3, T1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from tests.powercut.broker_rig import broker_rig
from tests.powercut.capabilities import power_cuts, require
from tests.powercut.transaction_load import TransactionLoad, find_faults

if TYPE_CHECKING:
    from tests.powercut.broker_rig import BrokerRig

pytestmark = pytest.mark.powercut

BETWEEN = 15  # transactions
CUTS_MAX = 4  # until a bug shows


def bootstrap(rig: BrokerRig) -> str:
    return ",".join(map(str, map(rig.cluster.address, rig.cluster.nodes)))


def wait_for_more(rig: BrokerRig, load: TransactionLoad) -> None:
    wanted = len(load.outcomes) + BETWEEN

    def are_told() -> bool:
        assert not load.failure, load.failure
        return len(load.outcomes) >= wanted

    rig.cluster.wait(f"{BETWEEN} transactions", are_told)


def cut(rig: BrokerRig, victims: list[int]) -> None:
    rig.cluster.kill(victims)
    for node_id in victims:
        rig.disks[node_id].cut_power()
    rig.cluster.start(victims)
    rig.cluster.wait_ready(victims)


def faults(rig: BrokerRig, load: TransactionLoad) -> list[str]:
    load.rest()
    rig.cluster.wait("the load to rest", lambda: load.is_at_rest)
    return trio.run(find_faults, bootstrap(rig), load.outcomes)


def test_power_cuts_tear_no_transaction() -> None:
    """Of all machines at once, twice, and of each after the other, in mid transaction."""
    require(power_cuts)
    with broker_rig(seed=1) as rig:
        rig.cluster.start_all()
        load = TransactionLoad(bootstrap(rig), seed=1)
        load.start()
        try:
            nodes = rig.cluster.nodes
            for victims in (nodes, *([node] for node in nodes), nodes):
                wait_for_more(rig, load)
                cut(rig, victims)
            wait_for_more(rig, load)
            assert not faults(rig, load)
        finally:
            load.stop()
        assert set(load.outcomes.values()) >= {"committed", "aborted"}


def test_what_is_not_synced_is_torn() -> None:
    """On topics that trust the page cache, where the power of all machines fails: nothing is
    promised there, so this rig must see a committed transaction that lacks something.
    """
    require(power_cuts)
    with broker_rig(seed=2) as rig:
        rig.cluster.start_all()
        load = TransactionLoad(bootstrap(rig), seed=2, durability="page_cache")
        load.start()
        try:
            for _ in range(CUTS_MAX):
                wait_for_more(rig, load)
                cut(rig, rig.cluster.nodes)
                found = faults(rig, load)
                if found:
                    break
                load.work()
        finally:
            load.stop()
        assert any("committed, and read" in each for each in found)
