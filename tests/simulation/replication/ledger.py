"""The committed prefix of one partition: the truth that replicas are compared with.

An unclean election is a new beginning: until its leader has taken over nothing is promised
(`in_limbo`), then its log is the truth, and answers of earlier leaders count no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.replication.disk import Record

if TYPE_CHECKING:
    from tests.simulation.replication.disk import ReplicaLog


UNKNOWN = Record(-1, -1)


class Violation(AssertionError):
    """A promise was broken."""


def demand(holds: object, what: str) -> None:
    if not holds:
        raise Violation(what)


class Ledger:
    """Attributes:
    records: everything that was below a leader's high watermark, from offset 0.
    unknown_to: records before it were deleted from an unclean leader, and are not known.
    deleted_to: retention, or a client's request, may have removed records before it.
    promised: starts that were answered, by the leader epoch in which they were.
    acknowledged: offsets of values with acks=all; seen: what readers were given.
    unclean_epoch: of the last unclean election; 0 while there was none.
    """

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.deleted_to = self.unknown_to = self.unclean_epoch = 0
        self.in_limbo = False
        self.promised: dict[int, int] = {}
        self.acknowledged: dict[int, int] = {}
        self.seen: dict[int, Record] = {}

    @property
    def end(self) -> int:
        return len(self.records)

    def promised_start(self, leader_epoch: int) -> int:
        """Below it a leader of that epoch, or a later one, shows nothing."""
        return max((at for epoch, at in self.promised.items() if epoch <= leader_epoch), default=0)

    def counts(self, leader_epoch: int) -> bool:
        """Whether what happens under this epoch has to keep, and may make, promises."""
        return not self.in_limbo and leader_epoch >= self.unclean_epoch

    def extend(self, log: ReplicaLog, high_watermark: int) -> None:
        if high_watermark > self.end:
            self._reach(log.start)
            self.records += log.slice(self.end, high_watermark)

    def _reach(self, log_start: int) -> None:
        """A log that begins behind the end was left by an unclean election only."""
        if log_start > self.end:
            demand(self.unclean_epoch, f"{log_start} is the start, {self.end} was committed")
            self.records += [UNKNOWN] * (log_start - self.end)
            self.unknown_to = log_start

    def compare(self, log: ReplicaLog, start: int, end: int, who: str) -> None:
        """Where both have something, it is the same."""
        start, end = max(start, log.start, self.unknown_to), min(end, self.end, log.end)
        mine, theirs = self.records[start:end], log.slice(start, end)
        if start < end and mine != theirs:
            at = next(
                i for i, pair in enumerate(zip(mine, theirs, strict=True)) if pair[0] != pair[1]
            )
            raise Violation(
                f"{who} has {theirs[at]} at {start + at}, where {mine[at]} was committed"
            )

    def begin_anew(self, log: ReplicaLog) -> None:
        """The unclean leader has taken over: what it does not hold was lost, or may be."""
        common = min(self.end, log.held)
        for offset in range(log.start, common):
            if self.records[offset] != log.slice(offset, offset + 1)[0]:
                common = offset
                break
        del self.records[common:]
        self._reach(log.start)
        self.unknown_to = max(self.unknown_to, log.start)
        self.deleted_to = max(self.deleted_to, log.start)
        self.acknowledged = {v: at for v, at in self.acknowledged.items() if at < common}
        self.seen = {at: record for at, record in self.seen.items() if at < common}
        self.in_limbo = False
