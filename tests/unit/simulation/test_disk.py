"""The loss model of the simulated disk: what a crash may take, and what it never takes.

Statements about chance are checked over many seeds: "may" means that some seed shows it, "never"
that none does.
"""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from raftmq.disk.files import WouldBlock
from raftmq.errors import StorageError
from tests.simulation.disk import SimulatedFiles
from tests.simulation.disk_faults import PowerCut, crash_at
from tests.simulation.disk_state import SECTOR_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.disk_faults import Moment
    from tests.simulation.disk_file import SimulatedFile

ROOT = Path("/data")
SEEDS = range(200)


def new_disk(seed: int = 0) -> SimulatedFiles:
    disk = SimulatedFiles(Random(seed))
    disk.make_directory(ROOT)
    return disk


def durable_file(disk: SimulatedFiles, name: str, data: bytes) -> SimulatedFile:
    file = disk.open(ROOT / name, create=True)
    file.write(0, [data])
    file.sync()
    disk.sync_directory(ROOT)
    return file


def content(disk: SimulatedFiles, name: str) -> bytes:
    return disk.open(ROOT / name).read(0, 1 << 20)


def contents(disk: SimulatedFiles) -> dict[str, bytes]:
    return {path.name: content(disk, path.name) for path in disk.paths(ROOT)}


def outcomes(*, unsynced: list[bytes], reorder: bool = False) -> set[bytes]:
    """What may be left of a durable "kept" after these appends and a power cut."""
    found = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        file = durable_file(disk, "a", b"kept")
        for data in unsynced:
            file.write(file.size(), [data])
        found.add(content(disk.after_crash(power_lost=True, reorder=reorder), "a"))
    return found


def test_synced_bytes_are_never_lost_and_others_may_be() -> None:
    """A power cut leaves a prefix of what was written, which always holds what was synced."""
    assert outcomes(unsynced=[b"12", b"34"]) == {
        b"kept", b"kept1", b"kept12", b"kept123", b"kept1234"
    }  # fmt: skip


def test_a_write_is_torn_at_sectors_too() -> None:
    """Devices write sectors: cuts at a multiple of 512 bytes of the file are frequent."""
    sizes = [len(left) for left in outcomes(unsynced=[bytes(3 * SECTOR_BYTES)])]
    assert {SECTOR_BYTES, 2 * SECTOR_BYTES} < set(sizes)


def test_sectors_of_appends_may_arrive_out_of_order() -> None:
    """With `reorder`, a hole of zeros may lie before bytes that arrived; never in synced ones."""
    left = outcomes(unsynced=[b"x" * (4 * SECTOR_BYTES)], reorder=True)
    assert all(data.startswith(b"kept") for data in left)
    assert any(b"\0" in data and data.endswith(b"x") for data in left)
    edges = {
        position % SECTOR_BYTES
        for data in left
        for position in range(5, len(data))
        if data[position] != data[position - 1]
    }
    assert edges == {0}


def test_an_unsynced_truncation_may_come_back() -> None:
    """The old length or the new one; and what was written after it only if it happened."""
    found = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        file = durable_file(disk, "a", b"0123")
        file.truncate(2)
        file.write(2, [b"X"])
        found.add(content(disk.after_crash(power_lost=True), "a"))
    assert found == {b"0123", b"01", b"01X"}


def test_a_synced_file_without_its_name_is_lost() -> None:
    """Syncing bytes does not sync the directory: the file may be gone, or be there complete."""
    found = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        file = disk.open(ROOT / "a", create=True)
        file.write(0, [b"bytes"])
        file.sync()
        found.add(tuple(contents(disk.after_crash(power_lost=True)).items()))
    assert found == {(), (("a", b"bytes"),)}


def test_name_operations_survive_as_a_prefix() -> None:
    """Create, rename, remove: a later one never without the earlier ones of that directory."""
    found = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        durable_file(disk, "old", b"")
        disk.open(ROOT / "new.tmp", create=True)
        disk.rename(ROOT / "new.tmp", ROOT / "new")
        disk.remove(ROOT / "old")
        found.add(tuple(disk.after_crash(power_lost=True).names(ROOT)))
    assert found == {("old",), ("new.tmp", "old"), ("new", "old"), ("new",)}


def test_a_rename_may_arrive_before_the_bytes() -> None:
    """Names and bytes are independent: replacing a file without a sync can leave it empty."""
    found = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        durable_file(disk, "a", b"old")
        disk.open(ROOT / "b", create=True).write(0, [b"new"])
        disk.rename(ROOT / "b", ROOT / "a")
        found.add(content(disk.after_crash(power_lost=True), "a"))
    assert {b"old", b"", b"new"} <= found


def test_directories_lose_names_independently() -> None:
    """Syncing one directory says nothing about another."""
    found = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        for name in ["one", "two"]:
            disk.make_directory(ROOT / name)
            disk.open(ROOT / name / "file", create=True)
        left = disk.after_crash(power_lost=True)
        found.add(tuple(str(path.relative_to(ROOT)) for path in left.paths(ROOT)))
    assert found == {(), ("one/file",), ("two/file",), ("one/file", "two/file")}


