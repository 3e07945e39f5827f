"""Snapshot files on disk: written atomically, verified by CRC, only the newest is kept.

    snapshot-<index>-<term>.snapshot     + .part: being written     + .incoming: being received

Owns the names and the order of steps: a new snapshot is durable under its name before an older
one is removed, and an older one never replaces a damaged newer one. Only the state machine
interprets slices. All methods may block on the disk and belong into a worker thread; one snapshot
may be written while another is received.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from raftmq.errors import CorruptJournal, CorruptRecord, RemoteProtocolError, StorageError
from raftmq.metadata.raft.snapshot.format import SnapshotKey, SnapshotPacker, SnapshotWalk
from raftmq.metadata.raft.snapshot.transfer import (
    INDEX_MAX,
    SNAPSHOT_BYTES_MAX,
    TERM_MAX,
    SnapshotId,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from raftmq.disk.files import File, Files

PART_SUFFIX = ".part"
INCOMING_SUFFIX = ".incoming"

_WRITE_BYTES = 256 << 10  # of one system call, which releases the GIL: a few slices
# Written between two syncs: a sync of more data would delay those of the journal on the same disk,
# and with them every command.
_SYNC_BYTES = 32 << 20
_NAME = re.compile(r"snapshot-(\d{20})-(\d{10})\.snapshot")


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A complete snapshot on this node's disk; `crc` covers all but the trailer."""

    path: Path
    index: int
    term: int
    size_bytes: int
    crc: int

    @property
    def id(self) -> SnapshotId:
        return SnapshotId(self.index, self.term, self.size_bytes, self.crc)

    @property
    def key(self) -> SnapshotKey:
        return SnapshotKey(self.index, self.term)


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    """Result of `verify_snapshot`: the fields that could be read, and the first problem."""

    path: Path
    size_bytes: int
    cluster_id: str
    key: SnapshotKey
    slice_count: int
    problem: str  # empty: the snapshot is complete and undamaged


