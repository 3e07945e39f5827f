"""The rig's own disk: a power cut takes what was not synced, and nothing stays behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from jepsen_like.nodes.disk import PREFIX, LoopDisk, loop_disk, remove_leftovers
from jepsen_like.nodes.mounts import mounts_below
from tests.powercut.capabilities import loop_mounts, require

pytestmark = pytest.mark.powercut


def test_a_power_cut_keeps_what_was_synced(disk: LoopDisk) -> None:
    """Two files, one synced with its directory; bytes, a name and a rename are not."""
    synced, unsynced = disk.mount_point / "synced", disk.mount_point / "unsynced"
    with synced.open("wb") as file:
        file.write(b"synced")
        file.flush()
        os.fsync(file.fileno())
        sync_directory(disk.mount_point)
        file.write(b" and more")
    unsynced.write_bytes(b"x")
    synced.rename(disk.mount_point / "renamed")
    disk.cut_power()
    assert synced.read_bytes() == b"synced"
    assert not unsynced.exists()
    assert not (disk.mount_point / "renamed").exists()


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def test_no_power_cut_under_a_living_process(
    disk: LoopDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ioctl races with system calls under way, so the rig refuses."""
    monkeypatch.setattr("jepsen_like.nodes.disk.PATIENCE", 0.0)
    with (disk.mount_point / "held").open("wb"), pytest.raises(AssertionError, match="held"):
        disk.cut_power()
    disk.cut_power()


def test_leftovers_of_a_killed_run_are_removed() -> None:
    """A process mounts a disk and dies without cleaning up; the next to come does it."""
    require(loop_mounts)
    make_and_die = (
        "import os; from jepsen_like.nodes.disk import loop_disk; disk = loop_disk(size_mib=8);"
        "print(disk.__enter__().mount_point, flush=True); os.kill(os.getpid(), 9)"
    )
    died = subprocess.run(
        [sys.executable, "-c", make_and_die],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    folder = Path(died.stdout.strip()).parent
    assert mounts_below(folder) == [folder / "mount"]
    remove_leftovers()
    assert not mounts_below(folder)
    assert not folder.exists()


def test_disks_of_the_living_are_left_alone() -> None:
    """Two test runs at once do not take each other's disks away."""
    require(loop_mounts)
    with loop_disk(size_mib=8) as disk:
        remove_leftovers()
        assert disk.image.exists()
        assert disk.image.is_relative_to(Path(tempfile.gettempdir()))
        assert PREFIX in str(disk.image)
