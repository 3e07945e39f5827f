"""The Parquet files of one exported partition: names, atomic publishing, leftovers of dead exports.

Files are `topic=T/partition=P/<start>-<end>.parquet`. Owns their names, which are the only
bookkeeping, and how a file gets its name: written under a hidden one, synced, and renamed under the
folder's lock if no other file holds any of its offsets. Invariants: a file that has its name is
complete and survives a power cut; no two overlap, with any number of exports at the same time. A
hidden file that no process has locked is left over from a run that died.
"""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, TYPE_CHECKING
from uuid import uuid4

from spark_io.jobs.causes import JobError
from spark_io.ranges import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK = ".lock"
# 20 digits hold every int64, so that names sort by offset.
_NAME = re.compile(r"([0-9]{20})-([0-9]{20})\.parquet", re.ASCII)
_HIDDEN = re.compile(rf"\.{_NAME.pattern}\.[0-9a-f]{{32}}\.tmp", re.ASCII)


class PartitionFolder:
    def __init__(self, root: Path, topic: str, partition: int) -> None:
        self._topic, self._partition = topic, partition
        self.path = root / f"topic={topic}" / f"partition={partition}"

    def ranges(self) -> list[OffsetRange]:
        """The ranges of the published files, in order."""
        found = filter(None, map(_NAME.fullmatch, self._names()))
        return sorted(self._range(int(each[1]), int(each[2])) for each in found)

    def file_of(self, asked: OffsetRange) -> Path:
        return self.path / f"{asked.start:020d}-{asked.end:020d}.parquet"

    @contextmanager
    def new_file(self, asked: OffsetRange) -> Iterator[IO[bytes]]:
        """A file to be written within the block, and published when the block ends without an
        error.

        Raises:
            JobError: another export has written a part of the range meanwhile.
            OSError: of the file system.
        """
        _make_folder(self.path)
        hidden = self.path / f".{self.file_of(asked).name}.{uuid4().hex}.tmp"
        with ExitStack() as stack:
            with self._locked():
                file = stack.enter_context(hidden.open("xb"))
                stack.callback(hidden.unlink, missing_ok=True)  # as it is once it has its name
                fcntl.flock(file, fcntl.LOCK_EX)
            yield file
            file.flush()
            os.fsync(file.fileno())
            self._publish(hidden, asked)

    def remove_leftovers(self) -> int:
        """Remove files of runs that died; returns their number."""
        names = [name for name in self._names() if _HIDDEN.fullmatch(name)]
        if not names:
            return 0
        with self._locked():
            return sum(_remove_unlocked(self.path / name) for name in names)

    # -- publishing ------------------------------------------------------------------------

    def _publish(self, hidden: Path, asked: OffsetRange) -> None:
        with self._locked():
            self._check_free(asked)
            hidden.rename(self.file_of(asked))
            _sync_folder(self.path)

    def _check_free(self, asked: OffsetRange) -> None:
        """Raises JobError. A file of the same range holds the same, and may be replaced."""
        for other in self.ranges():
            if other != asked and other.start < asked.end and asked.start < other.end:
                raise JobError(
                    f"{asked}: another export has written {other} meanwhile; run again, and "
                    "what is still missing is written"
                )

    def _names(self) -> list[str]:
        return [file.name for file in self.path.iterdir()] if self.path.is_dir() else []

    def _range(self, start: int, end: int) -> OffsetRange:
        return OffsetRange(self._topic, self._partition, start, end)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """For moments only; the system releases the lock when its owner dies."""
        with (self.path / LOCK).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _remove_unlocked(hidden: Path) -> bool:
    """A live writer has locked its hidden file before it released the folder's lock."""
    with suppress(FileNotFoundError), hidden.open("rb+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        hidden.unlink()
        return True
    return False


def _make_folder(path: Path) -> None:
    """With its parents, all synced: they survive a power cut."""
    if path.is_dir():
        return
    _make_folder(path.parent)
    path.mkdir(exist_ok=True)
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
