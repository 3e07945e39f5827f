"""Deleting a log: at once, after a crash in the middle, and a partition that comes back."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, TypeVar

import pytest
import trio

from raftmq.disk.files import OsFiles
from raftmq.errors import StorageError
from raftmq.partition.storage.directory import (
    DELETED_SUFFIX,
    open_log_directory,
    remove_deleted,
)
from raftmq.partition.storage.inspect import TOPICS_FOLDER
from tests.simulation.disk import SimulatedFiles
from tests.unit.storage.batches import NOW_MS, batch
from tests.unit.storage.directories import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trio.testing import MockClock

T = TypeVar("T")


async def test_a_deleted_log_is_gone_and_may_begin_anew(tmp_path: Path) -> None:
    """Its folder goes, and the next log of that name does not miss what this one held."""
    async with open_log_directory(tmp_path) as directory:
        for _ in range(2):
            log = await directory.open_log("orders-1", 0)
            assert log.log_end_offset == 0
            assert not log.damage
            log.append(batch(b"a", b"b"), leader_epoch=1, now_ms=NOW_MS, now=0.0)
            await directory.flusher.wait_durable(log, 2)
            await directory.checkpoint()
            await directory.delete_log(log)
            assert directory.found() == []
            with pytest.raises(StorageError, match="closed"):
                log.append(batch(b"c"), leader_epoch=1, now_ms=NOW_MS, now=0.0)


def test_what_a_crash_left_is_removed_later(tmp_path: Path) -> None:
    """The folder had its last name already when the process died."""
    doomed = tmp_path / TOPICS_FOLDER / "orders-1" / f"Partition-0{DELETED_SUFFIX}"
    other = tmp_path / TOPICS_FOLDER / "orders-1" / "Partition-1"
    doomed.mkdir(parents=True)
    other.mkdir()
    (doomed / "some.log").write_bytes(b"x")
    remove_deleted(OsFiles(), tmp_path / TOPICS_FOLDER)
    assert not doomed.exists()
    assert other.exists()


async def test_no_flush_waits_for_what_is_removed(autojump_clock: MockClock) -> None:
    """A file system gives back much, and takes long: other logs go on being flushed meanwhile."""
    files = SimulatedFiles(Random(0))

    async def run_sync(function: Callable[[], T], /) -> T:
        done = len(files.trace)
        result = function()
        if any(" remove " in line for line in files.trace[done:]):
            await trio.sleep(60)
        return result

    async with (
        open_log_directory(
            ROOT, files=files, run_sync=run_sync, now_ms=lambda: NOW_MS
        ) as directory,
        trio.open_nursery() as nursery,
    ):
        goes, stays = [await directory.open_log("orders-1", number) for number in (0, 1)]
        nursery.start_soon(directory.delete_log, goes)
        await trio.sleep(1)
        assert goes.name not in directory.logs
        stays.append(batch(b"a"), leader_epoch=1, now_ms=NOW_MS, now=0.0)
        with trio.fail_after(1):
            await directory.flusher.wait_durable(stays, 1)
        assert files.names(goes.folder.parent) == [stays.folder.name]
