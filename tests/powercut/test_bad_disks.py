"""A disk that fails, is full or is slow: the log says so, promises nothing wrongly, recovers."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from jepsen_like.nodes.disk import loop_disk, memory_disk
from raftmq.disk.files import OsFiles
from raftmq.errors import DirectoryInUse
from raftmq.partition.storage.directory import open_log_directory
from tests.powercut.capabilities import loop_mounts, memory_disks, require, strace
from tests.powercut.events import Acknowledged, Opened, Pending, WentOffline
from tests.powercut.injections import (
    failing_call,
    failing_sync,
    failing_write,
    first_segment,
    slow_sync,
)
from tests.powercut.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from jepsen_like.nodes.disk import LoopDisk
    from tests.powercut.events import AnyEvent

pytestmark = pytest.mark.powercut

DELAY = 0.4  # seconds
SMALL_MIB = 8
LEFT_BYTES = 1 << 20


def is_offline(event: AnyEvent) -> bool:
    return isinstance(event, WentOffline)


def acknowledges(partition: int) -> Callable[[AnyEvent], bool]:
    return lambda event: isinstance(event, Acknowledged) and event.partition == partition


def test_a_failed_sync_takes_one_log_offline(rig: Rig) -> None:
    """fdatasync of one log says EIO: the ledger sees no promise after it, the others go on.

    A3.8.
    """
    require(strace)
    failing = failing_sync(first_segment(rig.order.root, 0), 3)
    with rig.start(under=failing) as writer:
        offline = writer.hear_until(is_offline)
        for partition in (1, 2, 3):
            writer.hear_until(acknowledges(partition))
        rig.bury(writer)
    assert isinstance(offline, WentOffline)
    assert offline.partition == 0
    assert "fdatasync" in offline.reason
    assert "Input/output error" in offline.reason
    rig.cut_power()
    rig.check()


def test_a_failed_sync_of_the_file_system_takes_its_round_offline(disk: LoopDisk) -> None:
    """syncfs says EIO: whose bytes were lost nobody knows, so none of the round is acknowledged."""
    require(strace)
    rig = Rig(disk.mount_point, disk, seed=5, partitions=12)
    with rig.start(under=failing_sync(disk.mount_point, 3)) as writer:
        offline = writer.hear_until(is_offline)
        writer.hear_for(0.3)
        rig.bury(writer)
    assert isinstance(offline, WentOffline)
    assert "syncfs" in offline.reason
    rig.cut_power()
    rig.check()
    assert not rig.ledger.findings


def test_a_failed_write_to_an_index_takes_the_log_offline(rig: Rig) -> None:
    """Rolling and cutting write the index: where that fails the log is offline, not half cut."""
    require(strace)
    index = first_segment(rig.order.root, 0).with_suffix(".index")
    with rig.start(under=failing_write(index)) as writer:
        offline = writer.hear_until(is_offline)
        writer.hear_until(acknowledges(1))
        rig.bury(writer)
    assert isinstance(offline, WentOffline)
    assert "No space left on device" in offline.reason
    rig.cut_power()
    rig.check()


CALLS = ("pwritev2", "ftruncate", "rename", "unlink", "fsync", "fdatasync")


@pytest.mark.parametrize("call", CALLS)
def test_one_failing_call(rig: Rig, tmp_path: Path, call: str) -> None:
    """Whatever the broker was doing: it says so, lives, and the next opening finds everything."""
    require(strace)
    for number in (3, 20):
        live_with_failure(rig, tmp_path / "calls", call, number)
    assert rig.promises


@pytest.mark.soak
@pytest.mark.parametrize("number", range(1, 25))
@pytest.mark.parametrize("call", CALLS)
def test_any_failing_call(rig: Rig, tmp_path: Path, call: str, number: int) -> None:
    """The same, call by call."""
    require(strace)
    for _ in range(2):
        live_with_failure(rig, tmp_path / "calls", call, number)


def live_with_failure(rig: Rig, calls: Path, call: str, number: int) -> None:
    def is_over(_: AnyEvent) -> bool:
        return "INJECTED" in calls.read_text()

    with rig.start(under=failing_call(call, number, calls)) as writer:
        writer.hear_until(is_over)
        writer.hear_for(0.1)
        rig.bury(writer)
    rig.cut_power()
    rig.check()


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request: pytest.FixtureRequest) -> Iterator[Path]:
    require(memory_disks if request.param == "tmpfs" else loop_mounts)
    with ExitStack() as stack:
        if request.param == "tmpfs":
            yield stack.enter_context(memory_disk(size_mib=SMALL_MIB))
        else:
            yield stack.enter_context(loop_disk(size_mib=SMALL_MIB)).mount_point


def test_a_full_disk_takes_the_log_offline(small_disk: Path) -> None:
    """Appends fail by name until there is space again and the broker is restarted (A3.8)."""
    filler = small_disk / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - LEFT_BYTES))
    rig = Rig(small_disk / "data", seed=6, partitions=2)
    with rig.start() as writer:
        offline = writer.hear_until(is_offline)
        writer.hear_for(0.2)
        rig.bury(writer)
    assert isinstance(offline, WentOffline)
    assert "No space left on device" in offline.reason
    filler.unlink()
    rig.check()
    rig.live_and_die()
    rig.check()
    assert not rig.ledger.findings
    assert rig.promises


def test_a_slow_disk_is_told_and_blocks_nobody(tmp_path: Path) -> None:
    """While fdatasync hangs, the pending age grows and the loop goes on; then it is 0 again."""
    require(strace)
    rig = Rig(tmp_path, seed=7, partitions=1)
    rig.order = rig.order._replace(rounds=2, sampled=True)
    with rig.start(under=slow_sync(first_segment(tmp_path, 0), DELAY, "2..3")) as writer:
        assert writer.hear_all() == 0
        rig.bury(writer)
    samples = [event for event in writer.events if isinstance(event, Pending)]
    assert max(sample.age for sample in samples) >= DELAY * 0.8
    assert samples[-1].age == 0.0
    hanging = sorted(sample.lateness for sample in samples if sample.age > DELAY / 4)
    assert len(hanging) >= 5
    assert hanging[len(hanging) // 2] < DELAY / 4, "the loop waited for the disk"
    rig.check()
    assert not rig.ledger.findings


async def test_two_processes_cannot_share_a_directory(tmp_path: Path) -> None:
    """The second is refused by name, and let in as soon as the first is dead."""
    rig = Rig(tmp_path, seed=8)
    with rig.start() as writer:
        writer.hear_until(lambda event: isinstance(event, Opened))
        with pytest.raises(DirectoryInUse, match="in use by another process"):
            await open_and_close(tmp_path)
        rig.bury(writer)
    await open_and_close(tmp_path)


async def open_and_close(root: Path) -> None:
    async with open_log_directory(root, files=OsFiles()):
        pass
