"""One suite for both file systems: what OsFiles does, SimulatedFiles does too, short of a crash.

Everything here can be observed while the machine runs; what a crash does to the simulated disk
is tested in tests/unit/simulation/test_disk.py, what it does to a real one in tests/powercut.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from raftmq.disk.files import IOV_MAX, FileSlice, OsFiles, WouldBlock
from raftmq.errors import DirectoryInUse, StorageError
from tests.simulation.disk import SimulatedFiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.disk.files import File, Files


class Place(NamedTuple):
    """A file system and an empty directory on it."""

    files: Files
    root: Path

    def written(self, name: str, data: bytes) -> File:
        file = self.files.open(self.root / name, create=True)
        file.write(0, [data])
        return file

    def content(self, name: str) -> bytes:
        return everything(self.files.open(self.root / name))


def everything(file: File) -> bytes:
    return file.read(0, file.size())


@pytest.fixture(params=["os", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "os":
        return Place(OsFiles(), tmp_path)
    simulated = Place(SimulatedFiles(Random(0)), Path("/data"))
    simulated.files.make_directory(simulated.root)
    return simulated


def test_reading_ends_where_the_file_ends(place: Place) -> None:
    """A read across the end is short, a read beyond it is empty, and neither is an error."""
    file = place.written("a", b"0123456789")
    assert file.read(3, 4) == b"3456"
    assert file.read(8, 100) == b"89"
    assert file.read(10, 1) == b""
    assert file.read(1000, 1) == b""
    assert file.read(5, 0) == b""


def test_a_write_beyond_the_end_leaves_zeros_between(place: Place) -> None:
    """Sparse files: what was never written reads as zeros."""
    file = place.written("a", b"ab")
    file.write(5, [b"yz"])
    assert everything(file) == b"ab\0\0\0yz"
    assert file.size() == 7


def test_a_write_inside_replaces_just_its_bytes(place: Place) -> None:
    """Overwriting neither cuts nor moves what is around it."""
    file = place.written("a", b"0123456789")
    file.write(4, [b"XY"])
    file.write(9, [b"Z!"])
    assert everything(file) == b"0123XY678Z!"


@pytest.mark.parametrize("buffers", [[], [b""], [b"", b""]])
def test_writing_nothing_changes_nothing(place: Place, buffers: list[bytes]) -> None:
    """No bytes are written: not even the size grows up to the position."""
    file = place.written("a", b"ab")
    file.write(10, buffers)
    assert everything(file) == b"ab"


def test_buffers_of_every_kind_are_written_in_order(place: Place) -> None:
    """A batch arrives as views of frames: bytes, bytearray and memoryview mix."""
    file = place.written("a", b"")
    file.write(1, [b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3], b""])
    assert everything(file) == b"\0abcdef"


def test_more_buffers_than_one_system_call_takes(place: Place) -> None:
    """Writes are split at IOV_MAX, and nothing is lost at the seams."""
    numbers = [b"%05d" % number for number in range(2 * IOV_MAX + 3)]
    file = place.written("a", b"")
    file.write(2, numbers)
    assert everything(file) == b"\0\0" + b"".join(numbers)


def test_truncating_down_and_up(place: Place) -> None:
    """What was cut off does not come back when the file grows again."""
    file = place.written("a", b"0123456789")
    file.truncate(4)
    assert everything(file) == b"0123"
    file.truncate(6)
    assert everything(file) == b"0123\0\0"
    file.truncate(0)
    assert file.size() == 0


def test_what_is_read_is_a_copy(place: Place) -> None:
    """Bytes that were read do not change under the reader."""
    file = place.written("a", b"old")
    before = file.read(0, 3)
    file.write(0, [b"new"])
    assert before == b"old"


def test_two_open_files_of_one_path_are_one_file(place: Place) -> None:
    """A reader sees at once what the writer wrote, synced or not."""
    writer = place.written("a", b"ab")
    reader = place.files.open(place.root / "a")
    writer.write(2, [b"cd"])
    assert everything(reader) == b"abcd"
    writer.sync()
    writer.truncate(1)
    assert reader.size() == 1


def test_opening_with_create_keeps_what_is_there(place: Place) -> None:
    """`create` makes a file only where there is none."""
    place.written("a", b"kept")
    assert everything(place.files.open(place.root / "a", create=True)) == b"kept"


def test_sync_and_evict_change_nothing_to_see(place: Place) -> None:
    """The page cache is invisible, before and after a sync."""
    file = place.written("a", b"ab")
    file.evict()
    assert everything(file) == b"ab"
    file.write_back(0, 2)
    file.write_back(1, 100)  # beyond the end there is nothing to write
    file.sync()
    file.evict()
    assert everything(file) == b"ab"
    place.files.sync_directory(place.root)
    place.files.sync_file_system(place.root)
    assert place.content("a") == b"ab"


def test_read_now_reads_the_same_or_says_that_it_would_block(place: Place) -> None:
    """Just written bytes are cached; where the file system cannot say, a worker has to read."""
    file = place.written("a", b"0123456789")
    for position, length in [(0, 10), (3, 4), (8, 5), (10, 1), (50, 2), (4, 0)]:
        try:
            data = file.read_now(position, length)
        except WouldBlock:
            continue
        assert data == file.read(position, length)


def test_a_slice_reads_its_part(place: Place) -> None:
    """What a fetch hands to sendfile can also be read, whatever was renamed since."""
    file_slice = FileSlice(place.written("a", b"0123456789"), 2, 3)
    place.files.rename(place.root / "a", place.root / "b")
    assert file_slice.read() == b"234"


def test_rename_moves_a_file(place: Place) -> None:
    """The old name is gone, the new one has the bytes."""
    place.written("a", b"bytes")
    place.files.rename(place.root / "a", place.root / "b")
    assert place.files.names(place.root) == ["b"]
    assert place.content("b") == b"bytes"


def test_rename_replaces_what_had_the_name(place: Place) -> None:
    """Whoever had the replaced file open keeps reading it."""
    place.written("new", b"new")
    old = place.written("old", b"old")
    place.files.rename(place.root / "new", place.root / "old")
    assert place.content("old") == b"new"
    assert everything(old) == b"old"


def test_rename_moves_a_directory(place: Place) -> None:
    """A partition's folder gets another name with all that is in it."""
    place.files.make_directory(place.root / "one")
    place.written("one/a", b"bytes")
    place.files.rename(place.root / "one", place.root / "two")
    assert place.content("two/a") == b"bytes"
    assert not place.files.exists(place.root / "one")


