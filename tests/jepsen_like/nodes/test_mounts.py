"""A power cut while another process holds copies of all mounts, as whoever gets his own does."""

from __future__ import annotations

import subprocess

import pytest

from jepsen_like.nodes.capabilities import power_cuts
from jepsen_like.nodes.disk import loop_disk

pytestmark = pytest.mark.powercut


def test_copies_of_mounts_do_not_keep_a_disk() -> None:
    """The other process has the disk mounted, too; the power is cut for it as for us."""
    if power_cuts():
        pytest.skip(power_cuts())
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec cat"]
    with (
        loop_disk(size_mib=8) as disk,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder,
    ):
        assert holder.stdout is not None
        assert holder.stdout.readline()
        (disk.mount_point / "unsynced").write_bytes(b"x")
        for _ in range(2):
            disk.cut_power()
            assert not (disk.mount_point / "unsynced").exists()
            (disk.mount_point / "unsynced").write_bytes(b"x")
        assert holder.poll() is None
