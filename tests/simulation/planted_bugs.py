"""Bugs that storage code is known to have, to be planted into ours one at a time.

Owns the bugs, each a function that patches the code through pytest's MonkeyPatch; whether they
are found is tested in `test_planted_bugs.py`. A bug changes what the code does with its disk, or
what it believes about it; never the simulation's notion of what a crash leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.partition.storage import recovery, walk, work
from raftmq.partition.storage.directory import LogDirectory
from raftmq.partition.storage.durability import DurableEnd, FlushMark
from raftmq.partition.storage.log import PartitionLog
from raftmq.partition.storage.recovery import Past, Verdict
from raftmq.partition.storage.work import Flush, Truncation
from tests.simulation.disk import SimulatedFiles
from tests.simulation.disk_file import SimulatedFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest import MonkeyPatch

    from raftmq.partition.storage.files import Files
    from raftmq.partition.storage.work import Trim


def nothing(*_: object, **__: object) -> None:
    """What the forgotten step does."""


# -- becoming durable ------------------------------------------------------------------------


def acknowledge_before_sync(patch: MonkeyPatch) -> None:
    """Writing is taken for keeping."""
    patch.setattr(SimulatedFile, "sync", nothing)


def forget_names(patch: MonkeyPatch) -> None:
    """Files are synced, the directories that name them are not."""
    patch.setattr(SimulatedFiles, "sync_directory", nothing)


def forget_names_of_segments(patch: MonkeyPatch) -> None:
    """The same, but only where a flush round follows a roll."""
    begin_flush = PartitionLog.begin_flush

    def begin(self: PartitionLog, now: float) -> Flush:
        flush = begin_flush(self, now)
        flush.unsynced_names = None
        return flush

    patch.setattr(PartitionLog, "begin_flush", begin)


def forget_sealed_segments(patch: MonkeyPatch) -> None:
    """A round that follows a roll syncs the active segment only."""
    begin_flush = PartitionLog.begin_flush

    def begin(self: PartitionLog, now: float) -> Flush:
        self._unsynced_sealed.clear()
        return begin_flush(self, now)

    patch.setattr(PartitionLog, "begin_flush", begin)


def forget_leader_epochs(patch: MonkeyPatch) -> None:
    """Batches are synced, the file that says who wrote them is not."""
    begin_flush = PartitionLog.begin_flush

    def begin(self: PartitionLog, now: float) -> Flush:
        flush = begin_flush(self, now)
        flush.files = [file for file in flush.files if file.path.name != "leader-epochs"]
        return flush

    patch.setattr(PartitionLog, "begin_flush", begin)


def acknowledge_too_much(patch: MonkeyPatch) -> None:
    """A round is taken to cover what was appended while it ran."""

    def complete(self: DurableEnd, _mark: FlushMark) -> None:
        self.flushing_since = None
        self.durable_end_offset = self.log_end_offset

    patch.setattr(DurableEnd, "complete", complete)


# -- replacing small files -------------------------------------------------------------------


def rename_without_sync(patch: MonkeyPatch) -> None:
    """A checkpoint gets its name before its bytes are safe."""
    sync = SimulatedFile.sync

    def sync_unless_temporary(self: SimulatedFile) -> None:
        if self.path.suffix != ".tmp":
            sync(self)

    patch.setattr(SimulatedFile, "sync", sync_unless_temporary)


def checkpoint_what_is_not_durable(patch: MonkeyPatch) -> None:
    """The recovery point is the log's end."""

    async def checkpoint(self: LogDirectory) -> None:
        points = {log.name: log.log_end_offset for log in self.logs.values()}
        self._write_checkpoint("recovery-points", points)
        self._recovery_points = points

    patch.setattr(LogDirectory, "checkpoint", checkpoint)


# -- cutting ---------------------------------------------------------------------------------


def keep_the_recovery_point(patch: MonkeyPatch) -> None:
    """A truncation that is cut short looks like lost data."""
    patch.setattr(LogDirectory, "_lowered", lambda self, _log: dict(self._recovery_points))


def cut_from_the_front(patch: MonkeyPatch) -> None:
    """The segments of a truncation go oldest first, which leaves a gap."""

    def perform(self: Truncation, files: Files) -> None:
        self.removed.reverse()
        original(self, files)

    original = Truncation.perform
    patch.setattr(Truncation, "perform", perform)


def cut_without_sync(patch: MonkeyPatch) -> None:
    """What was truncated may come back."""

    def perform(self: Truncation, files: Files) -> None:
        with patch.context() as inner:
            inner.setattr(SimulatedFile, "sync", nothing)
            original(self, files)

    original = Truncation.perform
    patch.setattr(Truncation, "perform", perform)


def forget_the_log_start(patch: MonkeyPatch) -> None:
    """Deleted records are gone until the next start."""
    patch.setattr(work, "write_log_start", nothing)


# -- opening ---------------------------------------------------------------------------------


def believe_every_header(patch: MonkeyPatch) -> None:
    """Recovery does not look at checksums."""
    patch.setattr(walk, "_check_bytes", nothing)


def believe_the_page_cache(patch: MonkeyPatch) -> None:
    """What recovery reads is taken for durable, although nobody ever synced it."""
    patch.setattr(recovery._Recovery, "_read_from_disk", nothing)


def leave_the_torn_tail(patch: MonkeyPatch) -> None:
    """The log ends before the torn batch, but its file does not."""
    patch.setattr(recovery._Recovery, "_cut", nothing)


def call_it_damage(patch: MonkeyPatch) -> None:
    """Sectors that arrive out of order after a power cut are taken for rot."""

    def judge(past: Past, **facts: bool) -> Verdict:
        return original(past._replace(page_cache_survived=True), **facts)

    original = recovery.judge
    patch.setattr(recovery, "judge", judge)


def always_cut(patch: MonkeyPatch) -> None:
    """Whatever looks wrong is cut off, and so is what was durable behind it."""
    patch.setattr(recovery, "judge", lambda *_, **__: Verdict.CUT)


def trust_the_last_close(patch: MonkeyPatch) -> None:
    """The mark of a clean shutdown outlives the next start."""
    patch.setattr(LogDirectory, "_forget_clean_mark", nothing)


BUGS = [v for k, v in list(globals().items()) if callable(v) and getattr(v,'__module__',None)==__name__ and v is not nothing]
