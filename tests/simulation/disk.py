"""The simulated disk: a file system in memory that crashes on demand, the fake of OsFiles.

Owns paths, errors, the count and trace of operations, crashes and injected failures; what a
crash leaves behind is decided in `disk_state.py`. Passes the same conformance suite as OsFiles
(tests/unit/disk/test_files.py). All chance comes from the Random handed in.

A crash: set `interrupt` to `crash_at(n, moment)`; the n-th changing operation raises PowerCut,
and from then on everything of this incarnation does. `after_crash` is the machine's next start.
`photograph` gives the same without ending the run.
"""

from __future__ import annotations

import errno
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet, WeakValueDictionary

from raftmq.errors import DirectoryInUse
from tests.simulation.disk_faults import Fault, PowerCut, os_error, translated
from tests.simulation.disk_file import SimulatedFile
from tests.simulation.disk_state import (
    DirectoryState,
    FileState,
    Link,
    Rename,
    Unlink,
    resize,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from raftmq.disk.files import File
    from tests.simulation.disk_faults import Interrupt, Moment
    from tests.simulation.disk_state import Node

# What OsFiles calls an operation in its errors, where that is not our name.
_SYSTEM_CALLS = {
    "create": "open",
    "sync": "fdatasync",
    "sync_directory": "fsync",
    "sync_file_system": "syncfs",
    "write_back": "sync_file_range",
}


class SimulatedFiles:
    """The Files of one incarnation of a simulated machine.

    Attributes:
        interrupt: called before, inside and after every changing operation; may raise PowerCut.
        has_failed: whether a failure was injected and has struck.
        cold: while true, `read_now` finds nothing in the cache.
        trace: one line for every changing operation, numbered from 1.
    """

    def __init__(
        self,
        random: Random,
        *,
        interrupt: Interrupt | None = None,
        mount: Path | None = None,
        boot: int = 1,
        root: DirectoryState | None = None,
    ) -> None:
        self.random, self.interrupt, self.mount = random, interrupt, mount
        self.trace: list[str] = []
        self.cold = self.has_failed = False
        self._dead = False
        self._boot = boot
        self._root = root or DirectoryState()
        self._faults: list[Fault] = []
        self._locks: WeakValueDictionary[Path, SimulatedFile] = WeakValueDictionary()
        self._open: WeakSet[SimulatedFile] = WeakSet()

    # Files

    def open(self, path: Path, *, create: bool = False) -> SimulatedFile:
        self.check_alive()
        with translated("open", path):
            parent = self._directory(path.parent)
            if path.name not in parent.names and create:
                self.perform("create", path, lambda: parent.change(Link(path.name, FileState())))
            else:
                self.maybe_fail("open", path)
            file = SimulatedFile(self, path, self._file(path))
            self._open.add(file)
            return file

    def exists(self, path: Path) -> bool:
        self.check_alive()
        return self._find(path) is not None

    def size(self, path: Path) -> int:
        self.check_alive()
        with translated("stat", path):
            return len(self._file(path).cached)

    def names(self, directory: Path) -> list[str]:
        self.check_alive()
        with translated("list", directory):
            return sorted(self._directory(directory).names) if self.exists(directory) else []

    def make_directory(self, path: Path) -> None:
        if not isinstance(self._find(path), DirectoryState):
            self.make_directory(path.parent)
            self._make_one_directory(path)
            self.sync_directory(path.parent)

    def _make_one_directory(self, path: Path) -> None:
        with translated("mkdir", path):
            if self.exists(path):
                raise os_error(errno.EEXIST)
            parent, link = self._directory(path.parent), Link(path.name, DirectoryState())
        self.perform("mkdir", path, lambda: parent.change(link))

    def rename(self, source: Path, target: Path) -> None:
        """Within one directory: across two, no promise about crashes would be worth much."""
        if source.parent != target.parent:
            raise NotImplementedError(f"rename {source} to another directory, {target}")
        with translated("rename", source):
            self._require(source)
            parent, change = self._directory(source.parent), Rename(source.name, target.name)
        self.perform("rename", source, lambda: parent.change(change), detail=f" to {target.name}")

    def remove(self, path: Path) -> None:
        self.check_alive()
        with translated("remove", path):
            if self.exists(path):
                self._file(path)
                parent = self._directory(path.parent)
                self.perform("remove", path, lambda: parent.change(Unlink(path.name)))

    def remove_directory(self, path: Path) -> None:
        self.check_alive()
        with translated("rmdir", path):
            if not self.exists(path):
                return
            if self._directory(path).names:
                raise os_error(errno.ENOTEMPTY)
            parent = self._directory(path.parent)
        self.perform("rmdir", path, lambda: parent.change(Unlink(path.name)))

    def sync_directory(self, path: Path) -> None:
        with translated("fsync", path):
            directory = self._directory(path)
        self.perform("sync_directory", path, directory.sync)

    def begin_sync(self, files: Sequence[File]) -> None:
        """Writeback without a sync is drawn by chance when a crash comes."""

    def sync_file_system(self, path: Path) -> None:
        with translated("syncfs", path):
            self._require(path)
        self.perform(
            "sync_file_system", path, self._root.sync_all, broken=self._root.lose_dirty_unnoticed
        )

    def owns_file_system(self, path: Path) -> bool:
        return path == self.mount

    def lock(self, path: Path) -> object:
        file = self.open(path, create=True)
        if path in self._locks:
            raise DirectoryInUse(f"{path.parent} is in use by another process")
        self._locks[path] = file
        return file

    def boot_id(self) -> str:
        return f"boot-{self._boot}"

    # Crashes and failures

    @property
    def count(self) -> int:
        """Changing operations so far, the running one included."""
        return len(self.trace)

    def crash(self) -> None:
        self._dead = True

    def after_crash(self, *, power_lost: bool, reorder: bool = False) -> SimulatedFiles:
        """The next incarnation. `power_lost=False` is kill -9: the kernel's cache lives on."""
        self.crash()
        return self.photograph(self.random, power_lost=power_lost, reorder=reorder)

    def photograph(
        self, random: Random, *, power_lost: bool, reorder: bool = False
    ) -> SimulatedFiles:
        """The incarnation that a crash at this moment would lead to; this one goes on."""
        if power_lost:
            root = self._root.after_power_cut(random, reorder=reorder)
        else:
            root = deepcopy(self._root)
            root.forget_errors()
        boot = self._boot + power_lost
        return SimulatedFiles(random, mount=self.mount, boot=boot, root=root)

    def fail(self, operation: str, pattern: str, *, nth: int = 1, error: int = errno.EIO) -> None:
        """Let the nth `operation` from now on paths that match fail once, with this errno.

        Operations: open, create, read, write (some bytes land), truncate, sync (the dirty bytes
        are lost, although the cache still shows them), write_back (the same), rename, remove,
        mkdir, sync_directory, sync_file_system.
        """
        self._faults.append(Fault(operation, pattern, nth=nth, error=error))

    def flip_bit(self, path: Path, position: int, bit: int) -> None:
        """Rot that no checksum of the device notices. Sync first, or later syncs may heal it."""
        state = self._file(path)
        for content in (state.cached, state.durable):
            if position < len(content):
                content[position] ^= 1 << bit

    def cut(self, path: Path, length: int) -> None:
        """The bytes from `length` on are gone, as after a clumsy restore. Sync first."""
        state = self._file(path)
        for content in (state.cached, state.durable):
            resize(content, min(length, len(content)))

    def paths(self, directory: Path) -> list[Path]:
        """Every file below `directory`, sorted."""
        node = self._find(directory)
        if isinstance(node, FileState):
            return [directory]
        return [path for name in self.names(directory) for path in self.paths(directory / name)]

    def removed_open(self) -> list[Path]:
        """Deleted files that are still open, and so keep their space on the disk, by their last
        names; once for each open File. Sorted.
        """
        named = {id(self._find(path)) for path in self.paths(Path("/"))}
        return sorted(file.path for file in self._open if not file.is_any_of(named))

    # For SimulatedFile

    def check_alive(self) -> None:
        if self._dead:
            raise PowerCut("used after the crash")

    def maybe_fail(self, operation: str, path: Path) -> None:
        for fault in list(self._faults):
            if fault.strikes(operation, path):
                self._faults.remove(fault)
                self.has_failed = True
                raise fault.error()

    def perform(
        self,
        operation: str,
        path: Path,
        *steps: Callable[[], object],
        broken: Callable[[], object] | None = None,
        detail: str = "",
    ) -> None:
        """Count, trace and do one operation; `broken` is what a failure leaves behind."""
        self.check_alive()
        number = self.count + 1
        self.trace.append(f"{number} {operation} {path}{detail}")
        self._reach(number, "before")
        with translated(_SYSTEM_CALLS.get(operation, operation), path):
            try:
                self.maybe_fail(operation, path)
            except OSError:
                if broken:
                    broken()
                raise
        for step in steps:
            if step is not steps[0]:
                self._reach(number, "torn")
            step()
        self._reach(number, "after")

    def _reach(self, number: int, moment: Moment) -> None:
        if not self.interrupt:
            return
        try:
            self.interrupt(number, moment)
        except PowerCut:
            self.crash()
            raise

    def _find(self, path: Path) -> Node | None:
        node: Node | None = self._root
        for name in path.parts[bool(path.anchor) :]:
            node = node.names.get(name) if isinstance(node, DirectoryState) else None
        return node

    def _require(self, path: Path) -> Node:
        node = self._find(path)
        if node is None:
            raise os_error(errno.ENOENT)
        return node

    def _file(self, path: Path) -> FileState:
        node = self._require(path)
        if not isinstance(node, FileState):
            raise os_error(errno.EISDIR)
        return node

    def _directory(self, path: Path) -> DirectoryState:
        node = self._require(path)
        if not isinstance(node, DirectoryState):
            raise os_error(errno.ENOTDIR)
        return node