class SnapshotStore:
    """The snapshots of one node. Call `newest` first: it removes leftovers of the last process."""

    def __init__(
        self, files: Files, directory: Path, *, cluster_id: str, bytes_max: int = SNAPSHOT_BYTES_MAX
    ) -> None:
        self.files, self.directory, self.cluster_id = files, directory, cluster_id
        self._bytes_max = bytes_max
        self._lock = Lock()  # of `_newest` and its file: writer and receiver run in two threads
        self._newest: SnapshotInfo | None = None
        self._is_open = False
        self._incoming: IncomingSnapshot | None = None

    def newest(self) -> SnapshotInfo | None:
        """At a start: the newest snapshot, read and verified; others are removed.

        Raises:
            CorruptJournal: the newest one is damaged or another cluster's. An older one is no
                substitute, as the journal may have been cut after the newest was written.
        """
        with self._lock:
            self._remove_leftovers()
            names = self._snapshot_names()
            self._newest = self._verified_info(names[-1]) if names else None
            if self._newest:  # else a new node
                # The former process may have been killed between its rename and its sync.
                self.files.sync_directory(self.directory)
                self._remove_all_but(self._newest)
            self._is_open = True
            return self._newest

    def newest_info(self) -> SnapshotInfo:
        """The newest snapshot; there must be one."""
        assert self._newest is not None, "there is no snapshot"
        return self._newest

    def write(self, *, index: int, term: int, slices: Iterable[bytes]) -> SnapshotInfo:
        """Write a snapshot of `slices`, each of 1 byte to 4 MiB; older snapshots are removed.

        Returns:
            The newest snapshot: another one, if one with a higher index was received meanwhile.

        Raises:
            StorageError: nothing has changed for readers; the old snapshot is still there.
        """
        assert self._is_open, "newest() comes first"
        key = SnapshotKey(index, term)
        part = self.path_of(key, PART_SUFFIX)
        try:
            written = self._write_part(part, key, slices)
            return self.put_in_place(part, written)
        except Exception:  # any error, also of the slices' iterator: leave no part behind
            self.remove_if_possible(part)
            raise

    def read(self, info: SnapshotInfo) -> Iterator[bytes]:
        """The slices, each verified; the whole file is verified after the last one.

        Raises:
            CorruptJournal: with path and byte, here or while iterating.
        """
        return self._slices(self.files.open(info.path), info)

    def open_reader(self, info: SnapshotInfo) -> SnapshotReader | None:
        """Open for sending. The open file stays readable even after the snapshot is removed.

        Returns:
            None if a newer snapshot has replaced this one meanwhile.
        """
        with self._lock:
            if info != self._newest:  # a newer one was put in place since
                return None
            return SnapshotReader(self.files.open(info.path), info)

    def incoming(self, snapshot: SnapshotId) -> IncomingSnapshot:
        """The file for another node's snapshot, with the bytes received so far, if it was begun.

        A different one that was begun is discarded.
        """
        assert self._is_open, "newest() comes first"
        begun = self._incoming
        # Begun for another snapshot, or ended by an error: begin with an empty file.
        if begun is None or begun.is_over or begun.snapshot != snapshot:
            self.discard_incoming()
            begun = self._incoming = IncomingSnapshot(self, snapshot)
        return begun

    def discard_incoming(self) -> None:
        """Free the space of a snapshot that will not be finished."""
        if self._incoming:  # an earlier snapshot that was not finished
            self._incoming.discard()
            self._incoming = None

    # For IncomingSnapshot

    def put_in_place(self, part: Path, written: SnapshotId) -> SnapshotInfo:
        """Rename `part`, which is synced and complete, unless the newest snapshot is as new."""
        key = SnapshotKey(written.index, written.term)
        with self._lock:
            # Our own snapshot may be newer than the one received, and vice versa.
            if self._newest and self._newest.key >= key:
                self.files.remove(part)
                return self._newest
            info = _info_of(self.path_of(key), written)
            self.files.rename(part, info.path)
            self.files.sync_directory(self.directory)
            self._newest = info
            self._remove_all_but(info)
            return info

    def path_of(self, key: SnapshotKey, suffix: str = "") -> Path:
        assert 0 <= key.index <= INDEX_MAX, f"{key}"
        assert 0 <= key.term <= TERM_MAX, f"{key}"
        return self.directory / f"snapshot-{key.index:020}-{key.term:010}.snapshot{suffix}"

    def remove_if_possible(self, path: Path) -> None:
        """After a failure: the caller reports that one, not a second one from here."""
        with suppress(StorageError):
            self.files.remove(path)

    def _write_part(self, part: Path, key: SnapshotKey, slices: Iterable[bytes]) -> SnapshotId:
        packer, output = SnapshotPacker(), GrowingFile(self.files, part)
        buffers = packer.header(key, self.cluster_id)
        for data in slices:
            buffers += packer.slice(data)
            self._check_size(part, packer.size_bytes)
            if packer.size_bytes - output.size_bytes >= _WRITE_BYTES:
                output.append(buffers)
                buffers = []
        output.append(buffers + packer.trailer())
        output.sync()
        return SnapshotId(key.index, key.term, packer.size_bytes, packer.crc)

    def _check_size(self, part: Path, size_bytes: int) -> None:
        if size_bytes > self._bytes_max:  # a bound on the disk, see SNAPSHOT_BYTES_MAX
            raise StorageError(
                f"write {part}: over {self._bytes_max} bytes, the most for a snapshot; the quorum"
                " holds more than it is made for, and its journal will grow until some is deleted"
            )

    def _slices(self, file: File, info: SnapshotInfo) -> Iterator[bytes]:
        walk = SnapshotWalk(file)
        try:
            walk.expect(info.key, self.cluster_id)
            yield from walk.slices()
            expect_id(walk, info.id)
        except CorruptRecord as error:  # with path and way out instead
            raise self._corrupt(info.path, error) from error

    def _verified_info(self, name: str) -> SnapshotInfo:
        path, key = self.directory / name, _key_of(name)
        walk = SnapshotWalk(self.files.open(path))
        try:
            walk.expect(key, self.cluster_id)
            walk.exhaust()
        except CorruptRecord as error:  # with path and way out instead
            raise self._corrupt(path, error) from error
        return _info_of(path, _id_of(walk))

    def _remove_all_but(self, kept: SnapshotInfo) -> None:
        for name in self._snapshot_names():
            if name != kept.path.name:
                self.files.remove(self.directory / name)

    def _remove_leftovers(self) -> None:
        for name in self.files.names(self.directory):
            stem, dot, suffix = name.rpartition(".")
            if dot + suffix in (PART_SUFFIX, INCOMING_SUFFIX) and _NAME.fullmatch(stem):
                self.files.remove(self.directory / name)

    def _snapshot_names(self) -> list[str]:
        """Oldest first: the numbers in names have leading zeros."""
        return [name for name in self.files.names(self.directory) if _NAME.fullmatch(name)]

    def _corrupt(self, path: Path, error: CorruptRecord) -> CorruptJournal:
        return CorruptJournal(
            f"{path}: {error.what} at byte {error.position}. No older snapshot can take its place,"
            " as the journal may begin behind this one: while the other voters have a majority,"
            f" move {self.directory} away (keep it) and start with an empty directory and"
            " `-o quorum.replace=true`; everything will be fetched from them"
        )


class GrowingFile:
    """A file that begins empty, and is synced every _SYNC_BYTES so that no sync takes long."""

    def __init__(self, files: Files, path: Path) -> None:
        self.size_bytes = self._synced_bytes = 0
        self._file = files.open(path, create=True)
        self._file.truncate(0)  # a leftover that an earlier attempt could not remove

    def append(self, buffers: list[bytes]) -> None:
        self._file.write(self.size_bytes, buffers)
        self.size_bytes += sum(map(len, buffers))
        if self.size_bytes - self._synced_bytes >= _SYNC_BYTES:
            self.sync()

    def sync(self) -> None:
        self._file.sync()
        self._synced_bytes = self.size_bytes


