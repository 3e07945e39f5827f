"""Which records of a batch fail by themselves: they are tried in halves, and alone at last. Pure.

Owns how many are tried next, and how often the first of them has failed. Invariants: a record is
suspected only after it has failed alone; each step that is committed goes on, so it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.client.dead_letters.letters import error_text

if TYPE_CHECKING:
    from collections.abc import Collection

    from raftmq.client.consumer.batch import AnyBatch


class Suspect(NamedTuple):
    """What is known of the records of one partition.

    Attributes:
        end_offset: before it stands one that fails.
        size: so many records are tried at a time.
        offset: of the first record that is not known to be fine.
        failures: of that record alone.
        error: with which it has failed.
    """

    end_offset: int
    size: int
    offset: int = -1
    failures: int = 0
    error: str = ""


NO_SUSPECT = Suspect(0, 0)


class Suspects:
    """By partition."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], Suspect] = {}

    @property
    def are_there(self) -> bool:
        return bool(self._found)

    @property
    def records_max(self) -> int:
        """Of the next batch, of which partition it may be."""
        return min((one.size for one in self._found.values()), default=1_000_000)

    def keep(self, partitions: Collection[tuple[str, int]]) -> None:
        """Others are another member's by now."""
        for key in [key for key in self._found if key not in partitions]:
            del self._found[key]

    def find(self, batch: AnyBatch) -> Suspect:
        found = self._found.get((batch.topic, batch.partition), NO_SUSPECT)
        return found if found.offset == batch.base_offset else found._replace(failures=0, error="")

    def on_failed(self, batch: AnyBatch, error: Exception) -> None:
        key, before = (batch.topic, batch.partition), self.find(batch)
        end_offset = max(before.end_offset, batch.last_offset + 1)
        if len(batch) > 1:
            half = len(batch) // 2
            found = before._replace(end_offset=end_offset, size=half, offset=batch.base_offset)
        else:
            failures = before.failures + 1
            found = Suspect(end_offset, 1, batch.base_offset, failures, error_text(error))
        self._found[key] = found

    def on_done(self, batch: AnyBatch) -> None:
        """Committed: more at a time again, so that many records behind it take few steps."""
        key = batch.topic, batch.partition
        found = self._found.get(key)
        # The transaction before may be committed after the next one has failed.
        if found is None or batch.base_offset < found.offset:
            return
        if batch.last_offset + 1 >= found.end_offset:
            del self._found[key]
        else:
            self._found[key] = Suspect(found.end_offset, found.size * 2, batch.last_offset + 1)
