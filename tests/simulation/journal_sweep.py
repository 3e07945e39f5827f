"""The crash sweep of a voter's journal: crash, fail or flip bits at every operation, and restart.

Owns the crashes and the verdict: a restart finds exactly what was owed (no batch in part, no term
or vote that went back, nothing invented), what it found survives a power cut from then on, and
the journal goes on. `flips` flips single bits instead, and expects an error.

    python -m tests.simulation.journal_sweep --seeds 100
    python -m tests.simulation.journal_sweep --seed S --mode M --at N
"""

from __future__ import annotations

import argparse
import errno
import logging
import sys
from random import Random
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from raftmq.errors import CorruptJournal, StorageError
from raftmq.metadata.raft.journal.format import find_batch
from raftmq.metadata.raft.journal.journal import verify_journal
from tests.simulation.disk import SimulatedFiles
from tests.simulation.journal_script import DIRECTORY, JournalScript, Picture, picture_of, start

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.simulation.disk_faults import Moment

# kill -9; a power cut; one that scatters sectors; an operation that fails, and then one of those.
Mode = Literal["kill", "power", "reorder", "failure"]
MODES: tuple[Mode, ...] = get_args(Mode)
STEPS = 200  # of a script: several segments


class JournalCase(NamedTuple):
    """One crash; all of its chance follows from these."""

    seed: int
    mode: Mode
    at: int

    def __str__(self) -> str:
        return (
            "python -m tests.simulation.journal_sweep"
            f" --seed {self.seed} --mode {self.mode} --at {self.at}"
        )

    def random(self) -> Random:
        return Random(f"{self.seed}/{self.mode}/{self.at}")


class CrashedJournal(NamedTuple):
    """What a crash left, and what was owed then."""

    case: JournalCase
    disk: SimulatedFiles
    owed: tuple[Picture, ...]

    def examine(self) -> None:
        """AssertionError or CorruptJournal if a promise is broken."""
        report = verify_journal(self.disk, DIRECTORY)
        assert report.damage is None, report.damage
        journal = start(self.disk)
        found = picture_of(journal)
        assert found in [owed.started for owed in self.owed], f"{found} of {self.owed}"
        assert journal.synced_index == journal.last_index
        again = self.disk.photograph(self.case.random(), power_lost=True, reorder=True)
        assert picture_of(start(again)) == found.started, "what a start showed was not durable"
        self._go_on(found)

    def _go_on(self, found: Picture) -> None:
        """A new term, a new entry, a compaction: the disk is as good as any."""
        journal, index, term = start(self.disk), found.last_index + 1, found.term + 1
        term = max(term, found.last_term)
        journal.setCurrentTerm(term, 2)
        journal.add(b"after the crash", index, term)
        journal.setRaftCommitIndex(index)
        journal.compact(index, 1)
        batch = journal.prepare()
        assert batch
        batch.write()
        journal.complete(batch)
        removal = journal.prepare_removal()
        if removal:
            removal.run()
            journal.removed(removal)
        expected = picture_of(journal)
        later = start(self.disk.after_crash(power_lost=True, reorder=True))
        assert picture_of(later) == expected.started


class JournalCamera:
    """Runs one script and photographs its disk at each operation, or only at number `at`."""

    def __init__(self, seed: int, modes: Sequence[Mode], at: int | None = None) -> None:
        self._seed, self._modes, self._at = seed, modes, at
        self.photographs: list[CrashedJournal] = []
        self.disk = _machine(seed)
        self.disk.interrupt = self._interrupt
        self.script = JournalScript(self.disk, Random(f"{seed}/script"))

    def run(self) -> None:
        self.script.run(STEPS)

    def _interrupt(self, count: int, moment: Moment) -> None:
        if self._at in (None, count):
            for mode in self._modes:
                case = JournalCase(self._seed, mode, count)
                if moment == self._moment(case):
                    self.photographs.append(self._photograph(case))

    def _photograph(self, case: JournalCase) -> CrashedJournal:
        power_lost, reorder = case.mode != "kill", case.mode == "reorder"
        disk = self.disk.photograph(case.random(), power_lost=power_lost, reorder=reorder)
        return CrashedJournal(case, disk, self.script.owed)

    def _moment(self, case: JournalCase) -> Moment:
        is_write = " write " in self.disk.trace[case.at - 1]
        moments: list[Moment] = ["before", "torn", "after"] if is_write else ["before", "after"]
        return case.random().choice(moments)