def test_a_removed_file_stays_readable_where_it_is_open(place: Place) -> None:
    """Retention removes segments under readers; a new file of that name is another one."""
    file = place.written("a", b"bytes")
    place.files.remove(place.root / "a")
    assert not place.files.exists(place.root / "a")
    place.written("a", b"other")
    file.write(5, [b"!"])
    file.sync()
    assert everything(file) == b"bytes!"
    assert place.content("a") == b"other"


def test_removing_what_is_not_there_is_no_error(place: Place) -> None:
    """A removal that a crash interrupted is simply done again."""
    place.files.remove(place.root / "a")
    place.files.remove(place.root / "nowhere" / "a")


def test_names_are_sorted(place: Place) -> None:
    """The order of a listing never depends on the file system; directories are listed too."""
    for name in ["b", "10", "a", "9"]:
        place.written(name, b"")
    place.files.make_directory(place.root / "aa")
    assert place.files.names(place.root) == ["10", "9", "a", "aa", "b"]


def test_a_missing_directory_has_no_names(place: Place) -> None:
    """The first start finds no data directory, and that is fine."""
    assert place.files.names(place.root / "nowhere") == []


def test_making_a_directory_makes_its_parents(place: Place) -> None:
    """And making it again is no error."""
    deep = place.root / "one" / "two"
    place.files.make_directory(deep)
    place.files.make_directory(deep)
    assert place.files.names(place.root / "one") == ["two"]
    assert place.files.names(deep) == []


def test_existence_and_size(place: Place) -> None:
    """Both answer for a path; nothing exists below a file."""
    place.written("a", b"12345")
    assert place.files.exists(place.root)
    assert place.files.exists(place.root / "a")
    assert place.files.size(place.root / "a") == 5
    assert not place.files.exists(place.root / "b")
    assert not place.files.exists(place.root / "a" / "b")


