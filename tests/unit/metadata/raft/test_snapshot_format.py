"""The bytes of snapshot files: whatever is damaged is noticed, and its place is told."""

from __future__ import annotations

import pytest

from raftmq.errors import CorruptJournal, StorageError
from raftmq.metadata.raft.snapshot.store import SnapshotStore, verify_snapshot
from tests.unit.metadata.raft.snapshot_files import CLUSTER, NEW, OLD, ROOT, disk, opened, raw


def test_equal_content_has_equal_ids() -> None:
    """Two nodes that write the same slices can take over each other's transfers."""
    first, second = opened(disk()), opened(disk(1))
    assert (
        first.write(index=9, term=1, slices=OLD).id == second.write(index=9, term=1, slices=OLD).id
    )
    other = opened(disk()).write(index=9, term=1, slices=[*OLD[:1], b"p" + OLD[1][1:]])
    assert other.id != first.write(index=9, term=1, slices=OLD).id


def test_every_flipped_bit_is_noticed() -> None:
    """One bit of any byte: reading, starting and verifying all say so, and name a byte."""
    files = disk()
    info = opened(files).write(index=10, term=1, slices=[b"one", b"three"])
    store = opened(files)
    for position in range(info.size_bytes):
        files.flip_bit(info.path, position, position % 8)
        with pytest.raises(CorruptJournal, match="at byte"):
            list(store.read(info))
        with pytest.raises(CorruptJournal, match="at byte"):
            SnapshotStore(files, ROOT, cluster_id=CLUSTER).newest()
        assert "at byte" in verify_snapshot(files, info.path).problem
        files.flip_bit(info.path, position, position % 8)
    assert list(store.read(info)) == [b"one", b"three"]


def test_every_cut_is_noticed() -> None:
    """A clumsy restore: too short at any byte, between two slices too, or too long."""
    whole = disk()
    info = opened(whole).write(index=10, term=1, slices=[b"one", b"three"])
    data = raw(whole, info.path)
    for content in [*(data[:end] for end in range(len(data))), data + b"\0", data + data]:
        files = disk()
        files.open(info.path, create=True).write(0, [content])
        with pytest.raises(CorruptJournal, match="at byte"):
            SnapshotStore(files, ROOT, cluster_id=CLUSTER).newest()


def test_slices_in_another_order_are_noticed() -> None:
    """Two slices of equal length have changed places, each with its own CRC."""
    files = disk()
    store = opened(files)
    info = store.write(index=10, term=1, slices=[b"one", b"two"])
    data = raw(files, info.path)
    first = data.index(b"one") - 8
    swapped = data[first + 11 : first + 22] + data[first : first + 11]
    files.open(info.path).write(first, [swapped])
    with pytest.raises(CorruptJournal, match="the trailer does not fit"):
        list(store.read(info))


def test_another_snapshot_under_this_name_is_noticed() -> None:
    """Whole, but of another cluster, another entry, or written again since: all are refused."""
    files = disk()
    store = opened(files)
    info = store.write(index=10, term=1, slices=OLD)
    with pytest.raises(CorruptJournal, match="is of cluster 'orders-cluster', this node's is 'x'"):
        opened(files, cluster="x")
    content = disk()
    other = opened(content).write(index=10, term=1, slices=NEW)
    files.open(info.path).truncate(0)
    files.open(info.path).write(0, [raw(content, other.path)])
    with pytest.raises(CorruptJournal, match="instead of SnapshotId"):
        list(store.read(info))
    files.rename(info.path, ROOT / info.path.name.replace("10-", "11-"))
    with pytest.raises(CorruptJournal, match="holds entry 10 of term 1 instead of entry 11"):
        opened(files)


def test_damage_is_found_where_it_is() -> None:
    """Slices before the damage come out; the damaged one does not, and the byte is told."""
    files = disk()
    store = opened(files)
    info = store.write(index=10, term=1, slices=NEW)
    files.flip_bit(info.path, info.size_bytes - 100, 0)
    slices = store.read(info)
    assert next(slices) == b"new"
    with pytest.raises(CorruptJournal, match="1500 bytes fails its CRC at byte 57"):
        next(slices)


def test_verifying_changes_nothing() -> None:
    """The offline command: it tells what there is, and a wrong name, and touches no file."""
    files = disk()
    info = opened(files).write(index=10, term=2, slices=OLD)
    before = files.count
    report = verify_snapshot(files, info.path)
    assert (report.key, report.cluster_id) == (info.key, CLUSTER)
    assert (report.slice_count, report.size_bytes) == (2, info.size_bytes)
    assert report.problem == ""
    assert files.count == before
    files.rename(info.path, wrong := ROOT / info.path.name.replace("10-", "12-"))
    assert "not what its name says" in verify_snapshot(files, wrong).problem
    with pytest.raises(StorageError, match="No such file"):
        verify_snapshot(files, info.path)
