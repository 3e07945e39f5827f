"""Loop-mounted disks: ext4 images that can lose power, stall and fill up; and tmpfs.

Owns mounting and cleaning up. A power cut is the kernel's own: EXT4_IOC_SHUTDOWN without a log
flush stops the file system at once, and after unmounting, only what was synced is there.

Everything lies in one temporary directory per owner, named after the process that owns it, so that
what a killed run left mounted is removed by the next one.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import shutil
import struct
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from jepsen_like.nodes.mounts import DiskError, mounts_below, run, unmount_everywhere

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 3.0  # seconds for killed processes to close their files
_LOOK_SECONDS = 0.002  # between checks for that
PREFIX = "raftmq-powercut-"
_SHUTDOWN = 0x8004587D  # _IOR('X', 125, u32); the same number in ext4, xfs and f2fs
_WITHOUT_LOG_FLUSH = struct.pack("I", 2)
_FREEZE, _THAW = 0xC0045877, 0xC0045878  # _IOWR('X', 119 and 120, int)
_FILLER = Path("lost+found", "filler")  # outside of the directories that brokers list
_FILLER_STEP_BYTES = 64 << 20  # for the first tries; then smaller steps fill the rest
_BLOCK_BYTES = 4096


class LoopDisk:
    """An ext4 file system in a file. Made by `loop_disk`, or in a `disk_folder`.

    Thread safe: its power is not cut in the midst of filling or freeing it. `resume` takes no lock,
    as the holder of the lock may be waiting for the stalled disk.
    """

    def __init__(self, folder: Path) -> None:
        self.image, self.mount_point = folder / "disk.img", folder / "mount"
        self.power_cuts = 0
        self.is_stalled = False
        self._lock = Lock()

    def make(self, size_mib: int) -> None:
        self.mount_point.mkdir(parents=True)
        with self.image.open("wb") as image:
            image.truncate(size_mib << 20)
        # -m 0: root gets no reserve, so that a full disk is full.
        run("mkfs.ext4", "-q", "-F", "-m", "0", str(self.image))
        self.mount()

    def mount(self) -> None:
        run("mount", "-o", "loop", str(self.image), str(self.mount_point))

    def cut_power(self) -> None:
        """Lose all writes that were not synced, and mount again.

        No process may live on the disk: the ioctl races with system calls that are under way,
        and an fdatasync may then return 0 for bytes that are lost.
        """
        self.resume()
        with self._lock:
            users = wait_unused(self.mount_point)
            assert not users, f"the power cut would race with {users[:3]}"
            _control(self.mount_point, _SHUTDOWN, _WITHOUT_LOG_FLUSH)
            unmount_everywhere(self.mount_point)
            self.mount()
            self.power_cuts += 1

    def stall(self) -> None:
        """Writes and syncs wait until `resume`; reads go on."""
        if not self.is_stalled:
            _control(self.mount_point, _FREEZE)
            self.is_stalled = True

    def resume(self) -> None:
        if self.is_stalled:
            thaw(self.mount_point)
            self.is_stalled = False

    def fill(self) -> None:
        """Leave no room; a power cut changes nothing about it."""
        with self._lock:
            descriptor = os.open(self.mount_point / _FILLER, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                _allocate_all(descriptor)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            sync_path(self.mount_point / _FILLER.parent)

    def free(self) -> None:
        with self._lock:
            (self.mount_point / _FILLER).unlink(missing_ok=True)
            sync_path(self.mount_point / _FILLER.parent)


def _allocate_all(descriptor: int) -> None:
    position, step_bytes = os.fstat(descriptor).st_size, _FILLER_STEP_BYTES
    while step_bytes >= _BLOCK_BYTES:
        try:
            os.posix_fallocate(descriptor, position, step_bytes)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            step_bytes //= 2
        else:
            position += step_bytes


def sync_path(path: Path | str) -> None:
    """A file, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _control(mount_point: Path, request: int, argument: bytes = bytes(4)) -> None:
    descriptor = os.open(mount_point, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, request, argument)
    finally:
        os.close(descriptor)


def thaw(mount_point: Path) -> None:
    """Let it go on, if it is a file system that was stalled."""
    with suppress(OSError):
        _control(mount_point, _THAW)


@contextmanager
def loop_disk(*, size_mib: int = 256) -> Iterator[LoopDisk]:
    """A mounted disk that is removed afterwards in any case."""
    with disk_folder() as folder:
        disk = LoopDisk(folder)
        disk.make(size_mib)
        yield disk


@contextmanager
def memory_disk(*, size_mib: int) -> Iterator[Path]:
    """A mounted tmpfs: small, and it knows no fsync."""
    with disk_folder() as folder:
        mount_point = folder / "mount"
        mount_point.mkdir()
        run("mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "raftmq-test", str(mount_point))
        yield mount_point


@contextmanager
def disk_folder() -> Iterator[Path]:
    """An empty folder; afterwards it is removed with all mounts below."""
    remove_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    try:
        yield folder
    finally:
        remove_folder(folder)


def remove_leftovers() -> None:
    """Unmount and remove what processes that have ended left behind."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(FileNotFoundError):  # another run may be doing the same
            if _is_orphan(folder):
                remove_folder(folder)


def _is_orphan(folder: Path) -> bool:
    owner = folder.name.removeprefix(PREFIX).partition("-")[0]
    is_ours = folder.stat().st_uid == os.geteuid()
    return is_ours and owner.isdigit() and not Path("/proc", owner).exists()


def remove_folder(folder: Path) -> None:
    """With all mounts below. Raises FileNotFoundError if another process is doing the same."""
    gc.collect()
    for mount_point in mounts_below(folder):
        thaw(mount_point)  # unmounted while it is stalled, it would keep its device for ever
        try:
            run("umount", str(mount_point))
        except DiskError:
            if mount_point in mounts_below(folder):  # held by a process: gone as soon as that is
                run("umount", "--lazy", str(mount_point))
    shutil.rmtree(folder)


def wait_unused(mount_point: Path) -> list[str]:
    """Processes that still use this file system after some time to end; see `users_of`.

    A killed process closes its files one by one, and our own worker threads drop their last job
    a moment after its result is there.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        users = users_of(mount_point)
        if not users or time.monotonic() > deadline:
            return users
        gc.collect()  # our own descriptors close with their objects
        time.sleep(_LOOK_SECONDS)


def users_of(mount_point: Path) -> list[str]:
    """Processes with an open file or working directory in this file system: `<pid> <path>`."""
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
