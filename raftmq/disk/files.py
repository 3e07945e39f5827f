"""File system calls: read, write, fdatasync, syncfs, rename, lock; OSError becomes StorageError.

Owns the translation of OSError into StorageError. Decides nothing. The fake in
`tests/simulation/disk.py` passes the same conformance suite (tests/unit/disk/test_files.py)
and adds what a kernel does not do on demand: crashes that lose or tear what was not synced.

Promises: `write` writes everything or raises; what is not synced may be lost by a power cut,
in any order across files; a created, renamed or removed name is lost unless its directory was
synced.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import resource
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from raftmq.disk.closer import CLOSER
from raftmq.errors import DirectoryInUse, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from raftmq.wire.batch.header import Buffer

IOV_MAX = 1024  # Linux refuses more buffers in one pwritev (UIO_MAXIOV)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LIBC = ctypes.CDLL(None, use_errno=True)  # for calls that `os` does not have
_LIBC.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h: begin write-back, without waiting
_SYNC_FILE_RANGE_WRITE_AND_WAIT = 1 | 2 | 4  # also for what was on its way before
_NOT_SUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.ESPIPE)


class WouldBlock(Exception):
    """The bytes are not in the page cache: read them again from a worker thread."""


class File(Protocol):
    """An open file. Positions and lengths are bytes."""

    path: Path

    def size(self) -> int: ...

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""

    def read_now(self, position: int, length: int) -> bytes:
        """Like `read`, but raises WouldBlock instead of waiting for the disk."""

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """All of `buffers`, one after the other. After an error any prefix may be there."""

    def truncate(self, length: int) -> None: ...

    def sync(self) -> None:
        """Data and size are durable when this returns (fdatasync)."""

    def write_back(self, position: int, length: int) -> None:
        """Let the device write these bytes, and wait for it. They are not durable before `sync`.
        A failure has to be taken for one of `sync`: the next `sync` need not report it."""

    def evict(self) -> None:
        """Drop the file's pages from the page cache, so that the next read is from the disk."""

    def fileno(self) -> int:
        """For `sendfile`. The descriptor lives as long as this object."""


class Files(Protocol):
    """A file system. Every method raises StorageError with the operation and the path."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing; `create` makes an empty file where there is none."""

    def exists(self, path: Path) -> bool: ...

    def size(self, path: Path) -> int: ...

    def names(self, directory: Path) -> list[str]:
        """Sorted names in `directory`; empty where it does not exist."""

    def make_directory(self, path: Path) -> None:
        """With its parents; each name that this call makes is durable when it returns."""

    def rename(self, source: Path, target: Path) -> None: ...

    def remove(self, path: Path) -> None:
        """A missing file is no error. Files that are open stay readable."""

    def remove_directory(self, path: Path) -> None:
        """An empty one; a missing one is no error."""

    def sync_directory(self, path: Path) -> None: ...

    def begin_sync(self, files: Sequence[File]) -> None:
        """A hint: begin write-back of all these files. Ignores errors: the syncs report them."""

    def sync_file_system(self, path: Path) -> None:
        """Everything written to the file system of `path` is durable when this returns."""

    def owns_file_system(self, path: Path) -> bool:
        """Whether `path` is a mount point: then `sync_file_system` syncs our own files only, and
        reports its errors."""

    def lock(self, path: Path) -> object:
        """Lock `path` exclusively until the returned object is dropped. DirectoryInUse if another
        process has it."""

    def boot_id(self) -> str:
        """Another one after each boot of the machine: the page cache was lost in between."""


class FileSlice(NamedTuple):
    """Bytes in a file, not read yet: what `sendfile` takes."""

    file: File
    position: int
    length: int

    def read(self) -> bytes:
        return self.file.read(self.position, self.length)


