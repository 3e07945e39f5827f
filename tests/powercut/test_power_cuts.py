"""What was acknowledged survives: kill -9, power cuts at any moment and at any sync.

The same laws as in tests/simulation, but here nothing is simulated: the page cache, ext4, threads
and system calls are the real ones.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from jepsen_like.nodes.disk import loop_disk
from tests.powercut.capabilities import power_cuts, require, strace
from tests.powercut.events import Closed
from tests.powercut.injections import counted_syncs, killed_at_sync
from tests.powercut.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jepsen_like.nodes.disk import LoopDisk

pytestmark = pytest.mark.powercut

MANY = 12  # partitions: more dirty files than are synced one by one


@pytest.fixture
def own_disk_rig(disk: LoopDisk) -> Iterator[Rig]:
    """The data directory is where the disk is mounted, so that a round may sync all of it."""
    rig = Rig(disk.mount_point, disk, seed=2, partitions=MANY)
    yield rig
    assert not rig.ledger.findings


def test_power_cuts_lose_nothing_that_was_acknowledged(rig: Rig) -> None:
    """A writer is killed under load and the power is cut, ten times on one directory (A3.7)."""
    for _ in range(10):
        rig.live_and_die()
        rig.cut_power()
        rig.check()
    assert rig.order.power_cuts == 10
    assert rig.promises > 100
    assert rig.ledger.vanished, "no cut took anything: the page cache was never at stake"


def test_recovery_survives_power_cuts_of_its_own(rig: Rig) -> None:
    """Nobody closes cleanly in between: each writer recovers what the last cut left, and is cut."""
    for _ in range(5):
        rig.live_and_die()
        rig.cut_power()
    rig.check()


def test_a_killed_process_loses_nothing_that_was_written(tmp_path: Path) -> None:
    """kill -9 leaves the page cache: every append that returned is there, acknowledged or not."""
    rig = Rig(tmp_path, seed=3)
    for _ in range(5):
        rig.live_and_die()
        rig.check()
    assert not rig.ledger.findings
    assert not rig.ledger.vanished
    assert rig.promises > 50


def test_a_closed_directory_survives_a_power_cut_whole(rig: Rig) -> None:
    """After a clean shutdown even what nobody waited for is durable."""
    rig.order = rig.order._replace(rounds=3)
    with rig.start() as writer:
        assert writer.hear_all() == 0
        assert isinstance(writer.events[-1], Closed)
        rig.bury(writer)
    rig.cut_power(loses_unacknowledged=False)
    rig.check()


@pytest.mark.parametrize("number", [2, 5, 9, 17, 33])
def test_a_power_cut_at_a_sync(rig: Rig, number: int) -> None:
    """The machine dies in the n-th sync of a thread, in the first life and in one that recovers."""
    require(strace)
    die_at_sync(rig, number)
    die_at_sync(rig, number)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(1, 120))
def test_a_power_cut_at_any_sync(rig: Rig, number: int) -> None:
    """The same, sync by sync."""
    require(strace)
    for _ in range(3):
        die_at_sync(rig, number)


def die_at_sync(rig: Rig, number: int) -> None:
    with rig.start(under=killed_at_sync(number)) as writer:
        assert writer.hear_all() == -signal.SIGKILL
        rig.bury(writer)
    rig.cut_power()
    rig.check()


def test_one_sync_for_the_whole_file_system(own_disk_rig: Rig, tmp_path: Path) -> None:
    """Many dirty logs on a disk of their own share a syncfs, and power cuts lose nothing."""
    require(strace)
    own_disk_rig.live_and_die(appends=100, under=counted_syncs(tmp_path / "syncs"))
    own_disk_rig.cut_power()
    own_disk_rig.check()
    assert "syncfs(" in (tmp_path / "syncs").read_text()
    for _ in range(3):
        own_disk_rig.live_and_die()
        own_disk_rig.cut_power()
        own_disk_rig.check()
    assert own_disk_rig.promises > 30


@pytest.mark.parametrize("partitions", [4, MANY])
def test_power_cuts_find_a_missing_sync(partitions: int) -> None:
    """A planted bug: no file is ever synced. This rig must see acknowledged records vanish."""
    require(power_cuts)
    with loop_disk() as disk:
        rig = Rig(disk.mount_point, disk, seed=4, partitions=partitions)
        rig.order = rig.order._replace(forgetful=True)
        for _ in range(5):
            rig.live_and_die()
            rig.cut_power()
            rig.check()
            if rig.ledger.lost:
                break
        assert rig.ledger.lost
        assert rig.ledger.findings
