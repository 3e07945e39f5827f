"""Disks for tests: an ext4 image that can lose its power, and file systems small enough to fill.

Owns mounting and cleaning up. A power cut is the kernel's own: EXT4_IOC_SHUTDOWN without a log
flush stops the file system at once, and after unmounting, only what was synced is there.

Everything lies in one temporary directory per disk, named after the process that owns it, so
that what a killed test run left mounted is removed by the next one.
"""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import struct
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 3.0  # seconds
PREFIX = "raftmq-powercut-"
_SHUTDOWN = 0x8004587D  # _IOR('X', 125, u32); the same number in ext4, xfs and f2fs
_WITHOUT_LOG_FLUSH = struct.pack("I", 2)


class DiskError(Exception):
    """A command that makes, mounts or stops a disk failed: what it said."""


class LoopDisk:
    """An ext4 file system in a file. Made by `loop_disk`."""

    def __init__(self, folder: Path) -> None:
        self.image, self.mount_point = folder / "disk.img", folder / "mount"
        self.power_cuts = 0

    def make(self, size_mib: int) -> None:
        self.mount_point.mkdir()
        with self.image.open("wb") as image:
            image.truncate(size_mib << 20)
        # -m 0: root gets no reserve, so that a full disk is full.
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self.image))
        self.mount()

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self.image), str(self.mount_point))

    def cut_power(self) -> None:
        """Lose whatever was not synced, and start again.

        No process may live on the disk: the ioctl races with system calls that are under way,
        and an fdatasync may then return 0 for bytes that are lost.
        """
        users = wait_unused(self.mount_point)
        assert not users, f"the power cut would race with {users[:3]}"
        descriptor = os.open(self.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, _WITHOUT_LOG_FLUSH)
        finally:
            os.close(descriptor)
        _run("umount", str(self.mount_point))
        self.mount()
        self.power_cuts += 1


@contextmanager
def loop_disk(*, size_mib: int = 256) -> Iterator[LoopDisk]:
    """A mounted disk that is gone afterwards, whatever happens."""
    with _folder() as folder:
        disk = LoopDisk(folder)
        disk.make(size_mib)
        yield disk


@contextmanager
def memory_disk(*, size_mib: int) -> Iterator[Path]:
    """A mounted tmpfs: small, and it knows no fsync."""
    with _folder() as folder:
        mount_point = folder / "mount"
        mount_point.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "raftmq-test", str(mount_point))
        yield mount_point


@contextmanager
def _folder() -> Iterator[Path]:
    remove_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    try:
        yield folder
    finally:
        _remove(folder)


def remove_leftovers() -> None:
    """Unmount and remove what test processes left behind that are gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(FileNotFoundError):  # another run may be doing the same
            if _is_orphan(folder):
                _remove(folder)


def _is_orphan(folder: Path) -> bool:
    owner = folder.name.removeprefix(PREFIX).partition("-")[0]
    is_ours = folder.stat().st_uid == os.geteuid()
    return is_ours and owner.isdigit() and not Path("/proc", owner).exists()


def _remove(folder: Path) -> None:
    gc.collect()
    for mount_point in mounts_below(folder):
        try:
            _run("umount", str(mount_point))
        except DiskError:  # somebody still holds a file: gone as soon as that one is
            _run("umount", "--lazy", str(mount_point))
    shutil.rmtree(folder)


def mounts_below(folder: Path) -> list[Path]:
    mounts = [Path(line.split()[1]) for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [mount for mount in mounts if mount.is_relative_to(folder)]


def wait_unused(mount_point: Path) -> list[str]:
    """Who still uses this file system although the dying were given some time; see `users_of`.

    A killed process closes its files one by one, and our own worker threads drop their last job
    a moment after its result is there.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        gc.collect()  # our own descriptors close with their objects
        users = users_of(mount_point)
        if not users or time.monotonic() > deadline:
            return users
        time.sleep(0.005)


def users_of(mount_point: Path) -> list[str]:
    """Who has a file of this file system open, or works in it: `<pid> <path>`."""
    return [
        f"{process.name} {target}"
        for process in Path("/proc").iterdir()
        if process.name.isdigit()
        for target in _held_by(process)
        if target.is_relative_to(mount_point)
    ]


def _held_by(process: Path) -> Iterator[Path]:
    try:
        links = [process / "cwd", *(process / "fd").iterdir()]
    except OSError:  # it ended meanwhile
        return
    for link in links:
        try:
            yield link.readlink()
        except OSError:
            continue


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except OSError as error:
        raise DiskError(f"{command[0]}: {error.strerror}") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines() or [f"exit status {error.returncode}"]
        raise DiskError(f"{command[0]}: {said[0].removeprefix(f'{command[0]}: ')}") from error