@pytest.mark.parametrize("operation", ["open", "stat", "rename", "fsync", "syncfs"])
def test_an_error_names_operation_and_path(place: Place, operation: str) -> None:
    """What an operator reads in the log is enough to go and look."""
    path = place.root / "a"
    attempts: dict[str, Callable[[], object]] = {
        "open": lambda: place.files.open(path),
        "stat": lambda: place.files.size(path),
        "rename": lambda: place.files.rename(path, place.root / "b"),
        "fsync": lambda: place.files.sync_directory(path),
        "syncfs": lambda: place.files.sync_file_system(path),
    }
    with pytest.raises(StorageError) as caught:
        attempts[operation]()
    assert str(caught.value) == f"{operation} {path}: No such file or directory"


def test_a_file_in_the_way_is_an_error(place: Place) -> None:
    """Files are not directories, nor the other way round."""
    place.written("a", b"")
    file, directory = place.root / "a", place.root
    with pytest.raises(StorageError, match=f"^mkdir {file}: File exists$"):
        place.files.make_directory(file)
    with pytest.raises(StorageError, match=f"^list {file}: Not a directory$"):
        place.files.names(file)
    with pytest.raises(StorageError, match=f"^open {file}/b: Not a directory$"):
        place.files.open(file / "b", create=True)
    with pytest.raises(StorageError, match=f"^open {directory}: Is a directory$"):
        place.files.open(directory)
    with pytest.raises(StorageError, match=f"^remove {directory}: Is a directory$"):
        place.files.remove(directory)


def test_a_missing_directory_is_an_error_even_for_create(place: Place) -> None:
    """Only make_directory makes directories, because only it makes them durable."""
    with pytest.raises(StorageError, match=r"^open .*/nowhere/a: No such file or directory$"):
        place.files.open(place.root / "nowhere" / "a", create=True)


def test_a_lock_is_held_until_it_is_dropped(place: Place) -> None:
    """The second broker on a data directory is told so; after the first ended it may start."""
    path = place.root / ".lock"
    held = place.files.lock(path)
    with pytest.raises(DirectoryInUse, match=f"^{place.root} is in use by another process"):
        place.files.lock(path)
    assert held is not None
    del held
    assert place.files.lock(path) is not None


def test_a_refused_lock_leaves_nothing_open(tmp_path: Path) -> None:
    """A refusal that is kept, as every error in a cycle of references is, keeps no descriptor."""
    files, path = OsFiles(), tmp_path / ".lock"
    held = files.lock(path)
    with pytest.raises(DirectoryInUse) as refused:
        files.lock(path)
    opened = [link for link in Path("/proc/self/fd").iterdir() if link.resolve() == path]
    assert len(opened) == 1, (held, refused.value)


def test_readers_share_a_lock(tmp_path: Path) -> None:
    """Two tools look at a directory at the same time; neither passes for its holder."""
    path = tmp_path / ".lock"
    path.touch()
    held = [OsFiles(read_only=True).lock(path) for _ in range(2)]
    with pytest.raises(DirectoryInUse):
        OsFiles().lock(path)
    held.clear()
    owner = OsFiles().lock(path)
    with pytest.raises(DirectoryInUse):
        OsFiles(read_only=True).lock(path)
    assert owner is not None


def test_a_lock_does_not_hinder_another_directory(place: Place) -> None:
    """Each data directory has its own lock."""
    place.files.make_directory(place.root / "other")
    first = place.files.lock(place.root / ".lock")
    second = place.files.lock(place.root / "other" / ".lock")
    assert first is not second


def test_the_boot_id_stays_while_the_machine_runs(place: Place) -> None:
    """It is what tells a restart of the process from one of the machine."""
    assert place.files.boot_id() == place.files.boot_id() != ""


def test_a_plain_directory_owns_no_file_system(place: Place) -> None:
    """Syncing everything is for a directory that is a mount point."""
    place.files.make_directory(place.root / "sub")
    assert not place.files.owns_file_system(place.root / "sub")