class FailingJournal:
    """One script on a disk whose operation number `at` fails; then the process or machine ends."""

    def __init__(self, case: JournalCase) -> None:
        self._case = case
        self.disk = _machine(case.seed)
        self.disk.interrupt = self._interrupt
        self.script = JournalScript(self.disk, Random(f"{case.seed}/script"))

    def run(self) -> CrashedJournal | None:
        """None if the script has no such operation."""
        try:
            self.script.run(STEPS)
        except CorruptJournal:
            raise
        except StorageError:
            pass  # the node stops
        if not self.disk.has_failed:
            return None
        random = self._case.random()
        power_lost = random.random() < 0.5
        disk = self.disk.photograph(random, power_lost=power_lost, reorder=random.random() < 0.5)
        return CrashedJournal(self._case, disk, self.script.owed)

    def _interrupt(self, count: int, moment: Moment) -> None:
        if (count, moment) == (self._case.at, "before"):
            operation = self.disk.trace[count - 1].split()[1]
            is_full = operation in ("write", "create", "mkdir")
            self.disk.fail(operation, "*", error=errno.ENOSPC if is_full else errno.EIO)


def _machine(seed: int) -> SimulatedFiles:
    """The data directory was made, for good, before there was a journal in it."""
    disk = SimulatedFiles(Random(f"{seed}/disk"))
    disk.make_directory(DIRECTORY.parent)
    disk.trace.clear()
    return disk


def crashes(seed: int, mode: Mode, at: int | None = None) -> Iterator[CrashedJournal]:
    if mode == "failure":
        count = operations(seed)
        for number in range(1, count + 1) if at is None else [at]:
            failed = FailingJournal(JournalCase(seed, mode, number)).run()
            assert failed, f"no operation {number}"
            yield failed
    else:
        camera = JournalCamera(seed, [mode], at)
        camera.run()
        yield from camera.photographs


def operations(seed: int) -> int:
    camera = JournalCamera(seed, [])
    camera.run()
    return camera.disk.count


def sweep(seed: int, mode: Mode, at: int | None = None) -> int:
    """How many crashes were examined; a broken promise raises, naming its case."""
    count = 0
    for crashed in crashes(seed, mode, at):
        try:
            crashed.examine()
        except (AssertionError, StorageError) as error:
            raise AssertionError(f"{error}\n    {crashed.case}") from error
        count += 1
    return count


def flips(seed: int, every: int = 1) -> int:
    """Turn one bit of each `every`th byte; how many were examined.

    Each is noticed, but for those of the last batch, which is taken for torn.
    """
    camera = JournalCamera(seed, [])
    camera.run()
    random = Random(f"{seed}/flips")
    last = _last_batch(camera.disk)
    places = [
        (path, position)
        for path in camera.disk.paths(DIRECTORY)
        for position in range(camera.disk.size(path))
    ]
    for path, position in places[random.randrange(every) :: every]:
        disk = camera.disk.photograph(random, power_lost=False)
        disk.flip_bit(path, position, random.randrange(8))
        may_be_torn = last is not None and (path, position) >= last
        report = verify_journal(disk, DIRECTORY)
        if may_be_torn:
            assert report.summary, f"seed {seed}: {report.damage}"
            assert report.summary.torn_bytes, f"seed {seed}: byte {position} of {path}"
        else:
            assert report.damage, f"seed {seed}: a bit of byte {position} of {path} went unnoticed"
    return len(places[::every])


def _last_batch(disk: SimulatedFiles) -> tuple[object, int] | None:
    """Path and byte of the last batch, unless it begins its segment."""
    path = disk.paths(DIRECTORY)[-1]
    data, position, starts = disk.open(path).read(0, disk.size(path)), 0, []
    while header := find_batch(data, position):
        starts.append(position)
        position = header.end
    assert position == len(data)
    return (path, starts[-1]) if len(starts) > 1 else None


def main() -> None:
    options = _parser().parse_args()
    logging.disable(logging.CRITICAL)
    for seed in range(options.seed, options.seed + options.seeds):
        for mode in [options.mode] if options.mode else MODES:
            sweep(seed, mode, options.at)
        if options.at is None:
            flips(seed, every=7)
        sys.stderr.write(f"\rseed {seed}: all promises kept")
    sys.stderr.write("\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="the first script")
    parser.add_argument("--seeds", type=int, default=1, help="how many scripts")
    parser.add_argument("--at", type=int, help="crash at this operation only")
    parser.add_argument("--mode", choices=MODES, help="crash in this way only")
    return parser


if __name__ == "__main__":
    main()
