"""The promises of a partition log after a crash, and the check of them.

Owns the promises of a partition log, as numbers:
 1. Below what was reported durable, every batch is there, byte for byte; after kill -9 every
    batch whose append returned.
 2. Nothing is served that was not appended, or that was cut for good; offsets follow each other
    without a gap, leader epochs never fall.
 3. The log start lies between the last acknowledged and the last requested one.
 4. The log is sound: it takes appends, and a crash is never mistaken for damage.
 5. Of producers it knows what its batches say, and nothing of what it has lost.
 6. What it says was aborted, and what it takes for open, is what a walk over its batches finds.
Knows nothing of disks; reads a log only through what every reader uses.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from raftmq.wire.batch.header import BatchHeader, iter_batches, read_header
from tests.log_reading import read_batches, read_slice
from tests.simulation.producer_load import TRANSACTIONAL_FIRST
from tests.simulation.producer_reference import producers_in
from tests.unit.storage.transactional import all_aborted, marked_batches, open_by_log, open_in

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from raftmq.partition.storage.aborted_index import Aborted
    from raftmq.partition.storage.log import PartitionLog
    from tests.unit.storage.transactional import Marked

READ_BYTES = 4096


class Violation(Exception):
    """A promise was broken; says which one."""


class Stored(NamedTuple):
    """One batch with its place in the log."""

    base_offset: int
    end_offset: int
    data: bytes

    def __str__(self) -> str:
        return f"batch [{self.base_offset}, {self.end_offset})"


@dataclass
class Expectation:
    """One log, as far as its user can know.

    Attributes:
        content: every batch that was appended and not cut.
        possible: batches that a crash may leave or take: an append or a cut is under way.
        promised: the end of what was reported durable.
        start_acknowledged, start_requested: bounds of the log start.
    """

    content: list[Stored] = field(default_factory=list)
    possible: list[Stored] = field(default_factory=list)
    promised: int = 0
    start_acknowledged: int = 0
    start_requested: int = 0

    @property
    def end_offset(self) -> int:
        return self.content[-1].end_offset if self.content else self.start_acknowledged

    def copy(self) -> Expectation:
        return replace(self, content=list(self.content), possible=list(self.possible))

    def begin_append(self, batches: list[Stored]) -> None:
        self.possible = batches

    def complete_append(self) -> None:
        self.content += self.possible
        self.possible = []

    def begin_truncate(self, offset: int) -> None:
        self.possible = [batch for batch in self.content if batch.end_offset > offset]
        self.content = [batch for batch in self.content if batch.end_offset <= offset]
        self.promised = min(self.promised, self.end_offset)
        # A cut that takes the batch in which the log starts moves the start down with the end.
        self.start_acknowledged = min(self.start_acknowledged, self.end_offset)

    def begin_start_over(self, offset: int) -> None:
        """A crash may leave any beginning of the log, nothing at its start, or nothing at all."""
        self.possible, self.content = self.content, []
        self.promised = min(self.start_acknowledged, offset)
        self.start_acknowledged = min(self.start_acknowledged, offset)
        self.start_requested = max(self.start_requested, offset)

    def complete_truncate(self, log: PartitionLog) -> None:
        self.possible = []
        self.complete_trim(log)

    def check_producers(self, log: PartitionLog) -> None:
        """While the log is in use: what it knows is what its batches say."""
        first = log.segments[0].base_offset
        _check_producers([batch for batch in self.content if batch.base_offset >= first], log)

    def observe(self, log: PartitionLog) -> None:
        """Everybody who looks at the log now is promised what it shows."""
        self.promised = max(self.promised, min(log.durable_end_offset, self.end_offset))
        self.start_requested = max(self.start_requested, log.log_start_offset)

    def request_trim(self, log_start_offset: int) -> None:
        """It may be durable from now on, before the log shows it."""
        self.start_requested = max(self.start_requested, log_start_offset)

    def complete_trim(self, log: PartitionLog) -> None:
        self.start_acknowledged = self.start_requested = log.log_start_offset

    def check(
        self, log: PartitionLog, *, random: Random, power_lost: bool, may_be_damaged: bool = False
    ) -> list[Stored]:
        """Compare with what `log` serves now, which is returned."""
        if not (may_be_damaged and log.damage):
            _check_sound(log)
        low, high = self.start_acknowledged, self.start_requested
        if not low <= log.log_start_offset <= high:
            raise Violation(f"log start {log.log_start_offset}, expected {low} to {high}")
        served = read_everything(log, random)
        self._check_known(served)
        if not log.damage:
            _check_producers(served, log)
            check_aborted(log)
        self._check_complete(served, log, self.promised if power_lost else self.end_offset)
        return served

    def _check_known(self, served: list[Stored]) -> None:
        known = {*self.content, *self.possible}
        for batch in served:
            if batch not in known:
                raise Violation(f"{batch} is served, but was cut or never appended")

    def _check_complete(self, served: list[Stored], log: PartitionLog, end_offset: int) -> None:
        there = set(served)
        for batch in self.content:
            if log.log_start_offset < batch.end_offset <= end_offset and batch not in there:
                raise Violation(f"{batch} is lost; kept must be everything up to {end_offset}")


def _check_sound(log: PartitionLog) -> None:
    if log.damage:
        raise Violation(f"a crash was taken for damage: {log.damage}")
    if log.offline_reason:
        raise Violation(f"offline: {log.offline_reason}")
    if log.report.lost_durable:
        raise Violation("the log believes to have lost what was durable")


def _check_producers(served: list[Stored], log: PartitionLog) -> None:
    headers = [read_header(batch.data) for batch in served]
    said = producers_in(each for each in headers if not each.is_transactional)
    for producer_id, expected in said.items():
        known = log.producers.now.get(producer_id)
        if known is None or known[:2] != expected[:2]:
            raise Violation(f"of producer {producer_id} is known {known}, expected {expected}")
        for first, base_offset, count in expected.runs:
            if known.offset_of(first, count) != base_offset:
                raise Violation(f"of producer {producer_id} is known {known}, not {expected}")
    start = served[0].base_offset if served else log.log_end_offset
    for producer_id, known in log.producers.now.picture().known.items():
        if producer_id >= TRANSACTIONAL_FIRST:  # what is open of them: see `check_aborted`
            continue
        if producer_id not in said and any(run.base_offset >= start for run in known.runs):
            raise Violation(
                f"of producer {producer_id} is known {known}, from batches that are gone"
            )


def check_aborted(log: PartitionLog) -> None:
    """Behind every crash, cut and trim. What began in a segment that was trimmed may be told to
    begin there, or with its first batch that is left: readers drop the same.
    """
    batches, first = marked_batches(log), log.segments[0].base_offset
    said = _dropped(batches, log.aborted_in(first, log.log_end_offset))
    expected = _dropped(batches, all_aborted(batches))
    if said != expected:
        raise Violation(f"batches {sorted(said)} are told to be aborted, not {sorted(expected)}")
    last_stable = {pid: each.first_offset for pid, each in log.transactions.open.items()}
    for known in (open_by_log(log), last_stable):
        _check_open(known, open_in(batches), first)


def _check_open(known: dict[int, int], expected: dict[int, int], first: int) -> None:
    """`known`: what the index of aborted transactions begins with, or the last stable offset."""
    is_kept = {producer_id for producer_id, offset in known.items() if offset >= first}
    for producer_id, offset in expected.items():
        if known.get(producer_id, offset + 1) > offset or (
            producer_id in is_kept and known[producer_id] != offset
        ):
            raise Violation(f"producer {producer_id} is open from {offset} on, known is {known}")
    if is_kept - expected.keys():
        raise Violation(f"taken for open is {known}, and is {expected}")


def _dropped(batches: list[Marked], aborted: list[Aborted]) -> set[int]:
    """Offsets of the batches that a reader of committed records drops."""
    return {
        header.base_offset
        for header, _ in batches
        for producer_id, first_offset, marker_offset in aborted
        if header.producer_id == producer_id and first_offset <= header.base_offset < marker_offset
    }


def read_everything(log: PartitionLog, random: Random) -> list[Stored]:
    """All batches from the log's start to its end, checked as any reader checks them."""
    served: list[Stored] = []
    epoch, offset = -1, log.log_start_offset
    while offset < log.log_end_offset:
        headers = [batch.header for batch in read_batches(log, offset, bytes_max=READ_BYTES)]
        served += stored_batches(read_slice(log, offset, bytes_max=READ_BYTES).bytes.read())
        epoch, offset = _follow(headers, epoch, offset)
    if served:
        _check_lookup(log, random.randrange(log.log_start_offset, log.log_end_offset), served)
    return served


def _check_lookup(log: PartitionLog, offset: int, served: list[Stored]) -> None:
    """Asking for the middle of the log goes through its indexes."""
    found = stored_batches(read_slice(log, offset, bytes_max=1).bytes.read())
    if found != [batch for batch in served if batch.base_offset <= offset < batch.end_offset]:
        raise Violation(f"asked for offset {offset}, got {', '.join(map(str, found))}")


def stored_batches(data: bytes) -> list[Stored]:
    return [
        Stored(header.base_offset, header.end_offset, bytes(data[at : at + header.size]))
        for at, header in iter_batches(data)
    ]


def _follow(headers: Iterable[BatchHeader], epoch: int, offset: int) -> tuple[int, int]:
    """Epoch and end offset after `headers`, of which only the first may begin below `offset`."""
    before = offset
    for number, header in enumerate(headers):
        if header.base_offset != offset and (number or header.base_offset > offset):
            raise Violation(f"offset {header.base_offset} follows {offset}")
        if header.leader_epoch < epoch:
            raise Violation(f"leader epoch {header.leader_epoch} follows {epoch}")
        epoch, offset = header.leader_epoch, header.end_offset
    if offset <= before:
        raise Violation(f"reading from offset {before} on leads nowhere")
    return epoch, offset