class SnapshotReader:
    """The raw bytes of a snapshot, for sending. The receiver verifies them."""

    def __init__(self, file: File, info: SnapshotInfo) -> None:
        self.info, self._file = info, file

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes, or CorruptJournal if the file has become shorter."""
        assert 0 <= offset <= offset + length <= self.info.size_bytes, f"{offset}+{length}"
        data = self._file.read(offset, length)
        if len(data) < length:  # the file was shortened by something else: never send less silently
            raise CorruptJournal(
                f"{self.info.path}: ends at byte {offset + len(data)} instead of"
                f" {self.info.size_bytes}; stop this node and verify its disk"
            )
        return data


class IncomingSnapshot:
    """A snapshot that is being received from another node. The first error ends it."""

    def __init__(self, store: SnapshotStore, snapshot: SnapshotId) -> None:
        self.snapshot, self.is_over = snapshot, False
        self._store, self._key = store, SnapshotKey(snapshot.index, snapshot.term)
        self._path = store.path_of(self._key, INCOMING_SUFFIX)
        try:
            self._output = GrowingFile(store.files, self._path)
        except StorageError:  # no space for the file: leave nothing behind
            self.discard()
            raise

    @property
    def position(self) -> int:
        """The offset of the next chunk."""
        return self._output.size_bytes

    def write(self, offset: int, data: bytes) -> None:
        """Append the bytes of the snapshot from `offset` on.

        Raises:
            StorageError: they could not be written, or an earlier error has ended this.
        """
        self._check_usable()
        # Chunks come in order, each once: the file is written without gaps.
        if offset != self.position:
            raise StorageError(
                f"{self._path}: is at byte {self.position}, not {offset}; begin anew"
            )
        assert offset + len(data) <= self.snapshot.size_bytes, f"{len(data)} bytes at {offset}"
        try:
            self._output.append([data])
        except StorageError:  # the position on disk is unknown: begin again
            self.discard()
            raise

    def finish(self) -> SnapshotInfo:
        """Verify everything and make it this node's newest snapshot.

        Returns:
            The newest snapshot: another one, if one with a higher index was written meanwhile.

        Raises:
            RemoteProtocolError: the bytes are not those of the offered snapshot.
            StorageError: the disk failed. In both cases the old snapshot stays.
        """
        self._check_usable()
        try:
            self._output.sync()
            self._verify()
            return self._store.put_in_place(self._path, self.snapshot)
        except CorruptRecord as error:  # the sender's bytes, not this node's disk: a protocol error
            raise RemoteProtocolError(
                f"{self.snapshot} arrived damaged: {error.what} at byte {error.position};"
                " verify the disk of the node that sent it"
            ) from error
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove the bytes received so far, if the disk allows it."""
        if not self.is_over:  # idempotent: also called after success
            self.is_over = True
            self._store.remove_if_possible(self._path)

    def _check_usable(self) -> None:
        if self.is_over:
            raise StorageError(f"{self._path}: given up after an earlier error; begin anew")

    def _verify(self) -> None:
        walk = SnapshotWalk(self._store.files.open(self._path))
        walk.expect(self._key, self._store.cluster_id)
        walk.exhaust()
        expect_id(walk, self.snapshot)


def verify_snapshot(files: Files, path: Path) -> SnapshotReport:
    """Read all of `path` and change nothing; StorageError only if it cannot be read."""
    walk, problem = SnapshotWalk(files.open(path)), ""
    try:
        walk.header()
        if _NAME.fullmatch(path.name) and walk.key != _key_of(path.name):
            raise walk.damage(f"holds {walk.key}, which is not what its name says", 0)
        walk.exhaust()
    except CorruptRecord as error:  # part of the report
        problem = f"{error.what} at byte {error.position}"
    found = (walk.size_bytes, walk.cluster_id, walk.key, walk.slice_count)
    return SnapshotReport(path, *found, problem)


def expect_id(walk: SnapshotWalk, wanted: SnapshotId) -> None:
    """At the end of the walk: it must be exactly this snapshot."""
    if _id_of(walk) != wanted:
        raise walk.damage(f"whole, but {_id_of(walk)} instead of {wanted}", walk.position)


def _info_of(path: Path, snapshot: SnapshotId) -> SnapshotInfo:
    return SnapshotInfo(path, snapshot.index, snapshot.term, snapshot.size_bytes, snapshot.crc)


def _id_of(walk: SnapshotWalk) -> SnapshotId:
    return SnapshotId(walk.key.index, walk.key.term, walk.size_bytes, walk.crc)


def _key_of(name: str) -> SnapshotKey:
    match = _NAME.fullmatch(name)
    assert match, name
    return SnapshotKey(int(match[1]), int(match[2]))
