"""Files of 16-byte entries: offset index, time index and leader epochs share this format.

    key i64 | value u32 | CRC-32C of the 12 bytes before u32

Owns reading, appending and cutting such a file; knows nothing of what keys mean. The searches
need keys (or values) that never fall. Entries wait in memory until `write_pending`. A torn last
entry does not count; a damaged one raises DamagedEntries, and whoever asked walks the log instead
(docs/decisions/0007).
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from raftmq.disk.checkpoint import replace_file
from raftmq.disk.files import WouldBlock
from raftmq.partition.epochs import UNDEFINED_EPOCH, EpochStart, LeaderEpochs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from raftmq.disk.files import File, Files

    ReadBytes = Callable[[File, int, int], bytes]


_BODY = Struct(">qI")
ENTRY_SIZE = 16
CACHED_BYTES_MAX = 64 << 10  # about 1500 batch headers, a few milliseconds


class DamagedEntries(Exception):
    """An entry fails its CRC, or keys fall."""


class IndexEntry(NamedTuple):
    key: int
    value: int


def read_waiting(file: File, position: int, length: int) -> bytes:
    """Read, and wait for the disk if need be."""
    return file.read(position, length)


def cached_reader(bytes_max: int = CACHED_BYTES_MAX) -> ReadBytes:
    """Reads from the page cache only, and not much: raises WouldBlock where it is not enough.

    So that finding something on the event loop is quick or is done elsewhere.
    """
    left = bytes_max

    def read(file: File, position: int, length: int) -> bytes:
        nonlocal left
        left -= length
        if left < 0:
            raise WouldBlock
        return file.read_now(position, length)

    return read


def pack_entry(key: int, value: int) -> bytes:
    body = _BODY.pack(key, value)
    return body + crc32c(body).to_bytes(4, "big")


class EntryFile:
    """One such file, opened when first touched."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files, self.path = files, path
        self._file: File | None = None
        written = files.size(path) // ENTRY_SIZE if files.exists(path) else 0
        # One tuple, replaced at once, so that a reader in a worker thread sees both or neither.
        self._state: tuple[int, list[IndexEntry]] = (written, [])

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self._files.open(self.path, create=True)
        return self._file

    def release(self) -> None:
        """Drop the descriptor; the next use opens it again."""
        self._file = None

    @property
    def count(self) -> int:
        written, pending = self._state
        return written + len(pending)

    @property
    def pending_count(self) -> int:
        return len(self._state[1])

    def append(self, key: int, value: int) -> None:
        self._state[1].append(IndexEntry(key, value))

    def write_pending(self) -> None:
        written, pending = self._state
        if pending:
            self.file.write(
                written * ENTRY_SIZE, [b"".join(pack_entry(*entry) for entry in pending)]
            )
            self._state = (written + len(pending), [])

    def truncate(self, count: int) -> None:
        """Keep the first `count` entries; the file follows at once, durable after a sync."""
        written, pending = self._state
        if count < written or self.file.size() > written * ENTRY_SIZE:
            self.file.truncate(min(count, written) * ENTRY_SIZE)
        self._state = (min(count, written), pending[: max(0, count - written)])

    def at(self, index: int, read: ReadBytes = read_waiting) -> IndexEntry:
        """Entry number `index`.

        Raises:
            DamagedEntries: it fails its CRC, or the file ends before it.
        """
        written, pending = self._state
        if index - written >= len(pending):  # cut since the caller counted
            raise DamagedEntries(f"entry {index} of {self.path}")
        if index >= written:
            return pending[index - written]
        data = read(self.file, index * ENTRY_SIZE, ENTRY_SIZE)
        if len(data) < ENTRY_SIZE or crc32c(data[:12]) != int.from_bytes(data[12:], "big"):
            raise DamagedEntries(f"entry {index} of {self.path}")
        return IndexEntry(*_BODY.unpack_from(data))

    def last(self, read: ReadBytes = read_waiting) -> IndexEntry | None:
        return self.at(self.count - 1, read) if self.count else None

    def all(self) -> list[IndexEntry]:
        return [self.at(index) for index in range(self.count)]

    def count_up_to(self, key: int, read: ReadBytes = read_waiting) -> int:
        """How many entries have a key <= `key`."""
        return self._count(lambda entry: entry.key <= key, read)

    def count_up_to_value(self, value: int, read: ReadBytes = read_waiting) -> int:
        """How many entries have a value <= `value`; only where values never fall either."""
        return self._count(lambda entry: entry.value <= value, read)

    def _count(self, belongs: Callable[[IndexEntry], bool], read: ReadBytes) -> int:
        """Entries that belong come first: search the last one by halves."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if belongs(self.at(middle, read)):
                low = middle + 1
            else:
                high = middle
        return low


# -- Epoch file -----------------------------------------------------------------------------------
# The leader epochs of a log on disk: `leader-epochs`, a history that is only ever appended to.
#
# Owns the file and its meaning: entry (start offset, epoch) for an assignment, and for a cut
# (offset, epoch then latest). Never rewritten in place, so that no crash can leave half a table;
# replaced whole, atomically, when the history has grown much longer than the table.


EPOCH_FILE = "leader-epochs"
VOID_ENTRIES_MAX = 1024  # entries that later ones made void
_UNDEFINED = 0xFFFF_FFFF


class EpochFile:
    """Appends wait in memory until `write_pending`, and are durable after a sync of `file`."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files, self._path = files, folder / EPOCH_FILE
        self._entries = EntryFile(files, self._path)

    @property
    def file(self) -> File:
        return self._entries.file

    def exists(self) -> bool:
        return self._files.exists(self._path)

    def append(self, leader_epoch: int, start_offset: int) -> None:
        self._entries.append(start_offset, _value(leader_epoch))

    def write_pending(self) -> None:
        self._entries.write_pending()

    def release(self) -> None:
        self._entries.release()

    def read(self) -> LeaderEpochs:
        """The table. Raises DamagedEntries; the table can then be had by walking the log."""
        return LeaderEpochs.replay(
            EpochStart(UNDEFINED_EPOCH if value == _UNDEFINED else value, start_offset)
            for start_offset, value in self._entries.all()
        )

    def update(self, epochs: LeaderEpochs) -> None:
        """Make the file lead to `epochs`."""
        try:
            if self.read().entries != epochs.entries:
                self.replace(epochs)
        except DamagedEntries:
            self.replace(epochs)

    def compact(self, epochs: LeaderEpochs) -> None:
        """Shorten a history that holds much more than `epochs`, which it leads to."""
        if self._entries.count > len(epochs.entries) + VOID_ENTRIES_MAX:
            self.replace(epochs)

    def replace(self, epochs: LeaderEpochs) -> None:
        """Put the table in place of its history, or of a damaged file. Waits for the disk."""
        entries = [pack_entry(start, epoch) for epoch, start in epochs.entries]
        replace_file(self._files, self._path, b"".join(entries))
        self._entries = EntryFile(self._files, self._path)


def _value(leader_epoch: int) -> int:
    return _UNDEFINED if leader_epoch == UNDEFINED_EPOCH else leader_epoch
