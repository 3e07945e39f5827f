"""Files whose syncs a page governs; all else is as on any disk."""

from __future__ import annotations

import errno
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from jepsen_like.nodes.control_page import ControlPage
from jepsen_like.nodes.controlled_files import ControlledFiles
from jepsen_like.nodes.environment import packages_environment
from raftmq.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Sync = Callable[[], None]

KINDS = ("file", "directory", "file system")


@pytest.fixture
def page(tmp_path: Path) -> ControlPage:
    return ControlPage.create(tmp_path / "page")


@pytest.fixture
def files(page: ControlPage) -> ControlledFiles:
    return ControlledFiles(page)


@pytest.fixture(params=KINDS)
def sync(request: pytest.FixtureRequest, files: ControlledFiles, tmp_path: Path) -> Sync:
    file = files.open(tmp_path / "file", create=True)
    file.write(0, [b"x"])
    ways: dict[str, Sync] = {
        "file": file.sync,
        "directory": lambda: files.sync_directory(tmp_path),
        "file system": lambda: files.sync_file_system(tmp_path),
    }
    return ways[request.param]


def test_every_sync_counts(page: ControlPage, sync: Sync) -> None:
    """Nothing is demanded: it is done, and counted."""
    sync()
    sync()
    assert page.syncs == 2


def test_a_sync_fails_as_a_disk_does(page: ControlPage, sync: Sync) -> None:
    """The error says EIO, and whoever looks for its cause finds it; then the disk is well."""
    page.fail_syncs = True
    with pytest.raises(StorageError, match="sync") as caught:
        sync()
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EIO
    page.fail_syncs = False
    sync()


def test_a_sync_is_late(page: ControlPage, sync: Sync) -> None:
    """For as long as the page says, and no longer than it says so."""
    page.sync_delay_seconds = 0.01
    began_at = time.monotonic()
    sync()
    assert time.monotonic() - began_at >= 0.01


def test_the_last_act_is_a_sync(tmp_path: Path, page: ControlPage) -> None:
    """A process dies in place of its third sync, and has done two."""
    page.kill_at_sync = 3
    program = (
        "import sys; from pathlib import Path;"
        "from jepsen_like.nodes.control_page import ControlPage;"
        "from jepsen_like.nodes.controlled_files import ControlledFiles;"
        "folder = Path(sys.argv[1]); files = ControlledFiles(ControlPage.open(folder / 'page'));"
        "file = files.open(folder / 'file', create=True);"
        "[(print(n, flush=True), file.sync()) for n in range(5)]"
    )
    died = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=packages_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert died.returncode == -9
    assert died.stdout.split() == ["0", "1", "2"]


def test_a_power_cut_is_another_boot(page: ControlPage, files: ControlledFiles) -> None:
    """The kernel's boot id stays, the one of the files does not."""
    before = files.boot_id()
    page.power_cuts += 1
    assert files.boot_id() != before


def test_two_do_not_lock_one_directory(files: ControlledFiles, tmp_path: Path) -> None:
    """The lock goes with the file that holds it, and with nothing else."""
    lock = files.lock(tmp_path / ".lock")
    with pytest.raises(StorageError):
        files.lock(tmp_path / ".lock")
    del lock
    files.lock(tmp_path / ".lock")
