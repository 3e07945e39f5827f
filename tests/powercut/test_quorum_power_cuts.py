"""A quorum on three disks loses nothing that was acknowledged, wherever the power is cut.

The same disasters as in tests/cluster, but here the page cache of whoever dies goes with it.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cluster.quorum_disasters import Disaster, Whom
from tests.cluster.quorum_outcasts import follower_of
from tests.cluster.quorum_report import report
from tests.powercut.capabilities import power_cuts, require, strace
from tests.powercut.injections import killed_at_sync
from tests.powercut.quorum_rig import POWER_CUTS, QuorumRig, quorum_rig

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.powercut


@pytest.fixture
def three() -> Iterator[QuorumRig]:
    """Running; judged at the end."""
    require(power_cuts)
    with quorum_rig(seed=1) as rig:
        rig.cluster.start_all()
        yield rig
        assert not rig.cluster.ledger.findings


def test_power_cuts_lose_nothing_that_was_acknowledged(
    three: QuorumRig, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the leader, a follower, two, all at once, and one after the other, under load."""
    for disaster in POWER_CUTS:
        three.disasters.strike(disaster)
    three.cluster.wait_settled()
    three.cluster.compare()
    assert three.power_cuts >= 10
    assert len(three.cluster.ledger.acknowledged) > 100
    with capsys.disabled():
        sys.stdout.write("\n" + report(three.disasters.outcomes, three.cluster.ledger))


def test_a_power_cut_at_a_sync(three: QuorumRig) -> None:
    """A node dies in the n-th sync of a thread: while it opens, and under load."""
    require(strace)
    for number in (1, 3, 9, 33):
        die_at_sync(three, follower_of(three.cluster), number)
    three.cluster.wait_settled()
    three.cluster.compare()


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1, 61, 6))
def test_a_power_cut_at_any_sync(three: QuorumRig, first: int) -> None:
    """The same, sync by sync and node by node; now and then it is the leader that dies."""
    require(strace)
    for number in range(first, first + 6):
        die_at_sync(three, number % 3 + 1, number)
    three.cluster.compare()


def die_at_sync(rig: QuorumRig, node_id: int, number: int) -> None:
    cluster = rig.cluster
    cluster.kill([node_id])
    rig.disks[node_id].cut_power()
    cluster.start([node_id], under=killed_at_sync(number))
    assert cluster.wait_end(node_id).status == -signal.SIGKILL
    rig.disks[node_id].cut_power()
    cluster.start([node_id])
    cluster.wait_open([node_id])
    cluster.wait_settled()


def test_power_cuts_find_a_missing_sync() -> None:
    """A planted bug: the journal is never synced. This rig must see acknowledged keys vanish."""
    require(power_cuts)
    with quorum_rig(seed=2, sync=0) as rig:
        rig.cluster.start_all()
        for _ in range(5):
            rig.disasters.strike(Disaster("cut", Whom.ALL))
            rig.cluster.compare()
            if rig.cluster.ledger.lost:
                break
        assert rig.cluster.ledger.lost
        assert rig.cluster.ledger.findings
