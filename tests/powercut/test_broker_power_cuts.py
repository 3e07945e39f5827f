"""Three brokers on three disks lose nothing that was acknowledged, wherever the power is cut.

The same disasters as in tests/cluster, but here the page cache of whoever dies goes with it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c

from tests.cluster.broker_disasters import Whom
from tests.powercut.broker_rig import broker_rig
from tests.powercut.brokers import Ordeal, table
from tests.powercut.capabilities import power_cuts, require
from tests.powercut.faulty_files import RebootedFiles

if TYPE_CHECKING:
    from tests.powercut.broker_rig import BrokerRig

pytestmark = pytest.mark.powercut

QUICK = Ordeal(cycles=3, seed=1, whom=(Whom.ALL, Whom.LEADER, Whom.EACH))
LONG = [Ordeal(cycles=50, seed=11), Ordeal(cycles=50, seed=12)]
CUTS_MAX = 4  # until a bug shows


def test_power_cuts_lose_nothing_that_was_acknowledged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of all at once, of a leader, and one after the other, under load (A13.2)."""
    require(power_cuts)
    with broker_rig(seed=QUICK.seed) as rig:
        survive(QUICK, rig, capsys)
        boots = rig.boots()
    assert boots == {node_id: {boot_after(disk.power_cuts)} for node_id, disk in rig.disks.items()}
    assert rig.power_cuts >= 7
    assert rig.released >= 1
    assert len(rig.cluster.ledger.acknowledged) > 100


@pytest.mark.soak
@pytest.mark.parametrize("ordeal", LONG)
def test_many_power_cuts(ordeal: Ordeal, capsys: pytest.CaptureFixture[str]) -> None:
    """Of anybody in any order, some of them cut again while they recover."""
    require(power_cuts)
    with broker_rig(seed=ordeal.seed) as rig:
        survive(ordeal, rig, capsys)


def test_power_cuts_find_a_missing_sync() -> None:
    """A planted bug: logs are never synced. This rig must see acknowledged records vanish, at one
    of the first cuts: a kernel that is short of clean memory writes much back by itself.
    """
    require(power_cuts)
    with broker_rig(seed=2, syncs=False) as rig:
        rig.cluster.start_all()
        rig.cluster.start_load()
        for _ in range(CUTS_MAX):
            rig.cluster.work_until(50)
            rig.cluster.kill(rig.cluster.nodes)
            rig.cut_power(rig.cluster.nodes)
            if rig.synced.ledger.lost:
                break
            rig.cluster.start_all()
        assert rig.synced.ledger.lost
        assert any("on fewer than 2 disks" in found for found in rig.synced.ledger.findings)


def survive(ordeal: Ordeal, rig: BrokerRig, capsys: pytest.CaptureFixture[str]) -> None:
    failure = ordeal.run(rig)
    with capsys.disabled():
        sys.stdout.write("\n" + table(rig))
    assert not failure, failure


def boot_after(power_cuts: int) -> int:
    """What a broker writes down that was told of so many."""
    return crc32c(RebootedFiles(power_cuts).boot_id().encode())
