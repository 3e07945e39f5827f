"""Files of entries with CRC: offset index, time index, aborted transactions, leader epochs.

Those of both indexes and of the leader epochs have 16 bytes:

    key i64 | value u32 | CRC-32C of the 12 bytes before u32

Owns reading, appending, binary search and cutting of such a file, and the epoch file. Keys (or
values, if searched) never fall. Entries wait in memory until `write_pending`. A torn last entry
does not count; a damaged one raises DamagedEntries, and the caller walks the log instead
(docs/decisions/0007).
"""

from __future__ import annotations

from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from raftmq.disk.checkpoint import TEMPORARY_SUFFIX, replace_file
from raftmq.disk.files import WouldBlock
from raftmq.partition.epochs import UNDEFINED_EPOCH, EpochStart, LeaderEpochs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
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


def cached_reader(bytes_max: int = CACHED_BYTES_MAX) -> ReadBytes:
    """A `ReadBytes` for the event loop: reads from the page cache only, `bytes_max` in all, and
    raises WouldBlock beyond that."""
    left = bytes_max

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


# -- Aborted transactions -------------------------------------------------------------------------
# The file of a segment's aborted transactions: `<base offset>.aborted`, 36-byte entries with CRC.
#
#     producer id i64 | first offset i64 | marker offset i64 | stable from i64 |
#     CRC-32C of the 32 bytes before u32
#
# Owns reading, appending and closing of such a file. An entry belongs to the segment that holds the
# marker; marker offsets rise. Unlike the other indexes this one is no hint: an entry that is
# missing would show a reader what was aborted. So it ends with a closing entry (producer id -1,
# count of entries, end of the segment, stable from), written when the segment is sealed or the log
# closed in order. A file without the right one is not believed, and is built again.


ABORTED_SUFFIX = ".aborted"
_ABORTED = Struct(">qqqq")
ABORTED_SIZE = 36
CLOSING = -1  # in place of a producer id
# Entries that a lookup reads at once, one page: a usual lookup is one read.
_ABORTED_BLOCK_ENTRIES = 4096 // ABORTED_SIZE
# Entries that are written at once while a file is built: 1.1 MB of memory, however many there are.
_BUILT_ENTRIES_MAX = 1 << 15


class AbortedEntry(NamedTuple):
    """One transaction that was aborted.

    Attributes:
        first_offset: of its first batch.
        marker_offset: of the marker that ended it.
        stable_from: first offset of what was still open behind the marker; if nothing was,
            `marker_offset + 1`. What is aborted later begins there or behind it.
    """

    producer_id: int
    first_offset: int
    marker_offset: int
    stable_from: int


def pack_aborted(entry: AbortedEntry) -> bytes:
    body = _ABORTED.pack(*entry)
    return body + crc32c(body).to_bytes(4, "big")


def read_aborted(data: bytes) -> AbortedEntry | None:
    """None: it is damaged, or cut short."""
    if len(data) < ABORTED_SIZE or crc32c(data[:32]) != int.from_bytes(data[32:36], "big"):
        return None
    return AbortedEntry(*_ABORTED.unpack_from(data))


