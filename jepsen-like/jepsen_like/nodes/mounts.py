"""Unmounts a file system in every mount namespace, and waits until its device is free.

A process that gets mounts of its own keeps copies of all that were there, and with them the file
system lives on: mounted again, the very same one would be found, page cache and all, and a power
cut would have lost nothing.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

PATIENCE_SECONDS = 5.0  # for other processes to end or exec, which takes milliseconds
_LOOK_SECONDS = 0.002  # between checks
_PROC = Path("/proc")


class DiskError(Exception):
    """A command that makes, mounts or stops a disk failed: what it said."""


def run(*command: str) -> None:
    """Raises DiskError."""
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except OSError as error:
        raise DiskError(f"{command[0]}: {error.strerror}") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines() or [f"exit status {error.returncode}"]
        raise DiskError(f"{command[0]}: {said[0].removeprefix(f'{command[0]}: ')}") from error


def mounts_below(folder: Path) -> list[Path]:
    return [path for path in map(Path, _sources()) if path.is_relative_to(folder)]


def _sources(process: str = "self") -> dict[str, str]:
    """What is mounted where, as that process sees it: sources by mount points."""
    lines = (_PROC / process / "mounts").read_text().splitlines()
    return {where: source for source, where, *_ in map(str.split, lines)}


def unmount_everywhere(mount_point: Path) -> None:
    """Until its device is free.

    Raises:
        DiskError: a process still holds it.
    """
    device = Path("/sys/block", Path(_sources()[str(mount_point)]).name, "loop/backing_file")
    image = device.read_text()
    deadline = time.monotonic() + PATIENCE_SECONDS
    _unmount(mount_point, deadline)
    while _is_held(device, image):
        _unmount_copies(mount_point)
        if time.monotonic() > deadline:
            raise DiskError(f"umount: {mount_point} has ended for us, but not for all others")
        time.sleep(_LOOK_SECONDS)


def _unmount(mount_point: Path, deadline: float) -> None:
    """A process that is just being started holds all our descriptors, until it is another."""
    while True:
        try:
            return run("umount", str(mount_point))
        except DiskError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_LOOK_SECONDS)


def _is_held(device: Path, image: str) -> bool:
    try:
        return device.read_text() == image
    except OSError:
        return False


def _unmount_copies(mount_point: Path) -> None:
    for process in _others():
        try:
            if str(mount_point) in _sources(process):
                enter = ("nsenter", f"--mount=/proc/{process}/ns/mnt")
                run(*enter, "umount", "--lazy", str(mount_point))
        except (OSError, DiskError):  # it ended meanwhile
            continue


def _others() -> list[str]:
    """One process of each mount namespace but ours."""
    found: dict[Path, str] = {}
    for process in _PROC.iterdir():
        if process.name.isdigit():
            try:
                found.setdefault((process / "ns/mnt").readlink(), process.name)
            except OSError:
                continue
    found.pop(Path("/proc/self/ns/mnt").readlink(), None)
    return list(found.values())