def test_made_directories_stay() -> None:
    """make_directory is durable when it returns, parents included."""
    for seed in SEEDS:
        disk = new_disk(seed)
        disk.make_directory(ROOT / "one" / "two")
        assert disk.after_crash(power_lost=True).exists(ROOT / "one" / "two")


def test_syncing_the_file_system_keeps_everything() -> None:
    """Bytes and names of every file."""
    for seed in SEEDS:
        disk = new_disk(seed)
        for name in ["a", "b"]:
            disk.open(ROOT / name, create=True).write(0, [name.encode()])
        disk.rename(ROOT / "b", ROOT / "c")
        disk.sync_file_system(ROOT)
        assert contents(disk.after_crash(power_lost=True)) == {"a": b"a", "c": b"b"}


def test_kill_loses_nothing() -> None:
    """The page cache lives on, and a later power cut can still take what is not synced."""
    left = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        disk.open(ROOT / "a", create=True).write(0, [b"bytes"])
        killed = disk.after_crash(power_lost=False)
        assert contents(killed) == {"a": b"bytes"}
        left.add(tuple(contents(killed.after_crash(power_lost=True)).items()))
    assert () in left


def test_the_boot_id_tells_the_two_crashes_apart() -> None:
    """It is how a broker knows whether the page cache was lost."""
    disk = new_disk()
    killed = disk.after_crash(power_lost=False)
    assert killed.boot_id() == disk.boot_id()
    assert killed.after_crash(power_lost=True).boot_id() != disk.boot_id()


@pytest.mark.parametrize("reorder", [False, True])
def test_the_same_seed_leaves_the_same_bytes(reorder: bool) -> None:
    """Everything is drawn from the Random that was handed in."""

    def run() -> tuple[list[str], dict[str, bytes]]:
        disk = new_disk(7)
        for number in range(5):
            disk.open(ROOT / f"{number}", create=True).write(0, [bytes([number]) * 2000])
        return disk.trace, contents(disk.after_crash(power_lost=True, reorder=reorder))

    assert run() == run()


@pytest.mark.parametrize(
    ("moment", "expected"),
    [("before", {b""}), ("torn", {b"", b"1", b"12", b"123"}), ("after", {b"1234"})],
)
def test_a_crash_strikes_before_inside_or_after(moment: Moment, expected: set[bytes]) -> None:
    """The fourth operation is the write: kill -9 leaves none, some or all of its bytes."""
    found = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        disk.interrupt = crash_at(4, moment)
        file = disk.open(ROOT / "a", create=True)
        with pytest.raises(PowerCut):
            file.write(0, [b"1234"])
        found.add(content(disk.after_crash(power_lost=False), "a"))
    assert found == expected


def test_after_the_crash_nothing_of_the_old_incarnation_works() -> None:
    """Code that cleans up after PowerCut must not reach the disk any more."""
    disk = new_disk()
    file = durable_file(disk, "a", b"bytes")
    later = disk.after_crash(power_lost=True)
    for attempt in (file.size, file.sync, lambda: file.read(0, 1), lambda: disk.names(ROOT)):
        with pytest.raises(PowerCut):
            attempt()
    assert content(later, "a") == b"bytes"


def test_a_photograph_shows_the_crash_and_lets_the_run_go_on() -> None:
    """Neither side sees what the other does afterwards."""
    disk = new_disk()
    file = durable_file(disk, "a", b"one")
    killed = disk.photograph(Random(0), power_lost=False)
    file.write(3, [b"two"])
    killed.open(ROOT / "a").truncate(1)
    assert (content(disk, "a"), content(killed, "a")) == (b"onetwo", b"o")


def test_the_trace_is_readable_and_counts() -> None:
    """It is printed when a crash is replayed."""
    disk = new_disk()
    durable_file(disk, "a", b"four")
    disk.rename(ROOT / "a", ROOT / "b")
    assert disk.trace == [
        "1 mkdir /data",
        "2 sync_directory /",
        "3 create /data/a",
        "4 write /data/a 0+4",
        "5 sync /data/a",
        "6 sync_directory /data",
        "7 rename /data/a to b",
    ]
    assert disk.count == 7


def test_a_failed_sync_is_never_made_good() -> None:
    """The kernel forgets that the pages were dirty: reads show them, a later sync succeeds."""
    for seed in SEEDS:
        disk = new_disk(seed)
        file = durable_file(disk, "a", b"kept")
        file.write(4, [b"lost"])
        disk.fail("sync", "*/a")
        with pytest.raises(StorageError, match=r"^fdatasync /data/a: Input/output error$"):
            file.sync()
        file.sync()
        assert file.read(0, 100) == b"keptlost"
        assert content(disk.photograph(Random(seed), power_lost=True), "a") == b"kept"


