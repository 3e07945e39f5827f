"""The file that says whose a data directory is: it outlives power cuts, and has one owner."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from raftmq.broker.meta import MetaFile, open_meta
from raftmq.errors import InvalidConfig, StorageError
from tests.simulation.deterministic import run_inline
from tests.simulation.disk import SimulatedFiles

if TYPE_CHECKING:
    from raftmq.disk.files import Files

DIRECTORY = Path("/data")
OWNER = ("cluster-a", 7)


def new_files() -> SimulatedFiles:
    files = SimulatedFiles(Random(0))
    files.make_directory(DIRECTORY)
    return files


async def opened(files: Files, owner: tuple[str, int] = OWNER, seed: int = 1) -> MetaFile:
    return await open_meta(files, DIRECTORY, owner, random=Random(seed), run_sync=run_inline)


def write(files: SimulatedFiles, data: bytes) -> None:
    files.open(DIRECTORY / "meta.json", create=True).write(0, [data])


async def test_a_directory_keeps_its_id() -> None:
    """The id is made at the first start, and is there after a power cut right after it."""
    files = new_files()
    first = (await opened(files)).meta
    again = (await opened(files.after_crash(power_lost=True), seed=2)).meta
    assert again == first
    assert (first.broker_epoch, first.clean_shutdown_epoch) == (-1, -1)


@pytest.mark.parametrize("owner", [("cluster-b", 7), ("cluster-a", 8)])
async def test_the_directory_of_another_is_refused(owner: tuple[str, int]) -> None:
    """Another cluster's or another node's: the message names both owners and the way out."""
    files = new_files()
    await opened(files)
    with pytest.raises(InvalidConfig) as caught:
        await opened(files, owner)
    told = str(caught.value)
    assert "/data: belongs to node 7 of cluster 'cluster-a'" in told
    assert f"this is node {owner[1]} of {owner[0]!r}: correct node.id or node.cluster_id" in told


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b'{"format_version": 1}', b"\xff", b'{"format_version": "1"}', b"[" * 100_000],
)
async def test_what_is_not_readable_is_not_overwritten(data: bytes) -> None:
    """A damaged file stops the node: whether the records are worth something, people decide."""
    files = new_files()
    write(files, data)
    with pytest.raises(StorageError, match=r"/data/meta\.json is not readable: .*remove it"):
        await opened(files)
    assert files.open(DIRECTORY / "meta.json").read(0, 200_000) == data


async def test_a_newer_format_is_left_to_newer_versions() -> None:
    """After a downgrade the node says so, whatever else the file holds."""
    files = new_files()
    write(files, b'{"format_version": 2, "owner": "somebody"}')
    with pytest.raises(StorageError, match="format 2, this node knows 1: upgrade"):
        await opened(files)


async def epochs_after_power_cuts(files: SimulatedFiles, file: MetaFile, epoch: int) -> list[int]:
    """What is found if the power goes after each step of writing it; last, when it is over."""
    photographs: list[SimulatedFiles] = []

    def photograph(number: int, moment: str) -> None:
        if moment == "after":
            photographs.append(files.photograph(Random(number), power_lost=True))

    files.interrupt = photograph
    await file.write_epoch(epoch)
    files.interrupt = None
    return [(await opened(each)).meta.broker_epoch for each in photographs]


async def test_an_epoch_is_on_the_disk_when_it_is_known() -> None:
    """The power goes in the middle: the old one or the new one is there, and in the end the new."""
    files = new_files()
    file = await opened(files)
    await file.write_epoch(10)
    found = await epochs_after_power_cuts(files, file, 11)
    assert set(found) == {10, 11}
    assert found[-1] == 11


async def test_a_disk_that_refuses_leaves_what_was_known() -> None:
    """The epoch could not be written: it is not known here either."""
    files = new_files()
    file = await opened(files)
    await file.write_epoch(10)
    files.fail("sync", "meta.json.tmp")
    with pytest.raises(StorageError):
        await file.write_epoch(11)
    assert file.meta.broker_epoch == 10


async def test_the_clean_mark_is_of_the_registered_process() -> None:
    """Set at a shutdown in order, read by the next process, gone once that one is registered."""
    files = new_files()
    file = await opened(files)
    await file.write_epoch(10)
    assert file.meta.clean_shutdown_epoch == -1
    await file.mark_clean()
    file = await opened(files)
    assert file.meta.clean_shutdown_epoch == 10
    await file.write_epoch(11)
    meta = (await opened(files)).meta
    assert (meta.broker_epoch, meta.clean_shutdown_epoch) == (11, -1)


async def test_who_was_never_registered_marks_nothing() -> None:
    """A process crashes; the next one stops in order before it is registered: no mark for the
    first one, whose records may be lost.
    """
    files = new_files()
    await (await opened(files)).write_epoch(10)
    file = await opened(files)
    await file.mark_clean()
    assert (await opened(files)).meta.clean_shutdown_epoch == -1


async def test_a_mark_outlives_a_process_that_was_never_registered() -> None:
    """It was shut down in order; nothing was promised since."""
    files = new_files()
    first = await opened(files)
    await first.write_epoch(10)
    await first.mark_clean()
    await (await opened(files)).mark_clean()
    assert (await opened(files)).meta.clean_shutdown_epoch == 10
