"""Bugs that storage code is known to have, to be planted into ours one at a time.

Owns the bugs, each a function that patches the code through a `Patch`. A bug changes
what the code does with its disk, or what it believes about it; never the simulation's notion of
what a crash leaves. That all are found is tested in `test_planted_bugs.py`; which sweep finds
which, and at how many crashes, says `python -m tests.simulation.planted_bugs`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jepsen_like.planted.patch import Calls
from raftmq.partition.storage import recovery, segment, work
from raftmq.partition.storage.aborted_index import KnownAborted
from raftmq.partition.storage.directory import LogDirectory
from raftmq.partition.storage.durability import DurableEnd, FlushMark
from raftmq.partition.storage.entries import ABORTED_SUFFIX, CLOSING, AbortedEntry, AbortedFile
from raftmq.partition.storage.known_producers import KnownProducers, ProducersCut
from raftmq.partition.storage.log import PartitionLog
from raftmq.partition.storage.recovery import KnownPast
from raftmq.partition.storage.work import Flush, Truncation
from tests.simulation.crash_case import Sweep
from tests.simulation.crash_sweep import SWEEPS, failures, first_failure
from tests.simulation.disk import SimulatedFiles
from tests.simulation.disk_file import SimulatedFile
from tests.simulation.planting import Patch, demand_called, planted, tell_calls
from tests.simulation.transactions.planted_bugs import snapshot_drops_open_offset

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from raftmq.disk.files import Files
    from raftmq.partition.storage.recovery import Past, TailVerdict
    from tests.simulation.crash_case import Failure


def nothing(*_: object, **__: object) -> None:
    """What the forgotten step does."""


# -- becoming durable ------------------------------------------------------------------------


def acknowledge_before_sync(patch: Patch) -> None:
    """Writing is taken for keeping."""
    patch.setattr(SimulatedFile, "sync", nothing)


def forget_names(patch: Patch) -> None:
    """Files are synced, the directories that name them are not."""
    patch.setattr(SimulatedFiles, "sync_directory", nothing)


def forget_names_of_segments(patch: Patch) -> None:
    """The same, but only where a flush round follows a roll."""
    begin_flush = PartitionLog.begin_flush

    def begin(self: PartitionLog, now: float) -> Flush:
        flush = begin_flush(self, now)
        flush.unsynced_names = None
        return flush

    patch.setattr(PartitionLog, "begin_flush", begin)


def forget_sealed_segments(patch: Patch) -> None:
    """A round that follows a roll syncs the active segment only."""
    begin_flush = PartitionLog.begin_flush

    def begin(self: PartitionLog, now: float) -> Flush:
        self._unsynced_sealed.clear()
        return begin_flush(self, now)

    patch.setattr(PartitionLog, "begin_flush", begin)


def forget_leader_epochs(patch: Patch) -> None:
    """Batches are synced, the file that says who wrote them is not."""
    begin_flush = PartitionLog.begin_flush

    def begin(self: PartitionLog, now: float) -> Flush:
        flush = begin_flush(self, now)
        flush.files = [file for file in flush.files if file.path.name != "leader-epochs"]
        return flush

    patch.setattr(PartitionLog, "begin_flush", begin)


def acknowledge_too_much(patch: Patch) -> None:
    """A round is taken to cover what was appended while it ran."""

    def complete(self: DurableEnd, _mark: FlushMark) -> None:
        self.flushing_since = None
        self.durable_end_offset = self.log_end_offset

    patch.setattr(DurableEnd, "complete", complete)


# -- replacing small files -------------------------------------------------------------------


def rename_without_sync(patch: Patch) -> None:
    """A checkpoint gets its name before its bytes are safe."""
    sync = SimulatedFile.sync

    def sync_unless_temporary(self: SimulatedFile) -> None:
        if self.path.suffix != ".tmp":
            sync(self)

    patch.setattr(SimulatedFile, "sync", sync_unless_temporary)


def checkpoint_what_is_not_durable(patch: Patch) -> None:
    """The recovery point is the log's end."""

    async def checkpoint(self: LogDirectory) -> None:
        points = {log.name: log.log_end_offset for log in self.logs.values()}
        self._past.write_points(points)

    patch.setattr(LogDirectory, "checkpoint", checkpoint)


# -- cutting ---------------------------------------------------------------------------------


def keep_the_recovery_point(patch: Patch) -> None:
    """A truncation that is cut short looks like lost data."""
    patch.setattr(KnownPast, "lower", nothing)


def cut_from_the_front(patch: Patch) -> None:
    """The segments of a truncation go oldest first, which leaves a gap."""

    def perform(self: Truncation, files: Files) -> None:
        self.removed.reverse()
        original(self, files)

    original = Truncation.perform
    patch.setattr(Truncation, "perform", perform)


def cut_without_sync(patch: Patch) -> None:
    """What was truncated may come back."""

    def perform(self: Truncation, files: Files) -> None:
        with patch.context() as inner:
            inner.setattr(SimulatedFile, "sync", nothing)
            original(self, files)

    original = Truncation.perform
    patch.setattr(Truncation, "perform", perform)


def forget_the_log_start(patch: Patch) -> None:
    """Deleted records are gone until the next start."""
    patch.setattr(work, "put_in_place", nothing)


