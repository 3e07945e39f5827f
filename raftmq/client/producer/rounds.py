"""Where a named producer's records without a key go: from their number alone. Pure.

A program that sends the same records again must find each of them where it was the first time,
whatever was slow, full or without a leader then. So a thousand of them go to one partition, the
next thousand to the next one; where the first ones go depends on name and generation, so that many
producers with few records each do not meet in one partition.
"""

from __future__ import annotations

from zlib import crc32

RUN_RECORDS = 1000


class Rounds:
    """Of one topic, of which the number of partitions never changes here."""

    def __init__(self, name: str, generation: int) -> None:
        self._first = crc32(f"{name}/{generation}".encode())
        self._count = 0

    def take_one(self, partitions: int) -> int:
        """The partition of the next record."""
        found = (self._first + self._count // RUN_RECORDS) % partitions
        self._count += 1
        return found

    def take(self, count: int, partitions: int) -> list[tuple[int, int]]:
        """Those of the next ones: a partition, and how many records in a row go there."""
        runs: list[tuple[int, int]] = []
        end = self._count + count
        while self._count < end:
            run = self._count // RUN_RECORDS
            taken = min(end, (run + 1) * RUN_RECORDS) - self._count
            runs.append(((self._first + run) % partitions, taken))
            self._count += taken
        return runs
