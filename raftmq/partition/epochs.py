"""Leader epoch table: which leader epoch wrote which offsets, and where two logs diverge.

Owns the entries and their lookups (Kafka: LeaderEpochFileCache); pure, `storage/entries.py` has
the file. Leader and follower compare entries to find where their logs diverge, so the table is
truncated together with the log (KIP-101, KIP-279).

Invariants: epochs and start offsets both rise from entry to entry.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

UNDEFINED_EPOCH = -1  # below every real epoch, so that comparisons need no special case


class EpochStart(NamedTuple):
    """`leader_epoch` began to write at `start_offset`."""

    leader_epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """`leader_epoch` ends at `end_offset`, which belongs to the next epoch or is not written."""

    leader_epoch: int
    end_offset: int


class LeaderEpochs:
    """The epochs of one log, oldest first."""

    def __init__(self) -> None:
        self.entries: list[EpochStart] = []

    @classmethod
    def replay(cls, history: Iterable[EpochStart]) -> LeaderEpochs:
        """The table that results from a history of new epochs and truncations (decision 0007).

        Each entry removes the epochs that began at or after its offset. An entry that repeats the
        epoch then latest, or has UNDEFINED_EPOCH, was a truncation and adds nothing.
        """
        epochs = cls()
        for leader_epoch, start_offset in history:
            epochs.truncate(start_offset)
            if leader_epoch > epochs.latest:  # else the entry was a truncation
                epochs.entries.append(EpochStart(leader_epoch, start_offset))
        return epochs

    @property
    def latest(self) -> int:
        return self.entries[-1].leader_epoch if self.entries else UNDEFINED_EPOCH

    def assign(self, leader_epoch: int, start_offset: int) -> bool:
        """Note that `leader_epoch` begins at `start_offset`; False if that epoch is known.

        An epoch that wrote nothing gives way to its successor at the same offset.
        """
        if leader_epoch == self.latest:  # the same leader begins again, as after a restart
            return False
        self.truncate(start_offset)
        assert leader_epoch > self.latest, "leader epochs never go back"
        self.entries.append(EpochStart(leader_epoch, start_offset))
        return True

    def truncate(self, end_offset: int) -> None:
        """Forget what began at or after `end_offset`."""
        while self.entries and self.entries[-1].start_offset >= end_offset:
            self.entries.pop()

    def trim(self, log_start_offset: int) -> None:
        """Forget epochs that ended before the log starts; the one it starts in begins there."""
        first = bisect_right(self.entries, log_start_offset, key=_start_offset) - 1
        if first >= 0:  # else the table begins behind the log's start, as after damage
            self.entries[: first + 1] = [EpochStart(self.entries[first][0], log_start_offset)]

    def epoch_at(self, offset: int) -> int:
        """The epoch that wrote `offset`; UNDEFINED_EPOCH where the table does not reach."""
        index = bisect_right(self.entries, offset, key=_start_offset) - 1
        return self.entries[index].leader_epoch if index >= 0 else UNDEFINED_EPOCH

    def end_of(self, leader_epoch: int, log_end_offset: int) -> EpochEnd | None:
        """Where the largest known epoch <= `leader_epoch` ends.

        None if the epoch is newer than all that this log knows. An epoch older than all of them
        ends where the first known one starts.
        """
        # An epoch of a leader from which this log has no records.
        if not self.entries or leader_epoch > self.latest:
            return None
        if leader_epoch == self.latest:  # still written: no next epoch marks its end
            return EpochEnd(leader_epoch, log_end_offset)
        following = bisect_right(self.entries, leader_epoch, key=_leader_epoch)
        end_offset = self.entries[following].start_offset
        if following == 0:  # older than the table: its records were deleted by retention
            return EpochEnd(leader_epoch, end_offset)
        return EpochEnd(self.entries[following - 1].leader_epoch, end_offset)


def _start_offset(entry: EpochStart) -> int:
    return entry.start_offset


def _leader_epoch(entry: EpochStart) -> int:
    return entry.leader_epoch