def remember_what_was_cut(patch: Patch) -> None:
    """Of producers the log knows what it knew before a truncation."""
    patch.setattr(KnownProducers, "end_cut", nothing)


def keep_snapshots_of_what_was_cut(patch: Patch) -> None:
    """Later, when the log has grown over it again, one is believed."""
    patch.setattr(ProducersCut, "forget", nothing)


def cut_keeps_abort_entry(patch: Patch) -> None:
    """What a truncation takes back was aborted, and what it opens again is not open."""
    cut, perform, remove = PartitionLog._cut, Truncation.perform, SimulatedFiles.remove

    def remove_others(self: SimulatedFiles, path: Path) -> None:
        if path.suffix != ABORTED_SUFFIX:
            remove(self, path)

    def cut_what_is_not_aborted(self: PartitionLog, *place: Any) -> Truncation:
        with patch.context() as inner:
            inner.setattr(KnownAborted, "forget", nothing)
            truncation = cut(self, *place)
        truncation.learn = nothing
        return truncation

    def perform_what_is_not_aborted(self: Truncation, files: Files) -> None:
        with patch.context() as inner:
            inner.setattr(SimulatedFiles, "remove", remove_others)
            perform(self, files)

    patch.setattr(PartitionLog, "_cut", cut_what_is_not_aborted)
    patch.setattr(Truncation, "perform", perform_what_is_not_aborted)


# -- opening ---------------------------------------------------------------------------------


def believe_every_header(patch: Patch) -> None:
    """Recovery does not look at checksums."""
    patch.setattr(segment, "_check_bytes", nothing)


def believe_the_page_cache(patch: Patch) -> None:
    """What recovery reads is taken for durable, although nobody ever synced it."""
    patch.setattr(recovery._Recovery, "_read_from_disk", nothing)


def index_lost_reads_as_empty(patch: Patch) -> None:
    """Where the index is missing or short, nothing is taken to have been aborted."""
    build = AbortedFile.build

    def build_empty(self: AbortedFile, entries: Iterable[AbortedEntry]) -> int:
        closing = [each for each in entries if each.producer_id == CLOSING]
        return build(self, [each._replace(first_offset=0) for each in closing])

    patch.setattr(AbortedFile, "build", build_empty)


def leave_the_torn_tail(patch: Patch) -> None:
    """The log ends before the torn batch, but its file does not."""
    patch.setattr(recovery._Recovery, "_cut", nothing)


def call_it_damage(patch: Patch) -> None:
    """Sectors that arrive out of order after a power cut are taken for rot."""

    def judge(past: Past, **facts: bool) -> TailVerdict:
        return original(past._replace(page_cache_survived=True), **facts)

    original = recovery.judge
    patch.setattr(recovery, "judge", judge)


# -- all of them -----------------------------------------------------------------------------

Bug = Callable[[Patch], None]

# Every bug with a sweep that catches it. Where a change of the log's code shifts a script so far
# that a bug slips through, run this module as a command and choose a sweep that catches it often.
BUGS: dict[Bug, Sweep] = {
    acknowledge_before_sync: Sweep(5, "power"),
    forget_names: Sweep(5, "power"),
    forget_names_of_segments: Sweep(5, "power"),
    forget_sealed_segments: Sweep(5, "power"),
    forget_leader_epochs: Sweep(5, "power"),
    acknowledge_too_much: Sweep(1, "reorder"),
    rename_without_sync: Sweep(5, "power"),
    checkpoint_what_is_not_durable: Sweep(5, "power"),
    keep_the_recovery_point: Sweep(1, "reorder"),
    cut_from_the_front: Sweep(5, "kill"),
    cut_without_sync: Sweep(1, "reorder"),
    forget_the_log_start: Sweep(35, "power"),
    remember_what_was_cut: Sweep(1, "reorder"),
    keep_snapshots_of_what_was_cut: Sweep(35, "power"),
    believe_every_header: Sweep(1, "reorder"),
    believe_the_page_cache: Sweep(0, "kill"),
    index_lost_reads_as_empty: Sweep(2024, "kill"),
    cut_keeps_abort_entry: Sweep(2010, "kill"),
    snapshot_drops_open_offset: Sweep(2010, "kill"),
    leave_the_torn_tail: Sweep(5, "power"),
    call_it_damage: Sweep(5, "power"),
}


def caught(bug: Bug, sweep: Sweep) -> Failure | None:
    """The first crash that shows the bug."""
    with planted(bug) as calls:
        failure = first_failure(sweep)
    demand_called(bug.__name__, calls)
    return failure


def main() -> None:
    """How many crashes of which sweep show which bug."""
    logging.disable(logging.CRITICAL)
    is_in_vain = False
    for bug in BUGS:
        sys.stdout.write(f"{bug.__name__:32}")
        calls = Calls()
        for sweep in SWEEPS:
            with planted(bug, calls):
                count = sum(1 for _ in failures(sweep.seed, [sweep.mode]))
            sys.stdout.write(f"{sweep!s:>10}: {count:3}")
        sys.stdout.write("\n")
        tell_calls(bug.__name__, calls)
        is_in_vain |= bool(calls.missing)
    sys.exit(1 if is_in_vain else 0)


if __name__ == "__main__":
    main()
