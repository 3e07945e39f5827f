"""What an operator is advised when the machine refuses."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raftmq.broker.settings import parse_settings
from raftmq.cli.nodes.startup_hints import LOCKS, ListeningNetwork, lock_holder, told
from raftmq.errors import DirectoryInUse, StorageError, Unreachable

if TYPE_CHECKING:
    from raftmq.broker.settings import BrokerSettings


def settings_at(directory: Path, port: int = 1) -> BrokerSettings:
    return parse_settings(
        {
            "node": {"id": 1, "cluster_id": "a", "directory": str(directory)},
            "quorum": {"voters": {"1": "127.0.0.1:2"}},
            "listeners": [{"name": "brokers", "bind": f"127.0.0.1:{port}"}],
        }
    )


def failed(number: int) -> StorageError:
    error = StorageError(f"write /data/x: {os.strerror(number)}")
    error.__cause__ = OSError(number, os.strerror(number))
    return error


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "No space left on device; the disk is full: free some space on it"),
        (errno.EROFS, "Read-only file system; the file system is read-only: if it was not"),
        (errno.EIO, "Input/output error; the disk has failed"),
        (errno.EACCES, f"Permission denied; the user that runs this (uid {os.getuid()}) must own"),
    ],
)
def test_a_disk_that_refuses(number: int, advice: str) -> None:
    """What the system said, then what to do, in one line."""
    line = told(failed(number), settings_at(Path("/data")))
    assert line.startswith(f"node.directory: write /data/x: {advice}")
    assert "\n" not in line


def test_a_disk_that_refuses_in_a_way_that_nobody_knows() -> None:
    """The error as it is, with the key; alone before there are settings."""
    line = told(failed(errno.ELOOP), settings_at(Path("/data")))
    assert line == f"node.directory: {failed(errno.ELOOP)}"
    assert told(failed(errno.ENOSPC), None) == str(failed(errno.ENOSPC))


def device_of(path: Path) -> str:
    """As /proc/locks writes it."""
    device = path.stat().st_dev
    return f"{os.major(device):02x}:{os.minor(device):02x}"


def test_who_holds_a_lock(tmp_path: Path) -> None:
    """The process that has locked the file, which is this one; nobody else's lock is mistaken."""
    path = tmp_path / ".lock"
    with path.open("w") as file:
        assert lock_holder(path) == ""
        fcntl.flock(file, fcntl.LOCK_EX)
        if f"{device_of(path)}:{path.stat().st_ino} " not in LOCKS.read_text():
            pytest.skip("this file system shows its locks under another device")
        assert lock_holder(path).startswith(f"process {os.getpid()} (")
        line = told(DirectoryInUse(f"{tmp_path} is in use"), settings_at(tmp_path))
        assert line.startswith(f"{tmp_path} is in use; it is held by process {os.getpid()} (")
    assert lock_holder(path) == ""


def test_a_lock_of_another_container(tmp_path: Path) -> None:
    """The system does not say which process; nor if it tells nothing of locks at all."""
    path, locks = tmp_path / ".lock", tmp_path / "locks"
    path.write_text("")
    file = f"{device_of(path)}:{path.stat().st_ino}"
    locks.write_text(f"1: FLOCK  ADVISORY  WRITE 0 {file} 0 EOF\n")
    assert lock_holder(path, locks) == ""
    assert lock_holder(path, tmp_path / "no-such-file") == ""


async def test_a_port_in_use() -> None:
    """The setting is named, the address, and the way out."""
    network = ListeningNetwork(settings_at(Path("/data")))
    address = settings_at(Path("/data")).listeners[0].bind._replace(port=0)
    [listener] = await network.open_listeners(address)
    async with listener:
        port = listener.socket.getsockname()[1]
        taken = ListeningNetwork(settings_at(Path("/data"), port))
        with pytest.raises(Unreachable) as caught:
            await taken.open_listeners(address._replace(port=port))
    assert str(caught.value) == (
        f"listeners.brokers.bind: cannot listen on 127.0.0.1:{port}: Address already in use;"
        " another process listens there: stop it (`ss -ltnp` names it), or choose another port"
    )