def test_eviction_shows_what_a_failed_sync_lost() -> None:
    """Clean pages come from the device again, dirty ones stay; the size is the inode's."""
    disk = new_disk()
    file = durable_file(disk, "a", b"kept")
    file.write(4, [b"lost"])
    disk.fail("sync", "a")
    with pytest.raises(StorageError):
        file.sync()
    file.write(8, [b"dirty"])
    file.evict()
    assert file.read(0, 100) == b"kept\0\0\0\0dirty"


def test_a_full_disk_takes_a_part() -> None:
    """A short write leaves some of the bytes, and the error says why."""
    disk = new_disk()
    file = durable_file(disk, "a", b"")
    disk.fail("write", "a", nth=2, error=errno.ENOSPC)
    file.write(0, [b"1234"])
    with pytest.raises(StorageError, match=r"^write /data/a: No space left on device$"):
        file.write(4, [b"5678"])
    assert file.read(0, 100) == b"123456"
    file.write(4, [b"5678"])
    assert file.read(0, 100) == b"12345678"


@pytest.mark.parametrize("operation", ["open", "create", "read", "rename", "remove"])
def test_other_operations_fail_and_change_nothing(operation: str) -> None:
    """Once; the next attempt works."""
    disk = new_disk()
    durable_file(disk, "a", b"bytes")
    attempts: dict[str, Callable[[], object]] = {
        "open": lambda: disk.open(ROOT / "a"),
        "create": lambda: disk.open(ROOT / "b", create=True),
        "read": lambda: content(disk, "a"),
        "rename": lambda: disk.rename(ROOT / "a", ROOT / "b"),
        "remove": lambda: disk.remove(ROOT / "a"),
    }
    disk.fail(operation, "data/*")
    with pytest.raises(StorageError, match="Input/output error"):
        attempts[operation]()
    assert contents(disk) == {"a": b"bytes"}
    attempts[operation]()


def test_a_failed_sync_keeps_truncations() -> None:
    """Pages are lost, sizes are not: they are in the journal, and durable with the next sync."""
    disk = new_disk()
    file = durable_file(disk, "a", b"kept, cut")
    file.truncate(4)
    file.write(4, [b"lost"])
    disk.fail("sync", "a")
    with pytest.raises(StorageError):
        file.sync()
    file.sync()
    assert content(disk.after_crash(power_lost=True), "a") == b"kept"


def test_writing_back_makes_nothing_durable_and_may_lose_it() -> None:
    """Only a sync does; a failure loses what was dirty, as that of a sync does."""
    left = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        file = durable_file(disk, "a", b"kept")
        file.write(4, [b"new"])
        file.write_back(0, 7)
        left.add(content(disk.photograph(Random(seed), power_lost=True), "a"))
        disk.fail("write_back", "a")
        with pytest.raises(StorageError, match=r"^sync_file_range /data/a: "):
            file.write_back(0, 7)
        file.sync()
        assert content(disk.after_crash(power_lost=True), "a") == b"kept"
    assert {b"kept", b"keptnew"} <= left


def failed_sync_of_everything() -> tuple[SimulatedFiles, SimulatedFile]:
    disk = new_disk()
    file = durable_file(disk, "a", b"kept")
    file.write(4, [b"lost"])
    disk.fail("sync_file_system", "*")
    with pytest.raises(StorageError, match=r"^syncfs /data: "):
        disk.sync_file_system(ROOT)
    return disk, file


def test_a_failed_sync_of_everything_loses_what_was_dirty() -> None:
    """syncfs reports the error once, and then is content."""
    disk, _ = failed_sync_of_everything()
    disk.sync_file_system(ROOT)
    assert content(disk.after_crash(power_lost=True), "a") == b"kept"


def test_a_file_remembers_what_a_sync_of_everything_lost() -> None:
    """Its own next sync fails, once; another process that opens it later may learn nothing."""
    disk, file = failed_sync_of_everything()
    later = disk.photograph(Random(0), power_lost=False).open(ROOT / "a")
    with pytest.raises(StorageError, match=r"^fdatasync /data/a: Input/output error$"):
        file.sync()
    file.sync()
    later.sync()


def test_a_cold_cache_blocks() -> None:
    """read_now never waits; read does."""
    disk = new_disk()
    file = durable_file(disk, "a", b"bytes")
    assert file.read_now(0, 5) == b"bytes"
    disk.cold = True
    with pytest.raises(WouldBlock):
        file.read_now(0, 5)
    assert file.read(0, 5) == b"bytes"


def test_rot_is_seen_at_once_and_after_a_crash() -> None:
    """Flipped bits and missing ends are on the device and in the cache."""
    disk = new_disk()
    file = durable_file(disk, "a", b"@bcd")
    disk.flip_bit(ROOT / "a", 0, 0)
    disk.cut(ROOT / "a", 3)
    assert file.read(0, 10) == b"Abc"
    assert content(disk.after_crash(power_lost=True), "a") == b"Abc"
