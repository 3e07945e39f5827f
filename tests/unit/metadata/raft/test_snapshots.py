"""Snapshot files: whole or not at all, whatever fails, crashes or rots.

The sweeps crash at every operation of writing and of receiving; what is found then is judged by
the bytes that went in.
"""

from __future__ import annotations

import errno
from random import Random
from typing import TYPE_CHECKING

import pytest

from raftmq.disk.files import OsFiles
from raftmq.errors import CorruptJournal, RemoteProtocolError, StorageError
from raftmq.metadata.raft.snapshot.format import SLICE_BYTES_MAX
from raftmq.metadata.raft.snapshot.store import SnapshotStore
from raftmq.metadata.raft.snapshot.transfer import SnapshotId
from tests.simulation.disk_faults import PowerCut, crash_at
from tests.unit.metadata.raft.snapshot_files import (
    CHUNK_BYTES,
    CLUSTER,
    NEW,
    OLD,
    ROOT,
    disk,
    elsewhere,
    names,
    opened,
    raw,
    receive,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.simulation.disk import SimulatedFiles
    from tests.simulation.disk_faults import Moment


@pytest.mark.parametrize("slices", [[], [b"x"], OLD, [b"s" * SLICE_BYTES_MAX, b"t"]])
def test_what_is_written_is_read(slices: list[bytes], tmp_path: Path) -> None:
    """On a real disk: the slices come back as they were, after a restart, too."""
    files = OsFiles()
    info = opened(files, tmp_path).write(index=7, term=2, slices=iter(slices))
    assert info.path.name == "snapshot-00000000000000000007-0000000002.snapshot"
    assert info.size_bytes == files.size(info.path)
    store = SnapshotStore(files, tmp_path, cluster_id=CLUSTER)
    assert store.newest() == info
    assert list(store.read(info)) == slices


def test_an_empty_directory_has_no_snapshot() -> None:
    """A new node starts without one, and so does one whose directory does not exist yet."""
    assert SnapshotStore(disk(), ROOT, cluster_id=CLUSTER).newest() is None
    assert SnapshotStore(disk(), ROOT / "none", cluster_id=CLUSTER).newest() is None


def test_indexes_beyond_32_bits_are_kept() -> None:
    """A cluster that lives for years: names sort by index, and the numbers come back."""
    files = disk()
    store = opened(files)
    store.write(index=(1 << 32) - 1, term=9, slices=OLD)
    info = store.write(index=1 << 62, term=10**10 - 1, slices=NEW)
    assert opened(files).newest() == info
    assert (info.index, info.term) == (1 << 62, 10**10 - 1)


def test_the_newest_alone_is_kept() -> None:
    """A second snapshot is written: the first one goes, foreign files stay."""
    files = disk()
    files.open(ROOT / "journal-1", create=True)
    store = opened(files)
    store.write(index=10, term=1, slices=OLD)
    info = store.write(index=20, term=1, slices=NEW)
    assert names(files) == ["journal-1", info.path.name]


def test_an_older_snapshot_never_replaces_a_newer() -> None:
    """While a picture was written, the leader's newer snapshot came in: the newer one stays."""
    files = disk()
    store = opened(files)
    snapshot, data = elsewhere(index=20)

    def slices() -> Iterator[bytes]:
        yield b"slow"
        receive(store, snapshot, data)

    info = store.write(index=10, term=1, slices=slices())
    assert info.id == snapshot
    assert names(files) == [info.path.name]
    assert store.write(index=20, term=3, slices=OLD) == info
    assert list(store.read(info)) == NEW


def test_a_reader_outlives_the_file() -> None:
    """A follower fetches a snapshot that is replaced meanwhile: its bytes are still there."""
    files = disk()
    store = opened(files)
    old = store.write(index=10, term=1, slices=OLD)
    data, reader = raw(files, old.path), store.open_reader(old)
    store.write(index=20, term=1, slices=NEW)
    assert reader
    assert reader.read(0, 100) + reader.read(100, old.size_bytes - 100) == data
    assert store.open_reader(old) is None


def test_a_reader_of_a_shortened_file_says_so() -> None:
    """Somebody cut the file while it is being sent: an error, not fewer bytes."""
    files = disk()
    store = opened(files)
    info = store.write(index=10, term=1, slices=OLD)
    reader = store.open_reader(info)
    files.cut(info.path, 50)
    assert reader
    with pytest.raises(CorruptJournal, match="ends at byte 50 instead of"):
        reader.read(40, 20)


def test_a_start_cleans_up() -> None:
    """Halves of a killed process and an older snapshot go; a whole newest one stays."""
    files = disk()
    store = opened(files)
    old = store.write(index=10, term=1, slices=OLD)
    older = raw(files, old.path)
    info = store.write(index=20, term=1, slices=NEW)
    for name in (info.path.name + ".part", info.path.name + ".incoming", old.path.name, "x.part"):
        files.open(ROOT / name, create=True).write(0, [older])
    assert opened(files).newest() == info
    assert names(files) == [info.path.name, "x.part"]


def test_a_damaged_snapshot_stops_the_start() -> None:
    """The newest is damaged and an older one is whole: the node stays out, and nothing is lost."""
    files = disk()
    store = opened(files)
    old = store.write(index=10, term=1, slices=OLD)
    copy = raw(files, old.path)
    info = store.write(index=20, term=1, slices=NEW)
    files.open(old.path, create=True).write(0, [copy])
    files.flip_bit(info.path, 60, 3)
    with pytest.raises(CorruptJournal, match=r"fails its CRC at byte \d+.* start with an empty"):
        SnapshotStore(files, ROOT, cluster_id=CLUSTER).newest()
    assert names(files) == [old.path.name, info.path.name]


@pytest.mark.parametrize("operation", ["create", "truncate", "write", "sync", "rename"])
def test_a_refusing_disk_leaves_the_old_snapshot(operation: str) -> None:
    """Any step fails: a StorageError, no half-written file, and the next attempt works."""
    files = disk()
    store = opened(files)
    old = store.write(index=10, term=1, slices=OLD)
    files.fail(operation, "*.part", error=errno.ENOSPC)
    with pytest.raises(StorageError, match="No space left"):
        store.write(index=20, term=1, slices=NEW)
    assert names(files) == [old.path.name]
    assert list(store.read(old)) == OLD
    assert list(store.read(store.write(index=20, term=1, slices=NEW))) == NEW


def test_an_unsynced_name_does_not_count() -> None:
    """The directory cannot be synced: the old one is not removed, and is still the newest."""
    files = disk()
    store = opened(files)
    old = store.write(index=10, term=1, slices=OLD)
    files.fail("sync_directory", "*")
    with pytest.raises(StorageError, match="fsync"):
        store.write(index=20, term=1, slices=NEW)
    assert store.open_reader(old)
    assert store.write(index=20, term=1, slices=NEW).index == 20
    assert len(names(files)) == 1


def test_a_part_that_cannot_be_removed_is_overwritten() -> None:
    """The disk is full and does not even unlink: the first error counts, and the rest is gone."""
    files = disk()
    store = opened(files)
    files.fail("sync", "*.part", error=errno.ENOSPC)
    files.fail("remove", "*.part")
    with pytest.raises(StorageError, match="No space left"):
        store.write(index=20, term=1, slices=NEW)
    assert len(names(files)) == 1
    info = store.write(index=20, term=1, slices=OLD)
    assert list(store.read(info)) == OLD


def test_a_picture_that_fails_leaves_nothing() -> None:
    """The state machine's slices end in an error: it is told, and nothing stays behind."""
    files = disk()

    def slices() -> Iterator[bytes]:
        yield b"one"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        opened(files).write(index=20, term=1, slices=slices())
    assert names(files) == []


def test_a_snapshot_has_a_largest_size() -> None:
    """The state outgrows the limit: it is refused while it is written, not when it is full."""
    files = disk()
    store = SnapshotStore(files, ROOT, cluster_id=CLUSTER, bytes_max=1000)
    store.newest()
    with pytest.raises(StorageError, match="over 1000 bytes, the most for a snapshot"):
        store.write(index=1, term=1, slices=NEW)
    assert names(files) == []


def test_slices_are_written_a_few_at_a_time() -> None:
    """A mebibyte of small slices: some writes, so that other threads run, but not one for each."""
    files = disk()
    opened(files).write(index=1, term=1, slices=[bytes(1 << 14)] * 64)
    assert 3 <= sum(" write " in line for line in files.trace) <= 6


def test_a_long_file_is_synced_on_the_way() -> None:
    """65 MiB: no single sync carries them all, as the journal shares the device."""
    files = disk()
    opened(files).write(index=1, term=1, slices=[bytes(1 << 20)] * 65)
    assert sum(" sync /" in line for line in files.trace) == 3


def test_a_snapshot_comes_in() -> None:
    """Chunk by chunk from another node: the same bytes, the newest now, and the old one gone."""
    files = disk()
    store = opened(files)
    store.write(index=10, term=1, slices=OLD)
    snapshot, data = elsewhere()
    info = receive(store, snapshot, data)
    assert info.id == snapshot
    assert raw(files, info.path) == data
    assert names(files) == [info.path.name]
    assert opened(files).newest() == info


def test_an_interrupted_snapshot_goes_on() -> None:
    """The same one is offered by another leader: what is there stays there."""
    store = opened(disk())
    snapshot, data = elsewhere()
    store.incoming(snapshot).write(0, data[:CHUNK_BYTES])
    assert store.incoming(snapshot).position == CHUNK_BYTES
    assert list(store.read(receive(store, snapshot, data))) == NEW


def test_another_snapshot_takes_the_place() -> None:
    """A different one is offered: the half of the first is removed."""
    files = disk()
    store = opened(files)
    first, data = elsewhere(index=20)
    begun = store.incoming(first)
    begun.write(0, data[:CHUNK_BYTES])
    second, _ = elsewhere(index=30)
    assert store.incoming(second).position == 0
    assert len(names(files)) == 1
    with pytest.raises(StorageError, match="begin anew"):
        begun.write(CHUNK_BYTES, data[CHUNK_BYTES:])
    store.discard_incoming()
    assert names(files) == []


def test_bytes_for_another_place_are_refused() -> None:
    """A chunk was lost on the way to the disk: what follows is not written over the hole."""
    store = opened(disk())
    snapshot, data = elsewhere()
    with pytest.raises(StorageError, match="is at byte 0, not 512; begin anew"):
        store.incoming(snapshot).write(CHUNK_BYTES, data[CHUNK_BYTES : 2 * CHUNK_BYTES])


def damaged(data: bytes) -> bytes:
    return data[:300] + bytes([data[300] ^ 1]) + data[301:]


@pytest.mark.parametrize(
    "change",
    [
        lambda snapshot, data: (snapshot, damaged(data)),
        lambda snapshot, data: (snapshot, data[:-1]),
        lambda snapshot, data: (snapshot, bytes(len(data))),
        lambda snapshot, data: (with_crc(snapshot), data),
        lambda snapshot, data: (snapshot, elsewhere(index=21)[1]),
    ],
    ids=["a bit", "too short", "zeros", "another CRC", "another entry"],
)
def test_bytes_that_were_not_promised_are_refused(
    change: Callable[[SnapshotId, bytes], tuple[SnapshotId, bytes]],
) -> None:
    """What arrived is not the snapshot that was offered: refused, and the old one stays."""
    files = disk()
    store = opened(files)
    old = store.write(index=10, term=1, slices=OLD)
    with pytest.raises(RemoteProtocolError, match="arrived damaged"):
        receive(store, *change(*elsewhere()))
    assert names(files) == [old.path.name]
    assert list(store.read(receive(store, *elsewhere()))) == NEW


def with_crc(snapshot: SnapshotId) -> SnapshotId:
    return SnapshotId(snapshot.index, snapshot.term, snapshot.size_bytes, snapshot.crc ^ 1)


def test_a_snapshot_of_another_cluster_is_refused() -> None:
    """Two clusters were mixed up: their metadata are not."""
    with pytest.raises(RemoteProtocolError, match="is of cluster 'orders-cluster'"):
        receive(opened(disk(), cluster="x"), *elsewhere())


@pytest.mark.parametrize("operation", ["create", "truncate", "write", "sync", "rename"])
def test_a_refusing_disk_ends_what_comes_in(operation: str) -> None:
    """Any step fails: the space is given back, the old one stays, and a new attempt begins at 0."""
    files = disk()
    store = opened(files)
    old = store.write(index=10, term=1, slices=OLD)
    snapshot, data = elsewhere()
    files.fail(operation, "*.incoming", error=errno.ENOSPC)
    with pytest.raises(StorageError, match="No space left"):
        receive(store, snapshot, data)
    assert names(files) == [old.path.name]
    assert store.incoming(snapshot).position == 0
    assert list(store.read(receive(store, snapshot, data))) == NEW


def write_new(store: SnapshotStore) -> None:
    store.write(index=20, term=3, slices=NEW)


def receive_new(store: SnapshotStore) -> None:
    receive(store, *elsewhere())


MOMENTS: tuple[Moment, ...] = ("before", "torn", "after")


@pytest.mark.parametrize("power_lost", [False, True], ids=["kill", "power cut"])
@pytest.mark.parametrize("run", [write_new, receive_new])
def test_a_crash_anywhere_leaves_one_whole_snapshot(
    run: Callable[[SnapshotStore], None], power_lost: bool
) -> None:
    """Crash at every operation: the next start finds the old or the new one, and goes on."""
    seen = set()
    for number, moment, seed in crashes(run):
        files = prepared(seed)
        files.interrupt = crash_at(files.count + number, moment)
        with pytest.raises(PowerCut):
            run(opened(files))
        files = files.after_crash(power_lost=power_lost, reorder=True)
        seen.add(check_restart(files))
    assert seen == {10, 20}


def crashes(run: Callable[[SnapshotStore], None]) -> Iterator[tuple[int, Moment, int]]:
    files = prepared(0)
    before = files.count
    run(opened(files))
    for number in range(1, files.count - before + 1):
        for moment in MOMENTS if number < files.count - before else MOMENTS[:1]:
            for seed in range(3):
                yield number, moment, seed


def prepared(seed: int) -> SimulatedFiles:
    files = disk(seed)
    opened(files).write(index=10, term=1, slices=OLD)
    return files


def check_restart(files: SimulatedFiles) -> int:
    """Whole, alone, there again after a power cut, and no obstacle to the next one."""
    store = SnapshotStore(files, ROOT, cluster_id=CLUSTER)
    info = store.newest()
    assert info
    assert list(store.read(info)) == (NEW if info.index == 20 else OLD)
    assert names(files) == [info.path.name]
    for seed in range(8):
        again = files.photograph(Random(seed), power_lost=True)
        assert SnapshotStore(again, ROOT, cluster_id=CLUSTER).newest() == info
    assert list(store.read(store.write(index=30, term=3, slices=OLD))) == OLD
    return info.index