class AbortedFile:
    """Of one segment. The file exists once it has an entry.

    Attributes:
        is_whole: whether it has all entries up to the log's end; only for an active segment.
    """

    def __init__(self, files: Files, log_path: Path) -> None:
        self._files, self.path = files, log_path.with_suffix(ABORTED_SUFFIX)
        self._file: File | None = None
        # As in EntryFile: (entries in the file, pending), replaced at once.
        self._state: tuple[int, list[AbortedEntry]] = (0, [])
        self._closing: AbortedEntry | None = None
        self._is_damaged = False
        self.is_whole = False

    def _opened(self, *, create: bool = False) -> File:
        file = self._file
        if file is None:
            file = self._file = self._files.open(self.path, create=create)
        return file

    def release(self) -> None:
        """Close the file; the next use opens it again."""
        self._file = None

    def files(self) -> list[File]:
        """What to sync: nothing if it has no entry."""
        return [self._opened()] if self._state[0] or self._closing else []

    # -- growing ---------------------------------------------------------------------------

    def begin(self, count: int = 0) -> None:
        """It has the `count` entries of all batches up to the log's end, and takes more."""
        self._file, self._state, self._closing = None, (count, []), None
        self._is_damaged, self.is_whole = False, True

    def void(self) -> None:
        """Nothing is known of what it has."""
        # First, so that a lookup in a thread that finds no entries finds this, too.
        self._closing, self.is_whole = None, False
        self._file, self._state = None, (0, [])

    def distrust(self) -> None:
        """An entry is damaged: build it again before the next lookup."""
        self.void()
        self._is_damaged = True

    @property
    def pending_count(self) -> int:
        return len(self._state[1])

    def append(self, entry: AbortedEntry) -> None:
        assert self.is_whole, f"{self.path} lacks entries before this one"
        self._closing = None  # its place is taken by the next entry that is written
        self._state[1].append(entry)

    def write_pending(self) -> None:
        written, pending = self._state
        if pending:  # without any, the file is not opened
            data = b"".join(map(pack_aborted, pending))
            self._opened(create=True).write(written * ABORTED_SIZE, [data])
            self._state = (written + len(pending), [])

    def close(self, end_offset: int, stable_from: int) -> None:
        """The segment, or the log, ends there: whoever opens the file knows it to be whole."""
        if not self.is_whole or self.is_closed_at(end_offset):
            return
        self.write_pending()
        closing = AbortedEntry(CLOSING, self._state[0], end_offset, stable_from)
        self._opened(create=True).write(self._state[0] * ABORTED_SIZE, [pack_aborted(closing)])
        self._closing = closing

    def is_closed_at(self, end_offset: int) -> bool:
        return self._closing is not None and self._closing.marker_offset == end_offset

    # -- looking up ------------------------------------------------------------------------

    def closing(self, end_offset: int, read: ReadBytes = read_waiting) -> AbortedEntry | None:
        """The closing entry of a segment that ends there; None: the file is not to be believed."""
        known = self._closing
        if known is None and not self._is_damaged and self._files.exists(self.path):
            file = self._opened()
            count, torn = divmod(file.size(), ABORTED_SIZE)
            if count and not torn:
                known = read_aborted(read(file, (count - 1) * ABORTED_SIZE, ABORTED_SIZE))
            # One that says another count was cut short, or is of an earlier end of the log.
            if known is None or known[:3] != (CLOSING, count - 1, end_offset):
                return None
            self._state, self._closing = (count - 1, []), known
        return known if known and known.marker_offset == end_offset else None

    def is_believed(self, closing: AbortedEntry | None) -> bool:
        """Whether it is whole, or closed by this entry still."""
        return self.is_whole or (closing is not None and self._closing == closing)

    def behind(self, offset: int, read: ReadBytes = read_waiting) -> Iterator[AbortedEntry]:
        """Entries whose marker stands behind `offset`, in order: those that it has now, whatever
        becomes of it. Whether it is to be believed has to be asked afterwards.

        Raises:
            DamagedEntries: one fails its CRC, or the file ends before it.
        """
        return self._behind(offset, self._state, read)

    def _behind(
        self, offset: int, state: tuple[int, list[AbortedEntry]], read: ReadBytes
    ) -> Iterator[AbortedEntry]:
        written, pending = state
        if written:  # else there may be no file
            yield from self._written_behind(offset, written, read)
        for entry in pending:
            if entry.marker_offset > offset:
                yield entry

    def _written_behind(self, offset: int, written: int, read: ReadBytes) -> Iterator[AbortedEntry]:
        file = self._opened()
        low, high = 0, written
        while low < high:
            middle = (low + high) // 2
            [entry] = self._read(file, middle, 1, read)
            if entry.marker_offset > offset:
                high = middle
            else:
                low = middle + 1
        while low < written:
            found = self._read(file, low, min(_ABORTED_BLOCK_ENTRIES, written - low), read)
            yield from found
            low += len(found)

    def _read(self, file: File, index: int, count: int, read: ReadBytes) -> list[AbortedEntry]:
        data = read(file, index * ABORTED_SIZE, count * ABORTED_SIZE)
        found = []
        for at in range(0, count * ABORTED_SIZE, ABORTED_SIZE):
            entry = read_aborted(data[at : at + ABORTED_SIZE])
            # A closing entry in the middle is one of an earlier end, and the entry there is lost.
            if entry is None or entry.producer_id == CLOSING:
                raise DamagedEntries(f"an entry of {self.path}")
            found.append(entry)
        return found

    # -- building --------------------------------------------------------------------------

    def build(self, entries: Iterable[AbortedEntry]) -> int:
        """Put these entries in place of what the file has, durably; returns how many. Waits for
        the disk. The caller decides by `begin` or `close_built` what they are. Whatever
        `entries` raises leaves the file as it is.
        """
        temporary = self.path.with_name(self.path.name + TEMPORARY_SUFFIX)
        file, count = None, 0
        left = iter(entries)
        while some := list(islice(left, _BUILT_ENTRIES_MAX)):
            if file is None:
                file = self._files.open(temporary, create=True)
                file.truncate(0)  # a crash may have left an earlier attempt
            file.write(count * ABORTED_SIZE, [b"".join(map(pack_aborted, some))])
            count += len(some)
        self._file = None
        if file is None:  # nothing was aborted
            self._files.remove(self.path)
            return 0
        file.sync()
        self._files.rename(temporary, self.path)
        self._files.sync_directory(self.path.parent)
        self._is_damaged = False
        return count


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
