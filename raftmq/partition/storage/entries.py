"""File format of the offset index, time index and leader epoch file: 16-byte entries with CRC.

    key i64 | value u32 | CRC-32C of the 12 bytes before u32

Owns reading, appending, binary search and cutting of such a file, and the epoch file. Keys (or
values, if searched) never fall. Entries wait in memory until `write_pending`. A torn last entry
does not count; a damaged one raises DamagedEntries, and the caller walks the log instead
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
# Bytes that one lookup may read on the event loop: about 1500 batch headers, a few milliseconds.
# More would delay all other requests; beyond it a worker thread does the lookup.
CACHED_BYTES_MAX = 64 << 10


class DamagedEntries(Exception):
    """An entry fails its CRC, or keys fall."""


class IndexEntry(NamedTuple):
    key: int
    value: int


def read_waiting(file: File, position: int, length: int) -> bytes:
    """Read, and wait for the disk if need be."""
    return file.read(position, length)


def cached_reader() -> ReadBytes:
    """A `ReadBytes` for the event loop: reads from the page cache only, CACHED_BYTES_MAX in all,
    and raises WouldBlock beyond that."""
    left = CACHED_BYTES_MAX

    def read(file: File, position: int, length: int) -> bytes:
        nonlocal left
        left -= length
        if left < 0:  # the budget of the event loop is used up
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
        # (entries in the file, pending). One tuple, replaced at once, so that a reader in a worker
        # thread never sees the one without the other.
        self._state: tuple[int, list[IndexEntry]] = (written, [])

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self._files.open(self.path, create=True)
        return self._file

    def release(self) -> None:
        """Close the file; the next use opens it again."""
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
        if pending:  # without any, the file is not opened
            self.file.write(
                written * ENTRY_SIZE, [b"".join(pack_entry(*entry) for entry in pending)]
            )
            self._state = (written + len(pending), [])

    def truncate(self, count: int) -> None:
        """Keep the first `count` entries; the file follows at once, durable after a sync."""
        written, pending = self._state
        # Also bytes that a crash left behind the counted entries.
        if count < written or self.file.size() > written * ENTRY_SIZE:
            self.file.truncate(min(count, written) * ENTRY_SIZE)
        self._state = (min(count, written), pending[: max(0, count - written)])

    def at(self, index: int, read: ReadBytes = read_waiting) -> IndexEntry:
        """Entry number `index`.

        Raises:
            DamagedEntries: it fails its CRC, or the file ends before it.
        """
        written, pending = self._state
        if index - written >= len(pending):  # truncated by the loop since this thread counted
            raise DamagedEntries(f"entry {index} of {self.path}")
        if index >= written:  # still in memory
            return pending[index - written]
        data = read(self.file, index * ENTRY_SIZE, ENTRY_SIZE)
        # Rot, or a torn write.
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
        """Binary search: entries that belong come first, as keys and values never fall."""
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
# Owns the file and its meaning: entry (start offset, epoch) for a new epoch, and for a truncation
# (offset, epoch then latest). Never rewritten in place, so that no crash can leave half a table;
# replaced whole, atomically, when the history has grown much longer than the table.


EPOCH_FILE = "leader-epochs"
VOID_ENTRIES_MAX = 1024  # entries that later ones made void: 16 KiB, before the file is replaced
_UNDEFINED = 0xFFFF_FFFF  # UNDEFINED_EPOCH (-1) as the u32 of an entry


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
        """The table. Raises DamagedEntries: it can then be read from the batches of the log."""
        return LeaderEpochs.replay(
            EpochStart(UNDEFINED_EPOCH if value == _UNDEFINED else value, start_offset)
            for start_offset, value in self._entries.all()
        )

    def update(self, epochs: LeaderEpochs) -> None:
        """Make the file say `epochs`; a write only if it says something else."""
        try:
            if self.read().entries != epochs.entries:
                self.replace(epochs)
        except DamagedEntries:  # `epochs` was read from the batches
            self.replace(epochs)

    def compact(self, epochs: LeaderEpochs) -> None:
        """Shorten a history that is much longer than `epochs`, the table that results from it."""
        if self._entries.count > len(epochs.entries) + VOID_ENTRIES_MAX:
            self.replace(epochs)

    def replace(self, epochs: LeaderEpochs) -> None:
        """Put the table in place of its history, or of a damaged file. Waits for the disk."""
        entries = [pack_entry(start, epoch) for epoch, start in epochs.entries]
        replace_file(self._files, self._path, b"".join(entries))
        self._entries = EntryFile(self._files, self._path)


def _value(leader_epoch: int) -> int:
    return _UNDEFINED if leader_epoch == UNDEFINED_EPOCH else leader_epoch