@contextmanager
def _translated(operation: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _translation(operation, path, error) from error


def _translation(operation: str, path: Path, error: OSError) -> StorageError:
    return StorageError(f"{operation} {path}: {error.strerror or error}")


class OsFile:
    """A File of the operating system. The descriptor closes when the last reference goes: slices
    of it may be on their way to a socket when its log has long been deleted.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor

    def __del__(self) -> None:
        CLOSER.close(self._descriptor)

    def size(self) -> int:
        with _translated("stat", self.path):
            return os.fstat(self._descriptor).st_size

    def read(self, position: int, length: int) -> bytes:
        with _translated("read", self.path):
            data = os.pread(self._descriptor, length, position)
            while len(data) < length:  # a signal or a large read may return fewer bytes
                more = os.pread(self._descriptor, length - len(data), position + len(data))
                if not more:
                    break
                data += more
            return data

    def read_now(self, position: int, length: int) -> bytes:
        buffer = bytearray(length)
        try:
            got = os.preadv(self._descriptor, [buffer], position, os.RWF_NOWAIT)
        except OSError as error:  # EAGAIN: not cached; EOPNOTSUPP: the file system has no NOWAIT
            raise WouldBlock from error
        if got < length and position + got < self.size():
            raise WouldBlock  # only the first pages are cached
        return bytes(memoryview(buffer)[:got])

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        try:
            for first in range(0, len(buffers), IOV_MAX):
                position += self._write_some(position, buffers[first : first + IOV_MAX])
        except OSError as error:
            raise _translation("write", self.path, error) from error

    def _write_some(self, position: int, buffers: Sequence[Buffer]) -> int:
        length = sum(map(len, buffers))
        done = os.pwritev(self._descriptor, buffers, position)
        if done < length:  # a full disk, or a signal
            self._write_rest(position, memoryview(b"".join(buffers)), done)
        return length

    def _write_rest(self, position: int, data: memoryview, done: int) -> None:
        """A short write usually means a full disk: try again, so that the kernel returns why."""
        while done < len(data):
            done += os.pwrite(self._descriptor, data[done:], position + done)

    def truncate(self, length: int) -> None:
        with _translated("truncate", self.path):
            os.ftruncate(self._descriptor, length)

    def sync(self) -> None:
        with _translated("fdatasync", self.path):
            os.fdatasync(self._descriptor)

    def write_back(self, position: int, length: int) -> None:
        with _translated("sync_file_range", self.path):
            try:
                _sync_file_range(
                    self._descriptor, position, length, _SYNC_FILE_RANGE_WRITE_AND_WAIT
                )
            except OSError as error:
                # Not every kernel and file system has it: then the sync does all of the work.
                if error.errno not in _NOT_SUPPORTED:
                    raise

    def evict(self) -> None:
        with _translated("fadvise", self.path):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def fileno(self) -> int:
        return self._descriptor


class OsFiles:
    """The Files of this machine; with `read_only` no call changes anything."""

    def __init__(self, *, read_only: bool = False) -> None:
        # Verification opens what it finds: without O_NONBLOCK a named pipe would block for ever.
        self._flags = os.O_CLOEXEC | (os.O_RDONLY | os.O_NONBLOCK if read_only else os.O_RDWR)
        self._may_create = not read_only
        if not read_only:  # a read-only tool removes nothing, so it needs no thread
            CLOSER.start()
        # Held open: syncfs reports a failed write-back only to descriptors opened before it.
        self._file_systems: dict[Path, File] = {}

    def open(self, path: Path, *, create: bool = False) -> File:
        flags = self._flags | (os.O_CREAT if create and self._may_create else 0)
        with _translated("open", path):
            return OsFile(path, os.open(path, flags, 0o644))

    def exists(self, path: Path) -> bool:
        with _translated("stat", path):
            return path.exists()

    def size(self, path: Path) -> int:
        with _translated("stat", path):
            return path.stat().st_size

    def names(self, directory: Path) -> list[str]:
        with _translated("list", directory):
            return sorted(os.listdir(directory)) if directory.exists() else []  # noqa: PTH208

    def make_directory(self, path: Path) -> None:
        if path.is_dir():  # ends the recursion: its name was made durable before
            return
        self.make_directory(path.parent)
        with _translated("mkdir", path):
            path.mkdir(exist_ok=True)
        self.sync_directory(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        with _translated("rename", source):
            source.replace(target)

    def remove(self, path: Path) -> None:
        with _translated("remove", path):
            path.unlink(missing_ok=True)

    def remove_directory(self, path: Path) -> None:
        with _translated("rmdir", path):
            if path.exists():
                path.rmdir()

    def sync_directory(self, path: Path) -> None:
        with _translated("fsync", path), _opened(path) as descriptor:
            os.fsync(descriptor)

    def begin_sync(self, files: Sequence[File]) -> None:
        """With all write-backs started, one commit of the file system's journal covers many."""
        for file in files:
            _LIBC.sync_file_range(file.fileno(), 0, 0, _SYNC_FILE_RANGE_WRITE)

    def sync_file_system(self, path: Path) -> None:
        with _translated("syncfs", path):
            _syncfs(self._file_system_of(path).fileno())

    def _file_system_of(self, path: Path) -> File:
        if path not in self._file_systems:
            self._file_systems[path] = OsFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        return self._file_systems[path]

    def owns_file_system(self, path: Path) -> bool:
        # Else syncfs would sync the files of others, too, or hide errors.
        if not (_syncfs_reports_errors() and path.is_mount()):
            return False
        with _translated("open", path):
            return bool(self._file_system_of(path))

    def lock(self, path: Path) -> object:
        file = self.open(path, create=True)
        # NFS emulates flock by byte-range locks: an exclusive one needs a file open for writing.
        kind = fcntl.LOCK_EX if self._may_create else fcntl.LOCK_SH
        try:
            with _translated("lock", path):
                fcntl.flock(file.fileno(), kind | fcntl.LOCK_NB)
        except StorageError as error:
            del file  # closes it: else it would be open for as long as the error is kept
            if not isinstance(error.__cause__, BlockingIOError):  # not held, but a disk error
                raise
            raise DirectoryInUse(
                f"{path.parent} is in use by another process; stop it, or choose another directory"
            ) from error
        return file

    def boot_id(self) -> str:
        with _translated("read", _BOOT_ID):
            return _BOOT_ID.read_text().strip()


def allow_many_files() -> int:
    """Raise the limit of descriptors to the hard limit: a log keeps one open, and the default soft
    limit (1024) is for programs that use select().

    Returns how many this process may have.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _syncfs(descriptor: int) -> None:
    if _LIBC.syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _sync_file_range(descriptor: int, position: int, length: int, flags: int) -> None:
    # A signal may end the wait, which Python's own calls would begin again.
    while _LIBC.sync_file_range(descriptor, position, length, flags) != 0:
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def _syncfs_reports_errors() -> bool:
    """Before Linux 5.8 syncfs returned 0 even when writing back had failed."""
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return release is not None and (int(release[1]), int(release[2])) >= (5, 8)
