"""A broker is crashed at every operation of deletions: a log is there, or it was never there.

One partition is written, deleted, begun anew and deleted again, beside one that stays. After a
crash at any operation the next start finds each log whole or as a new one, misses nothing, and the
checkpoints name no log that is gone.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from raftmq.disk.checkpoint import read_checkpoint
from raftmq.model import Durability
from raftmq.partition.storage.directory import open_log_directory
from raftmq.partition.storage.recovery import KnownPast
from tests.simulation.crash_script import LOGS, ROOT
from tests.simulation.deterministic import run, run_inline
from tests.simulation.disk import SimulatedFiles
from tests.simulation.planting import demand_called, planted
from tests.unit.storage.batches import NOW_MS, batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.partition.storage.directory import LogDirectory
    from tests.simulation.disk_faults import Moment
    from tests.simulation.planting import Patch

(DELETED, _), (STAYS, _) = LOGS
RECORDS = 5
CHECKPOINTS = ("recovery-points", "boots")


class Photograph(NamedTuple):
    """`ends`: where the log that is deleted may end, were it opened now; `is_synced`: what was
    appended to the other one is owed."""

    at: str
    disk: SimulatedFiles
    ends: frozenset[int]
    is_synced: bool


class Sweep:
    """Attributes:
    photographs: of each moment, after kill -9 and after two kinds of power cuts.
    """

    def __init__(self) -> None:
        self.photographs: list[Photograph] = []
        self._ends, self._is_synced = frozenset({0}), False
        self._disk = SimulatedFiles(Random("deletions"), interrupt=self._interrupt)
        self.run()

    def run(self) -> None:
        async def main() -> None:
            async with open_log_directory(
                ROOT, files=self._disk, run_sync=run_inline, now_ms=lambda: NOW_MS
            ) as directory:
                await directory.open_logs([LOGS[1]])
                await self._append(directory, STAYS.name)
                self._is_synced = True
                for _ in range(2):
                    await self._live(directory)

        run("deletions", main)

    async def _live(self, directory: LogDirectory) -> None:
        await directory.open_logs([LOGS[0]])
        self._ends = frozenset({0, RECORDS})
        await self._append(directory, DELETED.name)
        self._ends = frozenset({RECORDS})
        await directory.checkpoint()
        self._ends = frozenset({0, RECORDS})
        await directory.delete_log(directory.logs[DELETED.name])
        self._ends = frozenset({0})
        await self._append(directory, STAYS.name)
        await directory.checkpoint()

    async def _append(self, directory: LogDirectory, name: str) -> None:
        log = directory.logs[name]
        log.append(batch(*[b"x" * 300] * RECORDS), leader_epoch=1, now_ms=NOW_MS, now=0.0)
        await directory.flusher.wait_durable(log, log.log_end_offset)

    def _interrupt(self, count: int, moment: Moment) -> None:
        if moment == "before":
            return  # as after the one before
        for power_lost, reorder in ((False, False), (True, False), (True, True)):
            at = f"operation {count} {moment}, power_lost={power_lost} reorder={reorder}"
            disk = self._disk.photograph(Random(at), power_lost=power_lost, reorder=reorder)
            self.photographs.append(Photograph(at, disk, self._ends, self._is_synced))


def start_again(photograph: Photograph, judge: Callable[[LogDirectory], None]) -> None:
    """As a broker does; all that it finds is opened."""

    async def main() -> None:
        async with open_log_directory(
            ROOT, files=photograph.disk, run_sync=run_inline, now_ms=lambda: NOW_MS
        ) as directory:
            await directory.remove_deleted()
            found = {f"{topic}/{partition}" for topic, partition in directory.found()}
            await directory.open_logs([each for each in LOGS if each[0].name in found])
            judge(directory)
            await directory.checkpoint()
        names = {*directory.logs}
        for file in CHECKPOINTS:
            known = read_checkpoint(photograph.disk, ROOT / "checkpoints" / file) or {}
            assert {*known} <= names, f"{file} names {known}, there are {names}"

    run("start", main)


def judge(photograph: Photograph, directory: LogDirectory) -> None:
    for log in directory.logs.values():
        assert not log.damage, f"{log.name}: {log.damage}"
        assert not log.report.lost_durable, f"{log.name} misses what was deleted"
    deleted = directory.logs.get(DELETED.name)
    end = deleted.log_end_offset if deleted else 0
    assert end in photograph.ends, f"ends at {end}, expected {sorted(photograph.ends)}"
    stays = directory.logs.get(STAYS.name)
    if photograph.is_synced:
        assert stays is not None
        assert stays.log_end_offset >= RECORDS


def examine() -> None:
    sweep = Sweep()
    assert len(sweep.photographs) > 300
    for photograph in sweep.photographs:
        try:
            start_again(photograph, partial(judge, photograph))
        except Exception as error:
            raise AssertionError(f"crash at {photograph.at}") from error


def test_no_crash_leaves_half_a_deletion() -> None:
    """Neither a log that is missed, nor a line for one that is gone."""
    assert LOGS[1][1].durability is Durability.PAGE_CACHE
    examine()


def a_point_outlives_its_folder(patch: Patch) -> None:
    """The folder goes first, and its log is missed like one removed by hand."""
    patch.setattr(KnownPast, "write_lowered", lambda _self: None)


def test_a_point_that_outlives_its_folder_is_found() -> None:
    """The sweep itself has teeth."""
    with (
        planted(a_point_outlives_its_folder) as calls,
        pytest.raises(AssertionError, match="crash at operation"),
    ):
        examine()
    demand_called(a_point_outlives_its_folder.__name__, calls)
