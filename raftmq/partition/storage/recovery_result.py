"""What recovery found in a partition folder, as it hands it over to the log.

Owns these value types only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from raftmq.partition.epochs import LeaderEpochs
    from raftmq.partition.storage.entries import EpochFile
    from raftmq.partition.storage.known_producers import KnownProducers
    from raftmq.partition.storage.segment import Segment

DAMAGE_MARK = "damaged"  # the file that remembers damage


class Damage(NamedTuple):
    """The first byte that recovery found wrong although something sound follows it."""

    offset: int
    what: str
    behind: tuple[Segment, ...] = ()  # segments that cannot be reached across the damage

    def __str__(self) -> str:
        return f"damaged from offset {self.offset} on: {self.what}"


class RecoveryReport(NamedTuple):
    """How the log was found. `lost_durable`: less than the recovery point vouched for."""

    clean: bool = True
    scanned_bytes: int = 0
    cut_bytes: int = 0
    lost_durable: bool = False


class FoundLog(NamedTuple):
    """A log, opened."""

    segments: list[Segment]
    epochs: LeaderEpochs
    epoch_file: EpochFile
    producers: KnownProducers
    log_start_offset: int
    durable_end_offset: int
    damage: Damage | None
    report: RecoveryReport
